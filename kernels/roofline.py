"""`bargein bench kernels`: what each kernel reaches of what this machine can do, on one core.

The machine's ceilings are measured here too, in the same run: how fast one core reads memory, and how many products of
16-bit integers and of floats it makes a second out of registers. A kernel's time is bounded below by the bytes it must read
from memory at the one rate and by its products at the other; the share of that bound is what the table tells. A second table
has kernels that neither bounds beside what they replaced.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from . import cpu
from .cpu_fft import rows_of, spectra_of
from .cpu_int8 import multiply_add
from .cpu_max import largest
from .cpu_vad import fused

F32 = NDArray[np.float32]
ROUNDS = 15
_CHAINS = 12  # enough to hide what one product takes
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_V8I32, _V16I16, _V8F32 = ir.VectorType(_I32, 8), ir.VectorType(ir.IntType(16), 16), ir.VectorType(_FLOAT, 8)


class Case(NamedTuple):
    """One kernel at one shape. `read`: bytes that come from memory; `products`: multiplications, `kind` of what."""

    name: str
    run: Callable[[], object]
    read: float
    products: float
    kind: str


class Ceilings(NamedTuple):
    """Of one core: bytes a second, products a second of each kind."""

    read: float
    products: dict[str, float]


def _registers(kind: str) -> Any:
    """A function (rounds) -> something: so many rounds of `_CHAINS` vector products and sums that stay in registers."""

    @intrinsic  # type: ignore[untyped-decorator]
    def chains(typing_context, rounds):  # type: ignore[no-untyped-def]
        def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
            whole = kind == "int16"
            vector = _V8I32 if whole else _V8F32
            start = ir.Constant(vector, [1 if whole else 1.0] * 8)
            sums = [cgutils.alloca_once_value(b, start) for _ in range(_CHAINS)]
            with cgutils.for_range(b, args[0], intp=_I64):
                for total in sums:
                    value = b.load(total)
                    if whole:
                        x = b.bitcast(value, _V16I16)
                        b.store(b.add(value, multiply_add(b, x, ir.Constant(_V16I16, [3] * 16))), total)
                    else:
                        b.store(fused(b, value, ir.Constant(_V8F32, [0.5] * 8), start), total)
            all_of = b.load(sums[0])
            for total in sums[1:]:
                all_of = b.add(all_of, b.load(total)) if whole else b.fadd(all_of, b.load(total))
            first = b.extract_element(all_of, ir.Constant(_I32, 0))
            return b.sext(first, _I64) if whole else b.fptosi(first, _I64)

        return types.int64(types.intp), codegen

    @nb.njit(nogil=True)
    def run(rounds):  # type: ignore[no-untyped-def]
        return chains(rounds)

    return run


@nb.njit(nogil=True, fastmath=True)
def _read(x):  # type: ignore[no-untyped-def]
    """Four streams at once: the prefetcher follows one only to the end of a page."""
    a = b = c = d = np.int64(0)
    part = x.shape[0] // 4
    for i in range(part):
        a += x[i]
        b += x[part + i]
        c += x[2 * part + i]
        d += x[3 * part + i]
    return a + b + c + d


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of `ROUNDS` runs, after one that compiles."""
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def ceilings() -> Ceilings:
    """What this core can do."""
    memory = np.ones(32_000_000, np.int64)  # 256 MB: no cache holds it
    read = memory.nbytes / best(lambda: _read(memory))
    rounds, products = 200_000, {}
    for kind, lanes in (("int16", 16), ("float32", 8)):
        run = _registers(kind)
        products[kind] = rounds * _CHAINS * lanes / best(lambda run=run: run(rounds))  # type: ignore[misc]
    return Ceilings(read, products)


def cases() -> list[Case]:
    """The kernels that carry the models, at the shapes they have there."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> F32:
        return rng.normal(0, 1, shape).astype(np.float32)

    def rounded(rows: int, columns: int) -> Any:
        return cpu.pack_rows(*cpu.quantize_rows(floats(rows, columns)))

    out = []
    # 79 MB: decoding reads every layer once a token, from memory; as the models have it, in one arena
    many = cpu.place([rounded(2048, 640) for _ in range(60)])
    size = 2048 * 640
    for m in (1, 4, 8, 16, 32):
        x = floats(m, 640)
        out.append(Case(
            f"int8 linear, 60 layers of {m} x 640 by 2048", lambda x=x: [cpu.linear_int8(x, w, 1) for w in many],  # type: ignore[misc]
            60 * size, 60 * m * size, "int16",
        ))  # fmt: skip
    head = rounded(262_144, 640)
    sketch, one = cpu.sketch_of(head), floats(1, 640)
    size = 262_144 * 640
    out.append(Case("whole head, 1 x 640 by 262144", lambda: cpu.linear_int8(one, head, 1), size, size, "int16"))
    out.append(Case("sketched head, the same", lambda: cpu.head_top(one, head, sketch, 64), size / 2, size, "int16"))
    for m, n, k in ((256, 2048, 512), (256, 512, 2048), (256, 1536, 384)):
        x, w, name = floats(m, k), rounded(n, k), f"int8 linear, {m} x {k} by {n}"
        out.append(Case(name, lambda x=x, w=w: cpu.linear_int8(x, w, 1), n * k, m * n * k, "int16"))  # type: ignore[misc]
    block = cpu.ConvBlock(
        floats(7, 256), *(floats(256) for _ in range(3)), rounded(768, 256), floats(768), rounded(256, 768), floats(256),
        floats(256),
    )  # fmt: skip
    voiced, size = floats(54, 256), 48 * 2 * 768 * 256
    out.append(Case("block of the voice, 48 x 256, 768 hidden", lambda: cpu.conv_block(voiced, block), 0, size, "int16"))
    q, k3, v = floats(400, 384), floats(400, 384), floats(400, 384)
    size = 2 * 400 * 400 * 384
    out.append(Case("attention, 400 x 400, 6 heads", lambda: cpu.attention(q, k3, v, 6, 0.125), 0, size, "float32"))
    qs, k1, v1, pages = floats(1, 4, 256), floats(1, 1, 256), floats(1, 1, 256), floats(8, 1, 2, 1, 64, 256)
    places = cpu.Places(pages.ctypes.data + np.arange(8) * pages[0].nbytes, np.array([0, 8]), np.array([0, 1]), np.array([511]))
    caches = cpu.Caches([list(pages)], places, 64)
    out.append(Case(
        "attention of a token, 512 before, 4 heads of 256", lambda: cpu.attend_pages(qs, k1, v1, caches, 0, 0.06, 0), 0,
        2 * 512 * 4 * 256, "float32",
    ))  # fmt: skip
    vad = cpu.VadWeights(
        floats(258, 256), floats(128, 3, 129), floats(128), floats(64, 3, 128), floats(64), floats(64, 3, 64), floats(64),
        floats(128, 3, 64), floats(128), floats(512, 256), floats(512), floats(128), floats(1),
    )  # fmt: skip
    for n in (1, 64):
        x, h, c = floats(n, 576), floats(n, 128), floats(n, 128)
        each = 4 * 258 * 256 + 4 * 128 * 387 + 2 * 64 * 384 + 64 * 192 + 128 * 64 + 512 * 256
        name = f"voice detector, {n} window{'s' * (n > 1)}"
        out.append(Case(name, lambda x=x, h=h, c=c: cpu.vad_step(vad, x, h, c), 0, n * each, "float32"))  # type: ignore[misc]
    return out


def table() -> list[str]:
    """The table's lines."""
    top = ceilings()
    lines = [
        f"One core reads {top.read / 1e9:.1f} GB/s from memory, and makes {top.products['int16'] / 1e9:.1f} G products of "
        f"16-bit integers or {top.products['float32'] / 1e9:.1f} G of floats a second.", "",
        "| kernel | MB read | M products | ms | GB/s | G products/s | of the bound | by |", "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for case in cases():
        seconds = best(case.run)
        reading, multiplying = case.read / top.read, case.products / top.products[case.kind]
        by = "memory" if reading > multiplying else case.kind
        rate = f"{case.read / seconds / 1e9:.1f}" if case.read else "-"
        lines.append(
            f"| {case.name} | {case.read / 1e6:.1f} | {case.products / 1e6:.0f} | {1000 * seconds:.3f} | {rate} | "
            f"{case.products / seconds / 1e9:.1f} | {100 * max(reading, multiplying) / seconds:.0f} % | {by} |"
        )
    return lines


@nb.njit(fastmath=True)
def _plain_largest(x):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for r in range(x.shape[0]):
        top = x[r, 0]
        for k in range(x.shape[1]):
            top = max(top, x[r, k])
        total += top
    return total


@nb.njit
def _largest(x):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for r in range(x.shape[0]):
        total += largest(x[r])
    return total


def besides() -> list[str]:
    """The lines of a second table: kernels that no ceiling bounds, beside what they replaced, in turns."""
    rng = np.random.default_rng(0)
    signal, window = (rng.normal(0, 1, n).astype(np.float32) for n in (63 * 300 + 1200, 1200))
    frames = np.lib.stride_tricks.sliding_window_view(signal, 1200)[::300]
    spectra, rows = spectra_of(signal, 300, window, 64), rng.normal(0, 1, (64, 1500)).astype(np.float32)
    pairs: list[tuple[str, Callable[[], object], str, Callable[[], object]]] = [
        ("spectra of 64 windows of 1200", lambda: spectra_of(signal, 300, window, 64), "NumPy",
         lambda: np.fft.rfft(frames * window, axis=1)),
        ("and back", lambda: rows_of(spectra, 1200), "NumPy", lambda: np.fft.irfft(spectra, 1200, axis=1)),
        ("the largest of 64 rows of 1500", lambda: _largest(rows), "floats compared", lambda: _plain_largest(rows)),
    ]  # fmt: skip
    lines = ["| kernel | us | beside | us | ours is faster by |", "|---|---|---|---|---|"]
    for name, ours, other, theirs in pairs:
        sides: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(21):  # the first compiles
            for side, work in (("ours", ours), ("theirs", theirs)):
                sides[side].append(best(work))
        mine, its = (1e6 * statistics.median(sides[side][1:]) for side in ("ours", "theirs"))
        lines.append(f"| {name} | {mine:.1f} | {other} | {its:.1f} | {its / mine:.2f} |")
    return lines


def run(argv: list[str]) -> int:
    """`bargein bench kernels`; returns the exit status."""
    if argv:
        print(f"bargein: bench kernels takes no {argv[0]!r}", file=sys.stderr)
        return 2
    nb.set_num_threads(1)
    for line in (*table(), "", *besides()):
        print(line, flush=True)
    return 0
