"""What a lane's steps cost here and lately, learned while serving: how large a step may be that others wait for.

A step over n jobs (or n tokens of a prompt) takes a fixed time, as for reading weights, and a time for each. Both are
fitted by least squares over the steps that were done, where each step makes those before it count a little less.
"""

from __future__ import annotations

STEP_S = 0.008  # what somebody who waits for a step is made to wait for others' sake
KEEP = 0.98  # of a step's weight, at each later one: about the last fifty count


class StepCost:
    """One kind of step. Used by one thread at a time."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def took(self, size: int, seconds: float) -> None:
        """A step over `size` took so long."""
        self._n, self._x, self._y = KEEP * self._n + 1, KEEP * self._x + size, KEEP * self._y + seconds
        self._xx, self._xy = KEEP * self._xx + size * size, KEEP * self._xy + size * seconds

    @property
    def parts(self) -> tuple[float, float] | None:
        """Seconds: the fixed part, and that of each; None before the first step. Where all had one size, nothing is fixed."""
        if self._n == 0:
            return None
        spread = self._n * self._xx - self._x**2
        if spread < 1e-6 * self._xx * self._n:
            return 0.0, self._y / self._x
        each = max(0.0, (self._n * self._xy - self._x * self._y) / spread)
        fixed = (self._y - each * self._x) / self._n
        return (fixed, each) if fixed >= 0 else (0.0, self._xy / self._xx)

    def expected(self, size: int) -> float:
        """Seconds of a step over `size`; 0 while nothing is known."""
        fixed, each = self.parts or (0.0, 0.0)
        return fixed + each * size

    def most(self, within_s: float, least: int, most: int) -> int:
        """The largest size, from `least` to `most`, whose step should take at most that; `most` while nothing is known."""
        if self.parts is None:
            return most
        fixed, each = self.parts
        return most if each == 0 else max(least, min(most, int((within_s - fixed) / each)))

    def more(self, extra_s: float, most: int) -> int:
        """How many may join a step without making it longer than by so much: at most `most`."""
        if self.parts is None or (each := self.parts[1]) == 0:
            return most
        return min(most, int(extra_s / each))
