"""The pacer: meters synthesized audio to the transport and owns `played_ms`, the playout clock (SPEC section 8).

Pure arithmetic on a clock that is passed in; `nodes/playout.py` drives it. Frames are due on an absolute schedule: a
late wake-up never moves the ones after it. What is written runs at most `lead_ms` ahead of what is played (but a frame
at least); when there is nothing to write in time, the clock stands still and an underrun is counted.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

FRAME_MS = 20
SAMPLES_PER_MS = 24
CLOCK_SLACK_S = 0.01  # a transport's clock may tick this much late before it counts as a gap
FRAME = FRAME_MS * SAMPLES_PER_MS
FADE = 10 * SAMPLES_PER_MS  # after a pause the sound comes back over this long, instead of with a click


class Pacer:
    """One response's audio: 24 kHz float32 in, frames of 20 ms out. Times are seconds of a monotonic clock.

    `burst`: the lead is written ahead, at once (WebSocket). Otherwise (RTP) the transport's own clock asks for each
    frame when it is to be played.
    """

    def __init__(self, lead_ms: int, burst: bool = True) -> None:
        self._ahead_s = max(lead_ms - FRAME_MS, 0) / 1000  # of a frame's beginning, so that its end is within the lead
        self._burst = burst
        self._chunks: deque[F32] = deque()
        self._queued = 0
        self.written = 0  # samples
        self._origin: float | None = None  # when sample 0 would have been played, pauses left out
        self.complete = False  # nothing more will be queued
        self.num_underruns = 0
        self._fade = False

    def queue(self, audio: F32) -> None:
        if len(audio):
            self._chunks.append(audio)
            self._queued += len(audio)

    @property
    def buffered_ms(self) -> int:
        """Audio that waits to be written."""
        return self._queued // SAMPLES_PER_MS

    @property
    def written_ms(self) -> int:
        return self.written // SAMPLES_PER_MS

    def played_ms(self, now: float) -> int:
        """The playout clock."""
        if self._origin is None:
            return 0
        return min(self.written_ms, max(0, int((now - self._origin) * 1000 + 1e-6)))

    def due(self) -> float | None:
        """When the next frame may go; None: there is none to send (yet). 0.0: at once."""
        if self._queued >= FRAME or (self.complete and self._queued > 0):
            if self._origin is None or not self._burst:
                return 0.0
            return self._origin + self.written / 1000 / SAMPLES_PER_MS - self._ahead_s
        return None

    def drained_at(self) -> float | None:
        """When everything written will have been played; None before the first frame."""
        return None if self._origin is None else self._origin + self.written / 1000 / SAMPLES_PER_MS

    def plays_at(self, num: int) -> float:
        """When the last `num` samples that were taken begin to be played. Call after `take`."""
        assert self._origin is not None, "a frame was taken"
        return self._origin + (self.written - num) / 1000 / SAMPLES_PER_MS

    def resume(self, now: float) -> None:
        """A pause is over: the clock stood still from where the listener ran dry."""
        if self._origin is None:
            return
        dry = now - (self._origin + self.written / 1000 / SAMPLES_PER_MS)
        if dry > 0:
            self._origin += dry
            self._fade = True

    def take(self, now: float) -> F32:
        """The next frame (the last one may be short). Call when it is due."""
        if self._origin is None:
            self._origin = now
        else:
            late = now - (self._origin + self.written / 1000 / SAMPLES_PER_MS)
            if late > (0 if self._burst else CLOCK_SLACK_S):  # the listener ran dry: the clock stood still meanwhile
                self._origin += late
                self.num_underruns += 1
        want = min(FRAME, self._queued)
        parts: list[F32] = []
        while want > 0:
            head = self._chunks.popleft()
            if len(head) > want:
                self._chunks.appendleft(head[want:])
                head = head[:want]
            parts.append(head)
            want -= len(head)
        frame = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._queued -= len(frame)
        self.written += len(frame)
        if self._fade:
            self._fade = False
            n = min(FADE, len(frame))
            frame = np.concatenate([frame[:n] * np.linspace(0, 1, n, dtype=np.float32), frame[n:]])
        return frame

    @property
    def is_last(self) -> bool:
        """Whether the frame just taken was the response's last."""
        return self.complete and self._queued == 0
