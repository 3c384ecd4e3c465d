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

from .cpu_int8 import PREFETCH, multiply_add, quantize_activations
from .reference_int8 import Int8Matrix, activation_limit
from .reference_sketch import BLOCK, Sketch

__all__ = ["Sketch", "head_top", "sketch_of", "sketch_scores"]

F32 = NDArray[np.float32]
_JIT = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False}

_I8, _I16, _I32, _I64, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_V16I8, _V16I16 = ir.VectorType(_I8, 16), ir.VectorType(_I16, 16)
_V8I32, _V8F32 = ir.VectorType(_I32, 8), ir.VectorType(_FLOAT, 8)
_BYTES = _I8.as_pointer()
_GROUPS = 4  # of eight rows, at once
_AHEAD = 8  # groups: see cpu_int8


@intrinsic  # type: ignore[untyped-decorator]
def _rough(typing_context, x, w, w_stride, quads, eight_x, x_scale, w_scale, out):  # type: ignore[no-untyped-def]
    """Four groups of eight rows: addresses x, w; bytes between groups; quads; 8 * sum of x; scale of x; addresses."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        x, w, w_stride, quads, eight_x, x_scale, w_scale, out = args
        b = builder

        def number(value: int) -> Any:
            return ir.Constant(_I64, value)

        def at(base: Any, offset: Any, kind: Any) -> Any:
            return b.inttoptr(b.add(base, offset), kind.as_pointer())

        def splat(value: Any, kind: Any, lanes: int) -> Any:
            one = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
            where = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
            return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), where)

        low = ir.Constant(_V16I16, [15] * 16)
        four = ir.Constant(_V16I16, [4] * 16)
        sums = [cgutils.alloca_once_value(b, ir.Constant(_V8I32, [0] * 8)) for _ in range(_GROUPS)]
        with cgutils.for_range(b, quads, intp=_I64) as loop:
            w_at, x_at = b.mul(loop.index, number(16)), b.mul(loop.index, number(8))
            both = [b.load(at(x, b.add(x_at, number(4 * half)), _I32), align=2, typ=_I32) for half in (0, 1)]
            pairs = [b.bitcast(splat(pair, _V8I32, 8), _V16I16) for pair in both]
            for g in range(_GROUPS):
                offset_g = b.add(b.mul(w_stride, number(g)), w_at)
                ahead = b.add(offset_g, b.mul(w_stride, number(_AHEAD)))
                b.call(b.module.declare_intrinsic("llvm.prefetch", (_BYTES,), PREFETCH), [
                    at(w, ahead, _I8), *(ir.Constant(_I32, flag) for flag in (0, 3, 1)),  # read, keep, data
                ])  # fmt: skip
                address = at(w, offset_g, _V16I8)
                wide = b.zext(b.load(address, align=1, typ=_V16I8), _V16I16)
                total = b.load(sums[g])
                for part, pair in ((b.and_(wide, low), pairs[0]), (b.lshr(wide, four), pairs[1])):
                    total = b.add(total, multiply_add(b, pair, part))
                b.store(total, sums[g])
        offset = splat(eight_x, _V8I32, 8)
        scale = splat(x_scale, _V8F32, 8)
        for g in range(_GROUPS):
            per_row = b.load(at(w_scale, number(32 * g), _V8F32), align=4, typ=_V8F32)
            value = b.fmul(b.sitofp(b.sub(b.load(sums[g]), offset), _V8F32), b.fmul(scale, per_row))
            b.store(value, at(out, number(32 * g), _V8F32), align=4)
        return context.get_dummy_value()

    numbers = (types.intp,) * 4 + (types.int32, types.float32, types.intp, types.intp)
    return types.void(*numbers), codegen


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
def _scores(q, x_scale, packed, scale, out, best, parts):  # type: ignore[no-untyped-def]
    blocks, quads, count = packed.shape[0] * 8 // BLOCK, packed.shape[1], q.shape[0]
    eight_x = np.zeros(count, np.int32)
    for m in range(count):
        for k in range(q.shape[1]):
            eight_x[m] += np.int32(8) * np.int32(q[m, k])
    q_at, w_at, s_at, out_at = q.ctypes.data, packed.ctypes.data, scale.ctypes.data, out.ctypes.data
    q_stride, out_stride = q.shape[1] * 2, out.shape[1] * 4
    step = (blocks + parts - 1) // parts
    for part in nb.prange(parts):
        for block in range(part * step, min(blocks, (part + 1) * step)):
            for m in range(count):
                x_at, y_at = q_at + m * q_stride, out_at + m * out_stride
                for g in range(block * 8, block * 8 + 8, 4):
                    _rough(
                        x_at, w_at + g * quads * 16, quads * 16, quads, eight_x[m], x_scale[m], s_at + g * 32,
                        y_at + g * 32,
                    )  # fmt: skip
                top = out[m, block * BLOCK]
                for i in range(block * BLOCK + 1, block * BLOCK + BLOCK):
                    top = max(top, out[m, i])
                best[m, block] = top


def _rough_pass(x: F32, s: Sketch, columns: int) -> tuple[F32, F32, NDArray[np.int16], F32]:
    """(scores, blocks' best, x rounded, its scales) of each row."""
    q, x_scale = quantize_activations(np.ascontiguousarray(x), activation_limit(columns))
    out = np.empty((len(x), len(s.scale)), np.float32)
    best = np.empty((len(x), len(s.scale) // BLOCK), np.float32)
    _scores(q, x_scale, s.packed, s.scale, out, best, nb.get_num_threads())
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
