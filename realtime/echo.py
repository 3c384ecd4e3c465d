"""Is what the microphone hears the reply itself? (SPEC section 9.8, the echo guard)

Compares two levels over time: what was played and what came in. An echo is the reply again, later and quieter, so at
one lag the difference of the two, in dB, stays nearly the same; nobody's speech and no noise does that. Pure numbers: where
the levels come from is others' business.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

FRAME_MS = 20
WINDOW_MS = 32
LAGS_MS = tuple(range(0, 400, 16))  # of loudspeaker, room, microphone and network together
KEEP_PLAYED = 60  # frames: the longest lag, a window, and some
KEEP_HEARD = 64  # windows: two seconds of reply
ENOUGH = 12  # windows that show an echo
NONE_SHOWN = 28  # windows after which there is none
UNHEARD_DB = -35.0  # so far below the reply nothing of it comes back
STEADY_DB = 3.0  # median departure from the median difference, at the lag of an echo
SILENT_DB = -60.0
MARGIN_DB = 6.0
REFIT_EVERY = 8  # windows
RECENT = 32  # windows by which a known echo is followed: a player that runs dry is later from then on
SLIP = 4  # lags by which it may have become later or earlier meanwhile
SURER_DB = 0.5  # by which another lag must fit better
EARLIER, LATER = 1, 3  # lags around the known one whose echo is reckoned with, as a slip shows only afterwards


@dataclass(frozen=True, slots=True)
class Path:
    """How the reply comes back: after this lag, by this much louder (mostly: quieter)."""

    lag: int  # index into LAGS_MS
    gain_db: float


@dataclass(frozen=True, slots=True)
class Echo:
    """What was played and heard lately, and what follows from it. `known`: enough was heard to tell."""

    at: tuple[float, ...] = ()  # wall times (ms) at which the frames of `power` begin to play
    power: tuple[float, ...] = ()
    heard: tuple[tuple[float, tuple[float, ...]], ...] = ()  # level of a window, and what was played at each lag before
    count: int = 0
    offset: float | None = None  # wall time less audio time of the input, jitter taken out
    known: bool = False
    path: Path | None = None


def play(echo: Echo, at: float, level_db: float) -> Echo:
    """A frame of 20 ms begins to play at `at`."""
    power = 10 ** (level_db / 10)
    return replace(echo, at=(*echo.at, at)[-KEEP_PLAYED:], power=(*echo.power, power)[-KEEP_PLAYED:])


def hear(echo: Echo, at: float, end_ms: int, level_db: float) -> tuple[Echo, bool]:
    """A window of 32 ms of input ends at `end_ms` (audio time) and was seen at `at`. Returns whether the reply's echo
    explains it: then it is nobody's speech."""
    late = at - end_ms
    offset = echo.offset
    if offset is None or late < offset or late - offset > 500:
        offset = late
    else:
        offset += 0.02 * (late - offset)
    echo = replace(echo, offset=offset)
    if not echo.at:
        return echo, False
    end = end_ms + offset
    if end - echo.at[-1] > LAGS_MS[-1] + WINDOW_MS + FRAME_MS:  # long silent
        return replace(echo, at=(), power=()), False
    played = tuple(_played_db(echo, end - lag) for lag in LAGS_MS)
    if max(played) < SILENT_DB:
        return echo, False
    echo = _learn(echo, level_db, played)
    if not echo.known:
        return echo, level_db < max(played) + MARGIN_DB
    if echo.path is None:
        return echo, False
    near = played[max(0, echo.path.lag - EARLIER) : echo.path.lag + LATER + 1]
    return echo, level_db < max(near) + echo.path.gain_db + MARGIN_DB


def _played_db(echo: Echo, end: float) -> float:
    """The level of what was played in the 32 ms before `end`."""
    start = end - WINDOW_MS
    first, last = bisect_left(echo.at, start - FRAME_MS), bisect_right(echo.at, end)
    energy = 0.0
    for n in range(first, last):
        overlap = min(end, echo.at[n] + FRAME_MS) - max(start, echo.at[n])
        if overlap > 0:
            energy += echo.power[n] * overlap
    return 10 * math.log10(max(energy / WINDOW_MS, 1e-9))


def _learn(echo: Echo, level_db: float, played: tuple[float, ...]) -> Echo:
    """Keep the window, and look now and then for the lag at which the reply comes back."""
    heard = (*echo.heard, (level_db, played))[-KEEP_HEARD:]
    echo = replace(echo, heard=heard, count=echo.count + 1)
    if len(heard) < ENOUGH or echo.count % (REFIT_EVERY if echo.known else 2):
        return echo
    if echo.path is not None and (path := _follow(heard[-RECENT:], echo.path.lag)) is not None:
        return replace(echo, path=path)
    fits = [fit for lag in range(len(LAGS_MS)) if (fit := _fit(heard, lag)) is not None]
    if fits and (best := min(fits, key=lambda fit: fit[0]))[0] < STEADY_DB:
        return replace(echo, known=True, path=best[1])
    unheard = sum(1 for level, p in heard if min(p) > SILENT_DB and level < min(p) + UNHEARD_DB)
    if echo.known or len(heard) >= NONE_SHOWN or 2 * unheard >= ENOUGH:
        return replace(echo, known=True, path=None)
    return echo


def _follow(heard: tuple[tuple[float, tuple[float, ...]], ...], lag: int) -> Path | None:
    """Where a known echo is by now; None: lost."""
    here = _fit(heard, lag)
    if here is None:  # too little of it was heard lately
        return None
    around = range(max(0, lag - SLIP), min(len(LAGS_MS), lag + SLIP + 1))
    best = min((fit for n in around if (fit := _fit(heard, n)) is not None), key=lambda fit: fit[0])
    chosen = best if best[0] < here[0] - SURER_DB else here
    return chosen[1] if chosen[0] < STEADY_DB else None


def _fit(heard: tuple[tuple[float, tuple[float, ...]], ...], lag: int) -> tuple[float, Path] | None:
    """How steadily the input follows the reply at this lag (median departure in dB), and by what gain."""
    floor = max(SILENT_DB, max(p[lag] for _, p in heard) - 25)
    differences = sorted([level - p[lag] for level, p in heard if p[lag] > floor])
    if len(differences) < ENOUGH:
        return None
    gain = differences[len(differences) // 2]
    departures = sorted([abs(x - gain) for x in differences])
    return departures[len(departures) // 2], Path(lag, gain)
