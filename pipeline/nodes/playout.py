"""The playout node: the only place that knows what was heard. It drives the pacer on the wall clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import numpy as np

from bargein.realtime import events as e
from bargein.realtime.ids import Epoch

from ..audio import Encoder
from ..channel import Channel, Epochs
from ..messages import SpokenAudio
from ..pacer import Pacer

Tell = Callable[[e.Input], None]


class Playout:
    """State that the session reads: the frame in hand, how much is buffered, underruns so far."""

    def __init__(
        self,
        epochs: Epochs,
        tell: Tell,
        lead_ms: Callable[[], int],
        output_format: Callable[[], str],
        burst: bool = True,
        lag_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._lag_ms = lag_ms  # the listener hears so much later than our clock says
        self._burst = burst  # false: frames leave when the transport calls `tick`
        self._epochs, self._tell = epochs, tell
        self._lead_ms, self._output_format = lead_ms, output_format
        self._epoch = Epoch(-1)
        self._pacer: Pacer | None = None
        self._encoder: Encoder | None = None
        self._drained = False
        self._held: Epoch | None = None
        self._inp: Channel[SpokenAudio] | None = None
        self.frame = b""  # of the FrameDue that is being told,
        self._frame_samples = np.zeros(0, np.float32)  # and its samples,
        self.frame_at = 0.0  # and when the listener hears it, ms
        self.num_underruns = 0

    @property
    def pcm(self) -> bytes:
        """The frame in hand as 24 kHz 16-bit samples, whatever the session's format."""
        return bytes(np.rint(np.clip(self._frame_samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes())

    def buffered_ms(self) -> int:
        """Audio ahead of the listener: waiting, or written and not played."""
        p = self._pacer
        if p is None or not self._epochs.is_alive(self._epoch):
            return 0
        return p.buffered_ms + p.written_ms - p.played_ms(asyncio.get_running_loop().time())

    def flush(self, epoch: Epoch) -> None:
        """Drop the reply's audio, queued and to come."""
        if epoch == self._epoch:
            self._pacer = None

    def hold(self, epoch: Epoch) -> None:
        """Take this epoch's audio, but write none of it yet."""
        self._held = epoch

    def release(self, epoch: Epoch) -> None:
        """Write from now on, from the very sample where it stopped."""
        if self._held == epoch:
            self._held = None
            if self._pacer is not None and self._epoch == epoch:
                self._pacer.resume(asyncio.get_running_loop().time())
            if self._inp is not None:  # wake the node
                self._inp.send_nowait(SpokenAudio(epoch, np.zeros(0, np.float32), False))

    async def run(self, inp: Channel[SpokenAudio]) -> None:
        """Write frames when they are due, take audio meanwhile."""
        loop = asyncio.get_running_loop()
        self._inp = inp
        while True:
            if self._pacer is not None and not self._epochs.is_alive(self._epoch):
                self._pacer = None
            wake = self._write_due(loop.time(), None if self._burst else 0)
            try:
                async with asyncio.timeout_at(wake):
                    chunk = await inp.receive()
            except TimeoutError:
                continue
            self._take(chunk)

    def _take(self, chunk: SpokenAudio) -> None:
        if chunk.epoch != self._epoch:
            self._epoch, self._drained = chunk.epoch, False
            self._pacer = Pacer(self._lead_ms(), self._burst)
            self._encoder = Encoder(self._output_format())
        if self._pacer is not None:
            self._pacer.queue(chunk.pcm)
            self._pacer.complete |= chunk.last

    def tick(self, now: float) -> None:
        """The transport's clock: time for one frame, if there is one."""
        if self._pacer is not None and self._epochs.is_alive(self._epoch):
            self._write_due(now, 1)

    def _write_due(self, now: float, most: int | None) -> float | None:
        """Write what is due, at most `most` frames; return when to look again (None: when audio comes)."""
        while (p := self._pacer) is not None and self._epoch != self._held:
            due = p.due()
            if due is not None and most is not None:
                if most == 0:
                    return None
                most -= 1
            if due is None:
                end = p.drained_at() if p.complete and not self._drained else None
                if end is None:
                    return None
                end += self._lag_ms() / 1000
                if end > now:
                    return end
                self._drained = True
                self._tell(e.PlayoutDrained(now * 1000, self._epoch, p.written_ms))
                return None
            if due > now:
                return due
            before = p.num_underruns
            frame = p.take(now)
            self.num_underruns += p.num_underruns - before
            assert self._encoder is not None
            self.frame = self._encoder.encode(frame, last=p.is_last)
            self._frame_samples = frame
            self.frame_at = p.plays_at(len(frame)) * 1000 + self._lag_ms()
            power = float(np.mean(frame * frame)) if len(frame) else 0.0
            level = 10 * math.log10(max(power, 1e-10))
            played = max(0, p.played_ms(now) - round(self._lag_ms()))
            self._tell(e.FrameDue(now * 1000, self._epoch, p.written_ms, played, level))
        return None
