"""A load of calls on a virtual clock: which answers would come late, for a table of what steps cost.

The order of work is the engine's own (`desk.py`, `core.py`): the most urgent desk first, a step at a time, tokens of all
replies together, a worker a core. What callers do is drawn from a seed, and is what those of `bargein bench load` do: they
ask something short, hear the reply out or speak over it, wait a moment. So policies can be compared without hardware, and
loads studied that no machine here could carry.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .core import CAN_WAIT_S
from .costs import Costs, load_costs
from .desk import LANE_DELAY_S, MAX_BATCH
from .lanes.chat import FIRST_PHRASE_TOKENS, SPOKEN_TOKEN_S
from .shares import CLASS_DELAY_S
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


@dataclass(slots=True, eq=False)
class Work:
    """A job, as the order of work sees it."""

    lane: str
    desk: Any
    due: float
    steps: list[float]  # seconds each; empty for tokens
    done: Callable[[float], None]
    tokens: int = 0  # left to write
    wrote: int = 0
    on_token: Callable[[float, int], None] = lambda now, n: None
    noticed: float = math.inf
    used: float = 0.0

    @property
    def urgency(self) -> float:
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

    @property
    def missed(self) -> float:
        """Share of all answers that came late."""
        return sum(self.late.values()) / max(1, sum(self.answered.values()))


class Simulation:
    """`run` returns the figures of `calls` callers over `seconds`."""

    def __init__(self, costs: Costs, calls: int, seconds: float, seed: int = 1) -> None:
        self._costs, self._calls, self._seconds = costs, calls, seconds
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._jobs: list[Work] = []
        self._serving: dict[int, tuple[Any, float]] = {}  # worker -> desk, urgency
        self._took: dict[int, float] = {}  # how long a call's last partial took to come
        self.figures = Figures()
        self._slow = 1.0 / max(0.05, 1.0 - (costs.always + costs.beside * calls) / costs.workers)
        self._share, self._share_at, self._is_busy = 0.0, 0.0, False  # of the workers' time lately, as admission.py has it

    def run(self) -> Figures:
        for n in range(self._calls):
            self._at(self._rng.uniform(0, 6), partial(self._speak, call=n))
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
            self._jobs.append(Work("chat", "chat", now + delay, [], lambda t: None, count, 0, token))

        self._add("chat", "chat", now, "read", read)

    def _add(self, lane: str, desk: Any, due: float, name: str, done: Callable[[float], None], answers: bool = False) -> None:
        steps, each = self._costs.work[name]
        noticed = due + NOTICED_S[lane] if answers else math.inf
        due += CLASS_DELAY_S["live"] + LANE_DELAY_S[lane]
        self._jobs.append(Work(lane, desk, due, [each] * steps, done, noticed=noticed))

    def _answered(self, lane: str, now: float, noticed: float) -> None:
        self.figures.answered[lane] = self.figures.answered.get(lane, 0) + 1
        self.figures.late[lane] = self.figures.late.get(lane, 0) + (now > noticed)

    # --- workers ---

    def _assign(self, now: float) -> None:
        """Give every free worker a step, as `Core` does."""
        for worker in range(self._costs.workers):
            if worker in self._serving:
                continue
            busy = {desk for desk, _ in self._serving.values()}
            waiting = [job for job in self._jobs if job.desk not in busy]
            if not waiting:
                return
            job = min(waiting, key=lambda x: x.urgency)
            if len({x.desk for x in waiting}) == 1 and self._serving:
                served = min(urgency for _, urgency in self._serving.values())
                if job.urgency > now and job.urgency - served > CAN_WAIT_S:
                    self._at(job.urgency, lambda at: None)
                    return
            batch = [job]
            if job.tokens:
                batch = sorted((x for x in waiting if x.tokens), key=lambda x: x.urgency)[:MAX_BATCH]
                cost = self._costs.token(len(batch))
            else:
                cost = job.steps.pop()
            if not self._serving and len({x.desk for x in waiting}) == 1:
                cost *= self._costs.alone
            cost *= self._slow
            self.figures.busy += cost
            self.figures.lanes[job.lane] = self.figures.lanes.get(job.lane, 0.0) + cost
            self._worked(now, cost)
            self._serving[worker] = (job.desk, job.urgency)
            self._at(now + cost, partial(self._finish, worker=worker, batch=batch, cost=cost))

    def _worked(self, now: float, seconds: float) -> None:
        """Whether the server is busy: then nothing is begun that may not be needed."""
        self._share *= math.exp((self._share_at - now) / BUSY_OVER_S)
        self._share, self._share_at = self._share + seconds / BUSY_OVER_S / self._costs.workers, now
        self._is_busy = self._share > (CALM if self._is_busy else BUSY)

    def _finish(self, now: float, worker: int, batch: list[Work], cost: float) -> None:
        del self._serving[worker]
        for job in batch:
            job.used += cost / len(batch)
            if job.tokens:
                job.tokens -= 1
                job.wrote += 1
                job.on_token(now, job.wrote)
            if not job.tokens and not job.steps:
                self._jobs.remove(job)
                if job.noticed < math.inf:
                    self._answered(job.lane, now, job.noticed)
                job.done(now)


def quantile(values: list[float], q: float) -> float:
    """Nearest rank; NaN of nothing."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)] if values else math.nan


def run(argv: list[str]) -> int:
    """`bargein bench schedule`; returns the exit status."""
    import argparse

    p = argparse.ArgumentParser(prog="bargein bench schedule", description=(__doc__ or "").split("\n")[0])
    p.add_argument(
        "--costs", type=Path, default=Path("bench/costs_two_cores.json"), help="what steps cost (default %(default)s)"
    )
    p.add_argument("--calls", default="1,2,4,6,8", help="loads to try (default %(default)s)")
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args(argv)
    try:
        costs = load_costs(args.costs)
        loads = [int(n) for n in args.calls.split(",")]
    except ValueError as problem:
        print(f"bargein: {problem}")
        return 2
    print(f"{'calls':>6} {'busy':>6} {'voice to voice: median':>23} {'p95':>7} {'late answers':>13}")
    for calls in loads:
        f = Simulation(costs, calls, args.seconds, args.seed).run()
        median, p95 = (1000 * quantile(f.delays, q) for q in (0.5, 0.95))
        by_lane = ", ".join(f"{lane} {f.late[lane]} of {n}" for lane, n in sorted(f.answered.items()))
        device = ", ".join(f"{lane} {100 * took / args.seconds:.0f} %" for lane, took in sorted(f.lanes.items()))
        print(f"{calls:6} {100 * f.busy:5.0f}% {median:20.0f} ms {p95:4.0f} ms {100 * f.missed:11.1f} %   "
              f"({by_lane}; of a core: {device})")  # fmt: skip
    return 0
