"""Definition of the two-stage head in plain NumPy; `cpu_sketch.py` has the same names.

A language model's head is most of what a token reads: 262,144 rows of which a handful can be chosen. A sketch of it in 4
bits says which few hundred those are, at half the bytes; their exact scores come from the 8-bit rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .reference_int8 import Int8Matrix, activation_limit, quantize_activations

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

BLOCK = 64  # rows whose best sketch score stands for them all


class Sketch(NamedTuple):
    """packed uint8 [N/8, K/4, 8, 2]: a byte holds columns 4j + i (low four bits) and 4j + 2 + i (high), each plus 8.

    scale float32 [N], 0 for padding rows; N is padded to a multiple of BLOCK.
    """

    packed: U8
    scale: F32


def sketch_of(weight: Int8Matrix) -> Sketch:
    """A matrix rounded to 4 bits, -7 to 7, one scale a row, rows padded to whole blocks.

    ValueError where the columns are no multiple of 4.
    """
    if weight.columns % 4:
        raise ValueError(f"a sketch needs columns in fours, not {weight.columns}")
    rows = -(-weight.packed.shape[0] * 8 // BLOCK) * BLOCK
    plain = np.zeros((rows, weight.columns), np.int32)
    plain[: weight.packed.shape[0] * 8] = integers(weight)
    top = np.abs(plain).max(axis=1).astype(np.float32)
    scale = np.zeros(rows, np.float32)
    scale[: len(weight.scale)] = top[: len(weight.scale)] * weight.scale / np.float32(7.0)
    inverse = np.where(top > 0, np.float32(7.0) / np.maximum(top, np.float32(1.0)), np.float32(0.0))
    q = np.rint(plain * inverse[:, None]).astype(np.int32) + 8
    quads = q.reshape(rows // 8, 8, weight.columns // 4, 2, 2).transpose(0, 2, 1, 4, 3)  # [g, quad, row, i, half]
    return Sketch((quads[..., 0] | (quads[..., 1] << 4)).astype(np.uint8), scale)


def integers(weight: Int8Matrix) -> NDArray[np.int32]:
    """The stored integers as [N/8 * 8, K]."""
    groups, pairs = weight.packed.shape[:2]
    plain = weight.packed.transpose(0, 2, 1, 3).reshape(groups * 8, pairs * 2)
    return plain[:, : weight.columns].astype(np.int32)


def sketch_scores(x: F32, s: Sketch, columns: int) -> F32:
    """Approximate x W^T: x float32 [M, K] -> [M, N padded], with the sketch's weights."""
    q, scale_x = quantize_activations(x, activation_limit(columns))
    groups, quads = s.packed.shape[:2]
    nibbles = np.stack([s.packed & 15, s.packed >> 4], -1).astype(np.int64) - 8  # [g, quad, row, i, half]
    plain = nibbles.transpose(0, 2, 1, 4, 3).reshape(groups * 8, quads * 4)
    total = q[:, :columns].astype(np.int64) @ plain.T
    result: F32 = (total.astype(np.float32) * (scale_x[:, None] * s.scale[None, :])).astype(np.float32)
    return result


def head_top(x: F32, weight: Int8Matrix, s: Sketch, count: int) -> F32:
    """linear_int8(x) for the rows that may matter, -inf for the others: x [M, K] -> [M, N].

    Kept, for each row of x: every row of the matrix whose sketch score is at least the `count`-th best of the blocks'
    best; those are the `count` best by the sketch and perhaps some more (all, where there are no more blocks than that).
    """
    q, scale_x = quantize_activations(x, activation_limit(weight.columns))
    out = np.full((len(x), weight.rows), -np.inf, np.float32)
    for m, rough in enumerate(sketch_scores(x, s, weight.columns)[:, : weight.rows]):
        padded = np.full(-(-len(rough) // BLOCK) * BLOCK, -np.inf, np.float32)
        padded[: len(rough)] = rough
        best = np.sort(padded.reshape(-1, BLOCK).max(1))[::-1]
        least = best[count - 1] if count < len(best) else -np.inf
        keep = np.flatnonzero(rough >= least)
        rows = weight.packed[keep // 8, :, keep % 8].reshape(len(keep), -1)
        total = rows.astype(np.int64) @ q[m].astype(np.int64)
        out[m, keep] = total.astype(np.float32) * (scale_x[m] * weight.scale[keep])
    return out
