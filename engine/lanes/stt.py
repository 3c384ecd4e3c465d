"""The stt lane: one stream per utterance. Audio is fed as it comes; a request says how much of it to transcribe.

A `prepare` computes in advance what a later `final` will ask for, and answers too: both are keyed by where the last voiced
sample is, so the answer is adopted when nothing but silence has come since. What is being worked on serves whoever asks for
the same with more silence behind it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bargein.kernels import cpu
from bargein.models import whisper_phones, whisper_stream, whisper_window

from .. import protocol as p
from ..lane import Lane, Steps, Stream


@dataclass(slots=True)
class _Running:
    """What is being worked on: how much of the sound, the tags that get it, and whether any of them is a final's."""

    num_samples: int
    tags: list[int]
    is_wanted: bool


@dataclass(slots=True)
class _Session:
    audio: whisper_stream.StreamState
    answers: dict[int, p.Words] = field(default_factory=dict)  # by last voiced sample
    running: dict[int, _Running] = field(default_factory=dict)  # by last voiced sample
    num_finals: int = 0  # asked for so far; a partial that was begun before gives way


def _words(t: whisper_stream.Transcript, started: float) -> p.Words:
    used = 1000 * (time.monotonic() - started)
    return p.Words(t.text, t.avg_logprob, t.no_speech_prob, t.stable_chars, used, t.near)


class SttLane(Lane):
    """reader: finds the words of recordings by their sounds; None: attention does."""

    def __init__(
        self, model: whisper_stream.Model, options: whisper_stream.Options, ops: Any = cpu,
        reader: whisper_phones.Reader | None = None,
    ) -> None:  # fmt: skip
        self._model, self._options, self._ops, self._reader = model, options, ops, reader

    def open(self, stream: Stream) -> None:
        language, prompt = stream.params.get("language"), stream.params.get("prompt")
        options = whisper_stream.with_context(self._model, self._options, language, prompt)
        stream.state = _Session(whisper_stream.StreamState(self._model, options, self._ops))

    def close(self, stream: Stream) -> None:
        stream.state = None

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        session: _Session = stream.state
        if isinstance(body, p.Audio):
            session.audio.feed(np.frombuffer(body.pcm, np.float32))
            return None
        if isinstance(body, p.Hear):
            ask = whisper_window.Ask(body.language, body.task, body.before, body.temperature, body.words, body.text)
            whisper_window.check(self._model, ask)
            return self._hear(stream, tag, body, ask)
        if not isinstance(body, p.Transcribe):
            raise ValueError(f"the stt lane takes no {type(body).__name__}")
        voiced = body.voiced_samples
        if body.kind == "partial":
            return self._partial(stream, tag, body)
        if body.kind == "final" and (ready := session.answers.get(voiced)) is not None:
            stream.send(tag, ready)
            return None
        if (running := self._serving(session, body)) is not None:
            running.tags.append(tag)
            running.is_wanted |= body.kind == "final"
            return None
        session.num_finals += 1
        session.running[voiced] = _Running(body.num_samples, [tag], body.kind == "final")
        return self._transcribe(stream, body)

    def _serving(self, session: _Session, body: p.Transcribe) -> _Running | None:
        """What is being worked on that will answer this too."""
        if (same := session.running.get(body.voiced_samples)) is not None:
            return same
        for running in session.running.values():
            if session.audio.only_silence(running.num_samples, body.num_samples):
                return running
        return None

    def _hear(self, stream: Stream, tag: int, body: p.Hear, ask: whisper_window.Ask) -> Steps:
        """One window of a recording; nothing of it stays with the stream."""
        sound = np.frombuffer(body.pcm, np.float32)
        r = yield from whisper_window.window_steps(self._model, sound, ask, self._ops, self._reader)
        segments = tuple(p.HeardSegment(*s) for s in r.segments)
        words = tuple(p.TimedWord(*w) for w in r.words)
        scores = (r.avg_logprob, r.no_speech_prob, r.compression_ratio, r.temperature)
        stream.send(tag, p.Heard(r.text, r.language, segments, words, *scores))

    def _partial(self, stream: Stream, tag: int, body: p.Transcribe) -> Steps:
        started = time.monotonic()
        session: _Session = stream.state
        result = yield from self._unless_newer(session, session.audio.partial_steps(body.num_samples))
        if result is not None:
            stream.send(tag, _words(result, started))

    def _transcribe(self, stream: Stream, body: p.Transcribe) -> Steps:
        """A final, or what may become one: the answer goes to all who asked for the same meanwhile."""
        session, voiced = stream.state, body.voiced_samples
        started = time.monotonic()
        try:
            result = yield from self._unless_newer(session, session.audio.final_steps(body.num_samples), voiced)
        except BaseException:
            for waiting in session.running.pop(voiced).tags:
                stream.fail(waiting, "the transcription failed")
            raise
        tags = session.running.pop(voiced).tags
        if result is not None:
            words = session.answers[voiced] = _words(result, started)
            for waiting in tags:
                stream.send(waiting, words)

    def _unless_newer(
        self, session: _Session, steps: whisper_stream.Steps[whisper_stream.Transcript], voiced: int | None = None
    ) -> Generator[None, None, whisper_stream.Transcript | None]:
        """The transcript, or None where nobody waits for it and more of the utterance was asked for meanwhile, or it would
        take the long way: words cut off in their middle do, and there is no end of a turn yet."""
        before = session.num_finals
        while session.num_finals == before or (voiced is not None and session.running[voiced].is_wanted):
            try:
                if next(steps) and voiced is not None and not session.running[voiced].is_wanted:
                    return None
            except StopIteration as stop:
                result: whisper_stream.Transcript = stop.value
                return result
            yield None
        return None

    def warm(self) -> None:
        noise = np.random.default_rng(0).normal(0, 0.01, 16000).astype(np.float32)
        state = whisper_stream.StreamState(self._model, self._options, self._ops)
        state.feed(noise)
        ask = whisper_window.Ask("en", words=True, text="one two")
        placed = whisper_window.window_steps(self._model, noise, ask, self._ops, self._reader)
        for steps in (state.partial_steps(8000), state.final_steps(len(noise)), placed):
            for _ in steps:
                pass
