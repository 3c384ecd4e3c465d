"""What the engine's steps cost on a machine: a table that `simulate.py` reads, and how one is made for this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# Work, and its lane. Only a table that is used for recordings needs a window's.
NAMES = {"partial": "stt", "final": "stt", "turn": "turn", "judge": "chat", "read": "chat", "say": "tts", "window": "stt"}


@dataclass(frozen=True, slots=True)
class Costs:
    """What a table says. `alone`: the share of a step's time that is left when one worker has all cores."""

    workers: int
    alone: float
    work: dict[str, tuple[int, float]]  # name -> steps, seconds of each
    tokens: tuple[tuple[int, float], ...]  # batch size -> seconds of a step, rising
    beside: float  # what each call takes of a core beside the workers: voice windows, the front process, the caller itself
    always: float = 0.0  # and what these take of one however many calls there are
    grow: Mapping[str, float] = field(default_factory=dict)  # of a step, what each more stream in it adds, where that may be

    def token(self, batch: int) -> float:
        """Seconds of one token for each of `batch` replies; between the table's sizes on a straight line."""
        (a, ta), *rest = self.tokens
        for b, tb in rest:
            if batch <= b:
                return ta + (tb - ta) * max(0, batch - a) / (b - a)
            a, ta = b, tb
        return ta * batch / a

    def scaled(self, by: dict[str, float], beside: float, always: float) -> Costs:
        """With the steps of each lane so many times as long, and another cost beside the workers."""
        work = {name: (steps, each * by[NAMES[name]]) for name, (steps, each) in self.work.items()}
        tokens = tuple((n, each * by["chat"]) for n, each in self.tokens)
        return replace(self, work=work, tokens=tokens, beside=beside, always=always)


def load_costs(path: Path) -> Costs:
    """Raises ValueError for what is not such a table, naming the file."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
        work = {name: (int(x["steps"]), float(x["each"]) / 1000) for name, x in raw["ms"].items()}
        tokens = tuple(sorted((int(n), float(ms) / 1000) for n, ms in raw["token_ms"].items()))
        missing = set(NAMES) - {"window"} - set(work)
        if missing or not tokens:
            raise ValueError(f"no costs of {', '.join(sorted(missing)) or 'tokens'}")
        grow = {name: float(share) for name, share in raw.get("grow", {}).items()}
        beside, always = float(raw["beside"]), float(raw.get("always", 0))
        return Costs(int(raw["workers"]), float(raw["alone"]), work, tokens, beside, always, grow)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as problem:
        raise ValueError(f"{path}: not a table of costs ({problem})") from None


def write_costs(path: Path, costs: Costs, what: str) -> None:
    """Write a table that `load_costs` reads; `what` says where it comes from."""
    table = {
        "what": what, "workers": costs.workers, "alone": costs.alone,
        "ms": {name: {"steps": steps, "each": round(1000 * each, 3)} for name, (steps, each) in costs.work.items()},
        "token_ms": {str(n): round(1000 * each, 3) for n, each in costs.tokens},
        "beside": round(costs.beside, 4), "always": round(costs.always, 4), "grow": dict(costs.grow),
    }  # fmt: skip
    path.write_text(json.dumps(table, indent=1) + "\n")
