"""The language model's fast ops agree with their definitions; a row doesn't depend on its batch or its chunk."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels import cpu, reference
from bargein.kernels.reference import Int8Matrix

RNG = np.random.default_rng(11)
EPS = 1e-6


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def matrix(rows: int, columns: int) -> Int8Matrix:
    return reference.pack_rows(*reference.quantize_rows(normal(rows, columns)))


# Sizes: one group of outputs, some, an odd number of columns, and large enough for the threads.
SHAPES = [(8, 16), (44, 31), (520, 640)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 33])
def test_linear_int8_is_the_exact_integer_product_whatever_the_batch(rows: int, shape: tuple[int, int]) -> None:
    weight, x = matrix(*shape), normal(rows, shape[1])
    y = cpu.linear_int8(x, weight)
    np.testing.assert_allclose(y, reference.linear_int8(x, weight), rtol=1e-4, atol=2e-3)
    for m in range(rows):
        np.testing.assert_array_equal(cpu.linear_int8(x[m : m + 1], weight)[0], y[m])


@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("normed", [False, True])
def test_fused_layers_are_their_parts(rows: int, activation: str, normed: bool) -> None:
    into, out = matrix(1024, 320), matrix(320, 512)
    norm, after = normal(320), normal(320) if normed else None
    x = normal(rows, 320)
    y = cpu.norm_linear(x, norm, EPS, into)
    np.testing.assert_allclose(y, reference.norm_linear(x, norm, EPS, into), rtol=1e-3, atol=2e-2)
    gated = cpu.gated_linear_residual(x.copy(), y, activation, out, after, EPS)
    # The two round activations to integers apart, so that values next to a half may differ by one step.
    scale = float(np.abs(gated).max())
    expected = reference.gated_linear_residual(x.copy(), y, activation, out, after, EPS)
    np.testing.assert_allclose(gated, expected, rtol=1e-3, atol=1e-4 * scale)
    plain = cpu.linear_residual(x.copy(), y[:, :512].copy(), out, after, EPS)
    expected = reference.linear_residual(x.copy(), y[:, :512].copy(), out, after, EPS)
    np.testing.assert_allclose(plain, expected, rtol=1e-3, atol=1e-4 * float(np.abs(plain).max()))
    for m in range(rows):
        one = cpu.gated_linear_residual(x[m : m + 1].copy(), y[m : m + 1], activation, out, after, EPS)
        np.testing.assert_array_equal(one[0], gated[m])


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="activation"):
        cpu.gated_linear_residual(normal(1, 8), normal(1, 32), "relu", matrix(8, 16), None, EPS)


@pytest.mark.parametrize("normed", [False, True])
def test_rotate_qkv_agrees(normed: bool) -> None:
    table = cpu.rotary_table(64, 32, 10000.0)
    x, positions = normal(5, (6 + 2 * 2) * 32), np.array([0, 1, 2, 40, 63])
    norms = (normal(32), normal(32)) if normed else (None, None)
    fast = cpu.rotate_qkv(x, 6, 2, table, positions, *norms, EPS)
    for got, expected in zip(fast, reference.rotate_qkv(x, 6, 2, table, positions, *norms, EPS), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
