"""One-shot work on the engine: a stream for the length of one request, answers as they come, cancelled when left.

What a call does with nodes and channels, a request does with a line: it asks one lane, and what it no longer waits for
is ended at once, since the stream is closed with the block that opened it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from bargein.engine import protocol as p
from bargein.engine.client import EngineStream
from bargein.engine.fleet import Engine

ENDS = (p.Generated, p.Heard, p.Vectors, p.TurnScore, p.Words)


class WorkFailed(Exception):
    """The engine could not do the work."""


class WorkRefused(Exception):
    """The request itself cannot be done; the message begins with the parameter's name where one is to blame."""


class Use:
    """One lane, used by one request: `async with Use(engine, "tts") as tts`. Raises EngineUnavailable on entry."""

    def __init__(self, engine: Engine, lane: p.LaneName, cls: p.Class = "interactive") -> None:
        self._engine, self._lane, self._cls = engine, lane, cls
        self._stream: EngineStream | None = None
        self._tags = itertools.count(1)
        self._queues: dict[int, asyncio.Queue[p.Answer | Exception]] = {}
        self._broken: Exception | None = None

    async def __aenter__(self) -> Self:
        self._stream = self._engine.open(
            self._lane, {}, on_result=self._result, on_failed=self._failed, on_lost=self._lost,
            on_refused=self._refused, cls=self._cls,
        )  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    async def answers(self, body: p.Body) -> AsyncGenerator[p.Answer, None]:
        """Everything that comes back for one request, to its end. Raises WorkFailed, WorkRefused."""
        assert self._stream is not None, "entered"
        if self._broken is not None:
            raise self._broken
        tag = next(self._tags)
        queue = self._queues[tag] = asyncio.Queue()
        self._stream.feed(tag, body)
        finished = False
        try:
            while not finished:
                answer = await queue.get()
                if isinstance(answer, Exception):
                    finished = True
                    raise answer
                finished = isinstance(answer, ENDS) or (isinstance(answer, p.Speech) and answer.final)
                yield answer
        finally:
            del self._queues[tag]
            if not finished:
                self._stream.cancel(tag)

    async def one(self, body: p.Body) -> Any:
        """The only answer of a request that has one."""
        async with aclosing(self.answers(body)) as answers:
            async for answer in answers:
                return answer
        raise WorkFailed("the engine gave no answer")

    def _result(self, tag: int, body: p.Answer) -> None:
        if (queue := self._queues.get(tag)) is not None:
            queue.put_nowait(body)

    def _tell(self, tag: int | None, problem: Exception) -> None:
        if tag is None:
            self._broken = problem
        for number, queue in self._queues.items():
            if tag is None or number == tag:
                queue.put_nowait(problem)

    def _failed(self, tag: int | None, message: str) -> None:
        self._tell(tag, WorkFailed(message))

    def _refused(self, tag: int | None, message: str) -> None:
        self._tell(tag, WorkRefused(message))

    def _lost(self) -> None:
        self._tell(None, WorkFailed("the engine was lost"))
