"""Where a recording is cut into windows that speech recognition takes whole: at pauses, by voice activity.

Pure: sound and probabilities in, windows out. It holds at most one window's sound, however long the recording is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

RATE = 16000
FRAME = 512  # samples of one probability
LONGEST = 28 * RATE // FRAME  # frames of a window
VOICED, SILENT = 0.5, 0.35
MARGIN = 8  # frames of silence kept around a window's speech
TIGHT = 2  # and around each span of it
PAUSE = 13  # frames: 0.4 s
GAP = 47  # frames: a silence of 1.5 s ends a window that has enough speech
ENOUGH = 10 * RATE // FRAME
SOON = 2 * RATE // FRAME  # frames of sound after which the first window may end at a pause


@dataclass(frozen=True, slots=True)
class Window:
    """Sound float32 at 16 kHz and its first sample's place in the recording; spans: speech in it, in samples."""

    start: int
    sound: F32
    spans: tuple[tuple[int, int], ...]


class Cutter:
    """Feed frames, take windows. `soon`: the first window may be short, so that something can be shown early."""

    def __init__(self, soon: bool = False) -> None:
        self._soon = soon
        self._sound = np.zeros(0, np.float32)
        self._probs: list[float] = []
        self._start = 0  # of the held sound, in samples

    def feed(self, sound: F32, probs: list[float]) -> list[Window]:
        """More whole frames; the windows that are complete."""
        self._sound = np.concatenate([self._sound, sound])
        self._probs += probs
        out = []
        while (cut := self._cut()) is not None:
            out += self._take(cut)
        return out

    def finish(self) -> list[Window]:
        """The rest."""
        return self._take(len(self._probs)) if self._probs else []

    def _cut(self) -> int | None:
        """Frames of the window that is complete, or None."""
        count = len(self._probs)
        p = np.asarray(self._probs, np.float32)
        voiced = np.flatnonzero(p >= VOICED)
        pauses = _runs(p[:LONGEST] < SILENT)
        if not len(voiced):  # silence goes as it comes, but for what may be an onset
            last = int(np.flatnonzero(p < SILENT)[-1]) + 1 if pauses else 0
            keep = min(count - last, LONGEST // 2) + MARGIN
            return count - keep if count > keep + 3 * MARGIN else None
        for a, b in pauses:
            if a > voiced[0] and ((b - a >= GAP and b >= ENOUGH) or (self._soon and b - a >= PAUSE and a - voiced[0] >= SOON)):
                return (a + b) // 2
        if count < LONGEST:
            return None
        runs = [(b - a, (a + b) // 2) for a, b in pauses if (a + b) // 2 >= ENOUGH]
        if runs and max(runs)[0] >= 3:
            return max(runs)[1]
        levels = np.square(self._sound[: LONGEST * FRAME].reshape(LONGEST, FRAME)).mean(1)
        smooth = np.convolve(levels, np.ones(6) / 6, "valid")
        return ENOUGH + int(smooth[ENOUGH:].argmin()) + 3

    def _take(self, frames: int) -> list[Window]:
        probs, sound = self._probs[:frames], self._sound[: frames * FRAME]
        start = self._start
        self._probs, self._sound = self._probs[frames:], self._sound[frames * FRAME :].copy()
        self._start += frames * FRAME
        spans = speech_spans(probs)
        if not spans:
            return []
        self._soon = False
        around = (MARGIN - TIGHT) * FRAME
        first, last = max(0, spans[0][0] - around), min(spans[-1][1] + around, len(sound))
        window = sound[first:last]
        return [Window(start + first, window, tuple((a - first, min(b, last) - first) for a, b in spans))]


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[first, end) of every stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def speech_spans(probs: list[float]) -> list[tuple[int, int]]:
    """Stretches of speech with a narrow margin around each, in samples; what is closer than the margins is one."""
    p = np.asarray(probs, np.float32)
    out: list[tuple[int, int]] = []
    for a, b in _runs(p >= SILENT):
        if p[a:b].max() < VOICED or b - a < 2:
            continue
        first, end = max(0, a - TIGHT), min(len(p), b + TIGHT)
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], end)
        else:
            out.append((first, end))
    return [(a * FRAME, b * FRAME) for a, b in out]
