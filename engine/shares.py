"""Which class of work goes first: calls, then requests, then long recordings; each with a share that it is sure of.

Inside a class the earlier due goes first, however late it is. Between classes lateness does not count: work of a class that
somebody is not talking to is never more urgent than if it had just come, or a flood of requests would grow old together and
then pass every call. What keeps it from starving is its share: while it waits, a part of all time worked is owed to it.
"""

from __future__ import annotations

import threading
from collections import Counter

from . import protocol as p

# How long after it comes a class's work may begin, in seconds.
CLASS_DELAY_S: dict[p.Class, float] = {"live": 0.0, "speculative": 0.25, "interactive": 0.5, "bulk": 5.0}
SURE: dict[p.Class, float] = {"interactive": 0.15, "bulk": 0.05}  # of the time worked, while anything of it waits
MOST_OWED_S = 0.2  # so that a class that got nothing for long is not let in for long
FIRST_S = 1e6  # ahead of everything


class Shares:
    """The account of one engine. Any thread."""

    def __init__(self) -> None:
        self._waiting: Counter[p.Class] = Counter()
        self._owed: dict[p.Class, float] = dict.fromkeys(SURE, 0.0)
        self._lock = threading.Lock()

    def came(self, cls: p.Class) -> None:
        """A job has come."""
        with self._lock:
            self._waiting[cls] += 1

    def went(self, cls: p.Class) -> None:
        """A job is over, in whatever way."""
        with self._lock:
            self._waiting[cls] -= 1
            if cls in SURE and not self._waiting[cls]:
                self._owed[cls] = min(self._owed[cls], 0.0)

    def worked(self, cls: p.Class, seconds: float) -> None:
        """A job of this class had the device for so long."""
        with self._lock:
            for other, share in SURE.items():
                if self._waiting[other]:
                    owed = self._owed[other] + share * seconds - (seconds if other == cls else 0.0)
                    self._owed[other] = max(-MOST_OWED_S, min(MOST_OWED_S, owed))

    def gives_way(self, cls: p.Class) -> bool:
        """Whether work of this class leaves every core to a call's: a long recording's does, unless it is owed time."""
        return cls == "bulk" and self._owed[cls] <= 0

    def urgency(self, cls: p.Class, own: float, now: float) -> float:
        """The smaller, the sooner. `own`: when the job wants to be done, by itself (seconds, as `now`)."""
        if cls not in SURE:
            return own
        if self._owed[cls] > 0:
            return own - FIRST_S
        return max(own, now + CLASS_DELAY_S[cls])
