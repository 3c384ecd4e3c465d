"""`bargein bench schedule`: loads of calls replayed on a virtual clock, and what of them would come late, by class of work."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .costs import Costs, load_costs
from .desk import MAX_BATCH
from .simulate import Beside, Figures, Simulation

WINDOW_S = 30.0


def run(argv: list[str]) -> int:
    """The command; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        costs = load_costs(args.costs)
        loads = [int(n) for n in args.calls.split(",")]
        if min(args.engines, args.seconds, args.batch) <= 0 or min(args.requests, args.recordings, *loads) < 0:
            raise ValueError("--engines, --batch and --seconds must be above 0, --calls, --requests and --recordings not below")
        print(HEADING)
        for calls in loads:
            print(row(calls, simulated(costs, calls, args), args))
            sys.stdout.flush()
    except ValueError as problem:
        print(f"bargein: {problem}")
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="bargein bench schedule", description=(__doc__ or "").split("\n")[0])
    p.add_argument(
        "--costs", type=Path, default=Path("bench/costs_two_cores.json"), help="what steps cost (default %(default)s)"
    )
    p.add_argument("--calls", default="1,2,4,6,8", help="loads to try (default %(default)s)")
    p.add_argument("--requests", type=float, default=0.0, help="for a text over HTTP, so many a second beside the calls")
    p.add_argument("--recordings", type=int, default=0, help="so many transcribed at a time beside them")
    p.add_argument("--engines", type=int, default=1, help="the calls are spread over so many, each with a device of its own")
    p.add_argument(
        "--together", action="store_true", help="equal steps of several streams in one, at the table's cost, as tokens are"
    )
    p.add_argument("--batch", type=int, default=MAX_BATCH, help="so many in one step at most (default %(default)s)")
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=1)
    return p


HEADING = (
    f"{'calls':>6} {'busy':>6} {'voice to voice: median':>23} {'p95':>7} {'late answers':>13}"
    "   (late of each lane's answers; seconds of a core by lane; beside the calls)"
)


def simulated(costs: Costs, calls: int, args: argparse.Namespace) -> list[Figures]:
    """Each engine's figures: a call keeps to one, so they do not wait for each other."""
    figures = []
    for n in range(args.engines):
        here = calls // args.engines + (n < calls % args.engines)
        recordings = args.recordings // args.engines + (n < args.recordings % args.engines)
        beside = Beside(args.requests / args.engines, recordings)
        figures.append(Simulation(costs, here, args.seconds, args.seed + n, beside, args.together, args.batch).run())
    return figures


def row(calls: int, engines: list[Figures], args: argparse.Namespace) -> str:
    """A load's line."""
    delays = [s for f in engines for s in f.delays]
    answered, late = summed([f.answered for f in engines]), summed([f.late for f in engines])
    lanes, classes = summed([f.lanes for f in engines]), summed([f.classes for f in engines])
    firsts = [s for f in engines for s in f.firsts]
    told = [
        ", ".join(f"{lane} {late[lane]:.0f} of {n:.0f}" for lane, n in sorted(answered.items())),
        "of a core: " + ", ".join(f"{lane} {100 * s / args.seconds:.0f} %" for lane, s in sorted(lanes.items())),
    ]
    if len(classes) > 1:
        told.append("by class: " + ", ".join(f"{cls} {100 * s / args.seconds:.0f} %" for cls, s in sorted(classes.items())))
    if firsts:
        missed = 100 * sum(f.requests_missed * len(f.firsts) for f in engines) / len(firsts)
        told.append(f"requests: first token {1000 * quantile(firsts, 0.5):.0f}, p95 {1000 * quantile(firsts, 0.95):.0f} ms, "
                    f"{missed:.1f} % late")  # fmt: skip
    if args.recordings:
        speed = sum(f.windows for f in engines) * WINDOW_S / args.seconds
        told.append(f"recordings: {speed:.1f} s a second")
    busy, missed = sum(f.busy for f in engines) / len(engines), sum(late.values()) / max(1, sum(answered.values()))
    return (
        f"{calls:6} {100 * busy:5.0f}% {1000 * quantile(delays, 0.5):20.0f} ms {1000 * quantile(delays, 0.95):4.0f} ms "
        f"{100 * missed:11.1f} %   ({'; '.join(told)})"
    )


def summed(counts: Sequence[Mapping[Any, float]]) -> dict[str, float]:
    """Key by key."""
    return {key: sum(c.get(key, 0.0) for c in counts) for key in {k for c in counts for k in c}}


def quantile(values: list[float], q: float) -> float:
    """Nearest rank; NaN of nothing."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)] if values else math.nan
