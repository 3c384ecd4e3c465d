"""The engine's loop: streams, jobs and the one thread that owns the device.

A lane turns a request into a *job*: an iterator whose every `next` is one bounded step of work. The loop advances the
job that is most urgent: due first, where every second of work already spent on a job puts it back by a second, so a
long job never holds back a short one for more than a step and none starves. VAD has its own thread, since it is due
every 32 ms and costs less than a millisecond.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from . import protocol as p

log = logging.getLogger("bargein.engine")

Send = Callable[[p.Reply], None]

# What a class's work may wait, and how soon a lane's result would be missed, in seconds.
CLASS_DELAY_S = {"live": 0.0, "speculative": 0.25, "interactive": 0.5, "bulk": 5.0}
# The words of an utterance come before the classifier's view of its sound, which often is not needed then.
LANE_DELAY_S = {"turn": 0.4, "stt": 0.1, "chat": 0.1, "tts": 0.05, "embed": 0.2}


@dataclass(slots=True)
class Stream:
    """One caller's use of one lane. `state` is the lane's own; `send` delivers to the caller's connection."""

    id: int
    lane: str
    params: Mapping[str, Any]
    cls: p.Class
    deliver: Send
    state: Any = None
    credit: int = p.CREDIT
    backlog: deque[p.Reply] = field(default_factory=deque)
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, tag: int, body: p.Answer) -> None:
        """Deliver a result, or keep it until the reader has credit again."""
        with self.lock:
            if self.closed:
                return
            if self.credit > 0:
                self.credit -= 1
                self.deliver(p.Result(self.id, tag, body))
            else:
                self.backlog.append(p.Result(self.id, tag, body))

    def fail(self, tag: int | None, message: str, fault: Literal["engine", "caller"] = "engine") -> None:
        with self.lock:
            if not self.closed:
                self.deliver(p.Failed(self.id, tag, message, fault))

    def acknowledge(self, count: int) -> None:
        with self.lock:
            self.credit += count
            while self.backlog and self.credit > 0:
                self.credit -= 1
                self.deliver(self.backlog.popleft())

    @property
    def stalled(self) -> bool:
        """Whether the reader is behind; its jobs wait."""
        return bool(self.backlog)


class Lane(Protocol):
    """One kind of work. Called from the device thread only."""

    def open(self, stream: Stream) -> None:
        """Set up `stream.state`. Raises ValueError for bad parameters."""

    def start(self, stream: Stream, tag: int, body: p.Body) -> Iterator[None] | None:
        """Take a request: at once (None), or as a job whose steps are bounded."""

    def close(self, stream: Stream) -> None:
        """Let go of the stream's state."""

    def warm(self) -> None:
        """Compile and touch everything once, so that the first call is not slow."""


@dataclass(slots=True, eq=False)
class Job:
    stream: Stream
    tag: int
    due: float
    steps: Iterator[None]
    used: float = 0.0  # seconds of device time
    cancelled: bool = False

    @property
    def urgency(self) -> float:
        """The smaller, the sooner."""
        return self.due + self.used


class Core:
    """Owns the lanes. Requests come from any thread through `submit`; lanes run on the device thread."""

    def __init__(
        self, lanes: Mapping[str, Lane], vad: Lane | None = None, enter: Callable[[], None] = lambda: None
    ) -> None:
        """enter: called first on each thread that runs lanes (a GPU is chosen a thread at a time)."""
        self._enter = enter
        self._lanes = dict(lanes)
        self._vad = vad
        self._streams: dict[tuple[int, int], Stream] = {}  # (connection, stream id)
        self._inbox: deque[tuple[int, p.Request, Send]] = deque()
        self._wake = threading.Condition()
        self._jobs: list[Job] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._vad_thread: VadThread | None = VadThread(vad) if vad is not None else None

    def start(self) -> None:
        self._thread.start()
        if self._vad_thread is not None:
            self._vad_thread.start()

    def stop(self) -> None:
        """Stop both threads; jobs in flight are dropped."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._vad_thread is not None:
            self._vad_thread.stop()
        self._thread.join(timeout=10)

    def warm(self) -> None:
        """Run every lane once. Call before `start`."""
        self._enter()
        for lane in self._lanes.values():
            lane.warm()
        if self._vad is not None:
            self._vad.warm()

    # --- any thread ---

    def submit(self, connection: int, request: p.Request, deliver: Send) -> None:
        """Take a request of a connection; what it causes is delivered through `deliver`."""
        if isinstance(request, p.Feed) and isinstance(request.body, p.Audio) and self._vad_thread is not None:
            stream = self._streams.get((connection, request.stream))
            if stream is not None and stream.lane == "vad":  # straight to its thread, past the device loop
                self._vad_thread.feed(stream, request.tag, request.body)
                return
        with self._wake:
            self._inbox.append((connection, request, deliver))
            self._wake.notify()

    def disconnect(self, connection: int) -> None:
        """Close every stream of a connection that is gone."""
        for key in [k for k in list(self._streams) if k[0] == connection]:
            self.submit(connection, p.Close(key[1]), lambda reply: None)

    def num_streams(self) -> int:
        return len(self._streams)

    # --- the device thread ---

    def _run(self) -> None:
        self._enter()
        while True:
            with self._wake:
                while not self._inbox and not self._runnable() and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                batch = list(self._inbox)
                self._inbox.clear()
            for connection, request, deliver in batch:
                self._receive(connection, request, deliver)
            job = self._next()
            if job is not None:
                self._advance(job)

    def _runnable(self) -> bool:
        return any(not job.stream.stalled for job in self._jobs)

    def _receive(self, connection: int, request: p.Request, deliver: Send) -> None:
        key = (connection, request.stream)
        stream = self._streams.get(key)
        match request:
            case p.Open():
                self._open(key, request, deliver)
            case p.Feed(body=body, tag=tag):
                if stream is None:
                    deliver(p.Failed(request.stream, tag, "no such stream"))
                    return
                self._start(stream, tag, body, request.due_ms)
            case p.Cancel(tag=tag):
                for job in self._jobs:
                    if job.stream is stream and (tag is None or job.tag == tag):
                        job.cancelled = True
            case p.Credit(count=count):
                if stream is not None:
                    stream.acknowledge(count)
            case p.Close():
                if stream is not None:
                    self._close(key, stream)

    def _open(self, key: tuple[int, int], request: p.Open, deliver: Send) -> None:
        stream = Stream(request.stream, request.lane, request.params, request.cls, deliver)
        lane = self._lane(request.lane)
        if key in self._streams or lane is None:
            deliver(p.Failed(request.stream, None, f"cannot open stream {request.stream} on {request.lane}"))
            return
        try:
            lane.open(stream)
        except ValueError as problem:
            deliver(p.Failed(request.stream, None, str(problem)))
            return
        self._streams[key] = stream

    def _lane(self, name: str) -> Lane | None:
        return self._vad if name == "vad" else self._lanes.get(name)

    def _start(self, stream: Stream, tag: int, body: p.Body, due_ms: float) -> None:
        if stream.lane == "vad":
            if self._vad_thread is not None and isinstance(body, p.Audio):
                self._vad_thread.feed(stream, tag, body)
            return
        try:
            steps = self._lanes[stream.lane].start(stream, tag, body)
        except ValueError as problem:
            stream.fail(tag, str(problem), "caller")
            return
        if steps is not None:
            due = time.monotonic() + due_ms / 1000 + CLASS_DELAY_S[stream.cls] + LANE_DELAY_S[stream.lane]
            self._jobs.append(Job(stream, tag, due, steps))

    def _close(self, key: tuple[int, int], stream: Stream) -> None:
        with stream.lock:
            stream.closed = True
            stream.backlog.clear()
        for job in self._jobs:
            if job.stream is stream:
                job.cancelled = True
        if stream.lane == "vad" and self._vad_thread is not None:
            self._vad_thread.forget(stream)
        else:
            self._lanes[stream.lane].close(stream)
        del self._streams[key]

    def _next(self) -> Job | None:
        """The most urgent job whose reader keeps up; cancelled ones fall out."""
        for job in [job for job in self._jobs if job.cancelled]:
            self._jobs.remove(job)
            with contextlib.suppress(Exception):
                job.steps.close()  # type: ignore[attr-defined]
        return min((job for job in self._jobs if not job.stream.stalled), key=lambda job: job.urgency, default=None)

    def _advance(self, job: Job) -> None:
        started = time.monotonic()
        try:
            next(job.steps)
        except StopIteration:
            self._jobs.remove(job)
        except Exception as problem:  # a lane's bug ends that work, never the engine
            log.exception("%s failed", job.stream.lane)
            job.stream.fail(job.tag, f"{type(problem).__name__}: {problem}")
            self._jobs.remove(job)
        job.used += time.monotonic() - started


class BatchLane(Lane, Protocol):
    def feed(self, stream: Stream, tag: int, pcm: bytes) -> None:
        """Queue audio."""

    def run_batch(self) -> bool:
        """One step over every stream that has a whole window; False where none has."""


class VadThread:
    """Runs the VAD lane: all sessions' windows in one batched call, as soon as there are any."""

    def __init__(self, lane: Any) -> None:
        self._lane: BatchLane = lane
        self._wake = threading.Condition()
        self._queue: deque[tuple[Stream, int, bytes] | tuple[Stream, None, None]] = deque()
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
            self._queue.append((stream, tag, body.pcm))
            self._wake.notify()

    def forget(self, stream: Stream) -> None:
        with self._wake:
            self._queue.append((stream, None, None))
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                if self._stopping:
                    return
                batch = list(self._queue)
                self._queue.clear()
            for stream, tag, pcm in batch:
                if tag is None or pcm is None:
                    self._lane.close(stream)
                else:
                    self._lane.feed(stream, tag, pcm)
            try:
                while self._lane.run_batch():
                    pass
            except Exception as problem:
                log.exception("vad failed")
                for stream, _, _ in batch:
                    stream.fail(None, f"{type(problem).__name__}: {problem}")
