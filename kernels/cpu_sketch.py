"""The two-stage head for the CPU; see `reference_sketch.py`, which has the same names and results.

The rough pass reads 16 bytes for eight rows and four columns, and leaves, besides the scores, each block's best; so the
candidates are found among some thousand numbers, not among all.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .cpu_int8 import multiply_add, prefetch, quantize_activations
from .cpu_max import largest
from .reference_int8 import Int8Matrix, activation_limit
from .reference_sketch import BLOCK, Sketch

__all__ = ["Sketch", "head_top", "sketch_of", "sketch_scores"]

F32 = NDArray[np.float32]
_JIT = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False}

_I8, _I16, _I32, _I64, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_V16I8, _V16I16 = ir.VectorType(_I8, 16), ir.VectorType(_I16, 16)
_V8I32, _V8F32 = ir.VectorType(_I32, 8), ir.VectorType(_FLOAT, 8)
_AHEAD = 8  # groups: see cpu_int8


def _make_rough(rows: int, groups: int) -> Any:
    """A function of addresses: `rows` activations times `groups` groups of eight rows of the sketch.

    Arguments, all intp: x, bytes between its rows, w, bytes between groups, quads, for each row of x 8 times its sum (int32)
    and its scale, scales of w, where the scores go, bytes between rows there. The unpacked bytes serve every row of x.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def rough(typing_context, x, x_stride, w, w_stride, quads, eight_x, x_scale, w_scale, out, out_stride):  # type: ignore[no-untyped-def]
        def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
            x, x_stride, w, w_stride, quads, eight_x, x_scale, w_scale, out, out_stride = args

            def number(value: int) -> Any:
                return ir.Constant(_I64, value)

            def at(base: Any, offset: Any, kind: Any) -> Any:
                return b.inttoptr(b.add(base, offset), kind.as_pointer())

            def splat(value: Any, kind: Any) -> Any:
                one = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
                return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_V8I32, [0] * 8))

            low, four = ir.Constant(_V16I16, [15] * 16), ir.Constant(_V16I16, [4] * 16)
            zero = ir.Constant(_V8I32, [0] * 8)
            sums = [[cgutils.alloca_once_value(b, zero) for _ in range(groups)] for _ in range(rows)]
            with cgutils.for_range(b, quads, intp=_I64) as loop:
                w_at, x_at = b.mul(loop.index, number(16)), b.mul(loop.index, number(8))
                parts = []
                for g in range(groups):
                    offset = b.add(b.mul(w_stride, number(g)), w_at)
                    ahead = b.add(offset, b.mul(w_stride, number(_AHEAD)))
                    prefetch(b, at(w, ahead, _I8))
                    wide = b.zext(b.load(at(w, offset, _V16I8), align=1, typ=_V16I8), _V16I16)
                    parts.append((b.and_(wide, low), b.lshr(wide, four)))
                for m in range(rows):
                    row = b.add(b.mul(x_stride, number(m)), x_at)
                    for half in (0, 1):
                        pair = b.load(at(x, b.add(row, number(4 * half)), _I32), align=2, typ=_I32)
                        both = b.bitcast(splat(pair, _V8I32), _V16I16)
                        for g in range(groups):
                            b.store(b.add(b.load(sums[m][g]), multiply_add(b, both, parts[g][half])), sums[m][g])
            for m in range(rows):
                offset = splat(b.load(at(eight_x, number(4 * m), _I32), align=4, typ=_I32), _V8I32)
                scale = splat(b.load(at(x_scale, number(4 * m), _FLOAT), align=4, typ=_FLOAT), _V8F32)
                for g in range(groups):
                    per_row = b.load(at(w_scale, number(32 * g), _V8F32), align=4, typ=_V8F32)
                    value = b.fmul(b.sitofp(b.sub(b.load(sums[m][g]), offset), _V8F32), b.fmul(scale, per_row))
                    b.store(value, at(out, b.add(b.mul(out_stride, number(m)), number(32 * g)), _V8F32), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 10), codegen

    return rough


_rough_1x4, _rough_2x4, _rough_4x2 = _make_rough(1, 4), _make_rough(2, 4), _make_rough(4, 2)


@nb.njit(**_JIT)  # not parallel: a process that has started the kernels' threads cannot be forked
def _sketch(packed, scale, quads_out, scale_out):  # type: ignore[no-untyped-def]
    groups, pairs = packed.shape[0], packed.shape[1]
    for g in range(groups):
        for row in range(8):
            top = 0
            for k in range(pairs):
                top = max(top, abs(packed[g, k, row, 0]), abs(packed[g, k, row, 1]))
            scale_out[g * 8 + row] = np.float32(top) * scale[g * 8 + row] / np.float32(7.0)
            inverse = np.float32(7.0) / np.float32(top) if top > 0 else np.float32(0.0)
            for quad in range(pairs // 2):
                for i in range(2):
                    low = int(np.rint(packed[g, 2 * quad, row, i] * inverse)) + 8
                    high = int(np.rint(packed[g, 2 * quad + 1, row, i] * inverse)) + 8
                    quads_out[g, quad, row, i] = np.uint8(low | (high << 4))


def sketch_of(weight: Int8Matrix) -> Sketch:
    """A matrix rounded to 4 bits, with one scale a row; see the reference. Rows are padded to a whole block."""
    if weight.columns % 4:
        raise ValueError(f"a sketch needs columns in fours, not {weight.columns}")
    groups, pairs = weight.packed.shape[:2]
    whole = -(-groups * 8 // BLOCK) * BLOCK // 8
    packed = np.full((whole, pairs // 2, 8, 2), 0x88, np.uint8)
    scale = np.zeros(whole * 8, np.float32)
    _sketch(weight.packed, weight.scale, packed[:groups], scale[: groups * 8])
    return Sketch(packed, scale)


# A block of the sketch (20 KB for 640 columns) is read from memory for the first row and from the cache for the others.
@nb.njit(parallel=True, **_JIT)
def _scores(q, x_scale, eight_x, packed, scale, out, best, parts):  # type: ignore[no-untyped-def]
    blocks, quads, count = packed.shape[0] * 8 // BLOCK, packed.shape[1], q.shape[0]
    for m in range(count):
        eight_x[m] = 0
        for k in range(q.shape[1]):
            eight_x[m] += np.int32(8) * np.int32(q[m, k])
    q_at, w_at, s_at, out_at = q.ctypes.data, packed.ctypes.data, scale.ctypes.data, out.ctypes.data
    e_at, xs_at = eight_x.ctypes.data, x_scale.ctypes.data
    qs, ws, os = q.shape[1] * 2, quads * 16, out.shape[1] * 4
    step = (blocks + parts - 1) // parts
    for part in nb.prange(parts):
        for block in range(part * step, min(blocks, (part + 1) * step)):
            m = 0
            while m + 4 <= count:
                for g in range(block * 8, block * 8 + 8, 2):
                    x_at, y_at = q_at + m * qs, out_at + m * os + g * 32
                    _rough_4x2(x_at, qs, w_at + g * ws, ws, quads, e_at + m * 4, xs_at + m * 4, s_at + g * 32, y_at, os)
                m += 4
            if m + 2 <= count:
                for g in range(block * 8, block * 8 + 8, 4):
                    x_at, y_at = q_at + m * qs, out_at + m * os + g * 32
                    _rough_2x4(x_at, qs, w_at + g * ws, ws, quads, e_at + m * 4, xs_at + m * 4, s_at + g * 32, y_at, os)
                m += 2
            if m < count:
                for g in range(block * 8, block * 8 + 8, 4):
                    x_at, y_at = q_at + m * qs, out_at + m * os + g * 32
                    _rough_1x4(x_at, qs, w_at + g * ws, ws, quads, e_at + m * 4, xs_at + m * 4, s_at + g * 32, y_at, os)
            for r in range(count):
                best[r, block] = largest(out[r, block * BLOCK : (block + 1) * BLOCK])


def _rough_pass(x: F32, s: Sketch, columns: int) -> tuple[F32, F32, NDArray[np.int16], F32]:
    """(scores, blocks' best, x rounded, its scales) of each row."""
    q, x_scale = quantize_activations(np.ascontiguousarray(x), activation_limit(columns))
    out = np.empty((len(x), len(s.scale)), np.float32)
    best = np.empty((len(x), len(s.scale) // BLOCK), np.float32)
    eight_x = np.empty(len(x), np.int32)  # from outside, as all buffers: see cpu_int8
    _scores(q, x_scale, eight_x, s.packed, s.scale, out, best, nb.get_num_threads())
    return out, best, q, x_scale


def sketch_scores(x: F32, s: Sketch, columns: int) -> F32:
    """Approximate x W^T; see the reference."""
    return _rough_pass(x, s, columns)[0]


@nb.njit(**_JIT)
def _exact(q, x_scale, packed, scale, rough, best, least, rows, out):  # type: ignore[no-untyped-def]
    pairs = packed.shape[1]
    for block in range(best.shape[0]):
        if best[block] < least:
            continue
        for n in range(block * BLOCK, min(block * BLOCK + BLOCK, rows)):
            if rough[n] < least:
                continue
            total = np.int32(0)
            for k in range(pairs):
                total += np.int32(q[2 * k]) * np.int32(packed[n // 8, k, n % 8, 0])
                total += np.int32(q[2 * k + 1]) * np.int32(packed[n // 8, k, n % 8, 1])
            out[n] = np.float32(total) * (x_scale * scale[n])


def head_top(x: F32, weight: Int8Matrix, s: Sketch, count: int) -> F32:
    """linear_int8(x) for the rows that may matter, -inf for the others; see the reference."""
    rough, best, q, x_scale = _rough_pass(x, s, weight.columns)
    blocks = -(-weight.rows // BLOCK)
    out = np.full((len(x), weight.rows), -np.inf, np.float32)
    for m in range(len(x)):
        kept = best[m, :blocks]
        least = np.partition(kept, -count)[-count] if count < blocks else np.float32(-np.inf)
        _exact(q[m], x_scale[m], weight.packed, weight.scale, rough[m], best[m], least, weight.rows, out[m])
    return out
