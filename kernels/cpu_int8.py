"""The int8-weight linear layer for the CPU: an exact integer product in vector code.

Numba's own vectorizer keeps this product in 32-bit multiplies; the tiles here are written as LLVM vectors through an
intrinsic, so that on AVX2 each step is one `vpmaddwd` (16 products summed in pairs) and one add for eight outputs.
Other machines get the same arithmetic in generic vector operations.

With few rows the product is a read of the weights from memory, and the processor's own prefetcher loses the thread at
each 4 KB page; so the tiles ask for the weights two blocks of groups ahead (measured on Zen 3, one core, a 168 MB
matrix by one row: 18.5 ms without, 12.8 ms with).
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .cpu_max import largest_magnitude
from .reference_int8 import (
    Int8Matrix,
    activation_limit,
    embedding_rows,
    pack_rows,
    quantize_rows,
    unpack_rows,
)

__all__ = [
    "Int8Matrix",
    "activation_limit",
    "embedding_rows",
    "linear_int8",
    "multiply_groups",
    "pack_rows",
    "prefetch",
    "quantize_activations",
    "quantize_row",
    "quantize_rows",
    "unpack_rows",
]

F32 = NDArray[np.float32]
I16 = NDArray[np.int16]
# `fastmath` is said outright: left out, Numba takes it from whichever caller happens to compile the function first.
_JIT = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False}
_HAS_AVX2 = bool(llvm.get_host_cpu_features().get("avx2", False))
_HAS_32_REGISTERS = bool(llvm.get_host_cpu_features().get("avx512vl", False))

_I8, _I16, _I32, _I64, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_V16I8, _V16I16 = ir.VectorType(_I8, 16), ir.VectorType(_I16, 16)
_V8I32, _V8F32 = ir.VectorType(_I32, 8), ir.VectorType(_FLOAT, 8)
_AHEAD = 8  # groups
# Products (weights times rows) from which a round of the threads pays. Less is bound by memory, which one core nearly
# saturates, and a thread that comes late to a busy machine holds up every small product of a token.
WORTH_THREADS = 6_000_000


def prefetch(builder: Any, address: Any) -> None:
    """Ask for the line of memory at an address (i8*), which will be read; past an array's end that does nothing."""
    kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    flags = (ir.Constant(_I32, flag) for flag in (0, 3, 1))  # read, keep, data
    builder.call(builder.module.declare_intrinsic("llvm.prefetch", (_I8.as_pointer(),), kind), [address, *flags])


def multiply_add(builder: Any, x: Any, w: Any) -> Any:
    """Eight sums of two products each, of 16-bit integers, in 32 bits."""
    if _HAS_AVX2:
        kind = ir.FunctionType(_V8I32, [_V16I16, _V16I16])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.avx2.pmadd.wd", (), kind), [x, w])
    halves = []
    for first in (0, 1):
        lanes = ir.Constant(_V8I32, list(range(first, 16, 2)))
        wide = [
            builder.sext(builder.shuffle_vector(v, ir.Constant(_V16I16, ir.Undefined), lanes), _V8I32) for v in (x, w)
        ]
        halves.append(builder.mul(*wide))
    return builder.add(*halves)


def _make_tile(rows: int, groups: int) -> Any:
    """A function of addresses: `rows` activations times `groups` groups of eight outputs, scaled and stored as float32.

    Arguments, all intp: x, bytes between rows of x, packed weights, bytes between groups, column pairs, scales of x,
    scales of the outputs, result, bytes between rows of the result. The weights `_AHEAD` groups further on are
    prefetched; that may be past the end, where a prefetch does nothing.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(typing_context, x, x_stride, w, w_stride, pairs, x_scale, w_scale, out, out_stride):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_stride, w, w_stride, pairs, x_scale, w_scale, out, out_stride = args
            b = builder

            def number(value: int) -> Any:
                return ir.Constant(_I64, value)

            def at(base: Any, offset: Any, kind: Any) -> Any:
                return b.inttoptr(b.add(base, offset), kind.as_pointer())

            zero = ir.Constant(_V8I32, [0] * 8)
            sums = [[cgutils.alloca_once_value(b, zero) for _ in range(groups)] for _ in range(rows)]
            splat = ir.Constant(_V8I32, [0] * 8)
            undefined = ir.Constant(_V8I32, ir.Undefined)
            with cgutils.for_range(b, pairs, intp=_I64) as loop:
                w_at = b.mul(loop.index, number(16))
                x_at = b.mul(loop.index, number(4))
                weights = []
                for g in range(groups):
                    offset = b.add(b.mul(w_stride, number(g)), w_at)
                    ahead = b.add(offset, b.mul(w_stride, number(_AHEAD)))
                    prefetch(b, at(w, ahead, _I8))
                    address = at(w, offset, _V16I8)
                    weights.append(b.sext(b.load(address, align=1, typ=_V16I8), _V16I16))
                for m in range(rows):
                    address = at(x, b.add(b.mul(x_stride, number(m)), x_at), _I32)
                    pair = b.insert_element(undefined, b.load(address, align=2, typ=_I32), ir.Constant(_I32, 0))
                    both = b.bitcast(b.shuffle_vector(pair, undefined, splat), _V16I16)
                    for g in range(groups):
                        more = multiply_add(b, both, weights[g])
                        b.store(b.add(b.load(sums[m][g]), more), sums[m][g])
            for m in range(rows):
                one = b.load(at(x_scale, number(4 * m), _FLOAT), align=4, typ=_FLOAT)
                lane = b.insert_element(ir.Constant(_V8F32, ir.Undefined), one, ir.Constant(_I32, 0))
                scale = b.shuffle_vector(lane, ir.Constant(_V8F32, ir.Undefined), splat)
                for g in range(groups):
                    per_output = b.load(at(w_scale, number(32 * g), _V8F32), align=4, typ=_V8F32)
                    value = b.fmul(b.sitofp(b.load(sums[m][g]), _V8F32), b.fmul(scale, per_output))
                    offset = b.add(b.mul(out_stride, number(m)), number(32 * g))
                    b.store(value, at(out, offset, _V8F32), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9), codegen

    return tile


# Shapes that keep every sum in a vector register: 16 on AVX2, 32 with AVX-512, where each weight and activation that is
# loaded serves four products.
_tile_1x4, _tile_1x1 = _make_tile(1, 4), _make_tile(1, 1)
_tile_2x4, _tile_2x1 = _make_tile(2, 4), _make_tile(2, 1)
_tile_3x2, _tile_3x1 = _make_tile(3, 2), _make_tile(3, 1)
_tile_4x2, _tile_4x1 = _make_tile(4, 2), _make_tile(4, 1)
_tile_4x4 = _make_tile(4, 4)


@nb.njit(**_JIT)
def multiply_groups(x, m_count, pairs, w, x_scale, w_scale, out, out_stride, first, last):  # type: ignore[no-untyped-def]
    """Output groups first..last-1 for all rows; every argument but the counts is an address."""
    xs, ws = pairs * 4, pairs * 16
    g = first
    while g < last:
        wide = last - g >= 4
        w_at, s_at, o_at = w + g * ws, w_scale + g * 32, out + g * 32
        m = 0
        while m + 4 <= m_count:
            x_at, xs_at, y_at = x + m * xs, x_scale + m * 4, o_at + m * out_stride
            if wide and _HAS_32_REGISTERS:
                _tile_4x4(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
            elif wide:
                _tile_4x2(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
                _tile_4x2(x_at, xs, w_at + 2 * ws, ws, pairs, xs_at, s_at + 64, y_at + 64, out_stride)
            else:
                _tile_4x1(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
            m += 4
        if m + 3 == m_count:
            x_at, xs_at, y_at = x + m * xs, x_scale + m * 4, o_at + m * out_stride
            if wide:
                _tile_3x2(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
                _tile_3x2(x_at, xs, w_at + 2 * ws, ws, pairs, xs_at, s_at + 64, y_at + 64, out_stride)
            else:
                _tile_3x1(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
            m += 3
        if m + 2 <= m_count:
            x_at, xs_at, y_at = x + m * xs, x_scale + m * 4, o_at + m * out_stride
            if wide:
                _tile_2x4(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
            else:
                _tile_2x1(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
            m += 2
        if m < m_count:
            x_at, xs_at, y_at = x + m * xs, x_scale + m * 4, o_at + m * out_stride
            if wide:
                _tile_1x4(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
            else:
                _tile_1x1(x_at, xs, w_at, ws, pairs, xs_at, s_at, y_at, out_stride)
        g += 4 if wide else 1


@nb.njit(**_JIT | {"fastmath": {"nnan", "ninf", "nsz", "contract"}})
def quantize_row(row, limit, to):  # type: ignore[no-untyped-def]
    """One row as integers into `to`, which may be one longer (a zero) -> its scale."""
    top = largest_magnitude(row)
    inverse = np.float32(limit) / top if top > np.float32(0.0) else np.float32(0.0)
    for k in range(row.shape[0]):
        to[k] = np.int16(np.rint(row[k] * inverse))
    if to.shape[0] > row.shape[0]:
        to[row.shape[0]] = np.int16(0)
    return top / np.float32(limit)


@nb.njit(**_JIT)
def _quantize(x, limit, q, scale):  # type: ignore[no-untyped-def]
    for m in range(x.shape[0]):
        scale[m] = quantize_row(x[m], limit, q[m])


def quantize_activations(x: F32, limit: int) -> tuple[I16, F32]:
    """Each row of x as integers of at most `limit`; see the reference."""
    q = np.empty((x.shape[0], -(-x.shape[1] // 2) * 2), np.int16)
    scale = np.empty(x.shape[0], np.float32)
    _quantize(x, limit, q, scale)
    return q, scale


# The buffers come from outside: Numba frees an array of its own after the last mention of it, and an address is none.
@nb.njit(**_JIT)
def _linear_serial(x, limit, packed, scale, q, x_scale, out):  # type: ignore[no-untyped-def]
    _quantize(x, limit, q, x_scale)
    multiply_groups(
        q.ctypes.data, x.shape[0], packed.shape[1], packed.ctypes.data, x_scale.ctypes.data, scale.ctypes.data,
        out.ctypes.data, out.shape[1] * 4, 0, packed.shape[0],
    )  # fmt: skip


@nb.njit(parallel=True, **_JIT)
def _linear_parallel(x, limit, packed, scale, q, x_scale, out, parts):  # type: ignore[no-untyped-def]
    pairs, groups = packed.shape[1], packed.shape[0]
    _quantize(x, limit, q, x_scale)
    q_at, w_at, xs_at = q.ctypes.data, packed.ctypes.data, x_scale.ctypes.data
    ws_at, out_at, rows, stride = scale.ctypes.data, out.ctypes.data, x.shape[0], out.shape[1] * 4
    step = ((groups + parts - 1) // parts + 3) // 4 * 4
    for part in nb.prange(parts):
        multiply_groups(
            q_at, rows, pairs, w_at, xs_at, ws_at, out_at, stride, part * step, min(groups, (part + 1) * step)
        )


def linear_int8(x: F32, weight: Int8Matrix, threads: int = 0) -> F32:
    """x W^T for int8 weights; see the reference. threads: 0 takes Numba's count, 1 stays on this thread."""
    rows, (groups, pairs) = x.shape[0], weight.packed.shape[:2]
    out = np.empty((rows, groups * 8), np.float32)
    q = np.empty((rows, pairs * 2), np.int16)
    x_scale = np.empty(rows, np.float32)
    limit = activation_limit(weight.columns)
    parts = threads or nb.get_num_threads()
    if parts == 1 or weight.packed.size * rows < 4 * WORTH_THREADS:  # alone it is over before a sleeping thread is awake
        _linear_serial(x, limit, weight.packed, weight.scale, q, x_scale, out)
    else:
        _linear_parallel(x, limit, weight.packed, weight.scale, q, x_scale, out, parts)
    return out[:, : weight.rows] if groups * 8 != weight.rows else out
