"""From text to sound: `speakable_node` cuts phrases, `tts_node` has the engine say them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from bargein.engine import protocol as p
from bargein.engine.client import EngineStream, EngineUnavailable
from bargein.engine.fleet import Engine
from bargein.realtime import events as e
from bargein.realtime.conversation import SpokenWord
from bargein.realtime.ids import Epoch

from ..channel import Channel, Epochs
from ..messages import PhraseToSay, SpokenAudio, TextPiece
from ..speakable import Piece, Speaker

Tell = Callable[[e.Input], None]
Now = Callable[[], float]

F32 = npt.NDArray[np.float32]

RATE_PER_MS = 24
NO_SOUND: F32 = np.zeros(0, np.float32)


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


class SpeechFailure(Exception):
    """A phrase could not be synthesized."""


class Mouth:
    """The session's stream on the tts lane: one phrase at a time, answered by its audio in chunks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stream: EngineStream | None = None
        self._tag = 0
        self._chunks: asyncio.Queue[p.Speech | SpeechFailure] = asyncio.Queue()

    async def say(self, words: tuple[str, ...], speed: float, due_ms: float) -> AsyncGenerator[p.Speech, None]:
        """Synthesize one phrase. Raises SpeechFailure or EngineUnavailable."""
        if self._stream is None or self._stream.closed:
            self._stream = self._engine.open("tts", {}, on_result=self._result, on_failed=self._failed, on_lost=self._lost)
        self._tag += 1
        self._chunks = asyncio.Queue()
        self._stream.feed(self._tag, p.Say(words, speed), due_ms)
        finished = False
        try:
            while not finished:
                chunk = await self._chunks.get()
                if isinstance(chunk, SpeechFailure):
                    finished = True
                    raise chunk
                finished = chunk.final
                yield chunk
        finally:
            if not finished:
                self._stream.cancel(self._tag)

    def _result(self, tag: int, body: p.Answer) -> None:
        if tag == self._tag and isinstance(body, p.Speech):
            self._chunks.put_nowait(body)

    def _failed(self, tag: int | None, message: str) -> None:
        if tag is None or tag == self._tag:
            self._chunks.put_nowait(SpeechFailure(message))

    def _lost(self) -> None:
        self._failed(None, "the engine was lost")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


async def tts_node(
    inp: Channel[PhraseToSay],
    out: Channel[SpokenAudio],
    mouth: Mouth,
    epochs: Epochs,
    tell: Tell,
    now: Now,
    buffered_ms: Callable[[], int],
) -> None:
    """Phrases to audio. The machine hears of a word before any frame with it can leave.

    `buffered_ms`: audio that waits to be played; a phrase is due when it runs out.
    """
    reply = _Reply(Epoch(-1))
    while True:
        item = await inp.receive()
        if item.epoch != reply.epoch:
            reply = _Reply(item.epoch)
        if item.phrase is not None:
            pieces = reply.silent + item.phrase.pieces
            if not any(x.spoken for x in pieces):
                reply.silent = pieces
                continue
            reply.silent = ()
            asked = now()
            try:
                async with aclosing(mouth.say(tuple(x.spoken for x in pieces), item.speed, buffered_ms())) as chunks:
                    async for chunk in chunks:
                        if not epochs.is_alive(item.epoch):
                            break
                        words, pieces = reply.timed(pieces, chunk.times_ms)
                        audio = np.frombuffer(chunk.pcm, np.float32)
                        reply.num_samples += len(audio)
                        if words or len(audio):
                            tell(e.PhrasePlanned(now(), item.epoch, words, reply.planned_ms))
                        took, asked = now() - asked, now()
                        for sound in reply.ready(audio, took, chunk.final):
                            await out.send(SpokenAudio(item.epoch, sound, False))
            except (SpeechFailure, EngineUnavailable) as problem:
                for sound in reply.ready(NO_SOUND, 0.0, True):
                    await out.send(SpokenAudio(item.epoch, sound, False))
                tell(e.SpeechFailed(now(), item.epoch, str(problem)))
                continue
            reply.start_ms = reply.planned_ms
        if item.last:
            if reply.silent:
                words, _ = reply.timed(reply.silent, ((0, 0),) * len(reply.silent))
                tell(e.PhrasePlanned(now(), item.epoch, words, reply.planned_ms))
            await out.send(SpokenAudio(item.epoch, NO_SOUND, True))
            tell(e.SpeechDone(now(), item.epoch))


class _Reply:
    """One reply on its way through the mouth."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.num_samples = 0
        self.start_ms = 0  # where the phrase in hand begins
        self.silent: tuple[Piece, ...] = ()  # unspoken pieces, told with the next words
        self._held: list[F32] | None = []  # the first sound; None once the reply has begun

    @property
    def planned_ms(self) -> int:
        return self.num_samples // RATE_PER_MS

    def ready(self, audio: F32, took_ms: float, final: bool) -> list[F32]:
        """What may be played of a chunk that was this long in coming; `final`: the phrase's last.

        A reply begins once the sound in hand lasts longer than its last piece took to come: where the machine is out of
        breath it begins a moment later, instead of breaking off after its first syllable.
        """
        if self._held is None:
            return [audio] if len(audio) else []
        self._held += [audio] if len(audio) else []
        if sum(map(len, self._held)) < took_ms * RATE_PER_MS and not final:
            return []
        held, self._held = self._held, None if self._held else []
        return held

    def timed(
        self, pieces: tuple[Piece, ...], times_ms: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[SpokenWord, ...], tuple[Piece, ...]]:
        """The first pieces with their times within the reply, and the pieces left."""
        words = tuple(
            SpokenWord(x.original, self.start_ms + a, self.start_ms + b) for x, (a, b) in zip(pieces, times_ms, strict=False)
        )
        return words, pieces[len(words) :]
