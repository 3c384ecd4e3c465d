"""From text to sound: `speakable_node` cuts phrases, `tts_node` has the engine say them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
from bargein.engine import protocol as p
from bargein.engine.client import EngineClient, EngineStream, EngineUnavailable
from bargein.realtime import events as e
from bargein.realtime.conversation import SpokenWord
from bargein.realtime.ids import Epoch

from ..channel import Channel
from ..messages import PhraseToSay, SpokenAudio, TextPiece
from ..speakable import Piece, Speaker

Tell = Callable[[e.Input], None]
Now = Callable[[], float]

RATE_PER_MS = 24


async def speakable_node(inp: Channel[TextPiece], out: Channel[PhraseToSay]) -> None:
    """Streamed text to phrases, one reply at a time."""
    speaker, epoch = Speaker(), Epoch(-1)
    while True:
        piece = await inp.receive()
        if piece.epoch != epoch:
            speaker, epoch = Speaker(), piece.epoch
        for phrase in speaker.feed(piece.text):
            await out.send(PhraseToSay(epoch, phrase, False, piece.speed))
        if piece.last:
            for phrase in speaker.finish():
                await out.send(PhraseToSay(epoch, phrase, False, piece.speed))
            await out.send(PhraseToSay(epoch, None, True, piece.speed))


class Mouth:
    """The session's stream on the tts lane: one phrase at a time, answered by its audio."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._stream: EngineStream | None = None
        self._tag = 0
        self._answer: asyncio.Future[list[p.Speech]] | None = None
        self._parts: list[p.Speech] = []

    async def say(self, words: tuple[str, ...], speed: float, due_ms: float) -> list[p.Speech]:
        """Synthesize; raises SpeechFailure or EngineUnavailable."""
        if self._stream is None or self._stream.closed:
            self._stream = self._engine.open(
                "tts", {}, on_result=self._result, on_failed=self._failed, on_lost=self._lost
            )
        self._tag += 1
        self._parts = []
        self._answer = asyncio.get_running_loop().create_future()
        self._stream.feed(self._tag, p.Say(words, speed), due_ms)
        try:
            return await self._answer
        finally:
            if not self._answer.done() or self._answer.cancelled():
                self._stream.cancel(self._tag)

    def _result(self, tag: int, body: p.Answer) -> None:
        if tag == self._tag and isinstance(body, p.Speech) and self._answer and not self._answer.done():
            self._parts.append(body)
            if body.final:
                self._answer.set_result(self._parts)

    def _failed(self, tag: int | None, message: str) -> None:
        if (tag is None or tag == self._tag) and self._answer and not self._answer.done():
            self._answer.set_exception(SpeechFailure(message))

    def _lost(self) -> None:
        self._failed(None, "the engine was lost")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class SpeechFailure(Exception):
    """A phrase could not be synthesized."""


async def tts_node(
    inp: Channel[PhraseToSay],
    out: Channel[SpokenAudio],
    mouth: Mouth,
    tell: Tell,
    now: Now,
    buffered_ms: Callable[[], int],
) -> None:
    """Phrases to audio. The machine hears of a phrase's words before any of its frames can leave.

    `buffered_ms`: audio that waits to be played; a phrase is due when it runs out.
    """
    epoch, planned = Epoch(-1), 0
    silent: tuple[Piece, ...] = ()  # unspoken pieces, told with the next words
    while True:
        item = await inp.receive()
        if item.epoch != epoch:
            epoch, planned, silent = item.epoch, 0, ()
        if item.phrase is not None:
            pieces = silent + item.phrase.pieces
            if not any(x.spoken for x in pieces):
                silent = pieces
                continue
            silent = ()
            try:
                speech = await mouth.say(tuple(x.spoken for x in pieces), item.speed, buffered_ms())
            except (SpeechFailure, EngineUnavailable) as problem:
                tell(e.SpeechFailed(now(), epoch, str(problem)))
                continue
            times = next(s.times_ms for s in speech if s.times_ms)
            words = tuple(
                SpokenWord(x.original, planned // RATE_PER_MS + a, planned // RATE_PER_MS + b)
                for x, (a, b) in zip(pieces, times, strict=True)
            )
            audio = [np.frombuffer(s.pcm, np.float32) for s in speech]
            planned += sum(map(len, audio))
            tell(e.PhrasePlanned(now(), epoch, words, planned // RATE_PER_MS))
            for chunk in audio:
                await out.send(SpokenAudio(epoch, chunk, False))
        if item.last:
            if silent:
                end = planned // RATE_PER_MS
                tell(e.PhrasePlanned(now(), epoch, tuple(SpokenWord(x.original, end, end) for x in silent), end))
                silent = ()
            await out.send(SpokenAudio(epoch, np.zeros(0, np.float32), True))
            tell(e.SpeechDone(now(), epoch))
