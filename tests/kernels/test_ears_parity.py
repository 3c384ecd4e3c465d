"""The fast ops agree with their definitions, and rows of a batch don't see each other."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels import cpu, reference

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


CASES = {
    "linear": lambda: (normal(5, 48), normal(32, 48), normal(32)),
    "layer_norm small": lambda: (normal(3, 384) * 5 + 2, normal(384), normal(384)),
    "layer_norm large": lambda: (normal(300, 384) * 5 + 2, normal(384), normal(384)),
    "gelu small": lambda: (normal(4, 100) * 4,),
    "gelu large": lambda: (normal(400, 100) * 4,),
    "softmax small": lambda: (normal(4, 100) * 10,),
    "softmax large": lambda: (normal(3, 400, 100) * 10,),
    "log_softmax": lambda: (normal(5, 51864) * 4,),
    "windows": lambda: (normal(51, 20), 3, 2, 1),
    "conv1d": lambda: (normal(51, 20), normal(16, 3, 20), normal(16), 1, 1),
    "conv1d strided": lambda: (normal(51, 20), normal(16, 3, 20), normal(16), 2, 1),
    "attention": lambda: (normal(301, 64), normal(411, 64), normal(411, 64), 4, 0.25),
    "attention slices": lambda: (*np.split(normal(70, 384), 3, axis=1), 2, 0.1),
    "attention_cross few": lambda: (normal(3, 64), normal(4, 211, 16), normal(4, 211, 16), 0.25),
    "attention_cross many": lambda: (normal(20, 64), normal(4, 211, 16), normal(4, 211, 16), 0.25),
    "attention_cached": lambda: (
        normal(3, 64),
        normal(2, 40, 64),
        normal(2, 40, 64),
        np.array([1, 0, 1]),
        np.array([3, 40, 7]),
        4,
        0.25,
    ),
    "lstm_cell": lambda: (
        normal(3, 24),
        normal(3, 16),
        normal(3, 16),
        normal(64, 24),
        normal(64, 16),
        normal(64),
        normal(64),
    ),
    "log_mel_frames": lambda: (normal(16000) * 0.1, reference.mel_filters()),
    "top_log_probs": lambda: (normal(5, 5190) * 4, 7),
    "sigmoid": lambda: (normal(4, 100) * 10,),
}


@pytest.mark.parametrize("case", CASES)
def test_cpu_is_reference(case: str) -> None:
    name = case.split()[0]
    args = CASES[case]()
    want = getattr(reference, name)(*args)
    got = getattr(cpu, name)(*args)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        assert g.dtype == w.dtype and g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=3e-4, atol=3e-5)


def test_log_softmax_keeps_suppressed_entries() -> None:
    x = normal(2, 100)
    x[:, :10] = -np.inf
    assert np.all(np.isneginf(cpu.log_softmax(x)[:, :10]))
    np.testing.assert_allclose(np.exp(cpu.log_softmax(x)).sum(1), 1, rtol=1e-5)


def vad_weights() -> reference.VadWeights:
    def w(*shape: int) -> np.ndarray:
        return normal(*shape) / np.float32(np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 10))

    return reference.VadWeights(
        w(258, 256), w(128, 3, 129), w(128), w(64, 3, 128), w(64), w(64, 3, 64), w(64), w(128, 3, 64), w(128),
        w(512, 256), w(512), w(1, 128)[0], w(1),
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 3, 4, 9])
def test_vad_step_is_reference_and_rows_are_independent(n: int) -> None:
    weights = vad_weights()
    x, h, c = normal(n, 576), normal(n, 128), normal(n, 128)
    want = reference.vad_step(weights, x, h, c)
    got = cpu.vad_step(weights, x, h, c)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=2e-5)
    for i in range(n):
        alone = cpu.vad_step(weights, x[i : i + 1], h[i : i + 1], c[i : i + 1])
        for g, a in zip(got, alone, strict=True):
            assert np.array_equal(g[i], a[0])  # bit for bit
