"""Full attention of an encoder in one parallel loop: no BLAS, whose own threads stall when cores are contended.

The products are tiles of eight-lane vectors written through an LLVM intrinsic: six rows by sixteen columns are held in
registers (twelve of AVX2's sixteen) while the inner dimension runs. Keys and values are laid out for it once a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .cpu_dense import exp_f32
from .cpu_max import largest

F32 = NDArray[np.float32]

_f = np.float32
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_V8 = ir.VectorType(_FLOAT, 8)


def _make_tile(rows: int) -> Any:
    """out[r, 0:16] = sum over k of x[r, k] * w[k, 0:16] for `rows` rows.

    Arguments, all intp: x, bytes between its rows, w (two groups of eight columns, each [count, 8] floats), bytes
    between the groups, count, out, bytes between its rows.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(typing_context, x, x_stride, w, w_stride, count, out, out_stride):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_stride, w, w_stride, count, out, out_stride = args
            b = builder
            fma = b.module.declare_intrinsic("llvm.fmuladd.v8f32", (), ir.FunctionType(_V8, [_V8, _V8, _V8]))

            def at(base: Any, offset: Any, kind: Any) -> Any:
                return b.inttoptr(b.add(base, offset), kind.as_pointer())

            def number(value: int) -> Any:
                return ir.Constant(_I64, value)

            zero, splat = ir.Constant(_V8, [0.0] * 8), ir.Constant(ir.VectorType(_I32, 8), [0] * 8)
            undefined = ir.Constant(_V8, ir.Undefined)
            sums = [[cgutils.alloca_once_value(b, zero) for _ in range(2)] for _ in range(rows)]
            with cgutils.for_range(b, count, intp=_I64) as loop:
                w_at, x_at = b.mul(loop.index, number(32)), b.mul(loop.index, number(4))
                weights = [
                    b.load(at(w, b.add(w_at, b.mul(w_stride, number(g))), _V8), align=4, typ=_V8) for g in range(2)
                ]
                for r in range(rows):
                    one = b.load(at(x, b.add(x_at, b.mul(x_stride, number(r))), _FLOAT), align=4, typ=_FLOAT)
                    lane = b.insert_element(undefined, one, ir.Constant(_I32, 0))
                    both = b.shuffle_vector(lane, undefined, splat)
                    for g in range(2):
                        b.store(b.call(fma, [both, weights[g], b.load(sums[r][g])]), sums[r][g])
            for r in range(rows):
                for g in range(2):
                    offset = b.add(b.mul(out_stride, number(r)), number(32 * g))
                    b.store(b.load(sums[r][g]), at(out, offset, _V8), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), codegen

    return tile


_tile_6, _tile_1 = _make_tile(6), _make_tile(1)


@njit(inline="always")
def _product(x, x_stride, rows, w, w_stride, groups, count, out, out_stride):  # type: ignore[no-untyped-def]
    """Rows of x times all pairs of groups of w; every argument but the counts is an address or bytes."""
    for g in range(0, groups, 2):
        r = 0
        while r + 6 <= rows:
            y = out + r * out_stride + g * 32
            _tile_6(x + r * x_stride, x_stride, w + g * w_stride, w_stride, count, y, out_stride)
            r += 6
        while r < rows:
            y = out + r * out_stride + g * 32
            _tile_1(x + r * x_stride, x_stride, w + g * w_stride, w_stride, count, y, out_stride)
            r += 1


_BLOCK = 24  # query rows a task holds the scores of: 24 x 1500 floats stay in the second-level cache


_JIT = {"cache": True, "nogil": True, "fastmath": True}


@njit(**_JIT)
def _lay_out(k, v, h, keys, values):  # type: ignore[no-untyped-def]
    """The keys and values of head h in groups of eight columns; keys past the last are zero."""
    groups, d = keys.shape[1:3]
    lo = h * d
    for t in range(groups * 8):
        for j in range(d):
            keys[h, t // 8, j, t % 8] = k[t, lo + j] if t < k.shape[0] else _f(0.0)
    for t in range(k.shape[0]):
        for j in range(d):
            values[h, j // 8, t, j % 8] = v[t, lo + j]


@njit(**_JIT)
def _some_queries(q, keys, values, task, scale, out):  # type: ignore[no-untyped-def]
    """A block of one head's queries: `task` counts blocks, head after head."""
    num_k, groups, d = values.shape[2], keys.shape[1], keys.shape[2]
    blocks = (q.shape[0] + _BLOCK - 1) // _BLOCK
    h = task // blocks
    first = task % blocks * _BLOCK
    rows = min(_BLOCK, q.shape[0] - first)
    scores = np.empty((rows, groups * 8), np.float32)
    mine = np.empty((rows, d), np.float32)
    part = np.ascontiguousarray(q[first : first + rows, h * d : (h + 1) * d])
    _product(part.ctypes.data, d * 4, rows, keys[h].ctypes.data, d * 32, groups, d, scores.ctypes.data, groups * 32)
    for r in range(rows):
        row = scores[r]
        top = largest(row[:num_k]) * scale
        total = _f(0.0)
        for t in range(num_k):
            e = exp_f32(row[t] * scale - top)
            row[t] = e
            total += e
        part[r, 0] = _f(1.0) / total
    _product(
        scores.ctypes.data, groups * 32, rows, values[h].ctypes.data, num_k * 32, d // 8, num_k, mine.ctypes.data, d * 4
    )
    scores[0, 0] = _f(0.0)  # still there: Numba frees an array after the last mention of it, and an address is none
    for r in range(rows):
        for j in range(d):
            out[first + r, h * d + j] = mine[r, j] * part[r, 0]


@njit(**_JIT)
def _room(q, k, num_heads):  # type: ignore[no-untyped-def]
    """Arrays for the laid out keys and values, and the number of tasks."""
    d = q.shape[1] // num_heads
    keys = np.empty((num_heads, (k.shape[0] + 15) // 16 * 2, d, 8), np.float32)
    return keys, np.empty((num_heads, d // 8, k.shape[0], 8), np.float32), num_heads * ((q.shape[0] + _BLOCK - 1) // _BLOCK)


@njit(parallel=True, **_JIT)
def _attention_loop(q, k, v, num_heads, scale, out):  # type: ignore[no-untyped-def]
    """`attention_serial` on all threads. A function of its own: Numba keeps what it compiled by function, not by options."""
    keys, values, tasks = _room(q, k, num_heads)
    for h in prange(num_heads):
        _lay_out(k, v, h, keys, values)
    for task in prange(tasks):
        _some_queries(q, keys, values, task, scale, out)


@njit(**_JIT)
def attention_serial(q, k, v, num_heads, scale, out):  # type: ignore[no-untyped-def]
    """`attention` into `out` on this thread: a round of the threads costs as much as a short sequence's softmax."""
    keys, values, tasks = _room(q, k, num_heads)
    for h in range(num_heads):
        _lay_out(k, v, h, keys, values)
    for task in range(tasks):
        _some_queries(q, keys, values, task, scale, out)


def attention(q: F32, k: F32, v: F32, num_heads: int, scale: float) -> F32:
    """See `reference.attention`; the head's size is a multiple of 16; q, k, v may be column slices of one array."""
    if q.shape[1] // num_heads % 16:
        raise ValueError(f"heads of {q.shape[1] // num_heads}; a multiple of 16 is needed")
    out = np.empty(q.shape, np.float32)
    _attention_loop(q, k, v, num_heads, _f(scale), out)
    return out
