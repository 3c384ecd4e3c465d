"""Attention over caches in pages, on the CPU: same names and results as `reference_lm.py`.

A tile is four query rows (token, head) that share a head of keys: each key and value is read once for the four. A page is a
contiguous run of keys, so the inner loops know nothing of pages. Sums are made in the order of the tokens, whatever the pages'
size and wherever they lie, and nothing here may reorder them (see `cpu_lm`): a token's result does not depend on its cache's
layout, its chunk or its company, to the bit.

NumPy's BLAS would be as fast on an idle machine, but its threads and Numba's spin against each other: on busy cores that
costs ten times the product itself.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .cpu_lm import _JIT, _sum
from .cpu_max import largest
from .cpu_tts import exp_f32
from .reference_lm import Caches

__all__ = ["attend_pages"]

F32 = NDArray[np.float32]
f32 = np.float32
WORTH_THREADS = 500_000  # products
_I32, _I64, _FLOAT, _V8F32 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VectorType(ir.FloatType(), 8)


@intrinsic  # type: ignore[untyped-decorator]
def _floats(typing_context, address):  # type: ignore[no-untyped-def]
    """An address as a pointer to float32, for `nb.carray`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], _FLOAT.as_pointer())

    return types.CPointer(types.float32)(types.intp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _dots_4x2(typing_context, q0, q1, q2, q3, k0, k1, blocks, scale, out0, out1, out_stride):  # type: ignore[no-untyped-def]
    """scale * q_r . k_j for four queries and two keys of `blocks` times eight float32; all but `scale` are addresses.

    Stored at out_j + r * out_stride. Numba's vectorizer may not split a sum into lanes on its own here (see `cpu_lm`).
    """

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        *rows, blocks, scale, out0, out1, out_stride = args
        b = builder

        def load(base: Any, offset: Any) -> Any:
            return b.load(b.inttoptr(b.add(base, offset), _V8F32.as_pointer()), align=4, typ=_V8F32)

        fma = b.module.declare_intrinsic("llvm.fma.v8f32", (), ir.FunctionType(_V8F32, [_V8F32] * 3))
        zero = ir.Constant(_V8F32, [0.0] * 8)
        sums = [[cgutils.alloca_once_value(b, zero) for _ in range(2)] for _ in range(4)]
        with cgutils.for_range(b, blocks, intp=_I64) as loop:
            offset = b.mul(loop.index, ir.Constant(_I64, 32))
            keys = [load(key, offset) for key in rows[4:]]
            for query, pair in zip(rows[:4], sums, strict=True):
                value = load(query, offset)
                for key, total in zip(keys, pair, strict=True):
                    b.store(b.call(fma, [value, key, b.load(total)]), total)
        for r, pair in enumerate(sums):
            for total, out in zip(pair, (out0, out1), strict=True):
                lanes = b.load(total)
                for width in (4, 2, 1):
                    low, high = (ir.Constant(ir.VectorType(_I32, width), list(range(n, n + width))) for n in (0, width))
                    undefined = ir.Constant(lanes.type, ir.Undefined)
                    lanes = b.fadd(b.shuffle_vector(lanes, undefined, low), b.shuffle_vector(lanes, undefined, high))
                one = b.fmul(b.extract_element(lanes, ir.Constant(_I32, 0)), scale)
                at = b.add(out, b.mul(out_stride, ir.Constant(_I64, r)))
                b.store(one, b.inttoptr(at, _FLOAT.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7, types.float32, *[types.intp] * 3), codegen


@nb.njit(**_JIT)
def _dots(q0, q1, q2, q3, k_at, count, scale, out_at, stride):  # type: ignore[no-untyped-def]
    """scale * q_r . key_j for `count` keys, which begin at the address k_at, stored at out_at + r * stride + 4 j."""
    size = q0.shape[0]
    for j in range(0, count, 2):
        other = min(j + 1, count - 1)  # an odd last key is done twice
        _dots_4x2(
            q0.ctypes.data, q1.ctypes.data, q2.ctypes.data, q3.ctypes.data,
            k_at + j * size * 4, k_at + other * size * 4, size // 8, scale,
            out_at + j * 4, out_at + other * 4, stride,
        )  # fmt: skip


@nb.njit(**_JIT)
def _softmax_between(row, low, high):  # type: ignore[no-untyped-def]
    """Softmax of row[low:high] in place, zero elsewhere."""
    part = row[low:high]
    top = largest(part)
    for j in range(part.shape[0]):
        part[j] = exp_f32(part[j] - top)
    inverse = f32(1.0) / _sum(part)
    for j in range(part.shape[0]):
        part[j] *= inverse
    row[:low] = f32(0.0)
    row[high:] = f32(0.0)


@nb.njit(**_JIT | {"fastmath": {"contract", "nnan", "ninf", "nsz"}})  # a product and its sum in one rounding, in order
def _add_values(wa, wb, values, out_a, out_b):  # type: ignore[no-untyped-def]
    """out_r += sum over j of w_r[j] values[j], in order, for two rows."""
    count, size = values.shape[0], out_a.shape[0]
    j = 0
    while j + 4 <= count:
        v0, v1, v2, v3 = values[j], values[j + 1], values[j + 2], values[j + 3]
        a0, a1, a2, a3 = wa[j], wa[j + 1], wa[j + 2], wa[j + 3]
        b0, b1, b2, b3 = wb[j], wb[j + 1], wb[j + 2], wb[j + 3]
        for i in range(size):
            a, b = out_a[i], out_b[i]
            a, b = a + a0 * v0[i], b + b0 * v0[i]
            a, b = a + a1 * v1[i], b + b1 * v1[i]
            a, b = a + a2 * v2[i], b + b2 * v2[i]
            out_a[i], out_b[i] = a + a3 * v3[i], b + b3 * v3[i]
        j += 4
    while j < count:
        value, a0, b0 = values[j], wa[j], wb[j]
        for i in range(size):
            out_a[i] += a0 * value[i]
            out_b[i] += b0 * value[i]
        j += 1


@nb.njit(**_JIT)
def _attend_tile(q, pages, page, keys_at, values_at, group, start, scale, window, head, at, out):  # type: ignore[no-untyped-def]
    """Rows at..at+3 of the heads that read keys of one head; row r is token r // group, head r % group of the group.

    pages: addresses, of `page` tokens each; keys_at, values_at: where in a page this head's begin, in bytes.
    """
    tokens, _, size = q.shape
    rows = min(4, tokens * group - at)
    early, late = at // group, (at + rows - 1) // group  # tokens
    first = max(0, start + early + 1 - window) if window > 0 else 0
    last = start + late + 1
    scores = np.empty((4, last - first), np.float32)
    sums = np.zeros((4, size), np.float32)
    token, column = np.empty(4, np.int64), np.empty(4, np.int64)
    for r in range(4):  # missing rows repeat the last one
        row = at + min(r, rows - 1)
        token[r], column[r] = row // group, head * group + row % group
    q0, q1, q2, q3 = (
        q[token[0], column[0]], q[token[1], column[1]], q[token[2], column[2]], q[token[3], column[3]],
    )  # fmt: skip
    j = first
    while j < last:
        inside = j % page
        count = min(page - inside, last - j)
        address = pages[j // page] + keys_at + inside * size * 4
        _dots(q0, q1, q2, q3, address, count, scale, scores.ctypes.data + (j - first) * 4, (last - first) * 4)
        j += count
    for r in range(4):
        end = start + token[r] + 1
        low = max(0, end - window) if window > 0 else 0
        _softmax_between(scores[r], low - first, end - first)
    j = first
    while j < last:
        inside = j % page
        count = min(page - inside, last - j)
        values = nb.carray(_floats(pages[j // page] + values_at + inside * size * 4), (count, size))
        for r in range(0, rows, 2):  # the second time the page is in the cache
            _add_values(scores[r, j - first :], scores[r + 1, j - first :], values, sums[r], sums[r + 1])
        j += count
    for r in range(rows):
        out[token[r], column[r]] = sums[r]


@nb.njit(**_JIT)
def _store(k, v, addresses, bounds, rows, lengths, page, layer):  # type: ignore[no-untyped-def]
    """Each sequence's new keys and values into its pages."""
    _, heads, size = k.shape
    for s in range(lengths.shape[0]):
        for m in range(rows[s], rows[s + 1]):
            token = lengths[s] + m - rows[s]
            address = addresses[bounds[s] + token // page]
            for head in range(heads):
                key_at = address + (((layer * 2) * heads + head) * page + token % page) * size * 4
                key, value = nb.carray(_floats(key_at), size), nb.carray(_floats(key_at + heads * page * size * 4), size)
                for i in range(size):
                    key[i] = k[m, head, i]
                    value[i] = v[m, head, i]


@nb.njit(**_JIT)
def _attend_part(part, q, kv_heads, addresses, bounds, rows, lengths, ends, page, layer, scale, window, out):  # type: ignore[no-untyped-def]
    """One tile of all sequences' tiles, of which those of sequence s are the ones before ends[s]."""
    s = 0
    while part >= ends[s]:
        s += 1
    if s > 0:
        part -= ends[s - 1]
    a, b = rows[s], rows[s + 1]
    group, size = q.shape[1] // kv_heads, q.shape[2]
    tiles = ((b - a) * group + 3) // 4
    head = part // tiles
    keys_at = (layer * 2 * kv_heads + head) * page * size * 4
    values_at = keys_at + kv_heads * page * size * 4
    pages = addresses[bounds[s] : bounds[s + 1]]
    at = part % tiles * 4
    _attend_tile(q[a:b], pages, page, keys_at, values_at, group, lengths[s], scale, window, head, at, out[a:b])


@nb.njit(parallel=True, **_JIT)
def _attend_parallel(q, kv_heads, addresses, bounds, rows, lengths, ends, page, layer, scale, window, out):  # type: ignore[no-untyped-def]
    parts = ends[ends.shape[0] - 1]
    half = (parts + 1) // 2
    for n in nb.prange(parts):  # early and late tokens in turn, so that both threads get as many keys
        part = n // 2 if n % 2 == 0 else half + n // 2
        _attend_part(part, q, kv_heads, addresses, bounds, rows, lengths, ends, page, layer, scale, window, out)


@nb.njit(**_JIT)
def _attend(q, k, v, addresses, bounds, rows, lengths, page, layer, scale, window, out):  # type: ignore[no-untyped-def]
    kv_heads = k.shape[1]
    group = q.shape[1] // kv_heads
    ends = np.empty(lengths.shape[0], np.int64)
    parts = products = 0
    for s in range(lengths.shape[0]):
        count = rows[s + 1] - rows[s]
        parts += kv_heads * ((count * group + 3) // 4)
        ends[s] = parts
        seen = lengths[s] + count
        if seen > (bounds[s + 1] - bounds[s]) * page:  # what follows trusts the addresses
            raise ValueError("a sequence has too few pages for its tokens")
        products += count * q.shape[1] * q.shape[2] * (min(seen, window + count) if window > 0 else seen)
    _store(k, v, addresses, bounds, rows, lengths, page, layer)
    if parts > 1 and products >= WORTH_THREADS:
        _attend_parallel(q, kv_heads, addresses, bounds, rows, lengths, ends, page, layer, scale, window, out)
    else:
        for part in range(parts):
            _attend_part(part, q, kv_heads, addresses, bounds, rows, lengths, ends, page, layer, scale, window, out)


def attend_pages(q: F32, k: F32, v: F32, caches: Caches, layer: int, scale: float, window: int) -> F32:
    """Append keys and values to their caches and attend; q, k and v contiguous; see the reference.

    ValueError for a head size that 8 does not divide, and for a sequence with too few pages.
    """
    rows, heads, size = q.shape
    if size % 8:
        raise ValueError(f"the head size must be divisible by 8, is {size}")
    out = np.empty((rows, heads, size), np.float32)
    _attend(q, k, v, *caches.places, caches.page, layer, f32(scale), window, out)
    return out.reshape(rows, heads * size)
