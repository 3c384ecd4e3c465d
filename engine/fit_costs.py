"""`bargein bench costs`: a table of costs for this machine, from real loads.

`bargein bench load --json FILE` tells what each lane took of the device, and what calls took beside the workers. The steps of
a table that was measured elsewhere are scaled, a lane's all alike, until simulated callers take of each lane what the real
ones took a turn. How a lane's steps compare, and what a token costs in company, stays as the other machine has it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .costs import NAMES, Costs, load_costs, write_costs
from .simulate import Simulation

ROUNDS = 4  # each lane's time follows its steps' but for who waits for whom, so a few are enough
SIMULATED_S = 600.0
LANES = tuple(sorted(set(NAMES.values())))


@dataclass(frozen=True, slots=True)
class Run:
    """One real load: seconds of each lane a reply (of chat's answers: a caller that speaks over one does not wait for all
    that follows), and cores taken beside the workers."""

    calls: int
    lanes: dict[str, float]
    beside: float


def load_runs(path: Path) -> tuple[Run, ...]:
    """The loads of a file of `bench load --json`. Raises ValueError for what is none, naming the file."""
    try:
        runs = []
        for line in path.read_text().splitlines():
            row: dict[str, Any] = json.loads(line)
            if "words_transcribed" in row:
                raise ValueError("a recording was transcribed beside one: what calls took cannot be told from it")
            busy = {lane: float(x["busy"]) for lane, x in row["server"]["lanes"].items()}
            a_turn = float(row["seconds"]) / float(row["server"]["lanes"]["chat"]["answered"])
            beside = busy.get("vad", 0.0) + float(row["server"]["front_cores"]) + float(row["callers_cores"])
            runs.append(Run(int(row["calls"]), {lane: busy[lane] * a_turn for lane in LANES}, beside))
        if not runs:
            raise ValueError("no load in it")
        return tuple(runs)
    except (OSError, KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError) as problem:
        raise ValueError(f"{path}: not the figures of bench load ({problem})") from None


def fit(costs: Costs, runs: tuple[Run, ...], seconds: float = SIMULATED_S) -> Costs:
    """`costs` scaled to what `runs` took."""
    a_call, always = line([(run.calls, run.beside) for run in runs])
    costs = costs.scaled(dict.fromkeys(LANES, 1.0), a_call, always)
    for _ in range(ROUNDS):
        factors: dict[str, list[float]] = {lane: [] for lane in LANES}
        for run in runs:
            figures = Simulation(costs, run.calls, seconds).run()
            for lane in LANES:
                factors[lane].append(run.lanes[lane] * len(figures.delays) / figures.lanes[lane])
        costs = costs.scaled({lane: sum(f) / len(f) for lane, f in factors.items()}, a_call, always)
    return costs


def line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Least squares: (slope, height at 0), neither below 0; through 0 where all points are at one place."""
    n, x, y = len(points), sum(p[0] for p in points), sum(p[1] for p in points)
    spread = n * sum(p[0] ** 2 for p in points) - x * x
    if spread == 0:
        return y / x, 0.0
    slope = max(0.0, (n * sum(a * b for a, b in points) - x * y) / spread)
    return slope, max(0.0, (y - slope * x) / n)


def run(argv: list[str]) -> int:
    """`bargein bench costs`; returns the exit status."""
    p = argparse.ArgumentParser(prog="bargein bench costs", description=(__doc__ or "").split("\n")[0])
    p.add_argument("loads", type=Path, metavar="FILE.jsonl", help="what `bargein bench load --json` wrote on this machine")
    p.add_argument(
        "--like", type=Path, default=Path("bench/costs_two_cores.json"), metavar="FILE",
        help="the table whose steps are scaled (default %(default)s)",
    )  # fmt: skip
    p.add_argument("--write", type=Path, required=True, metavar="FILE", help="where the new table goes")
    p.add_argument("--what", default="", help="a line that says what machine this is")
    args = p.parse_args(argv)
    try:
        costs, runs = load_costs(args.like), load_runs(args.loads)
    except ValueError as problem:
        print(f"bargein: {problem}")
        return 2
    fitted = fit(costs, runs)
    loads = ", ".join(str(r.calls) for r in runs)
    where = args.what or "this machine"
    write_costs(args.write, fitted, f"{where}: scaled to loads of {loads} calls, {time.strftime('%Y-%m-%d')}")
    for name, (steps, each) in fitted.work.items():
        print(f"  {name:8} {steps:3} steps of {1000 * each:6.2f} ms")
    print(f"  a token {1000 * fitted.token(1):.2f} ms; beside the workers {fitted.beside:.3f} of a core a call")
    return 0
