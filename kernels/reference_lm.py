"""Definitions of the language-model ops in plain NumPy, float32. `cpu_lm.py` has the same names.

Rows are tokens: [M, C], C-contiguous. A cache of keys or values is [kv_heads, capacity, head_size].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .reference_int8 import Int8Matrix, linear_int8

F32 = NDArray[np.float32]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x / sqrt(mean(x^2) + eps) * weight, each row (Zhang and Sennrich 2019). x [M, C], weight [C] -> [M, C]."""
    mean = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return (x / np.sqrt(mean + eps) * weight).astype(np.float32)


def add_rms_norm(x: F32, y: F32, weight: F32, eps: float) -> F32:
    """x + rms_norm(y): the residual of a block with a norm after it. [M, C] -> [M, C]; may reuse x's memory."""
    result: F32 = x + rms_norm(y, weight, eps)
    return result


def rotary_table(positions: int, head_size: int, base: float) -> F32:
    """cos and sin of p * base^(-2 i / d): [positions, d], the first d/2 columns cosines, the rest sines (RoFormer)."""
    angles = np.arange(positions)[:, None] * base ** (-np.arange(0, head_size, 2) / head_size)[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rotate_heads(
    x: F32, column: int, heads: int, table: F32, positions: NDArray[np.int64], norm: F32 | None, eps: float
) -> F32:
    """Optional RMS norm of each head, then rotary position embedding on the two halves of each head.

    The heads are columns `column` .. of x [M, C]; table [P, d] from `rotary_table`, positions [M], norm [d] or None
    -> [M, heads, d], contiguous. (a, b) -> (a cos - b sin, b cos + a sin) with a, b the halves.
    """
    rows, half = x.shape[0], table.shape[1] // 2
    y = x[:, column : column + heads * 2 * half].reshape(rows, heads, 2 * half)
    if norm is not None:
        y = rms_norm(y, norm, eps)
    cos, sin = table[positions, None, :half], table[positions, None, half:]
    a, b = y[..., :half], y[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(np.float32)


def rotate_qkv(
    x: F32, heads: int, kv_heads: int, table: F32, positions: NDArray[np.int64],
    q_norm: F32 | None, k_norm: F32 | None, eps: float,
) -> tuple[F32, F32, F32]:  # fmt: skip
    """Queries [M, heads, d] and keys [M, kv_heads, d] through `rotate_heads`, values [M, kv_heads, d] as they are.

    x [M, (heads + 2 kv_heads) * d] holds them side by side; the values may share x's memory.
    """
    size = table.shape[1]
    q = rotate_heads(x, 0, heads, table, positions, q_norm, eps)
    k = rotate_heads(x, heads * size, kv_heads, table, positions, k_norm, eps)
    return q, k, x[:, (heads + kv_heads) * size :].reshape(-1, kv_heads, size)


def attend(q: F32, keys: F32, values: F32, start: int, scale: float, window: int) -> F32:
    """Causal attention of consecutive tokens over a cache that already holds their keys and values.

    q [M, H, d], the tokens at positions start.. ; keys, values [G, S, d], query head h reads head h // (H / G).
    window 0 sees every earlier token, else only the last `window` (itself included). -> [M, H * d].
    """
    rows, heads, size = q.shape
    group = heads // keys.shape[0]
    out = np.empty((rows, heads, size), np.float32)
    for m in range(rows):
        last = start + m + 1
        first = max(0, last - window) if window else 0
        for h in range(heads):
            k, v = keys[h // group, first:last], values[h // group, first:last]
            scores = (k.astype(np.float64) @ q[m, h].astype(np.float64)) * scale
            weights = np.exp(scores - scores.max())
            out[m, h] = (weights / weights.sum()) @ v
    return out.reshape(rows, heads * size)


def gated(x: F32, activation: str) -> F32:
    """activation(gate) * up for x [M, 2 F] = gate and up side by side -> [M, F]; silu or gelu_tanh (Shazeer 2020)."""
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    if activation == "silu":
        gate = gate / (1.0 + np.exp(-gate))
    elif activation == "gelu_tanh":
        gate = 0.5 * gate * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3)))
    else:
        raise ValueError(f"activation must be silu or gelu_tanh, is {activation!r}")
    return (gate * up).astype(np.float32)


def norm_linear(x: F32, norm: F32, eps: float, weight: Int8Matrix) -> F32:
    """linear_int8(rms_norm(x)): the way into a block. [M, K] -> [M, N]."""
    return linear_int8(rms_norm(x, norm, eps), weight)


def linear_residual(x: F32, y: F32, weight: Int8Matrix, norm: F32 | None, eps: float) -> F32:
    """x + linear_int8(y), or x + rms_norm(linear_int8(y)): the way out of a block. x [M, N], may be written over."""
    z = linear_int8(y, weight)
    result: F32 = x + z if norm is None else add_rms_norm(x, z, norm, eps)
    return result


def gated_linear_residual(x: F32, y: F32, activation: str, weight: Int8Matrix, norm: F32 | None, eps: float) -> F32:
    """`linear_residual` of gated(y, activation): y [M, 2 K] for weights of K columns. x [M, N], may be written over."""
    return linear_residual(x, gated(y, activation), weight, norm, eps)


def argmax_rows(x: F32) -> NDArray[np.int64]:
    """Index of the largest value of each row, the first one among equals. [M, N] -> int64 [M]."""
    result: NDArray[np.int64] = np.argmax(x, axis=1)
    return result
