"""A text spoken for one request: phrases as a call would say them, sound as the engine makes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from bargein.engine import protocol as p
from bargein.engine.fleet import Engine

from .oneshot import Use
from .speakable import Phrase, Speaker

F32 = npt.NDArray[np.float32]

RATE = 24000


async def speak(engine: Engine, text: str, speed: float = 1.0) -> AsyncGenerator[F32, None]:
    """Float32 mono at 24 kHz, chunk by chunk. Text without anything to say gives nothing.

    speed: 0.25 to 4. Raises WorkFailed, WorkRefused, EngineUnavailable.
    """
    speaker = Speaker()
    phrases = [x for x in [*speaker.feed(text), *speaker.finish()] if x.spoken.strip()]
    async with Use(engine, "tts") as mouth:
        for i, phrase in enumerate(phrases):
            async with aclosing(mouth.answers(p.Say(_words(phrase), speed, last=i + 1 == len(phrases)))) as answers:
                async for chunk in answers:
                    if isinstance(chunk, p.Speech) and chunk.pcm:
                        yield np.frombuffer(chunk.pcm, np.float32)


def _words(phrase: Phrase) -> tuple[str, ...]:
    return tuple(piece.spoken for piece in phrase.pieces)
