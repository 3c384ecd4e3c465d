"""How fast a client may send: two token buckets, events and bytes. Pure arithmetic on a clock that is passed in.

A client over its rate is read later, which its own socket makes it feel; one that floods for `PATIENCE_S` is told.
"""

from __future__ import annotations

from bargein.realtime.settings import Limits

PATIENCE_S = 2.0
CALM_S = 0.5  # so long without waiting ends a flood


class Rates:
    """One connection's. Times are seconds of a monotonic clock."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._events, self._bytes = limits.events_burst, limits.bytes_burst
        self._at = now
        self._flood_since: float | None = None
        self._waited_at = now

    def take(self, now: float, num_bytes: int) -> float:
        """An event was read; seconds to wait before the next one is."""
        limits, passed = self._limits, now - self._at
        self._at = now
        self._events = min(limits.events_burst, self._events + passed * limits.events_per_s) - 1
        self._bytes = min(limits.bytes_burst, self._bytes + passed * limits.bytes_per_s) - num_bytes
        wait = max(0.0, -self._events / limits.events_per_s, -self._bytes / limits.bytes_per_s)
        if wait > 0:
            if self._flood_since is None or now - self._waited_at > CALM_S:
                self._flood_since = now
            self._waited_at = now + wait
        return wait

    def is_flood(self, now: float) -> bool:
        """Whether the client has been over its rate for too long; true once, then counted anew."""
        if self._flood_since is None or now - self._flood_since < PATIENCE_S or now - self._waited_at > CALM_S:
            return False
        self._flood_since = None
        return True
