"""A load of calls on a virtual clock: which answers would come late, for a table of what steps cost.

The order of work is the engine's own (`desk.py`, `core.py`, `shares.py`): the most urgent desk first, a step at a time,
tokens of all replies together, a worker a core. What callers do is drawn from a seed, and is what those of `bargein bench
load` do: they ask something short, hear the reply out or speak over it, wait a moment. Beside them requests may come for
texts, and recordings be transcribed. So policies can be compared without hardware, and loads studied that no machine here
could carry. The command is in `schedule.py`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from . import protocol as p
from .core import BESIDE_CALLS_S, CAN_WAIT_S, LOOK_AGAIN_S
from .core import PAUSE_S as RECORDINGS_PAUSE_S
from .costs import Costs
from .desk import LANE_DELAY_S, LIVE_BATCH, MAX_BATCH
from .lanes.chat import FIRST_PHRASE_TOKENS, SPOKEN_TOKEN_S
from .learned import STEP_S
from .shares import CLASS_DELAY_S, SURE, Shares
from .stats import NOTICED_S

SPEECH_S = (1.0, 2.3)  # a question, from its first voiced sample to its last
OVER, OVER_S = 0.15, (0.3, 1.2)  # share of replies that are spoken over, and how soon
STOP_S = 0.385  # from the last voiced sample to the announced stop
FIRST_WINDOW_S = 0.03  # to the first silent window, when the words and the sound are looked at ahead
PAUSES = 0.5  # such looks in the middle of a question that turn out too early, for each question
PARTIAL_S, PARTIAL_SHARE = 0.6, 5
BUSY, CALM, BUSY_OVER_S = 0.7, 0.6, 2.0  # as http_api/admission.py has them
PHRASE_TOKENS = 4  # of a first phrase
REPLY_TOKENS = (2, 10)
PAUSE_S = 3.0  # mean
REQUEST_TOKENS = (16, 64)  # that a request over HTTP asks for
REQUEST_NOTICED_S = CLASS_DELAY_S["interactive"] + NOTICED_S["chat"]  # until its first token


class Beside(NamedTuple):
    """What the engine does beside calls."""

    requests: float = 0.0  # for a text, a second
    recordings: int = 0  # transcribed at a time, each as fast as it gets on


@dataclass(slots=True, eq=False)
class Work:
    """A job, as the order of work sees it."""

    lane: str
    name: str  # as the table of costs has it
    desk: Any
    due: float
    steps: list[float]  # seconds each; empty for tokens
    done: Callable[[float], None]
    cls: p.Class = "live"
    tokens: int = 0  # left to write
    wrote: int = 0
    on_token: Callable[[float, int], None] = lambda now, n: None
    noticed: float = math.inf
    used: float = 0.0

    @property
    def own(self) -> float:
        """When it wants to be done, by itself."""
        spare = max(0, self.wrote - FIRST_PHRASE_TOKENS) * SPOKEN_TOKEN_S if self.tokens else 0.0
        return self.due + self.used + spare


@dataclass(slots=True)
class Figures:
    """What came of it."""

    delays: list[float] = field(default_factory=list)  # voice to voice, s
    answered: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    busy: float = 0.0  # share of the workers' time
    lanes: dict[str, float] = field(default_factory=dict)  # of it, seconds of each lane
    classes: dict[p.Class, float] = field(default_factory=dict)  # the same by class of work
    firsts: list[float] = field(default_factory=list)  # a request's first token, s
    windows: int = 0  # of recordings, 30 s each

    @property
    def missed(self) -> float:
        """Share of all answers to callers that came late."""
        return sum(self.late.values()) / max(1, sum(self.answered.values()))

    @property
    def requests_missed(self) -> float:
        """Share of requests whose first token came late."""
        return sum(s > REQUEST_NOTICED_S for s in self.firsts) / max(1, len(self.firsts))


class Serving(NamedTuple):
    """What a worker is at."""

    desks: set[Any]
    own: float  # when the most urgent of it wants to be done
    for_call: bool


class Simulation:
    """`run` returns the figures of `calls` callers over `seconds`, and of what is done `beside` them.

    `together`: steps of one kind for several streams are one, as tokens are, at what the table says that each adds;
    `most`: so many at a time.
    Raises ValueError for recordings where the table has no costs of them.
    """

    def __init__(
        self, costs: Costs, calls: int, seconds: float, seed: int = 1, beside: Beside = Beside(), together: bool = False,
        most: int = MAX_BATCH,
    ) -> None:  # fmt: skip
        if beside.recordings and "window" not in costs.work:
            raise ValueError("the table of costs has no 'window': what 30 s of a recording take")
        self._costs, self._calls, self._seconds = costs, calls, seconds
        self._beside, self._together, self._most = beside, together, most
        self._shares = Shares()
        self._rng, self._requests = random.Random(seed), random.Random(f"{seed}/requests")
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._jobs: list[Work] = []
        self._serving: dict[int, Serving] = {}  # by worker
        self._called_at = -math.inf  # when the last step for a call was done
        self._again = 0.0  # when it is looked again for work that had to wait
        self._took: dict[int, float] = {}  # how long a call's last partial took to come
        self.figures = Figures()
        self._slow = 1.0 / max(0.05, 1.0 - (costs.always + costs.beside * calls) / costs.workers)
        self._share, self._share_at, self._is_busy = 0.0, 0.0, False  # of the workers' time lately, as admission.py has it

    def run(self) -> Figures:
        for n in range(self._calls):
            self._at(self._rng.uniform(0, 6), partial(self._speak, call=n))
        for n in range(self._beside.recordings):
            self._at(0.0, partial(self._window, recording=n))
        if self._beside.requests:
            self._at(self._requests.expovariate(self._beside.requests), self._request)
        while self._events and self._events[0][0] < self._seconds:
            now, _, act = heapq.heappop(self._events)
            act(now)
            self._assign(now)
        self.figures.busy /= self._seconds * self._costs.workers
        return self.figures

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    # --- callers ---

    def _speak(self, now: float, call: int) -> None:
        """A question, from its first sample."""
        end = now + self._rng.uniform(*SPEECH_S)
        took = 0.75 * self._took.get(call, 0.0)

        def show(at: float) -> None:
            if at >= end:
                return

            def shown(then: float) -> None:
                nonlocal took
                took = self._took[call] = then - at
                self._at(max(then, at + min(max(PARTIAL_S, PARTIAL_SHARE * took), 3.0)), show)

            self._add("stt", ("stt", call), at + 0.8, "partial", shown)

        self._at(now + min(max(PARTIAL_S, PARTIAL_SHARE * took), 3.0), show)
        self._add("chat", "chat", now, "read", lambda at: None)  # the turns before
        if self._rng.random() < PAUSES:
            self._at(self._rng.uniform(now + 0.5, end), partial(self._pause, call=call))
        self._at(end + FIRST_WINDOW_S, partial(self._heard, call=call, end=end))

    def _heard(self, now: float, call: int, end: float) -> None:
        """The question is over; so is the turn when its words have been judged and the stop has been announced."""

        def judged(at: float) -> None:
            self._at(max(at, end + STOP_S), partial(self._reply, call=call, end=end))

        self._look(now, call, judged)

    def _pause(self, now: float, call: int) -> None:
        if not self._is_busy:
            self._look(now, call, lambda at: None)

    def _look(self, now: float, call: int, judged: Callable[[float], None]) -> None:
        """The first silent window: words and sound are looked at ahead, then the words are judged."""
        self._add("turn", ("turn", call), now, "turn", lambda at: None)
        self._add("stt", ("stt", call), now, "final", lambda at: self._add("chat", "chat", at, "judge", judged))

    def _reply(self, now: float, call: int, end: float) -> None:
        """The turn is over: the reply is written and its first phrase said."""
        count = self._rng.randint(*REPLY_TOKENS)
        first = min(PHRASE_TOKENS, count)

        def said(at: float) -> None:
            self.figures.delays.append(at - end)
            over = self._rng.random() < OVER
            heard = self._rng.uniform(*OVER_S) if over else count * SPOKEN_TOKEN_S + self._rng.expovariate(1 / PAUSE_S)
            self._at(at + heard, lambda t: self._speak(t, call))

        def token(at: float, n: int) -> None:
            if n == 1:
                self._answered("chat", at, now + NOTICED_S["chat"])
            if n == first:
                self._add("tts", ("tts", call), at, "say", said, answers=True)

        def read(at: float) -> None:
            delay = CLASS_DELAY_S["live"] + LANE_DELAY_S["chat"]
            self._come(Work("chat", "token", "chat", now + delay, [], lambda t: None, tokens=count, on_token=token))

        self._add("chat", "chat", now, "read", read)

    # --- beside them ---

    def _request(self, now: float) -> None:
        """A text is asked for over HTTP."""
        self._at(now + self._requests.expovariate(self._beside.requests), self._request)
        count = self._requests.randint(*REQUEST_TOKENS)

        def token(at: float, n: int) -> None:
            if n == 1:
                self.figures.firsts.append(at - now)

        def read(at: float) -> None:
            due = now + CLASS_DELAY_S["interactive"] + LANE_DELAY_S["chat"]
            work = Work("chat", "token", "chat", due, [], lambda t: None, "interactive", count, on_token=token)
            self._come(work)

        self._add("chat", "chat", now, "read", read, cls="interactive")

    def _window(self, now: float, recording: int) -> None:
        """The next 30 s of a recording."""

        def done(at: float) -> None:
            self.figures.windows += 1
            self._window(at, recording)

        self._add("stt", ("recording", recording), now, "window", done, cls="bulk")

    def _add(
        self, lane: str, desk: Any, due: float, name: str, done: Callable[[float], None], answers: bool = False,
        cls: p.Class = "live",
    ) -> None:  # fmt: skip
        steps, each = self._costs.work[name]
        noticed = due + NOTICED_S[lane] if answers else math.inf
        due += CLASS_DELAY_S[cls] + LANE_DELAY_S[lane]
        self._come(Work(lane, name, desk, due, [each] * steps, done, cls, noticed=noticed))

    def _come(self, work: Work) -> None:
        self._jobs.append(work)
        self._shares.came(work.cls)

    def _answered(self, lane: str, now: float, noticed: float) -> None:
        self.figures.answered[lane] = self.figures.answered.get(lane, 0) + 1
        self.figures.late[lane] = self.figures.late.get(lane, 0) + (now > noticed)

    # --- workers ---

    def _assign(self, now: float) -> None:
        """Give every free worker a step, as `Core` does."""
        for worker in range(self._costs.workers):
            if worker in self._serving:
                continue
            busy = {desk for at in self._serving.values() for desk in at.desks}
            waiting = [job for job in self._jobs if job.desk not in busy]
            if not waiting:
                return
            job = min(waiting, key=lambda x: self._shares.urgency(x.cls, x.own, now))
            if self._shares.gives_way(job.cls):
                beside = any(at.for_call for at in self._serving.values())
                again = now + LOOK_AGAIN_S if beside else self._called_at + RECORDINGS_PAUSE_S
                if again > now:
                    self._look_again(again, now)
                    return
            one_desk = len({x.desk for x in waiting}) == 1
            if one_desk and self._serving:
                own, served = min(x.own for x in waiting), min(at.own for at in self._serving.values())
                if own > now and own - served > CAN_WAIT_S:
                    self._look_again(own, now)
                    return
            batch, cost = self._step(job, waiting, now)
            on_its_own = job.cls in SURE and now - self._called_at < BESIDE_CALLS_S
            if not self._serving and one_desk and not on_its_own:
                cost *= self._costs.alone
            cost *= self._slow
            self.figures.busy += cost
            self.figures.lanes[job.lane] = self.figures.lanes.get(job.lane, 0.0) + cost
            self._worked(now, cost)
            self._serving[worker] = Serving({x.desk for x in batch}, job.own, job.cls not in SURE)
            self._at(now + cost, partial(self._finish, worker=worker, batch=batch, cost=cost))

    def _look_again(self, at: float, now: float) -> None:
        """There is work that may begin later, if nothing else comes."""
        if self._again <= now or at < self._again:
            self._again = at
            self._at(at, lambda then: None)

    def _step(self, job: Work, waiting: list[Work], now: float) -> tuple[list[Work], float]:
        """The jobs that are worked on in one step with the most urgent one, and its seconds."""
        if not job.tokens and not (self._together and job.name in self._costs.grow):
            return [job], job.steps[-1]
        same = sorted((x for x in waiting if x.name == job.name), key=lambda x: self._shares.urgency(x.cls, x.own, now))
        first: dict[Any, Work] = {}
        for x in same:
            first.setdefault(id(x) if x.desk == "chat" else x.desk, x)  # of one stream only one at a time
        batch = self._company(job, list(first.values()))
        if job.tokens:
            return batch, self._costs.token(len(batch))
        return batch, job.steps[-1] * (1 + self._costs.grow[job.name] * (len(batch) - 1))

    def _company(self, job: Work, same: list[Work]) -> list[Work]:
        """As the engine's: others join a call's tokens only as far as these wait no longer than a step."""
        if job.cls != "live" or not job.tokens:
            return same[: self._most]
        calls = [x for x in same if x.cls == "live"][: self._most]
        others = [x for x in same if x.cls != "live"][: min(LIVE_BATCH, self._most - len(calls))]
        most = self._costs.token(len(calls)) + STEP_S
        while others and self._costs.token(len(calls) + len(others)) > most:
            others.pop()
        return calls + others

    def _worked(self, now: float, seconds: float) -> None:
        """Whether the server is busy: then nothing is begun that may not be needed."""
        self._share *= math.exp((self._share_at - now) / BUSY_OVER_S)
        self._share, self._share_at = self._share + seconds / BUSY_OVER_S / self._costs.workers, now
        self._is_busy = self._share > (CALM if self._is_busy else BUSY)

    def _finish(self, now: float, worker: int, batch: list[Work], cost: float) -> None:
        if self._serving.pop(worker).for_call:
            self._called_at = now
        for job in batch:
            job.used += cost / len(batch)
            self._shares.worked(job.cls, cost / len(batch))
            self.figures.classes[job.cls] = self.figures.classes.get(job.cls, 0.0) + cost / len(batch)
            if job.tokens:
                job.tokens -= 1
                job.wrote += 1
                job.on_token(now, job.wrote)
            else:
                job.steps.pop()
            if not job.tokens and not job.steps:
                self._jobs.remove(job)
                self._shares.went(job.cls)
                if job.noticed < math.inf:
                    self._answered(job.lane, now, job.noticed)
                job.done(now)
