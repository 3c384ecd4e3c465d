"""The engine's loop: requests, desks, and the workers that go from desk to desk.

A lane turns a request into a *job*: a generator whose every step is one bounded piece of work. A worker takes the desk
with the most urgent job: due first, where every second of work already spent on a job puts it back by a second, so a
long job never holds back a short one for more than a step; between classes of work see shares.py. A desk is one stream,
or a lane whose streams share something; there a job may also yield a `Together`: work that the lane does in one call for
all jobs that wait for the same, as a token for each of eight replies.

There is a worker for each core. One that is alone uses all cores for its step; beside another each stays on its own,
which gets more done: two encoders side by side take hardly longer than one, and one on two cores four fifths of that.
So a single piece of work that can wait leaves all cores to a more urgent one; two pieces do not. Long recordings leave
them all to any call's work, but for their share: what runs beside a step slows it, by the memory they both read. They wait
a moment after it, since an answer's pieces of work follow each other by way of the front process, and while there are calls
they take one core, so that the next piece finds the other free.
VAD has its own thread, since it is due every 32 ms and costs less than a millisecond.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

from . import protocol as p
from .desk import Asked, Desk, Key
from .lane import Lane, Send, Stream
from .shares import Shares
from .stats import A_CALL_TAKES, Stats
from .vad_thread import BatchLane, VadThread

log = logging.getLogger("bargein.engine")


CAN_WAIT_S = 0.2  # between what is worked on and what leaves it the other cores
LOOK_AGAIN_S = 0.02  # whether a long recording is owed time meanwhile
PAUSE_S = 0.01  # after a call's step before a long recording goes on, unless it is owed time
BESIDE_CALLS_S = 2.0  # after a call's step, while other work takes one core


class Core:
    """Owns the lanes. Requests come from any thread through `submit`.

    `cores`: how many workers, and the most threads of one step; `use_threads` sets that number for the calling thread.
    """

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        vad: BatchLane | None = None,
        cores: int = 1,
        use_threads: Callable[[int], None] = lambda n: None,
    ) -> None:
        self._lanes = dict(lanes)
        self._vad = vad
        self.stats = Stats()
        self._shares = Shares()
        self._cores, self._use_threads = cores, use_threads
        self._desks: dict[Key, Desk] = {}  # where a stream is served
        self._classes: dict[Key, p.Class] = {}
        self._shared = {name: Desk(name, lane, self.stats, self._shares) for name, lane in lanes.items() if lane.shares}
        self._open: dict[Desk, None] = {}  # desks with anything on them, once each
        self._voices: dict[Key, Stream] = {}  # the streams of the VAD thread
        self._wake = threading.Condition()
        self._stopping = False
        self._called_at = -math.inf  # when the last step for a call was done
        self._patience: float | None = None  # seconds after which `_next` may have another answer
        names = [f"device-{n}" for n in range(cores)]
        self.call_s = 0.0  # what a call is expected to take of a worker each second; 0 while not measured
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        self._vad_thread = VadThread(vad, self.stats) if vad is not None else None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        if self._vad_thread is not None:
            self._vad_thread.start()

    def stop(self) -> None:
        """Stop all threads; jobs in flight are dropped."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._vad_thread is not None:
            self._vad_thread.stop()
        for thread in self._threads:
            thread.join(timeout=10)

    def warm(self) -> None:
        """Run every lane once. Call before `start`."""
        for lane in self._lanes.values():
            lane.warm()
        if self._vad is not None:
            self._vad.warm()

    def try_out(self) -> None:
        """Measure what a call will take of a worker (`call_s`), in some tenths of a second. Call between `warm` and `start`."""
        self._use_threads(1)  # beside others, as with many calls
        self.call_s = sum(share * _sampled_s(self._lanes[name]) for name, share in A_CALL_TAKES.items() if name in self._lanes)
        self._use_threads(self._cores)

    # --- any thread ---

    def submit(self, connection: int, request: p.Request, deliver: Send) -> None:
        """Take a request of a connection; what it causes is delivered through `deliver`."""
        key = (connection, request.stream)
        with self._wake:
            if self._vad_thread is not None and self._voice(self._vad_thread, key, request, deliver):
                return
            desk = self._desks.get(key)
            if isinstance(request, p.Open) and desk is None and (lane := self._lanes.get(request.lane)) is not None:
                desk = self._shared.get(request.lane) or Desk(request.lane, lane, self.stats, self._shares)
                self._desks[key], self._classes[key] = desk, request.cls
            elif isinstance(request, p.Open):
                problem = f"cannot open stream {request.stream} on {request.lane}"
                deliver(p.Failed(request.stream, None, problem))
                return
            if desk is not None:
                desk.accept(Asked(key, request, deliver, self._classes[key], time.monotonic()))
                self._open[desk] = None
                self._wake.notify()
            elif isinstance(request, p.Feed):
                deliver(p.Failed(request.stream, request.tag, "no such stream"))
            if isinstance(request, p.Close):
                self._desks.pop(key, None)
                self._classes.pop(key, None)

    def _voice(self, vad: VadThread, key: Key, request: p.Request, deliver: Send) -> bool:
        """Whether the request was the VAD thread's, which then has it."""
        if isinstance(request, p.Open) and request.lane == "vad" and key not in self._voices:
            stream = self._voices[key] = Stream(request.stream, "vad", request.params, request.cls, deliver)
            vad.lane.open(stream)
            return True
        voice = self._voices.get(key)
        match request:
            case p.Feed(tag=tag, body=p.Audio() as body) if voice is not None:
                vad.feed(voice, tag, body)
            case p.Credit(count=count) if voice is not None:
                voice.acknowledge(count)
            case p.Close() if voice is not None:
                with voice.lock:
                    voice.closed = True
                    voice.backlog.clear()
                vad.forget(self._voices.pop(key))
            case _:
                return False
        return True

    def disconnect(self, connection: int) -> None:
        """Close every stream of a connection that is gone."""
        with self._wake:
            keys = [key for key in (*self._desks, *self._voices) if key[0] == connection]
        for key in keys:
            self.submit(connection, p.Close(key[1]), lambda reply: None)

    def num_streams(self) -> int:
        return len(self._desks) + len(self._voices)

    def load(self) -> p.Load:
        """How busy it is."""
        with self._wake:
            jobs = sum(len(desk.jobs) for desk in self._open)
        return self.stats.load(jobs, self.num_streams(), self._cores)

    # --- the workers ---

    def _run(self) -> None:
        while True:
            with self._wake:
                while (desk := self._next()) is None and not self._stopping:
                    self._wake.wait(self._patience)
                if self._stopping or desk is None:
                    return
                desk.serve(time.monotonic())
                requests = desk.take(time.monotonic())
                alone = self._next() is None and not any(d.busy for d in self._open if d is not desk)
                if not desk.for_call and time.monotonic() - self._called_at < BESIDE_CALLS_S:
                    alone = False
            if requests:  # then see what is most urgent now
                for asked in requests:
                    self._receive(desk, asked)
            else:
                self._use_threads(self._cores if alone else 1)
                desk.work()
            with self._wake:
                desk.busy = False
                if desk.for_call:
                    self._called_at = time.monotonic()
                if desk.urgency(time.monotonic()) is not None:
                    self._wake.notify()  # this worker may go elsewhere
                elif desk.is_empty:
                    self._open.pop(desk, None)

    def _receive(self, desk: Desk, asked: Asked) -> None:
        started, request = time.monotonic(), asked.request
        try:
            desk.receive(asked.key, request, asked.deliver)
        except Exception as problem:  # a lane's bug ends that request, never the worker
            log.exception("%s failed", desk.lane_name)
            tag = request.tag if isinstance(request, p.Feed) else None
            asked.deliver(p.Failed(request.stream, tag, f"{type(problem).__name__}: {problem}"))
        desk.received(asked, time.monotonic() - started)

    def _next(self) -> Desk | None:
        """The desk with the most urgent work, None where nobody is needed, or not before `_patience` is over."""
        self._patience, now = None, time.monotonic()
        waiting = [(u, d) for d in self._open if not d.busy and (u := d.urgency(now)) is not None]
        _, desk = min(waiting, key=lambda pair: pair[0], default=(0.0, None))
        if desk is not None and desk.gives_way(now):
            if any(d.busy and d.for_call for d in self._open):
                self._patience = LOOK_AGAIN_S
                return None
            if now < self._called_at + PAUSE_S:
                self._patience = self._called_at + PAUSE_S - now
                return None
        if len(waiting) == 1 and desk is not None and not desk.inbox and not desk.later:
            served = min((d.serving for d in self._open if d.busy), default=math.inf)
            wanted = desk.wanted_at()
            if wanted > now and wanted - served > CAN_WAIT_S:
                self._patience = wanted - now
                return None
        return desk


def _sampled_s(lane: Lane) -> float:
    """Seconds of a lane's sample; the better of two, since others use the machine too."""
    took = []
    for _ in range(2):
        started = time.monotonic()
        lane.sample()
        took.append(time.monotonic() - started)
    return min(took)
