"""Whole blocks and layers of the voice, each in one call.

A few rows at a time go through all of a block while they are in the cache; and Python, with the lock that the engine's
workers contend for, is left for long. Row by row a block computes what `depthwise_conv_norm`, `linear_int8`, `bias_gelu`
and `scaled_residual` do, so how many rows go together, and on how many threads, changes no bit of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from .cpu_attention import attention_serial
from .cpu_int8 import WORTH_THREADS, multiply_groups, quantize_row
from .cpu_tts import depthwise_rows, gelu_f32, norm_rows
from .reference_int8 import activation_limit
from .reference_tts import ConvBlock, EncoderLayer

F32 = NDArray[np.float32]

TILE = 16  # rows; their hidden channels (768) as floats and integers are 72 KB
_JIT = {"cache": True, "nogil": True, "error_model": "numpy"}
_FAST = _JIT | {"fastmath": True}


@nb.njit(**_FAST)
def _gelu_row(row, bias):  # type: ignore[no-untyped-def]
    for c in range(row.shape[0]):
        row[c] = gelu_f32(row[c] + bias[c])


@nb.njit(**_FAST)
def _add_rows(skip, x, bias, scale):  # type: ignore[no-untyped-def]
    for t in range(x.shape[0]):
        row, base = x[t], skip[t]
        for c in range(row.shape[0]):
            row[c] = base[c] + scale[c] * (row[c] + bias[c])


@nb.njit(fastmath=False, **_JIT)
def _some_rows(x, dilation, block, scratch, out, first, last):  # type: ignore[no-untyped-def]
    """Rows first..last-1 of the result, a tile at a time. The scratch is the caller's: addresses keep nothing alive."""
    depthwise, depthwise_bias, norm, norm_bias, up, up_scale, up_bias, down, down_scale, down_bias, scale, limits = block
    narrow, wide, codes, scales = scratch
    side = depthwise.shape[0] // 2 * dilation
    tile, width, hidden = narrow.shape[0], narrow.shape[1], wide.shape[1]
    up_pairs, down_pairs = up.shape[1], down.shape[1]
    codes_at, scales_at, wide_at = codes.ctypes.data, scales.ctypes.data, wide.ctypes.data
    for at in range(first, last, tile):
        count = min(tile, last - at)
        depthwise_rows(x[at:], depthwise, depthwise_bias, norm, norm_bias, dilation, np.float32(1e-5), narrow[:count])
        for m in range(count):
            scales[m] = quantize_row(narrow[m], limits[0], codes[m * 2 * up_pairs : (m + 1) * 2 * up_pairs])
        multiply_groups(
            codes_at, count, up_pairs, up.ctypes.data, scales_at, up_scale.ctypes.data, wide_at, hidden * 4, 0, up.shape[0]
        )
        for m in range(count):
            _gelu_row(wide[m], up_bias)
            scales[m] = quantize_row(wide[m], limits[1], codes[m * 2 * down_pairs : (m + 1) * 2 * down_pairs])
        multiply_groups(
            codes_at, count, down_pairs, down.ctypes.data, scales_at, down_scale.ctypes.data,
            out.ctypes.data + at * width * 4, width * 4, 0, down.shape[0],
        )  # fmt: skip
        _add_rows(x[at + side : at + side + count], out[at : at + count], down_bias, scale)


@nb.njit(fastmath=False, parallel=True, **_JIT)
def _parts(x, dilation, block, narrow, wide, codes, scales, out):  # type: ignore[no-untyped-def]
    """A share of the rows for each thread, in whole fours as the product's tiles want them."""
    parts = narrow.shape[0]
    step = ((out.shape[0] + parts - 1) // parts + 3) // 4 * 4
    for part in nb.prange(parts):
        scratch = (narrow[part], wide[part], codes[part], scales[part])
        _some_rows(x, dilation, block, scratch, out, part * step, min(out.shape[0], (part + 1) * step))


@nb.njit(fastmath=False, **_JIT)
def _whole(x, dilation, block, scratch, out):  # type: ignore[no-untyped-def]
    narrow, wide, codes, scales = scratch
    if narrow.shape[0] == 1:
        _some_rows(x, dilation, block, (narrow[0], wide[0], codes[0], scales[0]), out, 0, out.shape[0])
    else:
        _parts(x, dilation, block, narrow, wide, codes, scales, out)


@nb.njit(fastmath=False, **_JIT)
def _stack(x, held, counts, blocks, scratch, last):  # type: ignore[no-untyped-def]
    """See the reference."""
    reach, width = held.shape[1], held.shape[2]
    # What a block gives is put where the next one reads it, behind room for the rows that are held.
    room = np.empty((2, reach + x.shape[0] + reach // 2 * held.shape[0] + reach, width), np.float32)
    rows = x.shape[0]
    room[0, reach : reach + rows] = x
    for n in range(held.shape[0]):
        here, first, end = room[n % 2], reach - counts[n], reach + rows
        here[first:reach] = held[n, : counts[n]]
        if last:
            here[end : end + reach // 2] = np.float32(0.0)
            end += reach // 2
        if end - first <= reach:
            held[n, : end - first] = here[first:end]
            counts[n] = end - first
            return here[:0]
        held[n] = here[end - reach : end]
        counts[n] = reach
        rows = end - first - reach
        _whole(here[first:end], 1, blocks[n], scratch, room[(n + 1) % 2, reach : reach + rows])
    return room[held.shape[0] % 2, reach : reach + rows]


def _flat(b: ConvBlock) -> tuple[Any, ...]:
    """As the loops take it."""
    width, hidden = b.depthwise.shape[1], b.up.rows
    return (
        b.depthwise, b.depthwise_bias, b.norm, b.norm_bias, b.up.packed, b.up.scale, b.up_bias, b.down.packed, b.down.scale,
        b.down_bias, b.scale, np.array([activation_limit(width), activation_limit(hidden)]),
    )  # fmt: skip


def _scratch(rows: int, width: int, hidden: int) -> tuple[Any, ...]:
    """Room for a tile of each thread that is worth having for so many rows."""
    parts = nb.get_num_threads() if rows * 2 * width * hidden >= WORTH_THREADS else 1
    return (
        np.empty((parts, TILE, width), np.float32), np.empty((parts, TILE, hidden), np.float32),
        np.empty((parts, TILE * max(width, hidden)), np.int16), np.empty((parts, TILE), np.float32),
    )  # fmt: skip


def conv_block(x: F32, block: ConvBlock, dilation: int = 1) -> F32:
    """See the reference. The widths must be multiples of eight."""
    taps, width = block.depthwise.shape
    out = np.empty((x.shape[0] - (taps - 1) * dilation, width), np.float32)
    _whole(x, dilation, _flat(block), _scratch(out.shape[0], width, block.up.rows), out)
    return out


def conv_stack(x: F32, held: F32, counts: NDArray[np.int64], blocks: Sequence[ConvBlock], last: bool) -> F32:
    """See the reference. The blocks must be of one shape, of widths that are multiples of eight."""
    scratch = _scratch(x.shape[0], x.shape[1], blocks[0].up.rows)
    out: F32 = _stack(x, held, counts, tuple(_flat(b) for b in blocks), scratch, last)
    return out


@nb.njit(fastmath=False, **_JIT)
def _products(x, packed, scale, limit, codes, scales, out):  # type: ignore[no-untyped-def]
    """linear_int8 into `out`, as wide as the groups; codes and scales are scratch."""
    rows, pairs = x.shape[0], packed.shape[1]
    for m in range(rows):
        scales[m] = quantize_row(x[m], limit, codes[m * 2 * pairs : (m + 1) * 2 * pairs])
    multiply_groups(
        codes.ctypes.data, rows, pairs, packed.ctypes.data, scales.ctypes.data, scale.ctypes.data, out.ctypes.data,
        out.shape[1] * 4, 0, packed.shape[0],
    )  # fmt: skip


@nb.njit(**_FAST)
def _add_bias(x, bias):  # type: ignore[no-untyped-def]
    for t in range(x.shape[0]):
        row = x[t]
        for c in range(row.shape[0]):
            row[c] += bias[c]


@nb.njit(**_FAST)
def _add_to(x, y, bias):  # type: ignore[no-untyped-def]
    for t in range(x.shape[0]):
        row, more = x[t], y[t]
        for c in range(row.shape[0]):
            row[c] += more[c] + bias[c]


@nb.njit(fastmath=False, **_JIT)
def _layer(x, heads, weights, limits, codes, scales, y, mixed, qkv, wide):  # type: ignore[no-untyped-def]
    """`encoder_layer` in place of x."""
    norm1, norm1_bias, w1, s1, b1, w2, s2, b2, norm2, norm2_bias, w3, s3, b3, w4, s4, b4 = weights
    width, eps = x.shape[1], np.float32(1e-5)
    norm_rows(x, norm1, norm1_bias, eps, y)
    _products(y, w1, s1, limits[0], codes, scales, qkv)
    _add_bias(qkv, b1)
    attention_serial(
        qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :], heads, np.float32((width // heads) ** -0.5), y
    )
    _products(y, w2, s2, limits[0], codes, scales, mixed)
    _add_to(x, mixed, b2)
    norm_rows(x, norm2, norm2_bias, eps, y)
    _products(y, w3, s3, limits[0], codes, scales, wide)
    for m in range(x.shape[0]):
        _gelu_row(wide[m], b3)
    _products(wide, w4, s4, limits[1], codes, scales, y)
    _add_to(x, y, b4)


def encoder_layer(x: F32, layer: EncoderLayer, heads: int) -> F32:
    """See the reference. The widths must be multiples of eight, the heads' of sixteen."""
    rows, width = x.shape
    hidden = layer.up.rows
    out = x.copy()
    weights = (
        layer.norm1, layer.norm1_bias, layer.qkv.packed, layer.qkv.scale, layer.qkv_bias, layer.out.packed, layer.out.scale,
        layer.out_bias, layer.norm2, layer.norm2_bias, layer.up.packed, layer.up.scale, layer.up_bias, layer.down.packed,
        layer.down.scale, layer.down_bias,
    )  # fmt: skip
    _layer(
        out, heads, weights, (activation_limit(width), activation_limit(hidden)),
        np.empty(rows * max(width, hidden), np.int16), np.empty(rows, np.float32), np.empty((rows, width), np.float32),
        np.empty((rows, width), np.float32), np.empty((rows, 3 * width), np.float32), np.empty((rows, hidden), np.float32),
    )  # fmt: skip
    return out
