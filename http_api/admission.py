"""How busy calls keep the server, and whether one more fits.

The forecast is what calls have taken lately, and for each call beyond as many as there were lately what one is expected to
take: so that callers who dial within the same seconds are not all let in before anybody knows what they take. What is
expected is measured when the engine starts, and more where the calls of late take more. It is made of each thing that may
run out: this machine's cores, the engine's workers (a GPU has one), and this process, whose Python runs on one core.
Requests that are no calls do not count: they give way.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from bargein.engine import protocol as p

BUSY, CALM = 0.7, 0.6  # shares of the workers' time above which the server is busy, and under which it no longer is
BUSY_OVER_S = 2.0  # how far back those look,
LATELY_S = 30.0  # and the forecast
MANY = 3.0  # calls lately from which on what each takes tells of more: one alone takes more than one of many
BESIDE = 0.25  # what a call takes of the cores beside the workers (its voice windows, its frames), of what it takes of those
OF_FRONT = 0.2  # and of that process


@dataclass(slots=True)
class Supply:
    """Something that calls use up: how much of it there is, what they took lately, and what one is expected to take."""

    size: float
    used: float = 0.0
    a_call: float = 0.0

    def forecast(self, calls: float, lately: float) -> float:
        """The share of it that is taken once one more than `calls` are as usual."""
        each = max(self.a_call, self.used / lately if lately >= MANY or (lately > 0 and not self.a_call) else 0.0)
        return (self.used + max(0.0, calls + 1 - lately) * each) / self.size


class Admission:
    """`limit`: the share of anything that calls may take in all; 0 for no limit. `fronts`: processes like this one."""

    def __init__(self, limit: float, cores: int | None = None, fronts: int = 1) -> None:
        self._limit = limit
        self._cores = Supply(cores or len(os.sched_getaffinity(0)))
        self._workers, self._front = Supply(math.inf), Supply(fronts)  # how many workers: as reported
        self._before: tuple[p.Load, float, float] | None = None
        self._share = 0.0  # of the workers' time that went to calls
        self._calls = 0.0  # how many there were lately
        self.is_busy = False  # so busy that nothing should be begun that may not be needed

    def expect(self, call_s: float) -> None:
        """What the engine measured that a call takes of a worker each second; 0: it has not. The least that was ever said
        counts: one that starts beside running calls finds everything slow."""
        known = self._workers.a_call
        each = min(known, call_s) if known and call_s else known or call_s
        self._workers.a_call, self._cores.a_call, self._front.a_call = each, (1 + BESIDE) * each, OF_FRONT * each

    def heard(self, load: p.Load, own_s: float, calls: int, at: float) -> None:
        """The engine's report, with the processor time of this process and those like it, and the calls there are, at a time
        in seconds."""
        before, self._before = self._before, (load, own_s, at)
        if before is None:
            return
        last, last_own_s, last_at = before
        seconds = max(at - last_at, 1e-3)
        engine_s, worked_s, live_s = load.cpu_s - last.cpu_s, _worked_s(load) - _worked_s(last), load.live_s - last.live_s
        if engine_s < 0 or worked_s < 0 or live_s < 0:  # another engine
            return
        self._share += _weight(seconds, BUSY_OVER_S) * (live_s / seconds / load.workers - self._share)
        self.is_busy = self._share > (CALM if self.is_busy else BUSY)
        of_calls = min(1.0, live_s / worked_s) if worked_s > 0 else 1.0
        own_s -= last_own_s
        self._workers.size = load.workers
        for supply, took in (
            (self._cores, engine_s * of_calls + own_s), (self._workers, live_s), (self._front, own_s),
        ):  # fmt: skip
            supply.used += _weight(seconds, LATELY_S) * (took / seconds - supply.used)
        self._calls += _weight(seconds, LATELY_S) * (calls - self._calls)

    def forecast(self, calls: int) -> float:
        """The share of what is scarcest that one more beside so many calls will make them take."""
        return max(supply.forecast(calls, self._calls) for supply in (self._cores, self._workers, self._front))

    def fits(self, calls: int) -> bool:
        """Whether another fits beside so many. The first always does."""
        return not self._limit or calls == 0 or self.forecast(calls) <= self._limit


def _weight(seconds: float, over_s: float) -> float:
    """Of what came in so many seconds, in a mean that forgets in `over_s`."""
    return 1.0 - math.exp(-seconds / over_s)


def _worked_s(load: p.Load) -> float:
    """What the workers did. Voice windows have a thread of their own."""
    return sum(lane.seconds for name, lane in load.lanes.items() if name != "vad")
