"""Other projects' packed weights, rearranged as the kernels read them, bit for bit the same numbers up to fp16 scales.

AWQ and GPTQ hold eight 4-bit numbers in an int32; GGUF's k-quants hold blocks of 256 with scales of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bargein.kernels.gpu.numbers import Packed, pack_groups

I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # where in the int32 column i of eight lies


def _nibbles(packed: I32) -> NDArray[np.int32]:
    """[.., n] int32 -> [.., n, 8], the lowest four bits first."""
    bits = packed.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32))
    return (bits & 15).astype(np.int32)


def awq(qweight: I32, qzeros: I32, scales: F32, group: int) -> Packed:
    """qweight [in, out / 8], qzeros [in / group, out / 8], scales [in / group, out]: w = (q - zero) * scale.

    Raises ValueError for a group that no kernel is compiled for.
    """
    levels = _nibbles(qweight)[..., _AWQ_ORDER].reshape(qweight.shape[0], -1).T
    zeros = _nibbles(qzeros)[..., _AWQ_ORDER].reshape(qzeros.shape[0], -1).T
    return _grouped(levels, zeros, scales.T, group)


def gptq(qweight: I32, qzeros: I32, scales: F32, group: int, order: I32 | None, form: str) -> Packed:
    """qweight [in / 8, out], qzeros [in / group, out / 8], scales [in / group, out]; zeros are stored less one in form
    "gptq", as they are in "gptq_v2". Raises ValueError where columns were reordered (`order`: each column's group)."""
    columns = qweight.shape[0] * 8
    group = columns if group == -1 else group
    if order is not None and not np.array_equal(order, np.arange(columns) // group):
        raise ValueError("columns in another order (desc_act) are not supported")
    levels = _nibbles(qweight).transpose(1, 0, 2).reshape(qweight.shape[1], -1)
    zeros = _nibbles(qzeros).reshape(qzeros.shape[0], -1).T + (0 if form == "gptq_v2" else 1)
    return _grouped(levels, zeros, scales.T, group)


def _grouped(levels: NDArray[np.int32], zeros: NDArray[np.int32], scales: F32, group: int) -> Packed:
    columns = levels.shape[1]
    fit = next((g for g in (128, 64, 32) if group % g == 0), None)
    if fit is None or columns % group:
        raise ValueError(f"groups of {group} of {columns} columns are not supported; multiples of 32 are")
    scale = np.repeat(scales, group // fit, axis=1)
    return pack_groups(levels, scale, scale * np.repeat(zeros, group // fit, axis=1), 4, fit, columns)


def _halves(block: U8) -> F32:
    """Pairs of bytes as float16 numbers."""
    return np.ascontiguousarray(block).view(np.float16)[..., 0].astype(np.float32)


def q4_k(data: U8, columns: int) -> Packed:
    """GGUF Q4_K: blocks of 144 bytes for 256 columns: d, dmin, eight scales and minima of 6 bits, 128 bytes of levels."""
    blocks = data.reshape(data.shape[0], -1, 144)
    rows = data.shape[0]
    d, dmin, s = _halves(blocks[..., :2]), _halves(blocks[..., 2:4]), blocks[..., 4:16]
    low, mid, high = s[..., :4], s[..., 4:8], s[..., 8:]
    scale = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    least = np.concatenate([mid & 63, (high >> 4) | ((mid >> 6) << 4)], axis=-1)
    nibbles = blocks[..., 16:].reshape(rows, -1, 4, 32)  # 64 columns: 32 low, then 32 high
    levels = np.stack([nibbles & 15, nibbles >> 4], axis=3).reshape(rows, -1)
    scales, minima = (d[..., None] * scale).reshape(rows, -1), (dmin[..., None] * least).reshape(rows, -1)
    return pack_groups(levels, scales, minima, 4, 32, columns)


def q6_k(data: U8, columns: int) -> Packed:
    """GGUF Q6_K: blocks of 210 bytes for 256 columns: low four bits, top two bits, sixteen int8 scales, d."""
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 210)
    low = blocks[..., :128].reshape(rows, -1, 2, 2, 32)  # halves of 128 columns, of two times 32 bytes
    top = blocks[..., 128:192].reshape(rows, -1, 2, 1, 32)
    lows = np.concatenate([low & 15, low >> 4], axis=3)  # [rows, blocks, 2, 4, 32]
    tops = (top >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    levels = (lows | (tops << 4)).reshape(rows, -1)
    scales = (_halves(blocks[..., 208:210])[..., None] * blocks[..., 192:208].view(np.int8)).reshape(rows, -1)
    return pack_groups(levels, scales, 32 * scales, 6, 16, columns)


def q8_0(data: U8, columns: int) -> Packed:
    """GGUF Q8_0: blocks of 34 bytes for 32 columns: d, then int8."""
    rows = data.shape[0]
    blocks = data.reshape(rows, -1, 34)
    scales = _halves(blocks[..., :2])
    return pack_groups(blocks[..., 2:].view(np.int8).reshape(rows, -1), scales, np.zeros_like(scales), 8, 32, columns)
