"""A desk: streams that one worker at a time may touch, their requests and their jobs. Locks are the caller's."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import protocol as p
from .lane import Lane, Send, Steps, Stream, Together
from .learned import STEP_S, StepCost
from .shares import CLASS_DELAY_S, SURE, Shares
from .stats import NOTICED_S, Stats

log = logging.getLogger("bargein.engine")

# How soon a lane's result would be missed, in seconds.
# The words of an utterance come before the classifier's view of its sound, which often is not needed then.
LANE_DELAY_S = {"turn": 0.4, "stt": 0.1, "chat": 0.1, "tts": 0.05, "embed": 0.2}
MAX_BATCH = 16  # jobs in one call of `Lane.together`,
LIVE_BATCH = 6  # but only so many of any other class where a call waits for its result, and fewer where that takes long

AT_ONCE = 8  # requests of other classes received before looking what is most urgent

Key = tuple[int, int]  # connection, stream


class Asked(NamedTuple):
    """A request as it came, and when (seconds, monotonic)."""

    key: Key
    request: p.Request
    deliver: Send
    cls: p.Class
    at: float


@dataclass(slots=True, eq=False)
class Job:
    stream: Stream
    tag: int
    due: float
    steps: Steps
    used: float = 0.0  # seconds of device time
    cancelled: bool = False
    wants: Together | None = None
    noticed: float = math.inf  # when a live caller misses the first answer; inf once there was one

    @property
    def own(self) -> float:
        """When it wants to be done, by itself."""
        return self.due + self.used + (self.wants.spare_s if self.wants is not None else 0.0)


@dataclass(slots=True, eq=False)
class Desk:
    """One stream's, or a whole lane's where its streams share."""

    lane_name: str
    lane: Lane
    stats: Stats
    shares: Shares
    streams: dict[Key, Stream] = field(default_factory=dict)
    inbox: deque[Asked] = field(default_factory=deque)  # of calls
    later: deque[Asked] = field(default_factory=deque)  # of classes that give way to them
    jobs: list[Job] = field(default_factory=list)
    costs: defaultdict[str, StepCost] = field(default_factory=lambda: defaultdict(StepCost))  # of each kind of `Together`
    busy: bool = False  # a worker is at it,
    serving: float = math.inf  # this urgent was the work when it came,
    for_call: bool = False  # and somebody who talks waits for it

    def accept(self, asked: Asked) -> None:
        """A request has come; a stream's stay in order, since they are all of one class."""
        if asked.cls in SURE:
            self.later.append(asked)
            self.shares.came(asked.cls)
        else:
            self.inbox.append(asked)

    def urgency(self, now: float) -> float | None:
        """Of the most urgent work; None where there is none. Calls' requests come first: they are short, or become jobs."""
        if self.inbox:
            return -math.inf
        return min((u for u in (self._later(now), self._jobs(now)) if u < math.inf), default=None)

    def take(self, now: float) -> list[Asked]:
        """What is to be received next; nothing where there is more urgent work."""
        if self.inbox:
            taken = list(self.inbox)
            self.inbox.clear()
            return taken
        if self.later and self._later(now) <= self._jobs(now):
            return [self.later.popleft() for _ in range(min(AT_ONCE, len(self.later)))]
        return []

    def _later(self, now: float) -> float:
        first = self.later[0] if self.later else None
        return math.inf if first is None else self.shares.urgency(first.cls, first.at, now)

    def _jobs(self, now: float) -> float:
        return min((self._urgency(job, now) for job in self._ready()), default=math.inf)

    @property
    def is_empty(self) -> bool:
        """Whether nobody uses it."""
        return not self.streams and not self.inbox and not self.later

    def wanted_at(self) -> float:
        """When the first of its jobs wants to be done; inf without any."""
        return min((job.own for job in self._ready()), default=math.inf)

    def gives_way(self, now: float) -> bool:
        """Whether its most urgent work leaves every core to a call's."""
        first = self._first(now)
        return first is not None and not self.later and self.shares.gives_way(first.stream.cls)

    def serve(self, now: float) -> None:
        """A worker has come."""
        first = self._first(now)
        self.busy, self.serving = True, self.wanted_at()
        self.for_call = first is not None and first.stream.cls not in SURE

    def _first(self, now: float) -> Job | None:
        return min(self._ready(), key=lambda job: self._urgency(job, now), default=None)

    def _ready(self) -> list[Job]:
        return [job for job in self.jobs if not job.stream.stalled]

    def _urgency(self, job: Job, now: float) -> float:
        return self.shares.urgency(job.stream.cls, job.own, now)

    # --- a worker's: nobody else is at the desk ---

    def received(self, asked: Asked, seconds: float) -> None:
        """A request was received, in so long."""
        if asked.cls in SURE:
            self.shares.worked(asked.cls, seconds)
            self.shares.went(asked.cls)

    def receive(self, key: Key, request: p.Request, deliver: Send) -> None:
        """Do what a request asks, or make a job of it."""
        stream = self.streams.get(key)
        match request:
            case p.Open():
                self._open(key, request, deliver)
            case p.Feed(body=body, tag=tag):
                if stream is None:
                    deliver(p.Failed(request.stream, tag, "no such stream"))
                    return
                self._start(stream, tag, body, request.due_ms)
            case p.Cancel(tag=tag):
                for job in self.jobs:
                    if job.stream is stream and (tag is None or job.tag == tag):
                        job.cancelled = True
            case p.Credit(count=count):
                if stream is not None:
                    stream.acknowledge(count)
            case p.Close():
                if stream is not None:
                    self._close(key, stream)

    def _open(self, key: Key, request: p.Open, deliver: Send) -> None:
        stream = Stream(request.stream, request.lane, request.params, request.cls, deliver)
        try:
            self.lane.open(stream)
        except ValueError as problem:
            deliver(p.Failed(request.stream, None, str(problem)))
            return
        self.streams[key] = stream

    def _start(self, stream: Stream, tag: int, body: p.Body, due_ms: float) -> None:
        try:
            steps = self.lane.start(stream, tag, body)
        except ValueError as problem:
            stream.fail(tag, str(problem), "caller")
            return
        if steps is None:
            return
        due = time.monotonic() + due_ms / 1000
        job = Job(stream, tag, due + CLASS_DELAY_S[stream.cls] + LANE_DELAY_S[stream.lane], steps)
        if stream.cls == "live" and tag >= 0:  # what is asked ahead or for show is not missed
            job.noticed = due + NOTICED_S.get(stream.lane, 1.0)
        if stream.last_tag == tag:
            stream.last_tag = None
        self.jobs.append(job)
        self.shares.came(stream.cls)

    def _end(self, job: Job) -> None:
        self.jobs.remove(job)
        self.shares.went(job.stream.cls)

    def _close(self, key: Key, stream: Stream) -> None:
        with stream.lock:
            stream.closed = True
            stream.backlog.clear()
        for job in self.jobs:
            if job.stream is stream:
                job.cancelled = True
        self._drop_cancelled()
        self.lane.close(stream)
        del self.streams[key]

    def _drop_cancelled(self) -> None:
        for job in [job for job in self.jobs if job.cancelled]:
            self._end(job)
            with contextlib.suppress(Exception):
                job.steps.close()

    def work(self) -> None:
        """One step of the most urgent job whose reader keeps up, or of all jobs that wait for the same kind of work."""
        self._drop_cancelled()
        now = time.monotonic()
        ready = sorted(self._ready(), key=lambda job: self._urgency(job, now))
        if not ready:
            return
        wants = ready[0].wants
        if wants is None:
            self._step(ready[0], None)
            self.stats.worked(self.lane_name, time.monotonic() - now, live=float(ready[0].stream.cls == "live"))
            return
        cost = self.costs[wants.kind]
        jobs = _company([job for job in ready if job.wants is not None and job.wants.kind == wants.kind], cost)
        results: Sequence[Any]
        try:
            results = self.lane.together(wants.kind, [job.wants.item for job in jobs if job.wants is not None])
        except Exception as problem:
            results = [problem] * len(jobs)
        took = time.monotonic() - now
        cost.took(len(jobs), took)
        share = took / len(jobs)
        for job, result in zip(jobs, results, strict=True):
            job.used += share
            self.shares.worked(job.stream.cls, share)
            job.wants = None
            self._step(job, result)
        calls = sum(job.stream.cls == "live" for job in jobs)
        self.stats.worked(self.lane_name, time.monotonic() - now, len(jobs), calls / len(jobs))

    def _step(self, job: Job, value: Any) -> None:
        started = time.monotonic()
        try:
            job.wants = job.steps.throw(value) if isinstance(value, Exception) else job.steps.send(value)
        except StopIteration:
            self._end(job)
        except Exception as problem:  # a lane's bug ends that work, never the engine
            log.error("%s failed", self.lane_name, exc_info=problem)
            job.stream.fail(job.tag, f"{type(problem).__name__}: {problem}")
            self._end(job)
        now = time.monotonic()
        job.used += now - started
        self.shares.worked(job.stream.cls, now - started)
        if job.noticed < math.inf and job.stream.last_tag == job.tag:
            self.stats.answered(self.lane_name, now > job.noticed)
            job.noticed = math.inf


def _company(jobs: list[Job], cost: StepCost) -> list[Job]:
    """Those of them, most urgent first, that share a step: every row makes it longer, and a call waits for the whole. So
    others join a call only as far as they make it wait no longer than a step of their own may be."""
    if jobs[0].stream.cls != "live":
        return jobs[:MAX_BATCH]
    calls = [job for job in jobs if job.stream.cls == "live"][:MAX_BATCH]
    others = [job for job in jobs if job.stream.cls != "live"]
    return calls + others[: min(cost.more(STEP_S, LIVE_BATCH), MAX_BATCH - len(calls))]
