"""The device's ops have the names, the arguments and the results of `reference`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from bargein.kernels import reference
from bargein.kernels.gpu.ops import Ops
from bargein.kernels.gpu.standin import StandIn
from bargein.models import sampling

RNG = np.random.default_rng(3)
# What a device does otherwise: its cache is in pages (`rotary_paged`, `paged_decode`, `paged_prefill`), its head is read whole.
OTHERWISE = {
    "attend", "attend_pages", "rotate_heads", "rotate_qkv", "quantize_activations", "unpack_rows", "head_top", "sketch_of",
    "sketch_scores",
}  # fmt: skip


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def ops(launcher: Any) -> Ops:
    return Ops(StandIn(), launcher)


def test_every_op_is_there_with_its_arguments() -> None:
    names = {n for n, v in vars(reference).items() if inspect.isfunction(v)}
    assert {n for n in names if not hasattr(Ops, n)} == OTHERWISE
    for name in names - OTHERWISE:
        wanted = list(inspect.signature(getattr(reference, name)).parameters)
        given = [p for p in inspect.signature(getattr(Ops, name)).parameters if p != "self"]
        assert given[: len(wanted)] == wanted, name


def matrix(rows: int, columns: int) -> reference.Int8Matrix:
    return reference.pack_rows(*reference.quantize_rows(normal(rows, columns)))


def block() -> reference.ConvBlock:
    return reference.ConvBlock(
        normal(7, 16), normal(16), normal(16), normal(16), matrix(32, 16), normal(32), matrix(16, 32), normal(16), normal(16)
    )


def layer() -> reference.EncoderLayer:
    return reference.EncoderLayer(
        normal(32), normal(32), matrix(96, 32), normal(96), matrix(32, 32), normal(32),
        normal(32), normal(32), matrix(48, 32), normal(48), matrix(32, 48), normal(32),
    )  # fmt: skip


CASES = {
    "linear": lambda: (normal(3, 24), normal(10, 24), normal(10)),
    "layer_norm": lambda: (normal(3, 20) + 2, normal(20), normal(20)),
    "row_norm": lambda: (normal(3, 20) + 2, normal(20), normal(20)),
    "gelu": lambda: (normal(3, 20) * 3,),
    "sigmoid": lambda: (normal(3, 20) * 3,),
    "softmax": lambda: (normal(3, 20) * 3,),
    "log_softmax": lambda: (normal(3, 20) * 3,),
    "windows": lambda: (normal(9, 5), 3, 2, 1),
    "conv1d": lambda: (normal(9, 5), normal(6, 3, 5), normal(6), 2, 1),
    "conv1d wide": lambda: (normal(9, 5), normal(6, 4, 5), normal(6)),
    "attention": lambda: (normal(7, 32), normal(9, 32), normal(9, 32), 2, 0.3),
    "attention views": lambda: (*np.split(normal(7, 96), 3, axis=1), 2, 0.3),
    "attention_cross": lambda: (normal(3, 32), normal(2, 9, 16), normal(2, 9, 16), 0.3),
    "attention_cached": lambda: (
        normal(3, 32), normal(2, 8, 32), normal(2, 8, 32), np.array([1, 0, 1]), np.array([3, 8, 1]), 2, 0.3,
    ),
    "encoder_attention": lambda: (normal(7, 96), 2),
    "lstm_cell": lambda: (normal(2, 6), normal(2, 4), normal(2, 4), normal(16, 6), normal(16, 4), normal(16), normal(16)),
    "log_mel_frames": lambda: (normal(900), reference.mel_filters(n_mels=8)),
    "top_log_probs": lambda: (normal(2, 50), 4),
    "argmax_rows": lambda: (normal(4, 50),),
    "rms_norm": lambda: (normal(3, 20), normal(20), 1e-6),
    "add_rms_norm": lambda: (normal(3, 20), normal(3, 20), normal(20), 1e-6),
    "gated": lambda: (normal(3, 20), "silu"),
    "linear_int8": lambda: (normal(3, 30), matrix(12, 30)),
    "linear_int8 many": lambda: (normal(110, 30), matrix(12, 30)),
    "norm_linear": lambda: (normal(3, 30), normal(30), 1e-6, matrix(12, 30)),
    "linear_residual": lambda: (normal(3, 12), normal(3, 30), matrix(12, 30), None, 1e-6),
    "linear_residual normed": lambda: (normal(3, 12), normal(3, 30), matrix(12, 30), normal(12), 1e-6),
    "gated_linear_residual": lambda: (normal(3, 12), normal(3, 60), "gelu_tanh", matrix(12, 30), None, 1e-6),
    "gated_linear_residual normed": lambda: (normal(3, 12), normal(3, 60), "silu", matrix(12, 30), normal(12), 1e-6),
    "embedding_rows": lambda: (matrix(12, 30), np.array([3, 0, 11])),
    "rotary_table": lambda: (9, 16, 1000.0),
    "bias_gelu": lambda: (normal(3, 20), normal(20)),
    "scaled_residual": lambda: (normal(3, 20), normal(3, 20), normal(20), normal(20)),
    "depthwise_conv_norm": lambda: (normal(20, 6), normal(7, 6), normal(6), normal(6), normal(6), 2),
    "spread_conv": lambda: (normal(5, 3, 16), np.array([4, 0, 0, 1, 3, 2, 4]), normal(7, 2), normal(3, 2, 16), normal(16)),
    "conv_block": lambda: (normal(20, 16), block(), 2),
    "encoder_layer": lambda: (normal(7, 32), layer(), 2),
    "harmonic_source": lambda: (np.array([100, 150, 0, 90], np.float32), 40),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_op_is_the_references(case: str, ops: Ops) -> None:
    name = case.split()[0]
    args = CASES[case]()
    # Weights and activations go over before; small integers are taken from the host.
    there = [isinstance(a, tuple) or (isinstance(a, np.ndarray) and a.dtype == np.float32) for a in args]
    given = [ops.place(a) if placed else a for a, placed in zip(args, there, strict=True)]
    want, got = getattr(reference, name)(*args), getattr(ops, name)(*given)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        g = ops.to_host(g)
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=2e-3, atol=3e-3 * max(1e-3, float(np.abs(w).max())))


def test_blocks_over_pieces(ops: Ops) -> None:
    x, blocks = normal(20, 16), [block(), block()]
    there = [ops.place(b) for b in blocks]

    def joined(stack: Any, zeros: Any, blocks: Any) -> np.ndarray:
        held, counts = zeros((2, 6, 16)), np.full(2, 3)
        return np.concatenate([ops.to_host(stack(x[a : a + 5], held, counts, blocks, a == 15)) for a in (0, 5, 10, 15)])

    got, want = joined(ops.conv_stack, ops.zeros, there), joined(reference.conv_stack, reference.zeros, blocks)
    assert got.shape == want.shape == x.shape
    np.testing.assert_allclose(got, want, atol=5e-3 * float(np.abs(want).max()))


def test_spectra_and_back(ops: Ops) -> None:
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(80) / 80)).astype(np.float32)
    padded, tail, head = normal(80 + 20 * 6), normal(60), normal(4, 5 * 41)
    spectra, noise = reference.stft_rows(padded, window, 20, 1, 5), reference.gaussian_rows(7, 3, 4, 41)
    mixed = reference.vocoder_spectrum(head, spectra, noise)
    want = reference.overlap_add(mixed, window, 20, tail)
    there = ops.stft_rows(ops.to_device(padded), window, 20, 1, 5), ops.gaussian_rows(7, 3, 4, 41)
    got = ops.overlap_add(ops.vocoder_spectrum(ops.to_device(head), *there), window, 20, ops.to_device(tail))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(ops.to_host(g), w, atol=1e-4 * float(np.abs(w).max()))


def test_sampling_draws_what_the_host_draws(ops: Ops) -> None:
    logits, picks = normal(6, 3000) * 4, RNG.random(6).astype(np.float32)
    settings = [sampling.Sampling(0.8, 40, 0.9, 0.0), sampling.Sampling(1.0), sampling.Sampling(1.5, 0, 0.5, 0.02),
                sampling.Sampling(0.1, 5), sampling.Sampling(2.0, 3), sampling.Sampling(0.7, 0, 1.0, 0.3)]  # fmt: skip

    class Fixed:
        def __init__(self, value: float) -> None:
            self.random = lambda: value

    want = []
    for row, s, u in zip(logits, settings, picks, strict=True):
        state = sampling.init_state(s)
        state.random = Fixed(float(u))  # type: ignore[assignment]
        want.append(sampling.choose(row, s, state).token)
    numbers = [np.array([getattr(s, n) for s in settings]) for n in ("temperature", "top_k", "top_p", "min_p")]
    assert ops.to_host(ops.sample(logits, *numbers, picks)).tolist() == want


def test_state_of_sessions_moves_only_where_it_may(ops: Ops) -> None:
    state = normal(5, 7)
    there = ops.to_device(state)
    got = ops.to_host(ops.gather_state(there, [4, 0, 2], [0, 1, 0]))
    np.testing.assert_array_equal(got, np.stack([state[4], np.zeros(7), state[2]]))
    new = normal(2, 7)
    ops.scatter_state(new, [1, 3], [1, 0], there)
    state[1] = new[0]
    np.testing.assert_array_equal(ops.to_host(there), state)


def test_the_stand_in_is_as_strict_as_cupy(ops: Ops) -> None:
    there = ops.to_device(normal(3))
    for wrong in (lambda: there + normal(3), lambda: np.concatenate([there, normal(3)]), lambda: np.asarray(there),
                  lambda: there[np.array([0])], lambda: there.__setitem__(0, normal(1))):  # fmt: skip
        with pytest.raises(TypeError, match=r"numpy.ndarray|NumPy array"):
            wrong()


def test_what_no_kernel_takes_is_refused(ops: Ops) -> None:
    with pytest.raises(ValueError, match="activation must be"):
        ops.gated(normal(1, 8), "relu")
    with pytest.raises(ValueError, match="head size must be a multiple of 16"):
        ops.paged_decode(ops.to_device(normal(1, 1, 24)), ops.to_device(normal(4, 1, 24)), None, None, None, 1, 1, 0, 1.0)
    with pytest.raises(ValueError, match="at most 128"):
        ops.attention(normal(2, 160), normal(2, 160), normal(2, 160), 1, 1.0)
    with pytest.raises(ValueError, match="vocabulary"):
        ops.candidates(ops.xp.zeros((1, 600_000)), np.ones(1, np.float32))
