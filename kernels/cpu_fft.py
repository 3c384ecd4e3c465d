"""Fourier transforms of many short real rows, eight rows a vector.

Each vector holds the same sample (or bin) of eight rows, so that a transform of any length is vector code throughout and
needs no shuffles but where rows come in and go out. A row of N samples is a complex one of N / 2 (even samples real, odd
ones imaginary), transformed by Stockham's passes (self-sorting, decimation in frequency) of radix 2 to 10, and taken apart
by symmetry. A row's result does not depend on the rows beside it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

F32 = NDArray[np.float32]
C64 = NDArray[np.complex64]
LANES = 8
_RADICES = (10, 8, 6, 5, 4, 3, 2)
_JIT = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False}

_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_V = ir.VectorType(_FLOAT, LANES)
_ELEMENT = 2 * LANES * 4  # bytes of a complex element: the lanes' real parts, then their imaginary ones
_FUSE = ("contract",)


class _Writer:
    """Writes vector code: addresses are i64, complex numbers pairs of vectors."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def at(self, base: Any, offset: Any, kind: Any) -> Any:
        step = offset if isinstance(offset, ir.Value) else ir.Constant(_I64, offset)
        return self.b.inttoptr(self.b.add(base, step), kind.as_pointer())

    def load(self, base: Any, offset: Any = 0) -> Any:
        return self.b.load(self.at(base, offset, _V), align=4, typ=_V)

    def store(self, value: Any, base: Any, offset: Any = 0) -> None:
        self.b.store(value, self.at(base, offset, _V), align=4)

    def pair(self, base: Any) -> tuple[Any, Any]:
        return self.load(base), self.load(base, 4 * LANES)

    def everywhere(self, base: Any, offset: int) -> Any:
        """A float in memory, in all lanes."""
        one = self.b.load(self.at(base, offset, _FLOAT), align=4, typ=_FLOAT)
        lane = self.b.insert_element(ir.Constant(_V, ir.Undefined), one, ir.Constant(_I32, 0))
        return self.b.shuffle_vector(lane, ir.Constant(_V, ir.Undefined), ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))

    def add(self, x: Any, y: Any) -> Any:
        return self.b.fadd(x, y, flags=_FUSE)

    def subtract(self, x: Any, y: Any) -> Any:
        return self.b.fsub(x, y, flags=_FUSE)

    def scale(self, x: Any, by: float | Any) -> Any:
        return self.b.fmul(x, ir.Constant(_V, [by] * LANES) if isinstance(by, float) else by, flags=_FUSE)

    def both(self, one: Any, x: Any, y: Any) -> tuple[Any, Any]:
        return one(x[0], y[0]), one(x[1], y[1])

    def times(self, x: Any, re: Any, im: Any) -> tuple[Any, Any]:
        return (
            self.subtract(self.scale(x[0], re), self.scale(x[1], im)),
            self.add(self.scale(x[0], im), self.scale(x[1], re)),
        )

    def dft(self, x: list[Any]) -> list[Any]:
        """The transform of a few complex numbers: halves where their number is even, else pairs k, n - k."""
        n = len(x)
        if n == 1:
            return x
        if n % 2 == 0:
            even, odd = self.dft(x[::2]), self.dft(x[1::2])
            turned = [self.turn(z, j, n) for j, z in enumerate(odd)]
            firsts = [self.both(self.add, e, o) for e, o in zip(even, turned, strict=True)]
            return firsts + [self.both(self.subtract, e, o) for e, o in zip(even, turned, strict=True)]
        sums = [self.both(self.add, x[k], x[n - k]) for k in range(1, n // 2 + 1)]
        differences = [self.both(self.subtract, x[k], x[n - k]) for k in range(1, n // 2 + 1)]
        out: list[Any] = [x[0]] * n
        for s in sums:
            out[0] = self.both(self.add, out[0], s)
        for j in range(1, n // 2 + 1):
            a, c = x[0], None
            for k, (s, d) in enumerate(zip(sums, differences, strict=True), 1):
                angle = 2 * np.pi * j * k / n
                cosine, sine = float(np.cos(angle)), float(np.sin(angle))
                a = self.both(self.add, a, (self.scale(s[0], cosine), self.scale(s[1], cosine)))
                more = (self.scale(d[0], sine), self.scale(d[1], sine))
                c = more if c is None else self.both(self.add, c, more)
            out[j] = (self.add(a[0], c[1]), self.subtract(a[1], c[0]))  # a - i c
            out[n - j] = (self.subtract(a[0], c[1]), self.add(a[1], c[0]))
        return out

    def turn(self, z: Any, j: int, n: int) -> Any:
        """z e^(-2 pi i j / n)."""
        if j == 0:
            return z
        if 4 * j == n:
            return z[1], self.b.fneg(z[0])
        return self.times(z, float(np.cos(2 * np.pi * j / n)), -float(np.sin(2 * np.pi * j / n)))

    def transposed(self, rows: list[Any]) -> list[Any]:
        """Eight vectors of eight, rows for columns: at each step the halves, quarters and eighths of pairs change places."""
        for step in (1, 2, 4):
            low = [(i // step * 2 * step + i % step) for i in range(LANES // 2)]
            new = list(rows)
            for i in low:
                first = [k if k & step == 0 else LANES + k - step for k in range(LANES)]
                other = [k + step if k & step == 0 else LANES + k for k in range(LANES)]
                for at, picks in ((i, first), (i + step, other)):
                    mask = ir.Constant(ir.VectorType(_I32, LANES), picks)
                    new[at] = self.b.shuffle_vector(rows[i], rows[i + step], mask)
            rows = new
        return rows


def _make_butterfly(radix: int) -> Any:
    """One transform of `radix` elements within a pass. Arguments, all intp: address of the first, bytes between them, address
    of the first result, bytes between them, address of what results 1.. are turned by (pairs of floats)."""

    @intrinsic  # type: ignore[untyped-decorator]
    def butterfly(typing_context, x, x_step, y, y_step, turns):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            x, x_step, y, y_step, turns = args
            to = _Writer(builder)
            given = [to.pair(builder.add(x, builder.mul(x_step, ir.Constant(_I64, k)))) for k in range(radix)]
            for j, value in enumerate(to.dft(given)):
                if j:
                    value = to.times(value, to.everywhere(turns, 8 * (j - 1)), to.everywhere(turns, 8 * (j - 1) + 4))
                place = builder.add(y, builder.mul(y_step, ir.Constant(_I64, j)))
                to.store(value[0], place)
                to.store(value[1], place, 4 * LANES)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), codegen

    return butterfly


_radix_2, _radix_3, _radix_4, _radix_5 = (_make_butterfly(n) for n in (2, 3, 4, 5))
_radix_6, _radix_8, _radix_10 = (_make_butterfly(n) for n in (6, 8, 10))


def _make_split(swapped: bool) -> Any:
    """Elements k and H - k of a packed transform and of the real row's: with a and the other's conjugate b,
    h (a + b) + t (a - b) and the conjugate of h (a + b) - t (a - b). `swapped`: real and imaginary parts of the results change
    places, as the way back wants them.

    Arguments, all intp: addresses of the two elements, of h and t (three floats), and of the two results."""

    @intrinsic  # type: ignore[untyped-decorator]
    def split(typing_context, one, other, factors, to_one, to_other):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            one, other, factors, to_one, to_other = args
            to = _Writer(builder)
            a, b = to.pair(one), to.pair(other)
            b = (b[0], builder.fneg(b[1]))
            half, t = to.everywhere(factors, 0), (to.everywhere(factors, 4), to.everywhere(factors, 8))
            mean = to.both(to.add, a, b)
            mean = (to.scale(mean[0], half), to.scale(mean[1], half))
            part = to.times(to.both(to.subtract, a, b), *t)
            first, second = to.both(to.add, mean, part), to.both(to.subtract, mean, part)
            second = (second[0], builder.fneg(second[1]))
            for value, place in ((first, to_one), (second, to_other)):
                to.store(value[1 if swapped else 0], place)
                to.store(value[0 if swapped else 1], place, 4 * LANES)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), codegen

    return split


_split, _split_back = _make_split(False), _make_split(True)


def _make_entry(windowed: bool) -> Any:
    """Eight floats of each of eight rows, times those of a window where there is one, as four complex elements. Arguments, all
    intp: address of the first row's, bytes between rows, address of the window's (or any), address of the elements."""

    @intrinsic  # type: ignore[untyped-decorator]
    def entry(typing_context, rows, stride, window, to):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            rows, stride, window, to = args
            write = _Writer(builder)
            given = [write.load(builder.add(rows, builder.mul(stride, ir.Constant(_I64, r)))) for r in range(LANES)]
            if windowed:
                weight = write.load(window)
                given = [write.scale(x, weight) for x in given]
            for n, vector in enumerate(write.transposed(given)):
                write.store(vector, to, 4 * LANES * n)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 4), codegen

    return entry


def _make_exit(swapped: bool) -> Any:
    """Four complex elements as eight floats of each of eight rows; `swapped`: the imaginary part first. Arguments, all intp:
    address of the elements, of the first row's floats, bytes between rows."""

    @intrinsic  # type: ignore[untyped-decorator]
    def leave(typing_context, elements, rows, stride):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            elements, rows, stride = args
            write = _Writer(builder)
            given = [write.load(elements, 4 * LANES * (n ^ int(swapped))) for n in range(LANES)]
            for r, vector in enumerate(write.transposed(given)):
                write.store(vector, builder.add(rows, builder.mul(stride, ir.Constant(_I64, r))))
            return context.get_dummy_value()

        return types.void(*[types.intp] * 3), codegen

    return leave


_windows_in, _spectra_in = _make_entry(True), _make_entry(False)
_spectra_out, _rows_out = _make_exit(False), _make_exit(True)


@nb.njit(**_JIT)
def _transform(x, y, count, radices, turns):  # type: ignore[no-untyped-def]
    """`count` elements at the address x, with as much room at y -> the address of the result, which is one of the two."""
    n, s = count, 1
    for radix in radices:
        m = n // radix
        for p in range(m):
            for q in range(s):
                x_at, y_at = x + _ELEMENT * (q + s * p), y + _ELEMENT * (q + s * radix * p)
                x_step, y_step = _ELEMENT * s * m, _ELEMENT * s
                if radix == 10:
                    _radix_10(x_at, x_step, y_at, y_step, turns)
                elif radix == 8:
                    _radix_8(x_at, x_step, y_at, y_step, turns)
                elif radix == 6:
                    _radix_6(x_at, x_step, y_at, y_step, turns)
                elif radix == 5:
                    _radix_5(x_at, x_step, y_at, y_step, turns)
                elif radix == 4:
                    _radix_4(x_at, x_step, y_at, y_step, turns)
                elif radix == 3:
                    _radix_3(x_at, x_step, y_at, y_step, turns)
                else:
                    _radix_2(x_at, x_step, y_at, y_step, turns)
            turns += 8 * (radix - 1)
        x, y, n, s = y, x, m, s * radix
    return x


class Plan(NamedTuple):
    """For rows of N samples, H = N / 2: the passes' radices, what their results are turned by [all, 2], and h and t for
    elements 0 to H / 2, there and back [H / 2 + 1, 3] (see `_make_split`)."""

    radices: NDArray[np.int64]
    turns: F32
    there: F32
    back: F32


@functools.lru_cache(maxsize=8)
def plan_for(size: int) -> Plan:
    """ValueError unless the size is a multiple of eight without prime factors beyond 5."""
    left, radices = size // 2, []
    for radix in _RADICES:
        while left % radix == 0 and left > 1:
            left //= radix
            radices.append(radix)
    if size < 8 or size % 8 or left != 1:
        raise ValueError(f"rows of {size}; a multiple of 8 with the prime factors 2, 3 and 5 is needed")
    turns: list[NDArray[np.complex128]] = []
    n = size // 2
    for radix in radices:
        p, j = np.arange(n // radix)[:, None], np.arange(1, radix)[None, :]
        turns.append(np.exp(-2j * np.pi * p * j / n).reshape(-1))
        n //= radix
    t = -0.5j * np.exp(-2j * np.pi * np.arange(size // 4 + 1) / size)
    there = np.stack([np.full(len(t), 0.5), t.real, t.imag], axis=1)
    back = np.stack([there[:, 0], t.real, -t.imag], axis=1) / (size // 2)
    return Plan(
        np.array(radices, np.int64), np.concatenate(turns).astype(np.complex64).view(np.float32).reshape(-1, 2),
        there.astype(np.float32), back.astype(np.float32),
    )  # fmt: skip


@nb.njit(**_JIT)
def _there(signal, step, window, plan, rows, lanes, out):  # type: ignore[no-untyped-def]
    """See `spectra_of`; rows [8, N + 2] and lanes [2, H + 1, 2, 8] are room."""
    radices, turns, there, _ = plan
    size, half = window.shape[0], window.shape[0] // 2
    turns_at, there_at, first, second = turns.ctypes.data, there.ctypes.data, lanes[0].ctypes.data, lanes[1].ctypes.data
    for at in range(0, out.shape[0], LANES):
        count = min(LANES, out.shape[0] - at)
        given, stride = signal.ctypes.data + 4 * at * step, 4 * step
        to_rows, to_stride = out.ctypes.data + 4 * at * (size + 2), 4 * (size + 2)
        if count < LANES:
            for r in range(count):
                rows[r, :size] = signal[(at + r) * step : (at + r) * step + size]
            given, stride = rows.ctypes.data, 4 * (size + 2)
            to_rows = given
        for n in range(0, size, LANES):
            _windows_in(given + 4 * n, stride, window.ctypes.data + 4 * n, first + 4 * LANES * n)
        packed = _transform(first, second, half, radices, turns_at)
        to = first + second - packed
        for k in range(half // 2 + 1):
            one, other = _ELEMENT * k, _ELEMENT * (half - k)
            _split(packed + one, packed + (other if k else 0), there_at + 12 * k, to + one, to + other)
        for n in range(0, size, LANES):
            _spectra_out(to + 4 * LANES * n, to_rows + 4 * n, to_stride)
        last = lanes[0 if to == first else 1, half]
        for r in range(count):
            if count < LANES:
                out[at + r] = rows[r]
            out[at + r, size], out[at + r, size + 1] = last[0, r], last[1, r]


@nb.njit(**_JIT)
def _back(spectra, plan, rows, lanes, out):  # type: ignore[no-untyped-def]
    """See `rows_of`; rows [8, N + 2] and lanes [2, H + 1, 2, 8] are room."""
    radices, turns, _, back = plan
    size, half = out.shape[1], out.shape[1] // 2
    turns_at, back_at, first, second = turns.ctypes.data, back.ctypes.data, lanes[0].ctypes.data, lanes[1].ctypes.data
    for at in range(0, out.shape[0], LANES):
        count = min(LANES, out.shape[0] - at)
        given, stride = spectra.ctypes.data + 4 * at * (size + 2), 4 * (size + 2)
        to_rows, to_stride = out.ctypes.data + 4 * at * size, 4 * size
        if count < LANES:
            rows[:count] = spectra[at : at + count]
            given, to_rows, to_stride = rows.ctypes.data, rows.ctypes.data, 4 * (size + 2)
        for n in range(0, size, LANES):
            _spectra_in(given + 4 * n, stride, given, first + 4 * LANES * n)
        for r in range(LANES):
            lanes[0, half, 0, r] = spectra[min(at + r, out.shape[0] - 1), size]
            lanes[0, 0, 1, r] = lanes[0, half, 1, r] = np.float32(0.0)
        for k in range(half // 2 + 1):
            one, other = _ELEMENT * k, _ELEMENT * (half - k)
            _split_back(first + one, first + other, back_at + 12 * k, second + one, second + other)
        found = _transform(second, first, half, radices, turns_at)
        for n in range(0, size, LANES):
            _rows_out(found + 4 * LANES * n, to_rows + 4 * n, to_stride)
        if count < LANES:
            out[at:] = rows[:count, :size]


def _room(size: int) -> tuple[F32, F32]:
    return np.zeros((LANES, size + 2), np.float32), np.empty((2, size // 2 + 1, 2, LANES), np.float32)


def spectra_of(signal: F32, step: int, window: F32, count: int) -> C64:
    """rfft of `count` windows [N] of a signal, `step` samples apart, the first at its beginning -> [count, N / 2 + 1].

    ValueError for an N that `plan_for` has no plan for, or a signal that is too short.
    """
    size = window.shape[0]
    if signal.shape[0] < (count - 1) * step + size:
        raise ValueError(f"{count} windows of {size}, {step} apart, of {signal.shape[0]} samples")
    out = np.empty((count, size // 2 + 1), np.complex64)
    _there(np.ascontiguousarray(signal), step, window, plan_for(size), *_room(size), out.view(np.float32))
    return out


def rows_of(spectra: C64, size: int) -> F32:
    """irfft of each row [size / 2 + 1] -> [T, size]; the first and the last bin's imaginary parts count for nothing.

    ValueError for a size that `plan_for` has no plan for, or another number of bins.
    """
    if spectra.shape[1] != size // 2 + 1:
        raise ValueError(f"{spectra.shape[1]} bins for rows of {size}")
    out = np.empty((spectra.shape[0], size), np.float32)
    _back(np.ascontiguousarray(spectra).view(np.float32), plan_for(size), *_room(size), out)
    return out
