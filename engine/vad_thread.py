"""The thread of the VAD lane: all sessions' windows in one batched call, as soon as there are any."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from typing import Protocol

from . import protocol as p
from .lane import Stream
from .stats import Stats

log = logging.getLogger("bargein.engine")


class BatchLane(Protocol):
    """What it needs of the lane."""

    def open(self, stream: Stream) -> None: ...
    def close(self, stream: Stream) -> None: ...
    def warm(self) -> None: ...

    def feed(self, stream: Stream, tag: int, pcm: bytes, at: float) -> None:
        """Queue audio that came at this time; nan where nobody listens as it comes."""

    def run_batch(self) -> list[float]:
        """One step over every stream that has a whole window -> when the last sample of each had come."""


class VadThread:
    """Runs a VAD lane; anyone may hand it audio."""

    def __init__(self, lane: BatchLane, stats: Stats) -> None:
        self.lane = lane
        self._stats = stats
        self._wake = threading.Condition()
        self._queue: deque[tuple[Stream, int, bytes | None, float]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="vad", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=5)

    def feed(self, stream: Stream, tag: int, body: p.Audio) -> None:
        with self._wake:
            self._queue.append((stream, tag, body.pcm, time.monotonic()))
            self._wake.notify()

    def forget(self, stream: Stream) -> None:
        with self._wake:
            self._queue.append((stream, 0, None, 0.0))
            self._wake.notify()

    def _run(self) -> None:
        fed: dict[int, Stream] = {}  # those that may wait for an answer
        while True:
            with self._wake:
                while not self._queue and not fed and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                batch = list(self._queue)
                self._queue.clear()
            started = time.monotonic()
            try:  # a window of each, then see who else has one: a recording's do not hold back a call's
                for stream, tag, pcm, at in batch:
                    if pcm is None:
                        fed.pop(id(stream), None)
                        self.lane.close(stream)
                    else:
                        fed[id(stream)] = stream
                        self.lane.feed(stream, tag, pcm, at if stream.cls == "live" else math.nan)
                came = self.lane.run_batch()
            except Exception as problem:
                log.exception("vad failed")
                for stream in fed.values():
                    self.lane.close(stream)  # what it has waiting would fail again
                    stream.fail(None, f"{type(problem).__name__}: {problem}")
                fed.clear()
                continue
            now = time.monotonic()
            if came:
                self._stats.worked("vad", now - started, len(came), live=0.0)
            else:
                fed.clear()
            for at in came:
                if not math.isnan(at):
                    self._stats.heard(1000 * (now - at))
