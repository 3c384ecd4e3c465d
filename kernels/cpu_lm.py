"""Fast language-model ops for the CPU: same names and results as `reference_lm.py`."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from .cpu_tts import exp_f32
from .reference_lm import rotary_table

__all__ = ["add_rms_norm", "argmax_rows", "attend", "gated", "rms_norm", "rotary_table", "rotate_heads"]

F32 = NDArray[np.float32]
f32 = np.float32
_JIT = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy"}


@nb.njit(**_JIT)
def _inverse_rms(row, eps):  # type: ignore[no-untyped-def]
    total = f32(0.0)
    for c in range(row.shape[0]):
        total += row[c] * row[c]
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
def _attend_one(q, keys, values, first, last, scale, out):  # type: ignore[no-untyped-def]
    """One token: q, out [H, d] over rows first..last-1 of keys, values [G, S, d]."""
    heads, size = q.shape
    group = heads // keys.shape[0]
    count = last - first
    scores = np.empty(count, np.float32)
    for h in range(heads):
        row, k, v, to = q[h], keys[h // group], values[h // group], out[h]
        top = f32(-3.0e38)
        for j in range(count):
            key = k[first + j]
            dot = f32(0.0)
            for i in range(size):
                dot += row[i] * key[i]
            scores[j] = dot * scale
            top = max(top, scores[j])
        total = f32(0.0)
        for j in range(count):
            scores[j] = exp_f32(scores[j] - top)
        for j in range(count):
            total += scores[j]
        inverse = f32(1.0) / total
        for i in range(size):
            to[i] = f32(0.0)
        for j in range(count):
            weight, value = scores[j] * inverse, v[first + j]
            for i in range(size):
                to[i] += weight * value[i]


@nb.njit(**_JIT)
def _attend_rows(q, keys, values, start, scale, window, out):  # type: ignore[no-untyped-def]
    for m in range(q.shape[0]):
        last = start + m + 1
        first = max(0, last - window) if window > 0 else 0
        _attend_one(q[m], keys, values, first, last, scale, out[m])


@nb.njit(**_JIT)
def _masked_softmax(scores, rows, start, first, window):  # type: ignore[no-untyped-def]
    """scores [group * rows, n]: row r is token r % rows at start + r % rows, column j the key at first + j."""
    for r in range(scores.shape[0]):
        position = start + r % rows
        low = max(0, position - window + 1 - first) if window > 0 else 0
        high = position + 1 - first
        row = scores[r]
        top = f32(-3.0e38)
        for j in range(low, high):
            top = max(top, row[j])
        for j in range(low, high):
            row[j] = exp_f32(row[j] - top)
        total = f32(0.0)
        for j in range(low, high):
            total += row[j]
        inverse = f32(1.0) / total
        for j in range(low, high):
            row[j] *= inverse
        row[:low] = f32(0.0)
        row[high:] = f32(0.0)


def attend(q: F32, keys: F32, values: F32, start: int, scale: float, window: int) -> F32:
    """Causal attention over a cache; see the reference. Up to four tokens in one loop, more through BLAS."""
    rows, heads, size = q.shape
    out = np.empty((rows, heads, size), np.float32)
    if rows <= 4:
        _attend_rows(q, keys, values, start, f32(scale), window, out)
        return out.reshape(rows, heads * size)
    group = heads // keys.shape[0]
    last = start + rows
    first = max(0, start + 1 - window) if window else 0
    for g in range(keys.shape[0]):
        part = q[:, g * group : (g + 1) * group].transpose(1, 0, 2).reshape(group * rows, size) * f32(scale)
        scores = part @ keys[g, first:last].T  # [group * M, n]
        _masked_softmax(scores, rows, start, first, window)
        mixed = (scores @ values[g, first:last]).reshape(group, rows, size)
        out[:, g * group : (g + 1) * group] = mixed.transpose(1, 0, 2)
    return out.reshape(rows, heads * size)


@nb.njit(**_JIT)
def _gated(x, gelu, out):  # type: ignore[no-untyped-def]
    width = out.shape[1]
    for m in range(x.shape[0]):
        gate, up, to = x[m, :width], x[m, width:], out[m]
        if gelu:
            for i in range(width):
                g = gate[i]
                z = f32(1.5957691216) * (g + f32(0.044715) * g * g * g)  # (1 + tanh(z / 2)) / 2 = 1 / (1 + e^-z)
                to[i] = g / (f32(1.0) + exp_f32(-z)) * up[i]
        else:
            for i in range(width):
                to[i] = gate[i] / (f32(1.0) + exp_f32(-gate[i])) * up[i]


def gated(x: F32, activation: str) -> F32:
    """activation(gate) * up; see the reference."""
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, is {activation!r}")
    out = np.empty((x.shape[0], x.shape[1] // 2), np.float32)
    _gated(x, activation == "gelu_tanh", out)
    return out


def argmax_rows(x: F32) -> NDArray[np.int64]:
    """Index of the largest value of each row (NumPy's argmax is vector code); see the reference."""
    result: NDArray[np.int64] = np.argmax(x, axis=1)
    return result
