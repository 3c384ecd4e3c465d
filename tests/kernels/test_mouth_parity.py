"""Every speech-synthesis and language-model op of `cpu` against its definition in `reference`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from bargein.kernels import cpu_block, cpu_int8, cpu_lm, cpu_tts, reference_int8, reference_lm, reference_tts


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("taps", "dilation"), [(5, 1), (7, 1), (7, 4)])
def test_depthwise_conv_norm(taps: int, dilation: int) -> None:
    x = normal(20 + (taps - 1) * dilation, 48)
    args = (x, normal(taps, 48, seed=1), normal(48, seed=2), normal(48, seed=3), normal(48, seed=4), dilation)
    np.testing.assert_allclose(
        cpu_tts.depthwise_conv_norm(*args), reference_tts.depthwise_conv_norm(*args), rtol=1e-4, atol=1e-5
    )


def test_row_norm_gelu_and_residual() -> None:
    x, a, b = normal(9, 40), normal(40, seed=1), normal(40, seed=2)
    np.testing.assert_allclose(cpu_tts.row_norm(x, a, b), reference_tts.row_norm(x, a, b), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cpu_tts.bias_gelu(4 * x, a), reference_tts.bias_gelu(4 * x, a), atol=2e-6)
    y = normal(9, 40, seed=5)
    expected = reference_tts.scaled_residual(x, y, a, b)
    np.testing.assert_allclose(cpu_tts.scaled_residual(x, y.copy(), a, b), expected, rtol=1e-5, atol=1e-6)


def matrix(rows: int, columns: int, seed: int) -> reference_int8.Int8Matrix:
    return reference_int8.pack_rows(*reference_int8.quantize_rows(normal(rows, columns, seed=seed) / columns**0.5))


def block(width: int, hidden: int, taps: int, seed: int = 0) -> reference_tts.ConvBlock:
    c = [normal(width, seed=seed + n) for n in range(5)]
    up, down = matrix(hidden, width, seed), matrix(width, hidden, seed + 1)
    return reference_tts.ConvBlock(normal(taps, width), *c[:3], up, normal(hidden, seed=seed), down, *c[3:])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "taps", "dilation"), [(1, 7, 1), (17, 5, 1), (130, 7, 4)])
def test_conv_block(rows: int, taps: int, dilation: int, threads: int) -> None:
    """Also many rows on two threads: the shares meet without a seam."""
    x, b = normal(rows + (taps - 1) * dilation, 192), block(192, 384, taps)
    numba.set_num_threads(threads)
    try:
        got = cpu_block.conv_block(x, b, dilation)
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    np.testing.assert_allclose(got, reference_tts.conv_block(x, b, dilation), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("size", [1, 4, 30])
def test_conv_stack_piece_by_piece_is_the_whole(size: int) -> None:
    """Bit for bit on the CPU, and near the reference; the pieces may be shorter than what a block needs to see."""
    x, blocks = normal(41, 64), [block(64, 128, 7, seed) for seed in (0, 10, 20)]

    def joined(stack: Any, size: int) -> np.ndarray:
        held, counts = np.zeros((3, 6, 64), np.float32), np.full(3, 3)
        return np.concatenate([stack(x[a : a + size], held, counts, blocks, a + size >= len(x)) for a in range(0, 41, size)])

    whole = joined(cpu_block.conv_stack, 41)
    assert whole.shape == x.shape and np.array_equal(joined(cpu_block.conv_stack, size), whole)
    np.testing.assert_allclose(joined(reference_tts.conv_stack, size), whole, rtol=1e-3, atol=1e-3)


def test_spread_conv_is_the_convolution_of_what_it_spreads() -> None:
    rows, place, tones = normal(5, 24), np.array([4, 0, 0, 1, 1, 1, 3, 2, 4]), normal(9, 2)
    weight, bias = normal(3, 26, 16), normal(16)
    taps = np.einsum("lc,kcd->lkd", rows, weight[:, :24])
    args = (np.ascontiguousarray(taps), place, tones, np.ascontiguousarray(weight[:, 24:]), bias)
    whole = np.concatenate([rows[place], tones], axis=1)
    want = bias + sum(whole[k : k + 7] @ weight[k] for k in range(3))
    np.testing.assert_allclose(reference_tts.spread_conv(*args), want, atol=1e-4)
    np.testing.assert_allclose(cpu_tts.spread_conv(*args), want, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 30, 130])
def test_encoder_layer(rows: int) -> None:
    c = [normal(64, seed=n) for n in range(6)]
    layer = reference_tts.EncoderLayer(
        c[0], c[1], matrix(192, 64, 1), normal(192, seed=7), matrix(64, 64, 2), c[2], c[3], c[4],
        matrix(128, 64, 3), normal(128, seed=8), matrix(64, 128, 4), c[5],
    )  # fmt: skip
    x = normal(rows, 64)
    got, want = cpu_block.encoder_layer(x, layer, 2), reference_tts.encoder_layer(x, layer, 2)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=5e-4)
    assert np.array_equal(x, normal(rows, 64)), "what it is given stays"


def test_encoder_attention() -> None:
    qkv = normal(31, 3 * 64)
    expected = reference_tts.encoder_attention(qkv, 2)
    np.testing.assert_allclose(cpu_tts.encoder_attention(qkv, 2), expected, rtol=1e-4, atol=1e-5)


def test_harmonic_source_follows_the_pitch() -> None:
    f0 = np.concatenate([np.zeros(5), np.linspace(80, 300, 40), np.zeros(5)]).astype(np.float32)
    expected = reference_tts.harmonic_source(f0)
    np.testing.assert_allclose(cpu_tts.harmonic_source(f0), expected, atol=0.03)  # of peaks over 100
    assert np.all(expected[:1000] == 0)


def test_gaussian_rows_are_normal_and_need_no_order() -> None:
    whole = cpu_tts.gaussian_rows(7, 0, 60, 601)
    np.testing.assert_allclose(whole, reference_tts.gaussian_rows(7, 0, 60, 601), atol=2e-5)
    np.testing.assert_array_equal(whole[20:], cpu_tts.gaussian_rows(7, 20, 40, 601))
    parts = np.concatenate([whole.real.ravel(), whole.imag.ravel()])
    assert abs(parts.mean()) < 0.02 and abs(parts.std() - 1) < 0.02
    assert not np.array_equal(whole, cpu_tts.gaussian_rows(8, 0, 60, 601))


def test_vocoder_spectrum_and_overlap_add() -> None:
    head = 2 * normal(12, 5 * 601)
    source, noise = cpu_tts.gaussian_rows(1, 0, 12, 601), cpu_tts.gaussian_rows(2, 0, 12, 601)
    expected = reference_tts.vocoder_spectrum(head, source, noise)
    got = cpu_tts.vocoder_spectrum(head, source, noise)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    window = np.hanning(1201)[:1200].astype(np.float32)
    for a, b in zip(
        cpu_tts.overlap_add(got, window, 300, normal(900)),
        reference_tts.overlap_add(got, window, 300, normal(900)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    signal = normal(12 * 300 + 1200)
    np.testing.assert_allclose(
        cpu_tts.stft_rows(signal, window, 300, 2, 9), reference_tts.stft_rows(signal, window, 300, 2, 9), atol=1e-4
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize(("outputs", "columns"), [(8, 2), (20, 7), (96, 64), (301, 640), (640, 2048)])
def test_linear_int8_is_exact(rows: int, outputs: int, columns: int) -> None:
    weight = reference_int8.pack_rows(*reference_int8.quantize_rows(normal(outputs, columns)))
    x = normal(rows, columns, seed=1)
    x[0] *= 100
    expected = reference_int8.linear_int8(x, weight)
    np.testing.assert_array_equal(cpu_int8.linear_int8(x, weight), expected)
    np.testing.assert_array_equal(cpu_int8.linear_int8(x, weight, threads=1), expected)
    plain = x @ reference_int8.unpack_rows(weight).T
    assert (np.abs(expected - plain).max(axis=1) <= 5e-3 * plain.std(axis=1)).all()


def test_linear_int8_takes_zeros_and_the_widest_sums() -> None:
    weight = reference_int8.pack_rows(np.full((8, 2048), 127, np.int8), np.ones(8, np.float32))
    x = np.stack([np.zeros(2048), np.ones(2048), -np.ones(2048)]).astype(np.float32)
    y = cpu_int8.linear_int8(x, weight)
    np.testing.assert_allclose(y, x.sum(axis=1, keepdims=True) * 127 * np.ones((1, 8)), rtol=1e-6)


def test_int8_rows_round_trip() -> None:
    plain = normal(21, 30)
    weight = reference_int8.pack_rows(*reference_int8.quantize_rows(plain))
    assert np.abs(reference_int8.unpack_rows(weight) - plain).max() <= np.abs(plain).max() / 127 * 0.51
    ids = np.array([20, 0, 7])
    np.testing.assert_array_equal(reference_int8.embedding_rows(weight, ids), reference_int8.unpack_rows(weight)[ids])


def test_norms_and_gates() -> None:
    x, y, w = normal(5, 64), normal(5, 64, seed=1), normal(64, seed=2)
    np.testing.assert_allclose(cpu_lm.rms_norm(x, w, 1e-6), reference_lm.rms_norm(x, w, 1e-6), rtol=1e-5, atol=1e-6)
    expected = reference_lm.add_rms_norm(x, y, w, 1e-6)
    np.testing.assert_allclose(cpu_lm.add_rms_norm(x.copy(), y, w, 1e-6), expected, rtol=1e-5, atol=1e-6)
    for activation in ("silu", "gelu_tanh"):
        np.testing.assert_allclose(cpu_lm.gated(5 * x, activation), reference_lm.gated(5 * x, activation), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="activation"):
        cpu_lm.gated(x, "relu")


@pytest.mark.parametrize("normed", [False, True])
def test_rotate_heads(normed: bool) -> None:
    table = reference_lm.rotary_table(50, 32, 10000.0)
    x, positions = normal(6, 200), np.arange(7, 13)
    args = (x, 16, 4, table, positions, normal(32, seed=3) if normed else None, 1e-6)
    np.testing.assert_allclose(cpu_lm.rotate_heads(*args), reference_lm.rotate_heads(*args), rtol=1e-4, atol=1e-5)


def test_argmax_takes_the_first_of_equals() -> None:
    x = np.array([[0, 3, 3, 1], [5, 5, 0, 0]], np.float32)
    assert cpu_lm.argmax_rows(x).tolist() == reference_lm.argmax_rows(x).tolist() == [1, 0]
