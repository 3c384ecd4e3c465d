"""How busy calls keep the server, and whether one more fits.

The forecast is what calls take now, for one more than there are: from the engine's reports and this process' own time. It is
made for about as many calls as there have been lately, since a call alone takes more than one of many. Requests that are no
calls do not count: they give way.
"""

from __future__ import annotations

import math
import os

from bargein.engine import protocol as p

BUSY, CALM = 0.7, 0.6  # shares of the workers' time above which the server is busy, and under which it no longer is
BUSY_OVER_S = 2.0  # how far back those look,
LATELY_S = 30.0  # and the forecast
KNOWN_FOR = 1.6  # times as many calls as there were lately


class Admission:
    """`limit`: the share of `cores` that calls may take in all; 0 for no limit."""

    def __init__(self, limit: float, cores: int | None = None) -> None:
        self._limit, self._cores = limit, cores or len(os.sched_getaffinity(0))
        self._before: tuple[p.Load, float, float] | None = None
        self._share = 0.0  # of the workers' time that went to calls
        self._used = self._calls = 0.0  # cores that calls took lately, and how many there were
        self.is_busy = False  # so busy that nothing should be begun that may not be needed

    def heard(self, load: p.Load, own_s: float, calls: int, at: float) -> None:
        """The engine's report, with this process' own processor time and the calls there are, at a time in seconds."""
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
        used = (engine_s * of_calls + own_s - last_own_s) / seconds
        self._used += _weight(seconds, LATELY_S) * (used - self._used)
        self._calls += _weight(seconds, LATELY_S) * (calls - self._calls)

    def fits(self, calls: int) -> bool:
        """Whether another fits beside so many, as far as that can be told."""
        if not self._limit or calls + 1 > KNOWN_FOR * self._calls:
            return True
        return self._used * (calls + 1) / self._calls <= self._limit * self._cores


def _weight(seconds: float, over_s: float) -> float:
    """Of what came in so many seconds, in a mean that forgets in `over_s`."""
    return 1.0 - math.exp(-seconds / over_s)


def _worked_s(load: p.Load) -> float:
    """What the workers did. Voice windows have a thread of their own."""
    return sum(lane.seconds for name, lane in load.lanes.items() if name != "vad")
