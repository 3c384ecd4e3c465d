"""Fast language-model ops for the CPU: same names and results as `reference_lm.py`.

A token's result does not depend on the batch or the chunk it comes in, to the bit. The compiler sees a row's loop in
several places (with threads and without, few rows and many), and free to reorder sums it would do so differently in
each; so no function here may reorder (`reassoc`), and sums are written in the lanes they go in.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from .cpu_int8 import WORTH_THREADS, multiply_groups, quantize_row
from .cpu_tts import exp_f32
from .reference_int8 import Int8Matrix, activation_limit
from .reference_lm import rotary_table

__all__ = [
    "add_rms_norm",
    "argmax_rows",
    "gated",
    "gated_linear_residual",
    "linear_residual",
    "norm_linear",
    "rms_norm",
    "rotary_table",
    "rotate_heads",
    "rotate_qkv",
]

F32 = NDArray[np.float32]
f32 = np.float32
_JIT = {"cache": True, "nogil": True, "fastmath": {"nnan", "ninf", "nsz"}, "error_model": "numpy"}


@nb.njit(**_JIT)
def _sum(row):  # type: ignore[no-untyped-def]
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = f32(0.0)
    whole = row.shape[0] // 8 * 8
    for c in range(0, whole, 8):
        a0 += row[c]
        a1 += row[c + 1]
        a2 += row[c + 2]
        a3 += row[c + 3]
        a4 += row[c + 4]
        a5 += row[c + 5]
        a6 += row[c + 6]
        a7 += row[c + 7]
    for c in range(whole, row.shape[0]):
        a0 += row[c]
    return ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))


@nb.njit(**_JIT)
def _inverse_rms(row, eps):  # type: ignore[no-untyped-def]
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = f32(0.0)
    whole = row.shape[0] // 8 * 8
    for c in range(0, whole, 8):
        a0 += row[c] * row[c]
        a1 += row[c + 1] * row[c + 1]
        a2 += row[c + 2] * row[c + 2]
        a3 += row[c + 3] * row[c + 3]
        a4 += row[c + 4] * row[c + 4]
        a5 += row[c + 5] * row[c + 5]
        a6 += row[c + 6] * row[c + 6]
        a7 += row[c + 7] * row[c + 7]
    for c in range(whole, row.shape[0]):
        a0 += row[c] * row[c]
    total = ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))
    return f32(1.0) / np.sqrt(total / f32(row.shape[0]) + f32(eps))


@nb.njit(**_JIT)
def _rms_norm(x, weight, eps, out):  # type: ignore[no-untyped-def]
    for m in range(x.shape[0]):
        row, to = x[m], out[m]
        scale = _inverse_rms(row, eps)
        for c in range(row.shape[0]):
            to[c] = row[c] * scale * weight[c]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """RMS norm of each row; see the reference."""
    out = np.empty(x.shape, np.float32)
    _rms_norm(x, weight, eps, out)
    return out


@nb.njit(**_JIT)
def _add_rms_norm(x, y, weight, eps):  # type: ignore[no-untyped-def]
    for m in range(x.shape[0]):
        row, to = y[m], x[m]
        scale = _inverse_rms(row, eps)
        for c in range(row.shape[0]):
            to[c] += row[c] * scale * weight[c]


def add_rms_norm(x: F32, y: F32, weight: F32, eps: float) -> F32:
    """x + rms_norm(y), in place of x; see the reference."""
    _add_rms_norm(x, y, weight, eps)
    return x


@nb.njit(**_JIT)
def _rotate_heads(x, column, table, positions, norm, has_norm, eps, out):  # type: ignore[no-untyped-def]
    rows, heads, size = out.shape
    half = size // 2
    for m in range(rows):
        cosines, sines = table[positions[m], :half], table[positions[m], half:]
        for h in range(heads):
            row, to = x[m, column + h * size : column + (h + 1) * size], out[m, h]
            if has_norm:
                scale = _inverse_rms(row, eps)
                for i in range(size):
                    to[i] = row[i] * scale * norm[i]
            else:
                for i in range(size):
                    to[i] = row[i]
            first, second = to[:half], to[half:]
            for i in range(half):
                a, b = first[i], second[i]
                first[i] = a * cosines[i] - b * sines[i]
                second[i] = b * cosines[i] + a * sines[i]


_NO_NORM = np.zeros(0, np.float32)


def rotate_heads(
    x: F32, column: int, heads: int, table: F32, positions: NDArray[np.int64], norm: F32 | None, eps: float
) -> F32:
    """Optional head norm and rotary embedding; see the reference."""
    out = np.empty((x.shape[0], heads, table.shape[1]), np.float32)
    _rotate_heads(x, column, table, positions, _NO_NORM if norm is None else norm, norm is not None, eps, out)
    return out


@nb.njit(**_JIT)
def _rotate_qkv(x, q_heads, table, positions, q_norm, k_norm, eps, q, k, v):  # type: ignore[no-untyped-def]
    _rotate_heads(x, 0, table, positions, q_norm, q_norm.shape[0] > 0, eps, q)
    _rotate_heads(x, q_heads * q.shape[2], table, positions, k_norm, k_norm.shape[0] > 0, eps, k)
    rows, heads, size = v.shape
    for m in range(rows):
        for h in range(heads):
            row, to = x[m, (q_heads + heads + h) * size : (q_heads + heads + h + 1) * size], v[m, h]
            for i in range(size):
                to[i] = row[i]


def rotate_qkv(
    x: F32, heads: int, kv_heads: int, table: F32, positions: NDArray[np.int64],
    q_norm: F32 | None, k_norm: F32 | None, eps: float,
) -> tuple[F32, F32, F32]:  # fmt: skip
    """Queries, keys and values out of one product, each contiguous; see the reference."""
    rows, size = x.shape[0], table.shape[1]
    q, k, v = (np.empty((rows, n, size), np.float32) for n in (heads, kv_heads, kv_heads))
    q_norm, k_norm = _NO_NORM if q_norm is None else q_norm, _NO_NORM if k_norm is None else k_norm
    _rotate_qkv(x, heads, table, positions, q_norm, k_norm, eps, q, k, v)
    return q, k, v


@nb.njit(**_JIT)
def _gated_row(x, gelu, to):  # type: ignore[no-untyped-def]
    width = to.shape[0]
    gate, up = x[:width], x[width:]
    if gelu:
        for i in range(width):
            g = gate[i]
            z = f32(1.5957691216) * (g + f32(0.044715) * g * g * g)  # (1 + tanh(z / 2)) / 2 = 1 / (1 + e^-z)
            to[i] = g / (f32(1.0) + exp_f32(-z)) * up[i]
    else:
        for i in range(width):
            to[i] = gate[i] / (f32(1.0) + exp_f32(-gate[i])) * up[i]


@nb.njit(**_JIT)
def _gated(x, gelu, out):  # type: ignore[no-untyped-def]
    for m in range(x.shape[0]):
        _gated_row(x[m], gelu, out[m])


def gated(x: F32, activation: str) -> F32:
    """activation(gate) * up; see the reference."""
    out = np.empty((x.shape[0], x.shape[1] // 2), np.float32)
    _gated(x, _is_gelu(activation), out)
    return out


def _is_gelu(activation: str) -> bool:
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, is {activation!r}")
    return activation == "gelu_tanh"


# A linear layer with what comes before and after it, in one call: at one row a call costs as much as a small norm;
# at many rows the norms are shared between the threads like the product.
_PLAIN, _NORM, _SILU, _GELU = 0, 1, 2, 3


@nb.njit(**_JIT)
def _prepare(x, before, norm, eps, limit, q, scale, first, last):  # type: ignore[no-untyped-def]
    """Rows first..last-1 of x, normed or gated, as integers."""
    row = np.empty(q.shape[1], np.float32)
    for m in range(first, last):
        if before == _NORM:
            inverse = _inverse_rms(x[m], eps)
            for c in range(x.shape[1]):
                row[c] = x[m, c] * inverse * norm[c]
            scale[m] = quantize_row(row[: x.shape[1]], limit, q[m])
        elif before == _PLAIN:
            scale[m] = quantize_row(x[m], limit, q[m])
        else:
            width = x.shape[1] // 2
            _gated_row(x[m], before == _GELU, row[:width])
            scale[m] = quantize_row(row[:width], limit, q[m])


@nb.njit(**_JIT)
def _add(residual, y, after_norm, eps, first, last):  # type: ignore[no-untyped-def]
    """Adds rows first..last-1 of y, which may be padded, to the residual, normed if there is a norm."""
    for m in range(first, last):
        to = residual[m]
        row = y[m, : to.shape[0]]
        if after_norm.shape[0] > 0:
            inverse = _inverse_rms(row, eps)
            for c in range(to.shape[0]):
                to[c] += row[c] * inverse * after_norm[c]
        else:
            for c in range(to.shape[0]):
                to[c] += row[c]


@nb.njit(**_JIT)
def _fused_serial(x, before, norm, packed, scale, q, x_scale, y, residual, after_norm, eps, limit):  # type: ignore[no-untyped-def]
    _prepare(x, before, norm, eps, limit, q, x_scale, 0, x.shape[0])
    multiply_groups(
        q.ctypes.data, x.shape[0], packed.shape[1], packed.ctypes.data, x_scale.ctypes.data, scale.ctypes.data,
        y.ctypes.data, y.shape[1] * 4, 0, packed.shape[0],
    )  # fmt: skip
    _add(residual, y, after_norm, eps, 0, residual.shape[0])


@nb.njit(parallel=True, **_JIT)
def _fused_parallel(x, before, norm, packed, scale, q, x_scale, y, residual, after_norm, eps, limit, parts):  # type: ignore[no-untyped-def]
    rows, pairs, groups = x.shape[0], packed.shape[1], packed.shape[0]
    shared = rows >= 8  # below, a round of the threads costs more than the rows
    if shared:
        for part in nb.prange(parts):
            _prepare(x, before, norm, eps, limit, q, x_scale, rows * part // parts, rows * (part + 1) // parts)
    else:
        _prepare(x, before, norm, eps, limit, q, x_scale, 0, rows)
    q_at, w_at, xs_at = q.ctypes.data, packed.ctypes.data, x_scale.ctypes.data
    ws_at, y_at, stride = scale.ctypes.data, y.ctypes.data, y.shape[1] * 4
    step = ((groups + parts - 1) // parts + 3) // 4 * 4
    for part in nb.prange(parts):
        first, last = part * step, min(groups, (part + 1) * step)
        multiply_groups(q_at, rows, pairs, w_at, xs_at, ws_at, y_at, stride, first, last)
    count = residual.shape[0]
    if shared:
        for part in nb.prange(parts):
            _add(residual, y, after_norm, eps, count * part // parts, count * (part + 1) // parts)
    else:
        _add(residual, y, after_norm, eps, 0, count)


_NO_ROWS = np.zeros((0, 0), np.float32)


def _fused(x: F32, before: int, norm: F32, weight: Int8Matrix, residual: F32, after_norm: F32, eps: float) -> F32:
    rows, (groups, pairs) = x.shape[0], weight.packed.shape[:2]
    y = np.empty((rows, groups * 8), np.float32)
    q, x_scale = np.empty((rows, pairs * 2), np.int16), np.empty(rows, np.float32)
    limit, parts = activation_limit(weight.columns), nb.get_num_threads()
    arrays = (x, before, norm, weight.packed, weight.scale, q, x_scale, y, residual, after_norm, eps, limit)
    if parts == 1 or weight.packed.size * rows < WORTH_THREADS:
        _fused_serial(*arrays)
    else:
        _fused_parallel(*arrays, parts)
    return y[:, : weight.rows] if groups * 8 != weight.rows else y


def norm_linear(x: F32, norm: F32, eps: float, weight: Int8Matrix) -> F32:
    """rms_norm, then linear_int8; see the reference."""
    return _fused(x, _NORM, norm, weight, _NO_ROWS, _NO_NORM, eps)


def linear_residual(x: F32, y: F32, weight: Int8Matrix, norm: F32 | None, eps: float) -> F32:
    """x + linear_int8(y), normed where there is a norm, in place of x; see the reference."""
    _fused(y, _PLAIN, _NO_NORM, weight, x, _NO_NORM if norm is None else norm, eps)
    return x


def gated_linear_residual(x: F32, y: F32, activation: str, weight: Int8Matrix, norm: F32 | None, eps: float) -> F32:
    """x + linear_int8(gated(y)), normed where there is a norm, in place of x; see the reference."""
    before = _GELU if _is_gelu(activation) else _SILU
    _fused(y, before, _NO_NORM, weight, x, _NO_NORM if norm is None else norm, eps)
    return x


def argmax_rows(x: F32) -> NDArray[np.int64]:
    """Index of the largest value of each row (NumPy's argmax is vector code); see the reference."""
    result: NDArray[np.int64] = np.argmax(x, axis=1)
    return result
