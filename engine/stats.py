"""What the engine counts of itself: work done and done late, by lane, and how long a voice window waits.

Written on the engine's threads, read by whoever reports (`server.py`, once a second).
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import protocol as p

# How long after its request (or after `due_ms`) a live caller would notice that a lane's first answer is missing, in s.
NOTICED_S = {"stt": 0.4, "turn": 0.4, "chat": 0.6, "tts": 0.3, "embed": 1.0}
# How many times what a lane's `sample` takes a call takes of a worker each second, where both were measured (`bench load`
# with 8 calls): the one stands for all that multiplies big matrices, the other for what reads weights token by token.
A_CALL_TAKES = {"turn": 1.27, "chat": 0.64}
VAD_BOUNDS_MS = (1, 2, 3, 5, 8, 12, 16, 20, 32, 50, 100, 200)  # upper bounds of the histogram; one more is open


@dataclass(slots=True)
class LaneStats:
    answered: int = 0  # live requests that have had their first answer
    late: int = 0  # of them, after somebody would have noticed
    seconds: float = 0.0  # of the device, for everybody
    steps: int = 0  # calls of the lane; one for several jobs counts once
    job_steps: int = 0  # and how many jobs they served


@dataclass(slots=True)
class Stats:
    """One engine's counts."""

    lanes: dict[str, LaneStats] = field(default_factory=dict)
    live_s: float = 0.0  # of the workers, for calls
    vad_ms: list[int] = field(default_factory=lambda: [0] * (len(VAD_BOUNDS_MS) + 1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _lane(self, name: str) -> LaneStats:
        found = self.lanes.get(name)
        if found is None:
            found = self.lanes[name] = LaneStats()
        return found

    def worked(self, lane: str, seconds: float, jobs: int = 1, live: float = 1.0) -> None:
        """A step of a lane, for so many jobs, of which this part were calls'."""
        with self._lock:
            self.live_s += live * seconds
            s = self._lane(lane)
            s.seconds += seconds
            s.steps += 1
            s.job_steps += jobs

    def answered(self, lane: str, late: bool) -> None:
        """A live request's first answer is out."""
        with self._lock:
            s = self._lane(lane)
            s.answered += 1
            s.late += late

    def heard(self, ms: float) -> None:
        """A voice window was answered this long after its last sample came."""
        self.vad_ms[bisect.bisect_left(VAD_BOUNDS_MS, ms)] += 1

    def load(self, jobs: int, streams: int, workers: int = 1) -> p.Load:
        """All of it, as told to the front process. `jobs`: in hand now."""
        lanes = {name: p.LaneLoad(s.answered, s.late, s.seconds, s.steps, s.job_steps) for name, s in self.lanes.items()}
        return p.Load(jobs, streams, lanes, tuple(self.vad_ms), time.process_time(), _resident_bytes(), self.live_s, workers)


def _resident_bytes() -> int:
    """Memory of this process, 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
