"""Definitions of the language-model ops in plain NumPy, float32. `cpu_lm.py` has the same names.

Rows are tokens: [M, C], C-contiguous. A sequence's keys and values lie in pages (`Caches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .reference_int8 import Int8Matrix, linear_int8

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class Places(NamedTuple):
    """Where the rows of a call go: for a sequence s rows rows[s] to rows[s + 1] follow the lengths[s] tokens it has, in pages
    that begin at the addresses bounds[s] to bounds[s + 1]."""

    addresses: I64
    bounds: I64  # [S + 1]
    rows: I64  # [S + 1]
    lengths: I64  # [S]


class Caches(NamedTuple):
    """The sequences that a call's rows belong to. blocks: each one's pages in order, float32 [layers, 2 (keys, values),
    kv_heads, page, head_size], contiguous: enough of them for the new rows too, and `page` tokens in each."""

    blocks: Sequence[Sequence[F32]]
    places: Places
    page: int


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
    """Causal attention of consecutive tokens of one sequence over its keys and values, which hold theirs already.

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


def attend_pages(q: F32, k: F32, v: F32, caches: Caches, layer: int, scale: float, window: int) -> F32:
    """Append each sequence's keys and values to its cache, then `attend` over all it holds.

    q [M, H, d], k and v [M, G, d]: rows of all sequences, one after another -> [M, H * d]. The last pages are written.
    """
    rows, lengths = caches.places.rows, caches.places.lengths
    out = []
    for s, blocks in enumerate(caches.blocks):
        a, b, start = int(rows[s]), int(rows[s + 1]), int(lengths[s])
        for m in range(a, b):
            page, inside = divmod(start + m - a, caches.page)
            blocks[page][layer, 0, :, inside], blocks[page][layer, 1, :, inside] = k[m], v[m]
        keys, values = (np.concatenate([block[layer, n] for block in blocks], axis=1) for n in (0, 1))
        out.append(attend(q[a:b], keys, values, start, scale, window))
    return np.concatenate(out)


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
