"""What a lane is to the engine: it turns the requests of streams into jobs whose every step is bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import protocol as p

Send = Callable[[p.Reply], None]


@dataclass(frozen=True, slots=True)
class Together:
    """What a job yields to have `Lane.together` do it along with what others want of that kind; it is sent the result.

    `spare_s`: how long after the job was due nobody will miss this yet.
    """

    kind: str
    item: Any
    spare_s: float = 0.0


Steps = Generator[Together | None, Any, Any]  # of a job, or of a part of one


@dataclass(slots=True, eq=False)
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
    last_tag: int | None = None  # that was sent anything

    def send(self, tag: int, body: p.Answer) -> None:
        """Deliver a result, or keep it until the reader has credit again."""
        self.last_tag = tag
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


class Lane:
    """One kind of work. What is called for a stream is called by one thread at a time.

    `shares`: its streams' states are used together (batches, caches that are copied from each other), so that the same
    goes for the lane as a whole; else two streams may be worked on at once, and the lane itself holds nothing but models.
    """

    shares = False

    def open(self, stream: Stream) -> None:
        """Set up `stream.state`. Raises ValueError for bad parameters."""

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        """Take a request: at once (None), or as a job whose steps are bounded. Raises ValueError where it cannot."""
        raise NotImplementedError

    def together(self, kind: str, items: Sequence[Any]) -> Sequence[Any]:
        """One bounded step for several jobs -> a result for each; a result that is an exception is raised in its job."""
        raise NotImplementedError

    def close(self, stream: Stream) -> None:
        """Let go of the stream's state."""

    def prepare(self) -> None:
        """Make what takes long and is the same for every engine. No kernels: a process that has run one cannot be forked."""

    def warm(self) -> None:
        """Compile and touch everything once, so that the first call is not slow."""

    def sample(self) -> None:
        """Do a piece of work that is always the same, for its time to tell how fast this machine is."""
