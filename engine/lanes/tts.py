"""The tts lane: phrases to 24 kHz audio with the time of every piece, in chunks as they are synthesized."""

from __future__ import annotations

from typing import Any

import numpy as np

from bargein.kernels import cpu
from bargein.models import hibari

from .. import protocol as p
from ..lane import Lane, Steps, Stream

MID_REPLY = hibari.Pauses()


class TtsLane(Lane):
    """Stateless but for the voice: a phrase is synthesized by itself."""

    def __init__(self, model: hibari.Model, ops: Any = cpu) -> None:
        self._model, self._ops = model, ops

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        if not isinstance(body, p.Say):
            raise ValueError(f"the tts lane takes no {type(body).__name__}")
        return self._say(stream, tag, body)

    def _say(self, stream: Stream, tag: int, body: p.Say) -> Steps:
        pieces = _Pieces(body.words)
        samples = 0
        text = " ".join(w for w in body.words if w.strip())
        for chunk in hibari.synthesize_steps(self._model, text, body.speed, ops=self._ops):
            if chunk is not None:
                samples += len(chunk.audio)
                times = pieces.take(chunk.words)
                stream.send(tag, p.Speech(chunk.audio.astype(np.float32).tobytes(), times, False))
            yield None
        stream.send(tag, p.Speech(b"", pieces.rest(samples // 24), True))

    def warm(self) -> None:
        for text in ("Hello there, how are you?", "It is half past nine."):
            for _ in hibari.synthesize_steps(self._model, text, ops=self._ops):
                pass


class _Pieces:
    """Maps the times of white-space words back to the pieces that they came from, in order.

    A piece may hold several words or none; one without words takes no time, where the piece before it ended.
    """

    def __init__(self, pieces: tuple[str, ...]) -> None:
        self._left = [len(x.split()) for x in pieces]
        self._at = 0  # the piece whose words are awaited
        self._start: int | None = None
        self._end = 0

    def take(self, words: tuple[hibari.Word, ...]) -> tuple[tuple[int, int], ...]:
        """(start_ms, end_ms) of the pieces that are complete with these words."""
        out: list[tuple[int, int]] = []
        for word in words:
            out += self._empty()
            if self._at >= len(self._left):
                break
            self._start = round(1000 * word.start_s) if self._start is None else self._start
            self._end = max(round(1000 * word.end_s), self._end)
            self._left[self._at] -= 1
            if self._left[self._at] == 0:
                out.append((self._start, self._end))
                self._at, self._start = self._at + 1, None
        return tuple(out)

    def _empty(self) -> list[tuple[int, int]]:
        out = []
        while self._at < len(self._left) and self._left[self._at] == 0:
            out.append((self._end, self._end))
            self._at += 1
        return out

    def rest(self, end_ms: int) -> tuple[tuple[int, int], ...]:
        """The pieces that are still owed: trailing silent ones, and any the voice had no time for."""
        out = self._empty()
        while self._at < len(self._left):
            out.append((self._end if self._start is None else self._start, end_ms))
            self._end = end_ms
            self._at, self._start = self._at + 1, None
        return tuple(out)
