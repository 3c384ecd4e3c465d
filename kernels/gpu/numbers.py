"""bf16, e4m3 and packed 4, 6 and 8 bit numbers in NumPy: how the host makes and reads what the kernels load.

bf16 travels as uint16, e4m3 as uint8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]


def to_bf16(x: F32) -> U16:
    """float32 -> bf16, to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: U16) -> F32:
    """bf16 -> float32, exactly."""
    return (x.astype(np.uint32) << 16).view(np.float32)


def _e4m3_values() -> F32:
    code = np.arange(127)
    exponent, fraction = code >> 3, code & 7
    small = fraction * 2.0**-9
    return np.where(exponent == 0, small, (1 + fraction / 8) * 2.0 ** (exponent - 7.0)).astype(np.float32)


_E4M3 = _e4m3_values()  # 0 to 448; code 127 is not a number


def to_e4m3(x: F32) -> U8:
    """float32 -> e4m3, to nearest, ties to even; magnitudes beyond 448 become 448."""
    a = np.minimum(np.abs(x), np.float32(448))
    code = np.searchsorted((_E4M3[:-1].astype(np.float64) + _E4M3[1:]) / 2, a.astype(np.float64), side="left")
    middle = np.append((_E4M3[:-1].astype(np.float64) + _E4M3[1:]) / 2, np.inf)
    code = code + ((a == middle[code]) & (code % 2 == 1))
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def from_e4m3(x: U8) -> F32:
    """e4m3 -> float32, exactly."""
    value = np.append(_E4M3, np.float32(np.nan))[x & 127]
    return np.where(x & 128, -value, value).astype(np.float32)


class Packed(NamedTuple):
    """A matrix [rows, columns] in groups of columns: w = scale * level - least.

    bits 4: levels uint8 [N, K / 2], byte j of 32 columns holds column j and, above, column j + 16. bits 6: their two top
    bits in `top` uint8 [N, K / 4], byte i of 32 columns holds those of i, i + 8, i + 16 and i + 24. bits 8: int8 [N, K],
    least is 0. scale, least float16 [N, K / group]. K: the columns, up to a multiple of 32 (and of the group).
    """

    bits: int
    group: int
    levels: NDArray[np.uint8] | NDArray[np.int8]
    top: U8
    scale: NDArray[np.float16]
    least: NDArray[np.float16]
    rows: int
    columns: int


class Stacked(NamedTuple):
    """Matrices of different forms, one below the other."""

    parts: tuple[Any, ...]
    rows: int
    columns: int


_NONE = np.zeros(16, np.uint8)


def pack_groups(levels: NDArray[np.integer], scale: F32, least: F32, bits: int, group: int, columns: int) -> Packed:
    """levels [N, K] (0.. for 4 and 6 bits, signed for 8), scale and least [N, K / group] -> the stored form."""
    rows, width = levels.shape
    half = (np.ascontiguousarray(scale, np.float16), np.ascontiguousarray(least, np.float16))
    if bits == 8:
        return Packed(8, group, np.ascontiguousarray(levels, np.int8), _NONE, *half, rows, columns)
    blocks = levels.astype(np.uint8).reshape(rows, width // 32, 32)
    low = (blocks[..., :16] & 15) | ((blocks[..., 16:] & 15) << 4)
    top = _NONE
    if bits == 6:
        quarters = (blocks >> 4).reshape(rows, width // 32, 4, 8)
        top = quarters[:, :, 0] | (quarters[:, :, 1] << 2) | (quarters[:, :, 2] << 4) | (quarters[:, :, 3] << 6)
        top = np.ascontiguousarray(top.reshape(rows, width // 4))
    return Packed(bits, group, np.ascontiguousarray(low.reshape(rows, width // 2)), top, *half, rows, columns)


def unpack_groups(p: Packed) -> F32:
    """The float32 matrix [rows, columns] a packed one stands for."""
    if p.bits == 8:
        levels = p.levels.astype(np.float32)
    else:
        low = p.levels.reshape(p.rows, -1, 16)
        blocks = np.concatenate([low & 15, low >> 4], axis=2).astype(np.int32)
        if p.bits == 6:
            top = p.top.reshape(p.rows, -1, 8).astype(np.int32)
            blocks += np.concatenate([(top >> s) & 3 for s in (0, 2, 4, 6)], axis=2) << 4
        levels = blocks.reshape(p.rows, -1).astype(np.float32)
    scale = np.repeat(p.scale.astype(np.float32), p.group, axis=1)
    least = np.repeat(p.least.astype(np.float32), p.group, axis=1)
    result: F32 = (levels * scale - (0 if p.bits == 8 else least))[:, : p.columns]
    return result


def quantize_groups(weight: F32, bits: int, group: int) -> Packed:
    """Round a float32 matrix [N, K]: each group from its least to its largest value (8 bits: symmetric)."""
    rows, columns = weight.shape
    whole = max(32, group)
    width = -(-columns // whole) * whole
    padded = np.zeros((rows, width), np.float32)
    padded[:, :columns] = weight
    parts = padded.reshape(rows, width // group, group)
    if bits == 8:
        scale = (np.abs(parts).max(2) / 127).astype(np.float16).astype(np.float32)
        least = np.zeros_like(scale)
        levels = np.clip(np.rint(parts / np.maximum(scale, 1e-12)[..., None]), -127, 127)
    else:
        limit = (1 << bits) - 1
        low = np.minimum(parts.min(2), 0)
        scale = ((parts.max(2).clip(0) - low) / limit).astype(np.float16).astype(np.float32)
        least = (-low).astype(np.float16).astype(np.float32)
        levels = np.clip(np.rint((parts + least[..., None]) / np.maximum(scale, 1e-12)[..., None]), 0, limit)
    return pack_groups(levels.reshape(rows, width).astype(np.int32), scale, least, bits, group, columns)
