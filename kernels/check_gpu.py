"""Proves the kernels on the GPU of this machine, and measures them: `python -m bargein.kernels.check_gpu`.

Needs the extra `gpu` and nothing else: the shipped cubins are loaded, nothing is compiled. Every kernel runs drawn cases,
odd sizes included, on guarded memory with poisoned results against float64; then large ones are timed against the least
time their bytes and operations take on this chip. Writes one JSON report. `--interpret` runs the first half where there
is no GPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from .gpu import checks
from .gpu.specs import SPECS

# Bytes a second and fp16 operations a second (dense, tensor cores), as the makers state them.
CHIPS = {
    "H200": (4.8e12, 989e12), "H100": (3.35e12, 989e12), "A100": (1.56e12, 312e12), "L40S": (0.864e12, 362e12),
    "L4": (0.3e12, 121e12), "4090": (1.008e12, 165e12), "3090": (0.936e12, 71e12),
}  # fmt: skip
_MARGIN = 4096


def operations(name: str, args: list[Any]) -> float:
    """Multiplications and additions of a launch on the tensor cores; 0 for kernels that only move data."""
    by = {arg: value for (arg, _, _), value in zip(SPECS[name].args, args, strict=True)}
    match name:
        case "linear_rows" | "linear_grouped":
            return 2.0 * by["M"] * by["N"] * by["K"]
        case "full_attention":
            return 4.0 * by["TQ"] * by["TK"] * by["out_ptr"].expected.size / by["TQ"]
        case "paged_prefill":
            return 4.0 * float(by["len_ptr"].mean()) * by["out_ptr"].expected.size
    return 0.0


def moved(case: checks.Case) -> int:
    """Bytes that a launch cannot avoid moving: its arguments once, less what a pool or table holds beyond the case."""
    arrays = [a.initial if isinstance(a, checks.Out) else a for a in case.args]
    return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))


class OnGpu:
    """Runs cases on a device. Raises what CuPy raises where there is none."""

    def __init__(self, index: int) -> None:
        import cupy

        from .gpu.launch import Cubins

        self.cupy = cupy
        cupy.cuda.Device(index).use()
        self.kernels = Cubins(cupy, index)
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        self.name = properties["name"].decode()
        self.driver = cupy.cuda.runtime.driverGetVersion()
        self.loaded = self.kernels.load_all()

    def _guarded(self, array: np.ndarray) -> tuple[Any, Any]:
        """(the array on the device, the memory around it)."""
        raw = np.full(array.nbytes + 2 * _MARGIN, 0xFF if array.dtype.kind == "f" else 0x7F, np.uint8)
        raw[_MARGIN : _MARGIN + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        there = self.cupy.asarray(raw)
        return there[_MARGIN : _MARGIN + array.nbytes].view(array.dtype).reshape(array.shape), there

    def check(self, name: str, variant: str, number: int, large: bool) -> tuple[float, str]:
        """One case -> (distance from float64, its sizes). AssertionError for a write out of bounds."""
        case, sizes = checks.make(name, variant, number, large)
        plain = [a.initial if isinstance(a, checks.Out) else a for a in case.args]
        pairs = [self._guarded(a) if isinstance(a, np.ndarray) else None for a in plain]
        given = [a if pair is None else pair[0] for a, pair in zip(plain, pairs, strict=True)]
        self.kernels.launch(name, variant, case.grid, *given)
        left: list[Any] = []
        for arg, value, pair in zip(case.args, plain, pairs, strict=True):
            if pair is None:
                left.append(value)
                continue
            raw = self.cupy.asnumpy(pair[1])
            edges = np.concatenate([raw[:_MARGIN], raw[_MARGIN + value.nbytes :]])
            assert (edges == (0xFF if value.dtype.kind == "f" else 0x7F)).all(), f"{name}/{variant} {sizes}: wrote outside"
            content = raw[_MARGIN : _MARGIN + value.nbytes].view(value.dtype).reshape(value.shape)
            before = np.ascontiguousarray(value).view(np.uint8)
            same = isinstance(arg, checks.Out) or np.array_equal(content.view(np.uint8), before)
            assert same, f"{name}/{variant} {sizes}: wrote to an input"
            left.append(content)
        return checks.judge(case, left), sizes

    def measure(self, name: str, variant: str, number: int) -> dict[str, Any]:
        """Median microseconds of a large case, and the least its bytes and operations allow."""
        case, sizes = checks.make(name, variant, number, True)
        plain = [a.initial if isinstance(a, checks.Out) else a for a in case.args]
        given = [self.cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in plain]
        times = []
        for round_ in range(23):
            start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            start.record()
            self.kernels.launch(name, variant, case.grid, *given)
            end.record()
            end.synchronize()
            times.append(1000 * self.cupy.cuda.get_elapsed_time(start, end) if round_ >= 3 else math.inf)
        chip = next((rates for part, rates in CHIPS.items() if part in self.name), None)
        told: dict[str, Any] = {"us": round(float(np.median(times[3:])), 2), "sizes": sizes}
        if chip is not None:
            floor = max(moved(case) / chip[0], operations(name, case.args) / chip[1])
            told["least_us"] = round(1e6 * floor, 3)
        return told


class Interpreted:
    """The same cases in Triton's interpreter."""

    name, driver = "Triton's interpreter", 0

    def __init__(self) -> None:
        from .gpu.interpret import Interpreter

        self._launcher = Interpreter()
        self.loaded = self._launcher.load_all()

    def check(self, name: str, variant: str, number: int, large: bool) -> tuple[float, str]:
        return checks.run_on_host(self._launcher, name, variant, number)


def run(machine: OnGpu | Interpreted, names: list[str], cases: int) -> dict[str, Any]:
    """The report: each kernel's worst distance, its tolerance, what failed, and on a GPU its times."""
    report: dict[str, Any] = {"device": machine.name, "driver": machine.driver, "loaded": machine.loaded, "kernels": {}}
    for name in names:
        variants, failures, worst = list(SPECS[name].variants), [], 0.0
        for number in range(cases):
            variant = variants[number % len(variants)]
            try:
                error, sizes = machine.check(name, variant, number, isinstance(machine, OnGpu) and number % 2 == 1)
            except Exception as problem:  # one kernel's failure must not hide the others' results
                failures.append(f"{variant} case {number}: {type(problem).__name__}: {problem}"[:500])
                continue
            worst = max(worst, error)
            if not error <= SPECS[name].tolerance:
                failures.append(f"{variant} case {number}, sizes {sizes}: {error:.2e}")
        told = {"cases": cases, "worst": worst if math.isfinite(worst) else "inf", "tolerance": SPECS[name].tolerance,
                "failures": failures}  # fmt: skip
        if isinstance(machine, OnGpu) and not failures:
            told["times"] = {variant: machine.measure(name, variant, 1) for variant in variants}
        report["kernels"][name] = told
        print(f"{name:18} {'FAILED' if failures else 'ok':6} worst {worst:.1e} of {SPECS[name].tolerance:.0e}", flush=True)
    report["ok"] = not any(told["failures"] for told in report["kernels"].values())
    return report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bargein.kernels.check_gpu", description=__doc__)
    parser.add_argument("--interpret", action="store_true", help="in Triton's interpreter, where there is no GPU")
    parser.add_argument("--device", type=int, default=0, help="number of the GPU (default 0)")
    parser.add_argument("--cases", type=int, default=24, help="cases of each kernel (default 24)")
    parser.add_argument("--only", nargs="+", choices=list(SPECS), metavar="KERNEL", help="some kernels")
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"), help="the report (default gpu-report.json)")
    args = parser.parse_args(argv)
    started = time.monotonic()
    try:
        machine = Interpreted() if args.interpret else OnGpu(args.device)
    except Exception as problem:  # no CuPy, no driver, no GPU, no kernels for it: one line
        print(f"bargein: no GPU to check: {type(problem).__name__}: {problem}".splitlines()[0], file=sys.stderr)
        return 2
    report = run(machine, args.only or list(SPECS), args.cases)
    report["seconds"] = round(time.monotonic() - started, 1)
    args.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(f"{'all kernels are right' if report['ok'] else 'SOME KERNELS ARE WRONG'}: {args.out}, {report['seconds']} s")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
