"""Definition of the int8-weight linear layer in plain NumPy; `cpu_int8.py` has the same names.

Weights are symmetric int8 with one float32 scale a row (output). Activations are rounded to integers with one scale a
row (token), as finely as an exact 32-bit sum allows: 13 to 15 bits. So a product is a sum of integers: it does not
depend on the order of summation, on the batch, or on the machine, and it costs half of what float32 does.

Storage: `pack_rows` interleaves eight rows and pairs of columns, [N / 8, K / 2, 8, 2], so that one 16-byte load feeds
eight outputs. N is padded with zero rows to a multiple of 8, K with zero columns to a multiple of 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
I16 = NDArray[np.int16]


class Int8Matrix(NamedTuple):
    """packed int8 [N/8, K/2, 8, 2]; scale float32 [N/8 * 8] (padding rows 0); rows: the true N; columns: the true K."""

    packed: I8
    scale: F32
    rows: int
    columns: int


def activation_limit(columns: int) -> int:
    """Largest integer an activation is rounded to, so that no sum of `columns` products with int8 overflows 32 bits."""
    return min(32767, (2**31 - 1) // (127 * max(1, columns)))


def quantize_rows(weight: F32) -> tuple[I8, F32]:
    """Symmetric rounding of each row to int8: weight [N, K] -> (int8 [N, K], scale float32 [N]); max |q| is 127."""
    top = np.abs(weight).max(axis=1)
    scale = (top / 127.0).astype(np.float32)
    safe = np.where(scale > 0, scale, np.float32(1.0))
    return np.clip(np.rint(weight / safe[:, None]), -127, 127).astype(np.int8), scale


def pack_rows(quantized: I8, scale: F32) -> Int8Matrix:
    """int8 [N, K] with scales [N] -> the stored form."""
    rows, columns = quantized.shape
    padded = np.zeros((-(-rows // 8) * 8, -(-columns // 2) * 2), np.int8)
    padded[:rows, :columns] = quantized
    packed = padded.reshape(padded.shape[0] // 8, 8, padded.shape[1] // 2, 2).transpose(0, 2, 1, 3)
    scales = np.zeros(padded.shape[0], np.float32)
    scales[:rows] = scale
    return Int8Matrix(np.ascontiguousarray(packed), scales, rows, columns)


def unpack_rows(weight: Int8Matrix) -> F32:
    """The float32 matrix [N, K] a stored one stands for."""
    groups, pairs = weight.packed.shape[:2]
    plain = weight.packed.transpose(0, 2, 1, 3).reshape(groups * 8, pairs * 2).astype(np.float32)
    result: F32 = (plain * weight.scale[:, None])[: weight.rows, : weight.columns]
    return result


def embedding_rows(weight: Int8Matrix, ids: NDArray[np.int64]) -> F32:
    """Rows `ids` [M] of a stored matrix -> float32 [M, K]."""
    pairs = weight.packed[ids // 8, :, ids % 8].reshape(len(ids), -1)[:, : weight.columns]
    return pairs.astype(np.float32) * weight.scale[ids, None]


def quantize_activations(x: F32, limit: int) -> tuple[I16, F32]:
    """Each row of x [M, K] as integers of at most `limit` -> (int16 [M, K padded to even], scale float32 [M])."""
    top = np.abs(x).max(axis=1)
    inverse = np.where(top > 0, np.float32(limit) / np.where(top > 0, top, np.float32(1)), np.float32(0))
    q = np.zeros((x.shape[0], -(-x.shape[1] // 2) * 2), np.int16)
    q[:, : x.shape[1]] = np.rint(x * inverse.astype(np.float32)[:, None]).astype(np.int16)
    return q, (top / np.float32(limit)).astype(np.float32)


def linear_int8(x: F32, weight: Int8Matrix) -> F32:
    """x W^T for int8 weights: x float32 [M, K] -> float32 [M, N].

    y[m, n] = (sum over k of q[m, k] w[n, k]) * scale_x[m] * scale_w[n], q from `quantize_activations`.
    """
    q, scale_x = quantize_activations(x, activation_limit(weight.columns))
    groups, pairs = weight.packed.shape[:2]
    plain = weight.packed.transpose(0, 2, 1, 3).reshape(groups * 8, pairs * 2)
    total = q.astype(np.int64) @ plain.astype(np.int64).T
    result: F32 = (total.astype(np.float32) * (scale_x[:, None] * weight.scale[None, :]))[:, : weight.rows]
    return result
