"""A recording transcribed window by window, in memory that does not grow with it: decode -> VAD -> cut -> STT."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from bargein.engine import protocol as p
from bargein.engine.fleet import Engine

from .cutting import FRAME, RATE, Cutter, Window
from .oneshot import Use

F32 = npt.NDArray[np.float32]

VAD_BLOCK = 32 * FRAME  # about a second: a longer one would hold back the calls' own windows
MOST_ROUNDS = 4  # of hearing what a window still holds
UNHEARD_S = 0.6  # less speech than this after the last segment is its end
INTERACTIVE_S = 60.0  # of a recording; what comes after is bulk work


@dataclass(frozen=True, slots=True)
class Wish:
    """How to hear. `language` "": find out from the first window."""

    language: str = ""
    task: Literal["transcribe", "translate"] = "transcribe"
    prompt: str = ""
    temperature: float = 0.0
    words: bool = False
    soon: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One window of the recording and what it says; times inside `heard` count from `start_s`."""

    start_s: float
    heard: p.Heard


@dataclass(slots=True)
class Tally:
    """What is known of a recording when it has been read."""

    seconds: float = 0.0
    language: str = ""


async def windows(
    engine: Engine, sound: AsyncGenerator[F32, None], tally: Tally, soon: bool = False
) -> AsyncGenerator[Window, None]:
    """The recording's windows that hold speech, as its sound comes."""
    cutter = Cutter(soon)
    left = np.zeros(0, np.float32)
    async with Use(engine, "vad") as ears, aclosing(sound):
        fed = 0
        async for piece in sound:
            tally.seconds += len(piece) / RATE
            left = np.concatenate([left, piece]) if len(left) else piece
            while len(left) >= VAD_BLOCK:
                block, left = left[:VAD_BLOCK], left[VAD_BLOCK:]
                fed += len(block)
                for window in cutter.feed(block, await _probs(ears, block, fed)):
                    yield window
        if len(left):
            block = np.pad(left, (0, -len(left) % FRAME)).astype(np.float32)
            fed += len(block)
            for window in cutter.feed(block, await _probs(ears, block, fed)):
                yield _real(window, tally)
    for window in cutter.finish():
        yield _real(window, tally)


def _real(window: Window, tally: Tally) -> Window:
    """The window without what filled the recording's last frame up."""
    end = round(tally.seconds * RATE) - window.start
    return window if end >= len(window.sound) else replace(window, sound=window.sound[:end])


async def _probs(ears: Use, block: F32, until: int) -> list[float]:
    """The probability of every frame of the block, which ends at sample `until` of the stream."""
    out: list[float] = []
    async with aclosing(ears.answers(p.Audio(block.tobytes()))) as answers:
        async for answer in answers:
            if isinstance(answer, p.Windows):
                out += answer.probs
                if answer.end_sample >= until:
                    break
    return out


async def transcribe(
    engine: Engine, sound: AsyncGenerator[F32, None], wish: Wish, tally: Tally
) -> AsyncGenerator[Part, None]:
    """What a recording says, window by window; each is heard by itself, since a model that is shown the text before
    leaves out what is said again. Raises NotAudio, WorkFailed, WorkRefused, EngineUnavailable."""
    tally.language = wish.language
    async with (
        Use(engine, "stt", "interactive") as soon,
        Use(engine, "stt", "bulk") as later,
        aclosing(windows(engine, sound, tally, wish.soon)) as found,
    ):
        async for window in found:
            use = soon if window.start < INTERACTIVE_S * RATE else later
            left: Window | None = window
            for _ in range(MOST_ROUNDS):
                if left is None:
                    break
                heard: p.Heard = await use.one(
                    p.Hear(
                        left.sound.tobytes(), tally.language, wish.task, wish.prompt, wish.temperature,
                        wish.words and wish.task == "transcribe",
                    )
                )  # fmt: skip
                if not heard.text:
                    break
                tally.language = tally.language or heard.language
                yield Part(left.start / RATE, heard)
                left = unheard(left, heard)


def unheard(window: Window, heard: p.Heard) -> Window | None:
    """What follows the last segment, where there is speech in it: the model likes to stop before a window's end."""
    end = round(RATE * max((s.end_s for s in heard.segments), default=0.0))
    spans = tuple((max(a, end) - end, b - end) for a, b in window.spans if b - max(a, end) > UNHEARD_S * RATE)
    if not spans or end == 0:
        return None
    return Window(window.start + end, window.sound[end:], spans)
