"""One window of a recording, transcribed whole: text, segments with their places, and the time of every word.

Where whisper_stream follows an utterance as it grows, this takes a window cut from a file: the task may be translation,
the language may be unknown, and the same encoded sound serves the search and the alignment of its words.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bargein.kernels import cpu

from . import whisper, whisper_align, whisper_decode, whisper_phones, whisper_stream
from .whisper import HOP, SAMPLE_RATE, Model

F32 = NDArray[np.float32]

_REACH, _QUIET = 30, 6  # frames of 10 ms
PAUSE_S = 0.25  # silence in a word that is no part of it
_SHIPPED = whisper_stream.Options()  # windows and search as utterances have them


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of a window. `text`: it is known what is said; only its times are asked for."""

    language: str = ""  # "": find out
    task: str = "transcribe"
    before: str = ""
    temperature: float = 0.0
    words: bool = False
    text: str = ""


class Segment(NamedTuple):
    """Seconds from the window's start."""

    start_s: float
    end_s: float
    text: str
    tokens: tuple[int, ...]


class Window(NamedTuple):
    """What a window says. avg_logprob: mean over its tokens."""

    text: str
    language: str
    segments: tuple[Segment, ...]
    words: tuple[whisper_align.Word, ...]
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float


def check(m: Model, ask: Ask) -> None:
    """Raises ValueError for a language or task that this model cannot do."""
    if ask.language and ask.language not in (m.special.languages or {"en": 0}):
        raise ValueError(f"language: {ask.language!r} is not one of this model's")
    if ask.task == "translate" and not m.special.languages:
        raise ValueError("model: an English-only model cannot translate")


def window_steps(
    m: Model, audio: F32, ask: Ask, ops: ModuleType = cpu, reader: whisper_phones.Reader | None = None
) -> Generator[None, None, Window]:
    """Transcribe float32 audio [n] at 16 kHz, n at most 30 s, in bounded steps; the generator returns the Window.

    A result that looks unsound in a window as short as the sound is decoded again in the full 30 s, and then at rising
    temperatures. The words of English speech are found by `reader` where there is one. Raises ValueError as `check`.
    """
    seconds = len(audio) / SAMPLE_RATE
    full = m.cfg.audio_positions * 2
    shortest = max(_SHIPPED.min_window_s, seconds + _SHIPPED.tail_s)
    frames = min(full, int(np.ceil(shortest * SAMPLE_RATE / HOP / 2)) * 2)
    x = yield from whisper_stream.encoded_steps(m, audio, frames, ops)
    language = ask.language or whisper_decode.detect_language(m, x, ops)[0]
    yield
    if ask.text:
        tokens = tuple(m.tokenizer.encode(" " + ask.text.strip(), add_special_tokens=False).ids)
        words = _timed(m, x, ask.text, tokens[:400], audio, language, ops, reader)
        return Window(ask.text, language, (), words, 0.0, 0.0, 0.0, 0.0)
    limit = max(8, min(224, round(10 + _SHIPPED.tokens_per_s * seconds)))
    how = whisper_decode.Options(
        beam=_SHIPPED.beam, temperatures=(ask.temperature,), language=language, task=ask.task, timestamps=True,
        sound_s=seconds, max_tokens=limit, prompt=_prompt(m, ask.before),
    )  # fmt: skip
    result = yield from _search(m, x, how, ops)
    if ask.temperature == 0 and not result.silent and not whisper_stream.sound(result, how):
        if frames < full:
            x = yield from whisper_stream.encoded_steps(m, audio, full, ops)
            result = yield from _search(m, x, how, ops)
        if not result.silent and not whisper_stream.sound(result, how):
            rising = replace(how, temperatures=(0.2, 0.4, 0.6, 0.8, 1.0), prompt=())
            again = yield from whisper_decode.decode_steps(m, x, rising, ops)
            if again.silent or whisper_stream.sound(again, how) or again.avg_logprob > result.avg_logprob:
                result = again
    yield
    spoken: tuple[whisper_align.Word, ...] = ()
    if ask.words and result.text and ask.task == "transcribe":
        spoken = _timed(m, x, result.text, result.tokens, audio, language, ops, reader)
    raw = result.text.encode()
    return Window(
        result.text, language, _segments(m, result, seconds), spoken, result.avg_logprob, result.no_speech_prob,
        len(raw) / len(zlib.compress(raw)) if raw else 0.0, result.temperature,
    )  # fmt: skip


def _search(
    m: Model, x: whisper.Cross, how: whisper_decode.Options, ops: ModuleType
) -> Generator[None, None, whisper_decode.Result]:
    """As a stream's final is searched; at the caller's own temperature, sampled once."""
    if how.temperatures != (0.0,):
        return (yield from whisper_decode.decode_steps(m, x, replace(how, beam=1), ops))
    return (yield from whisper_stream.search_steps(m, x, how, _SHIPPED.sure_logprob, ops))


def _prompt(m: Model, text: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    ids = m.tokenizer.encode(" " + text.strip(), add_special_tokens=False).ids
    return tuple(t for t in ids if t < m.special.eot)[-100:]


def _timed(
    m: Model, x: whisper.Cross, text: str, tokens: tuple[int, ...], audio: F32, language: str, ops: ModuleType,
    reader: whisper_phones.Reader | None,
) -> tuple[whisper_align.Word, ...]:  # fmt: skip
    """The words of a text by their sounds, or else by attention."""
    seconds = len(audio) / SAMPLE_RATE
    found: list[whisper_align.Word] = []
    if reader is not None and language == "en":
        found = whisper_phones.words(reader, ops.to_host(x.encoded), text, seconds)
    if found:
        return _tightened(found, audio, PAUSE_S)
    return _tightened(whisper_align.align(m, x, tokens, seconds, language, ops), audio)


def _tightened(words: list[whisper_align.Word], audio: F32, least_s: float = 0.0) -> tuple[whisper_align.Word, ...]:
    """Words without the silence around them: attention gives a pause to the word before it or after it.

    `least_s`: silence shorter than this may be a soft sound of the word's, and stays. So the words that were found by their
    sounds lose only pauses, which an "h" is sometimes taken for.
    """
    block = SAMPLE_RATE // 100
    levels = np.sqrt(np.square(audio[: len(audio) // block * block].reshape(-1, block)).mean(1))
    if not len(levels):
        return tuple(words)
    smooth = np.convolve(levels, np.full(5, 0.2, np.float32), "same")  # a click of 10 ms is no speech
    loud = smooth > max(0.1 * float(np.quantile(levels, 0.9)), 0.003)
    out = []
    for word in words:
        first, last = int(word.start_s * 100), int(np.ceil(word.end_s * 100))
        heard = np.flatnonzero(loud[first:last])
        if len(heard):
            start, end = (first + int(heard[0])) / 100, (first + int(heard[-1]) + 1) / 100
            if start - word.start_s >= least_s:
                word = word._replace(start_s=max(word.start_s, start))
            if word.end_s - end >= least_s:
                word = word._replace(end_s=min(word.end_s, end))
        out.append(word)
    if out and not least_s:  # what sounds on after the last word is its, however softly, as an "s" is; so before the first
        soft = smooth > max(0.03 * float(np.quantile(levels, 0.9)), 0.001)
        out[-1] = out[-1]._replace(end_s=min(_sounds_until(soft, out[-1].end_s), len(audio) / SAMPLE_RATE))
        out[0] = out[0]._replace(start_s=len(soft) / 100 - _sounds_until(soft[::-1], len(soft) / 100 - out[0].start_s))
    return tuple(out)


def _sounds_until(sounds: NDArray[np.bool_], at_s: float) -> float:
    """Where the sound at a moment ends; the moment itself where it does not end soon, in noise."""
    first = max(0, round(at_s * 100) - 1)
    for n in range(first, min(first + _REACH, len(sounds) - _QUIET)):
        if not sounds[n : n + _QUIET].any():
            return max(at_s, n / 100)
    return at_s


def _segments(m: Model, result: whisper_decode.Result, seconds: float) -> tuple[Segment, ...]:
    """The text between time stamps. What has no closing stamp ends with the sound."""
    out: list[Segment] = []
    start, pending = 0.0, list[int]()

    def close(end: float) -> None:
        text = m.tokenizer.decode(pending, skip_special_tokens=True).strip()
        if text:
            end = min(max(end, start), max(seconds, start))
            out.append(Segment(min(start, end), end, text, tuple(pending)))
        pending.clear()

    for token in result.tokens:
        if token < m.special.eot:
            pending.append(token)
        elif token >= m.special.timestamp_begin:
            at = min(0.02 * (token - m.special.timestamp_begin), seconds)
            if pending:
                close(at)
            start = at
    if pending:
        close(seconds)
    return tuple(out)
