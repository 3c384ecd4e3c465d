"""What each kernel must compute: a case maker a kernel, with its result in float64. Run anywhere by `run`.

Sizes are drawn, odd ones included; inputs lie between margins whose change is found, outputs are poisoned before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import reference
from .numbers import from_bf16, from_e4m3, quantize_groups, to_bf16, to_e4m3, unpack_groups
from .ops import dft_basis
from .specs import SPECS

Array = NDArray[Any]


@dataclass(slots=True)
class Out:
    """An array that a kernel writes: `expected` holds float64 or integers, the poison where it must not write."""

    initial: Array
    expected: Array
    read: Callable[[Array], Array] | None = None  # stored numbers to real ones
    sorted_: bool = False  # the order of each row is the kernel's own


class Case(NamedTuple):
    """A launch: its grid, and arguments in order, with `Out` for what is written."""

    grid: tuple[int, ...]
    args: list[Any]


@dataclass(slots=True)
class Dice:
    """Draws a case's sizes and numbers. large: what a GPU is measured at, not what an interpreter can do."""

    rng: np.random.Generator
    constants: dict[str, int]
    w: str
    large: bool = False
    seen: list[str] = field(default_factory=list)

    def size(self, low: int, high: int, big: int | None = None, of: int = 1) -> int:
        """A size from low to high (to `big` where large), rounded up to a multiple of `of`."""
        top = (big or high) if self.large else high
        n = -(-int(self.rng.integers(low, top + 1)) // of) * of
        self.seen.append(str(n))
        return n

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)

    def flag(self) -> int:
        return int(self.rng.integers(2))

    def stored(self, x: Array) -> tuple[Array, Array]:
        """(as the variant's type W stores it, the float64 numbers that it then means)."""
        if self.w == "bf16":
            return to_bf16(x), from_bf16(to_bf16(x)).astype(np.float64)
        if self.w == "u8":
            return to_e4m3(x), from_e4m3(to_e4m3(x)).astype(np.float64)
        kept = x.astype({"fp16": np.float16, "fp32": np.float32}[self.w])
        return kept, kept.astype(np.float64)

    def reader(self) -> Callable[[Array], Array] | None:
        return {"bf16": from_bf16, "u8": from_e4m3}.get(self.w)


MAKERS: dict[str, Callable[[Dice], Case]] = {}


def check(maker: Callable[[Dice], Case]) -> Callable[[Dice], Case]:
    """Registers a maker under the kernel's name."""
    MAKERS[maker.__name__] = maker
    return maker


def blank(*shape: int, dtype: Any = np.float32) -> Array:
    """Poison: not a number, or a number that no kernel writes."""
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0x7B, dtype)


def out(expected: Array, dtype: Any = np.float32, **how: Any) -> Out:
    return Out(blank(*expected.shape, dtype=dtype), expected, **how)


def up(n: int, by: int) -> int:
    return -(-n // by)


# -- dense ------------------------------------------------------------------------------------------------------------


def _gate(x: Array, mode: int) -> Array:
    gate, rise = np.split(x.astype(np.float64), 2, axis=1)
    if mode == 2:
        return gate / (1 + np.exp(-gate)) * rise
    return 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * rise


def _norm(x: Array, weight: Array, bias: Array | None, eps: float, centred: bool) -> Array:
    x = x.astype(np.float64)
    x = x - x.mean(1, keepdims=True) if centred else x
    y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * weight
    return y if bias is None else y + bias


def _prepared(x: Array) -> tuple[Array, Array]:
    """Rows as fp16 with their largest magnitude at 1, and what they mean in float64."""
    top = np.abs(x).max(1).astype(np.float32)
    q = (x / np.where(top > 0, top, 1)[:, None]).astype(np.float16)
    return q, top


@check
def prepare_rows(d: Dice) -> Case:
    m, c, mode = d.size(1, 5, 64), d.size(1, 1100, 14336), d.constants["MODE"]
    k = up(c, 16) * 16
    x = d.normal(m, 2 * c if mode in (2, 3) else c) * 3
    x[0] *= d.flag()
    w, b = d.normal(c), d.normal(c)
    y = x.astype(np.float64)
    if mode in (2, 3):
        y = _gate(x, mode)
    elif mode:
        y = _norm(x, w, b if mode == 4 else None, 1e-5, mode == 4)
    top = np.abs(y).max(1)
    q = np.zeros((m, k))
    q[:, :c] = y / np.where(top > 0, top, 1)[:, None]
    return Case((m,), [x, w, b, out(q, np.float16), out(top), c, k, 1e-5])


@check
def norm_rows(d: Dice) -> Case:
    m, c, has_bias, has_skip = d.size(1, 5, 64), d.size(2, 1100, 8192), d.flag(), d.flag()
    x, skip, w, b = d.normal(m, c) * 3 + 1, d.normal(m, c), d.normal(c), d.normal(c)
    y = _norm(x, w, b if has_bias else None, 1e-5, bool(d.constants["CENTRED"]))
    return Case((m,), [x, skip, w, b, out(y + skip if has_skip else y), c, 1e-5, has_bias, has_skip])


@check
def gated_rows(d: Dice) -> Case:
    m, c = d.size(1, 5, 64), d.size(1, 1100, 14336)
    x = d.normal(m, 2 * c) * 3
    return Case((m, up(c, 1024)), [x, out(_gate(x, d.constants["MODE"])), c])


def _rows(d: Dice) -> int:
    return d.size(1, 5 if d.constants["BM"] == 16 else 19, 4 * d.constants["BM"])


def _linear_outcome(d: Dice, m: int, n: int, q: Array, qs: Array, w: Array) -> tuple[Out, Array, int, int]:
    """(the output, bias, has_bias, add) of prepared rows times float64 weights."""
    has_bias, add, bias, before = d.flag(), d.flag(), d.normal(n), d.normal(m, n)
    y = q.astype(np.float64) @ w.T * qs[:, None] + has_bias * bias + (before if add else 0)
    return Out(before if add else blank(m, n), y), bias, has_bias, add


@check
def linear_rows(d: Dice) -> Case:
    m, n, k = _rows(d), d.size(1, 70, 4096), d.size(1, 300, 4096, of=16)
    q, qs = _prepared(d.normal(m, k) * 3)
    ws = np.abs(d.normal(n)) * 0.01
    if d.w == "i8":
        stored = d.rng.integers(-127, 128, (n, k)).astype(np.int8)
        w = stored * ws[:, None].astype(np.float64)
    else:
        stored, w = d.stored(d.normal(n, k) * 0.05)
    y, bias, has_bias, add = _linear_outcome(d, m, n, q, qs, w)
    grid = (up(n, d.constants["BN"]), up(m, d.constants["BM"]))
    return Case(grid, [q, qs, stored, ws, bias, y, m, n, k, has_bias, add])


@check
def linear_grouped(d: Dice) -> Case:
    group = d.constants["GROUP"]
    m, n, k = _rows(d), d.size(1, 40, 4096), d.size(1, 256, 4096, of=max(32, group))
    q, qs = _prepared(d.normal(m, k) * 3)
    p = quantize_groups(d.normal(n, k) * 0.05, d.constants["BITS"], group)
    y, bias, has_bias, add = _linear_outcome(d, m, n, q, qs, unpack_groups(p).astype(np.float64))
    grid = (up(n, d.constants["BN"]), up(m, d.constants["BM"]))
    return Case(grid, [q, qs, p.levels, p.top, p.scale, p.least, bias, y, m, n, k, has_bias, add])


@check
def embed_rows(d: Dice) -> Case:
    m, n, c = d.size(1, 5, 64), d.size(1, 40, 5000), d.size(1, 600, 4096)
    k = up(c, 16) * 16
    ids, ws = d.rng.integers(0, n, m), np.abs(d.normal(n))
    if d.w == "i8":
        stored = d.rng.integers(-127, 128, (n, k)).astype(np.int8)
        w = stored * ws[:, None].astype(np.float64)
    else:
        stored, w = d.stored(d.normal(n, k))
    return Case((m, up(c, 512)), [ids, stored, ws, out(w[ids][:, :c] * 2.5), c, k, 2.5])


@check
def embed_grouped(d: Dice) -> Case:
    group = d.constants["GROUP"]
    m, n, c = d.size(1, 5, 64), d.size(1, 20, 5000), d.size(1, 600, 4096)
    p = quantize_groups(d.normal(n, c), d.constants["BITS"], group)
    ids, k = d.rng.integers(0, n, m), p.scale.shape[1] * group
    rows = unpack_groups(p).astype(np.float64)[ids]
    return Case((m, up(c, 512)), [ids, p.levels, p.top, p.scale, p.least, out(rows * 0.5), c, k, 0.5])


# -- attention --------------------------------------------------------------------------------------------------------


@check
def rotary_paged(d: Dice) -> Case:
    m, g, share, size = d.size(1, 4, 64), d.size(1, 2, 8), d.size(1, 3, 8), d.size(1, 96, 256, of=16)
    h, slots, positions = g * share, m + 5, 60
    x, table = d.normal(m, (h + 2 * g) * size), reference.rotary_table(positions, size, 10000.0)
    at, slot = d.rng.integers(0, positions, m), d.rng.permutation(slots)[:m]
    slot[0] = -1 if d.flag() and m > 1 else slot[0]
    qn, kn, ref = d.normal(size), d.normal(size), d.normal(g, size)
    has_norm, has_ref = d.flag(), int(d.w == "u8")
    norms = (qn, kn) if has_norm else (None, None)
    wide = [None if n is None else n.astype(np.float64) for n in norms]
    q, k, v = reference.rotate_qkv(x.astype(np.float64), h, g, table.astype(np.float64), at, *wide, 1e-6)
    before, _ = d.stored(d.normal(slots, g, size))
    pools = []
    for new in (k - ref if has_ref else k, v):
        meant = (d.reader() or (lambda a: a))(before).astype(np.float64)
        meant[slot[slot >= 0]] = d.stored(new.astype(np.float32))[1][slot >= 0]
        pools.append(Out(before.copy(), meant, d.reader()))
    args = [x, table, at, slot, qn, kn, ref, out(q), *pools, h, g, size, 1e-6, has_norm, has_ref]
    return Case((m, h + 2 * g), args)


def _pages(d: Dice, lengths: list[int], page: int) -> tuple[Array, int]:
    """A block table for sequences of these lengths, pages in any order, and how many slots there are."""
    need = [up(n, page) for n in lengths]
    order = d.rng.permutation(sum(need) + 2)
    table = np.full((len(lengths), max(need) + 1), 0, np.int32)
    at = 0
    for row, n in enumerate(need):
        table[row, :n] = order[at : at + n]
        at += n
    return table, (sum(need) + 2) * page


def _attended(q: Array, k: Array, v: Array, seen: Array, scale: float) -> Array:
    """q [R, d], k and v [T, d], seen [R, T] -> [R, d], float64."""
    scores = np.where(seen, q.astype(np.float64) @ k.T * scale, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ v


def _pool_case(d: Dice) -> tuple[int, int, int, int, float]:
    """(kv heads, query heads, head size, page, scale)."""
    g, share = d.size(1, 2, 8), d.size(1, 3, 8)
    wide = d.constants["D"]
    size = d.size(wide // 2 + 1 if wide > 64 else 1, wide, of=16)
    return g, g * share, size, int(d.rng.choice([1, 5, 16])), size**-0.5


def _slots(table: Array, row: int, length: int, page: int) -> Array:
    t = np.arange(length)
    return table[row, t // page] * page + t % page


@check
def paged_decode(d: Dice) -> Case:
    g, h, size, page, scale = _pool_case(d)
    lengths = [d.size(1, 150, 4000) for _ in range(d.size(1, 2, 16))]
    window, chunk = d.flag() * d.size(1, 70, 1000), d.size(1, 100, 512)
    table, slots = _pages(d, lengths, page)
    splits = up(max(lengths), chunk)
    k, k_means = d.stored(d.normal(slots, g, size))
    v, v_means = d.stored(d.normal(slots, g, size))
    q = d.normal(len(lengths), h, size) * 2
    part, ml = np.zeros((len(lengths), h, splits, size)), np.zeros((len(lengths), h, splits, 2))
    ml[..., 0] = -np.inf
    for b, length in enumerate(lengths):
        low = max(0, length - window) if window else 0
        at = _slots(table, b, length, page)
        for head in range(h):
            scores = k_means[at, head // (h // g)] @ q[b, head].astype(np.float64) * scale
            for s in range(splits):
                first, last = max(low, s * chunk), min(length, (s + 1) * chunk)
                if first < last:
                    top = scores[first:last].max()
                    weights = np.exp(scores[first:last] - top)
                    part[b, head, s] = weights @ v_means[at[first:last], head // (h // g)]
                    ml[b, head, s] = top, weights.sum()
    arrays = [q, k, v, table, np.array(lengths, np.int32), out(part), out(ml)]
    args = [*arrays, h, g, size, table.shape[1], page, window, chunk, scale]
    return Case((len(lengths), g * up(h // g, 16), splits), args)


@check
def paged_combine(d: Dice) -> Case:
    rows, s, size = d.size(1, 9, 512), d.size(1, 7, 32), d.size(1, 256, of=16)
    part, top, total = d.normal(rows, s, size), d.normal(rows, s) * 3, np.abs(d.normal(rows, s)) + 0.1
    if s > 1:  # a split that had nothing to see
        part[:, 0], top[:, 0], total[:, 0] = 0, -np.inf, 0
    weights = np.exp(top.astype(np.float64) - top.max(1, keepdims=True))
    y = (part * weights[..., None]).sum(1) / (total * weights).sum(1)[:, None]
    return Case((rows,), [part, np.stack([top, total], 2).astype(np.float32), out(y), s, size])


@check
def paged_prefill(d: Dice) -> Case:
    g, h, size, page, scale = _pool_case(d)
    counts = [d.size(1, 20, 300) for _ in range(d.size(1, 2, 4))]
    lengths = [n + d.flag() * d.size(1, 50, 2000) for n in counts]
    window = d.flag() * d.size(1, 50, 512)
    table, slots = _pages(d, lengths, page)
    k, k_means = d.stored(d.normal(slots, g, size))
    v, v_means = d.stored(d.normal(slots, g, size))
    starts = np.cumsum([0, *counts]).astype(np.int32)
    q = d.normal(int(starts[-1]), h, size) * 2
    y = np.zeros(q.shape)
    for s, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        at, t = _slots(table, s, length, page), np.arange(length)
        position = np.arange(length - count, length)[:, None]
        seen = (t <= position) & ((t > position - window) | (window == 0))
        rows = slice(starts[s], starts[s + 1])
        for head in range(h):
            kv = head // (h // g)
            y[rows, head] = _attended(q[rows, head], k_means[at, kv], v_means[at, kv], seen, scale)
    grid = (up(max(counts), d.constants["BM"]), h, len(counts))
    args = [q, k, v, table, starts, np.array(lengths, np.int32), out(y), h, g, size, table.shape[1], page, window, scale]
    return Case(grid, args)


@check
def full_attention(d: Dice) -> Case:
    wide = d.constants["D"]
    h, size = d.size(1, 2, 8), d.size(wide // 2 + 1, wide)
    tq, tk = d.size(1, 70, 1500), d.size(1, 90, 1500)
    q, k, v = (d.normal(t, h * size) for t in (tq, tk, tk))
    y = np.zeros((tq, h, size))
    for head in range(h):
        at = slice(head * size, (head + 1) * size)
        y[:, head] = _attended(q[:, at], k[:, at].astype(np.float64), v[:, at].astype(np.float64), np.True_, size**-0.5)
    strides = (h * size, size, h * size, size)
    if d.flag():  # keys and values a head at a time
        k, v = (np.ascontiguousarray(a.reshape(tk, h, size).transpose(1, 0, 2)) for a in (k, v))
        strides = (h * size, size, size, tk * size)
    return Case((up(tq, d.constants["BM"]), h), [q, k, v, out(y), tq, tk, size, *strides, size**-0.5])


# -- sound ------------------------------------------------------------------------------------------------------------


@check
def conv1d_rows(d: Dice) -> Case:
    taps, batch, c, o = d.constants["TAPS"], d.size(1, 2, 8), d.size(1, 50, 400), d.size(1, 40, 400)
    t, stride, padding = d.size(taps, 30, 3000), d.size(1, 2), d.size(0, 1)
    to, has_bias, relu = (t + 2 * padding - taps) // stride + 1, d.flag(), d.flag()
    x, w, b = d.normal(batch, t, c), d.normal(o, taps, c), d.normal(o)
    wide = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (0, 0)))
    seen = np.stack([wide[:, i * stride : i * stride + taps] for i in range(to)], 1)
    y = np.einsum("btkc,okc->bto", seen, w.astype(np.float64)) + has_bias * b
    args = [x, w, b, out(np.maximum(y, 0) if relu else y), t, c, o, to, stride, padding, has_bias, relu]
    return Case((up(to, 16), up(o, 32), batch), args)


@check
def depthwise_norm(d: Dice) -> Case:
    taps, t, c, dilation = d.constants["TAPS"], d.size(1, 9, 500), d.size(2, 256), d.size(1, 8)
    x, w = d.normal(t + (taps - 1) * dilation, c), d.normal(taps, c)
    b, gamma, beta = d.normal(c), d.normal(c), d.normal(c)
    y = sum(x[k * dilation : k * dilation + t].astype(np.float64) * w[k] for k in range(taps)) + b
    return Case((t,), [x, w, b, gamma, beta, out(_norm(y, gamma, beta, 1e-5, True)), c, dilation, 1e-5])


@check
def lstm_step(d: Dice) -> Case:
    n, i, h = d.size(1, 18, 128), d.size(1, 60, 256), d.size(1, 40, 256)
    x, s, c, wi, wh, b = d.normal(n, i), d.normal(n, h), d.normal(n, h), d.normal(4 * h, i), d.normal(4 * h, h), d.normal(4 * h)
    gates = x.astype(np.float64) @ wi.T + s.astype(np.float64) @ wh.T + b
    g_in, forget, cell, g_out = np.split(gates, 4, axis=1)
    new = c / (1 + np.exp(-forget)) + np.tanh(cell) / (1 + np.exp(-g_in))
    return Case((up(n, 16), up(h, 16)), [x, s, c, wi, wh, b, out(np.tanh(new) / (1 + np.exp(-g_out))), out(new), n, i, h])


@check
def log_mel(d: Dice) -> Case:
    n, hop, mels, log = d.size(20, 90, 400), d.size(5, 40, 160), d.size(1, 30, 128), d.flag()
    t, bins = d.size(1, 20, 3000), n // 2 + 1
    x, filters = d.normal((t - 1) * hop + n), np.abs(d.normal(mels, bins)).astype(np.float32)
    basis = dft_basis(n, 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n))
    frames = np.stack([x[i * hop : i * hop + n] for i in range(t)]).astype(np.float64)
    parts = frames @ basis.astype(np.float64).T
    y = (parts[:, :bins] ** 2 + parts[:, bins:] ** 2) @ filters.T.astype(np.float64)
    y = np.log10(np.maximum(y, 1e-10)) if log else y
    return Case((up(t, 16),), [x, basis, filters, out(y), t, hop, n, bins, mels, log])


@check
def frame_products(d: Dice) -> Case:
    t, step, n, f = d.size(1, 20, 500), d.size(1, 40, 300), d.size(1, 90, 1202), d.size(1, 70, 1202)
    x, basis = d.normal((t - 1) * step + n), d.normal(f, n)
    frames = np.stack([x[i * step : i * step + n] for i in range(t)]).astype(np.float64)
    return Case((up(t, 16), up(f, 32)), [x, basis, out(frames @ basis.T), t, step, n, f])


@check
def overlap_frames(d: Dice) -> Case:
    hop, t = d.size(1, 300), d.size(1, 9, 200)
    n = hop * d.size(1, 4)
    frames, tail = d.normal(t, n), d.normal(max(n - hop, 1))
    y = np.zeros(t * hop + n - hop)
    y[: n - hop] = tail[: n - hop]
    for i in range(t):
        y[i * hop : i * hop + n] += frames[i]
    return Case((up(len(y), 1024),), [frames, tail, out(y), t, n, hop, len(y)])


def _pitches(d: Dice) -> Array:
    f0 = np.abs(d.normal(d.size(1, 12, 2000))) * 150 + 30
    f0[d.rng.random(len(f0)) < 0.2] = 0
    return f0.astype(np.float32)


def _held(f0: Array, hop: int) -> Array:
    centres = (np.arange(len(f0)) + 0.5) * hop - 0.5
    return np.maximum(np.interp(np.arange(len(f0) * hop), centres, f0.astype(np.float64)), 40.0)


@check
def frame_turns(d: Dice) -> Case:
    f0, hop = _pitches(d), d.size(2, 600)
    turns = _held(f0, hop).reshape(len(f0), hop).sum(1) / 24000
    return Case((len(f0),), [f0, out(turns, np.float64), len(f0), hop, 24000.0, 40.0])


@check
def harmonic_source(d: Dice) -> Case:
    f0, hop = _pitches(d), d.size(2, 512)
    turns = _held(f0, hop).reshape(len(f0), hop).sum(1) / 24000
    y = reference.harmonic_source(f0, hop).astype(np.float64)
    return Case((len(f0),), [f0, turns, out(y), len(f0), hop, 24000.0, 40.0, 11000.0])


def pairs(z: Array) -> Array:
    """Complex numbers as pairs of real ones in a last axis of two."""
    return np.stack([z.real, z.imag], -1)


@check
def gaussian_rows(d: Dice) -> Case:
    rows, bins, seed, first = d.size(1, 4, 100), d.size(1, 620), d.size(0, 10**6), d.size(0, 5000)
    return Case((rows, up(bins, 512)), [out(pairs(reference.gaussian_rows(seed, first, rows, bins))), seed, first, bins])


@check
def vocoder_mix(d: Dice) -> Case:
    t, bins = d.size(1, 4, 100), d.size(1, 620)
    head, source, noise = d.normal(t, 5 * bins) * 2, d.normal(t, bins, 2), d.normal(t, bins, 2)
    z = reference.vocoder_spectrum(head, source[..., 0] + 1j * source[..., 1], noise[..., 0] + 1j * noise[..., 1])
    return Case((t, up(bins, 512)), [head, source, noise, out(pairs(z)), bins, 7.0])


# -- rows -------------------------------------------------------------------------------------------------------------


@check
def bias_gelu(d: Dice) -> Case:
    m, c, has_bias = d.size(1, 7, 500), d.size(1, 300, 2048), d.flag()
    x, b = d.normal(m, c) * 3, d.normal(c)
    v = x.astype(np.float64) + has_bias * b
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return Case((up(m * c, 1024),), [x, b, out(0.5 * v * (1 + erf(v / math.sqrt(2)))), m * c, c, has_bias])


@check
def scaled_residual(d: Dice) -> Case:
    m, c = d.size(1, 7, 500), d.size(1, 300, 2048)
    skip, x, b, s = d.normal(m, c), d.normal(m, c), d.normal(c), d.normal(c)
    return Case((up(m * c, 1024),), [skip, x, b, s, out(skip + s * (x.astype(np.float64) + b)), m * c, c])


@check
def softmax_rows(d: Dice) -> Case:
    m, c = d.size(1, 5, 64), d.size(1, 2100, 60000)
    x = d.normal(m, c) * 5
    x[:, d.rng.random(c) < 0.2] = -np.inf
    x[:, d.rng.integers(c)] = 1.0
    wide = x.astype(np.float64) - x.max(1, keepdims=True)
    total = np.exp(wide).sum(1, keepdims=True)
    return Case((m,), [x, out(wide - np.log(total) if d.constants["LOG"] else np.exp(wide) / total), c])


@check
def top_rows(d: Dice) -> Case:
    m, c, log = d.size(1, 3, 16), d.size(1, 5000, 60000), d.flag()
    k = min(c, d.size(1, 6, 20))
    x = np.round(d.normal(m, c) * 5, 1).astype(np.float32)  # with equals
    ids = np.argsort(-x, axis=1, kind="stable")[:, :k]
    wide = x.astype(np.float64)
    total = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True)) + wide.max(1, keepdims=True)
    values = np.take_along_axis(wide - total if log else wide, ids, 1)
    return Case((m,), [x, out(values), out(ids, np.int64), c, k, log])


def _maxima(x: Array) -> Array:
    padded = np.full((len(x), up(x.shape[1], 1024) * 1024), -np.inf, np.float32)
    padded[:, : x.shape[1]] = x
    return np.ascontiguousarray(padded.reshape(len(x), -1, 1024).max(2))


@check
def vocab_maxima(d: Dice) -> Case:
    x = d.normal(d.size(1, 3, 64), d.size(1, 5000, 262144))
    top = _maxima(x)
    return Case(top.shape, [x, out(top.astype(np.float64)), x.shape[1]])


@check
def vocab_candidates(d: Dice) -> Case:
    m, c, room = d.size(1, 3, 64), d.size(1, 5000, 262144), 512
    x, reach = d.normal(m, c) * 5, np.abs(d.normal(m)) * 2 + 1
    top = _maxima(x)
    values, ids, counts = np.full((m, room), np.nan), np.full((m, room), 0x7B), np.zeros(m, np.int64)
    for row in range(m):
        at = np.flatnonzero(x[row] > x[row].max() - np.float32(reach[row]))
        counts[row] = len(at)
        values[row, : len(at)], ids[row, : len(at)] = x[row, at], at
    args = [
        x, top, reach, Out(np.zeros(m, np.int32), counts), Out(blank(m, room), values, sorted_=True),
        Out(blank(m, room, dtype=np.int32), ids, sorted_=True), c, room,
    ]  # fmt: skip
    return Case(top.shape, args)


def sampled(x: Array, ids: Array, heat: float, k: int, p: float, floor: float, u: float) -> int:
    """The definition of `sample_candidates` for one row, and of what `models/sampling.py` draws."""
    order = np.lexsort((ids, -x))
    x, ids = x[order].astype(np.float64), ids[order]
    x, ids = (x[:k], ids[:k]) if k else (x, ids)
    chances = np.exp((x - x[0]) / heat)
    if p < 1:
        keep = np.cumsum(chances) - chances < p * chances.sum()
        x, ids, chances = x[keep], ids[keep], chances[keep]
    if floor:
        keep = chances >= floor * chances[0]
        ids, chances = ids[keep], chances[keep]
    edges = np.cumsum(chances)
    return int(ids[min(np.searchsorted(edges, u * edges[-1], side="right"), len(ids) - 1)])


@check
def sample_candidates(d: Dice) -> Case:
    m, room = d.size(1, 2, 64), 1000
    counts = d.rng.integers(1, room + 1, m).astype(np.int32)
    values, ids = blank(m, room), blank(m, room, dtype=np.int32)
    heat = (np.abs(d.normal(m)) + 0.1).astype(np.float32)
    k = d.rng.integers(0, 60, m).astype(np.int32)
    p = np.where(d.rng.random(m) < 0.5, 1, d.rng.uniform(0.1, 1, m)).astype(np.float32)
    floor = np.where(d.rng.random(m) < 0.5, 0, d.rng.uniform(0, 0.3, m)).astype(np.float32)
    u, tokens = d.rng.random(m).astype(np.float32), np.zeros(m, np.int64)
    for row, n in enumerate(counts):
        values[row, :n], ids[row, :n] = d.normal(n) * 3, d.rng.permutation(5000)[:n]
        for _ in range(20):  # away from the edges, where rounding decides
            tokens[row] = sampled(values[row, :n], ids[row, :n], heat[row], k[row], p[row], floor[row], u[row])
            near = {sampled(values[row, :n], ids[row, :n], heat[row], k[row], p[row] * a if p[row] < 1 else 1.0, floor[row] * a,
                            min(max(u[row] + b, 0), 1)) for a in (0.999, 1, 1.001) for b in (-1e-4, 0, 1e-4)}  # fmt: skip
            if len(near) == 1:
                break
            u[row] = d.rng.random()
            p[row], floor[row] = (d.rng.uniform(0.1, 1) if p[row] < 1 else 1), floor[row] * 0.9
    return Case((m,), [values, ids, counts, heat, k, p, floor, u, out(tokens, np.int64), room])


@check
def gather_state(d: Dice) -> Case:
    slots, c, n = d.size(1, 9, 500), d.size(1, 700, 4000), d.size(1, 6, 128)
    state, slot, reset = d.normal(slots, c), d.rng.integers(0, slots, n), d.rng.integers(0, 2, n).astype(np.int32)
    return Case((n, up(c, 512)), [state, slot, reset, out(np.where(reset[:, None], 0, state[slot]).astype(np.float64)), c])


@check
def scatter_state(d: Dice) -> Case:
    slots, c = d.size(1, 9, 500), d.size(1, 700, 4000)
    n = d.size(1, slots) if slots > 1 else 1
    n = min(n, slots)
    x, state, slot = d.normal(n, c), d.normal(slots, c), d.rng.permutation(slots)[:n]
    run = d.rng.integers(0, 2, n).astype(np.int32)
    after = state.astype(np.float64)
    after[slot[run == 1]] = x[run == 1]
    return Case((n, up(c, 512)), [x, slot, run, Out(state, after), c])


# -- running ----------------------------------------------------------------------------------------------------------

_MARGIN = 4096


class Guarded:
    """A copy of an array between margins of poison."""

    def __init__(self, array: Array) -> None:
        raw = np.empty(array.nbytes + 2 * _MARGIN + 64, np.uint8)
        start = -raw.ctypes.data % 64 + _MARGIN
        raw[:] = 0xFF if array.dtype.kind == "f" else 0x7F
        self.array = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self._margins = raw[:start], raw[start + array.nbytes :]
        self._before = [margin.copy() for margin in self._margins]

    @property
    def intact(self) -> bool:
        return all(np.array_equal(now, then) for now, then in zip(self._margins, self._before, strict=True))


def make(name: str, variant: str, number: int, large: bool = False) -> tuple[Case, str]:
    """Case `number` of a kernel's variant, and its sizes in words."""
    spec = SPECS[name].variants[variant]
    seed = [number, *name.encode(), *variant.encode()]
    dice = Dice(np.random.default_rng(seed), spec.constants, spec.w, large)
    case = MAKERS[name](dice)
    return case, " ".join(dice.seen)


def distance(got: Array, expected: Array) -> float:
    """Relative L2 distance; infinite where something is not a number on one side only, or an integer differs."""
    if np.asarray(expected).dtype.kind in "iu":
        return 0.0 if np.array_equal(got, expected) else math.inf
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    for test in (np.isnan, np.isneginf, np.isposinf):
        if not np.array_equal(test(got), test(expected)):
            return math.inf
    fit = np.isfinite(expected)
    scale = float(np.linalg.norm(expected[fit]))
    error = float(np.linalg.norm(got[fit] - expected[fit]))
    return error / scale if scale else error


def judge(case: Case, arrays: list[Any]) -> float:
    """The largest distance of what a launch left in `arrays` from what the case expects."""
    worst = 0.0
    for arg, got in zip(case.args, arrays, strict=True):
        if isinstance(arg, Out):
            got = arg.read(got) if arg.read else got
            expected = arg.expected
            if arg.sorted_:
                got, expected = np.sort(got, axis=1), np.sort(expected, axis=1)
            worst = max(worst, distance(got, expected))
    return worst


def run_on_host(launcher: Any, name: str, variant: str, number: int) -> tuple[float, str]:
    """One case through a launcher of NumPy arrays -> (distance, sizes). AssertionError for a write out of bounds."""
    case, sizes = make(name, variant, number)
    plain = [a.initial if isinstance(a, Out) else a for a in case.args]
    guards = [Guarded(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else None for a in plain]
    given = [a if guard is None else guard.array for a, guard in zip(case.args, guards, strict=True)]
    inputs = [None if g is None or isinstance(a, Out) else g.array.copy() for a, g in zip(case.args, guards, strict=True)]
    launcher.launch(name, variant, case.grid, *given)
    for (arg, _, _), guard, before in zip(SPECS[name].args, guards, inputs, strict=True):
        assert guard is None or guard.intact, f"{name}/{variant} {sizes}: wrote outside {arg}"
        same = before is None or guard is None or np.array_equal(before.view(np.uint8), guard.array.view(np.uint8))
        assert same, f"{name}/{variant} {sizes}: wrote to its input {arg}"
    return judge(case, [a if guard is None else guard.array for a, guard in zip(case.args, guards, strict=True)]), sizes
