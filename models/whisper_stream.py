"""Transcribes an utterance while it's being spoken: partials as it grows, one final when it ends.

Owns the policy; the graph and the search are `whisper` and `whisper_decode`. The policy is the plainest sound one:
decode the whole utterance again each time, over a window only as long as the utterance and some silence, the partial
before serving as a draft that greedy search verifies in one step. The model writes its time stamps too: one that closes
a segment where the sound ends is the end, and keeps it from starting over, which it likes to do in short windows. A
final that greedy search is unsure of is searched again with a beam. Past 28 s the utterance is cut at its quietest
point, and the text before the cut is settled and becomes the prompt of what follows.
It refuses to know about voice activity and turns: the caller says how much of the sound to transcribe.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bargein.kernels import cpu

from . import whisper, whisper_decode
from .whisper import HOP, SAMPLE_RATE, Model

__all__ = ["Model", "Options", "StreamState", "Transcript", "transcribe", "transcribe_steps", "with_context"]

F32 = NDArray[np.float32]

_LONGEST_S = 28.0  # of sound in one window
_EARLIEST_CUT_S = 15.0
_LEAD_S = 0.3  # silence kept before the sound
_QUIET_BLOCK = SAMPLE_RATE // 50  # 20 ms

# How a listener's sounds are written. Whisper seldom writes them when it hears them alone: it makes a word of them that it
# likes better. Asked how likely they are, it tells them from words all the same: the likeliest of these has -4 to -8 where
# a listener's sound was misheard, -8.5 to -17 where a word was said, but for words that sound like one ("hey", "nope"),
# which mostly are far likelier themselves (81 sounds and 88 short interruptions by eight synthetic voices).
LISTENING = (
    "Mm-hmm.", "Uh-huh.", "Mhm.", "Hmm.", "Mm.", "Uh.", "Um.", "Ah.", "Oh.", "Huh.", "Okay.", "Yes.", "Yeah.", "Right.",
)  # fmt: skip
_SOUND_LONGEST_S = 1.0
_SOUND_LOGPROB = -8.0  # of the whole text
_BELIEVED_LOGPROB = -2.5  # words this likely are not doubted


@dataclass(frozen=True, slots=True)
class Options:
    """How utterances are transcribed."""

    beam: int = 5  # of finals that greedy search is unsure of; partials are greedy
    sure_logprob: float | None = -0.4  # a greedy final at least this likely (mean) is taken; None: always the beam
    language: str | None = "en"  # None: detect at each final (multilingual models)
    prompt: tuple[int, ...] = ()  # tokens of text that came before, to lean on its names and spelling
    temperatures: tuple[float, ...] = (0.0, 0.4, 0.8)
    tail_s: float = 1.5  # silence after the sound, in every window
    min_window_s: float = 4.0  # shorter windows make the model invent
    tokens_per_s: float = 10.0  # nobody speaks faster: more is a loop
    full_window: bool = False  # decode every utterance in the 30 s window the model was trained on


T = TypeVar("T")
Steps = Generator[bool | None, None, T]  # True: what follows is the long way


class Transcript(NamedTuple):
    """What was heard."""

    text: str
    avg_logprob: float  # mean log-probability of its tokens
    no_speech_prob: float
    stable_chars: int  # the first so many characters agreed with the transcript before; all of a final's
    language: str
    tokens: tuple[int, ...]
    near: tuple[str, ...] = ()  # of a final: what else it may have been: other words, then a listener's sounds


_NOTHING = Transcript("", 0.0, 1.0, 0, "en", ())


def with_context(m: Model, options: Options, language: str | None, prompt: str | None) -> Options:
    """Options for one call: its language (None: as in `options`) and the text of a prompt (None: none).

    Raises ValueError for a language the model doesn't know.
    """
    if language is not None:
        language = language.lower().split("-")[0]
        if language not in (m.special.languages or {"en": 0}):
            raise ValueError(f"language {language!r} is not one of this model's")
        options = replace(options, language=language)
    if prompt:
        tokens = m.tokenizer.encode(" " + prompt.strip(), add_special_tokens=False).ids
        options = replace(options, prompt=tuple(t for t in tokens if t < m.special.eot))
    return options


def transcribe_steps(
    m: Model,
    audio: F32,
    options: Options,
    beam: int,
    draft: tuple[int, ...] = (),
    ops: ModuleType = cpu,
    *,
    thorough: bool = True,
) -> Steps[whisper_decode.Result]:
    """Transcribe float32 audio [n] at 16 kHz, n at most 30 s, in bounded steps; the generator returns the Result.

    A result that looks unsound in the short window (unlikely, repetitive, or longer than anyone speaks) is decoded
    again in a full one before other temperatures are tried; not `thorough`: it is taken as it is. The step before that
    yields True: it takes ten times as long, so who only looks ahead may want to stop there.
    """
    loud_from, loud_until = _loud_s(audio)
    skip = max(0.0, loud_from - _LEAD_S)  # a window that begins with a second of silence is taken for silence
    if skip > _LEAD_S:
        audio, loud_until = audio[int(skip * SAMPLE_RATE) :], loud_until - skip
    else:
        skip = 0.0
    seconds = len(audio) / SAMPLE_RATE
    limit = max(8, min(224, round(10 + options.tokens_per_s * seconds)))
    draft = draft or (m.special.timestamp_begin,)  # most begin at 0.00
    how = whisper_decode.Options(
        beam=beam, temperatures=options.temperatures[:1], language=options.language, max_tokens=limit,
        prompt=options.prompt, draft=draft, timestamps=True, sound_s=loud_until,
    )  # fmt: skip
    full = m.cfg.audio_positions * 2
    frames = full
    if not options.full_window:
        window_s = max(options.min_window_s, seconds + options.tail_s)
        frames = min(full, int(np.ceil(window_s * SAMPLE_RATE / HOP / 2)) * 2)
    while True:
        x = yield from encoded_steps(m, audio, frames, ops)
        result = yield from search_steps(m, x, how, options.sure_logprob, ops)
        if frames == full or result.silent or sound(result, how) or not thorough:
            break
        yield True
        frames = full
    if thorough and not result.silent and not sound(result, how) and len(options.temperatures) > 1:
        again = yield from whisper_decode.decode_steps(
            m, x, replace(how, temperatures=options.temperatures[1:]), ops
        )
        if again.silent or sound(again, how) or again.avg_logprob > result.avg_logprob:
            result = again
    unsure = options.sure_logprob is not None and result.avg_logprob < options.sure_logprob
    if thorough and unsure and result.text and _loud_for_s(audio) <= _SOUND_LONGEST_S:
        result = replace(result, near=(*result.near, *_sounds(m, x, result.text, how, ops)))
        yield
    moved = tuple(whisper_decode.Segment(x.start_s + skip, x.end_s + skip, x.text) for x in result.segments)
    return replace(result, segments=moved)


def encoded_steps(m: Model, audio: F32, frames: int, ops: ModuleType = cpu) -> Generator[None, None, whisper.Cross]:
    """Sound [n] at 16 kHz in a window of `frames` 10 ms frames, as the decoder sees it, in bounded steps."""
    mel = whisper.log_mel(audio, frames, m.cfg.mels, ops)
    yield
    encoded = yield from whisper.encoder_steps(m, mel, ops)
    yield
    x = whisper.cross(m, encoded, ops)
    yield
    return x


def search_steps(
    m: Model, x: whisper.Cross, how: whisper_decode.Options, sure: float | None, ops: ModuleType
) -> Generator[None, None, whisper_decode.Result]:
    """Greedy search, and the beam asked for only where greedy is not sure: most clear speech never needs it."""
    if how.beam > 1 and sure is not None:
        greedy = yield from whisper_decode.decode_steps(m, x, replace(how, beam=1), ops)
        if greedy.avg_logprob >= sure and sound(greedy, how):
            return greedy
    return (yield from whisper_decode.decode_steps(m, x, how, ops))


def _sounds(m: Model, x: whisper.Cross, text: str, how: whisper_decode.Options, ops: ModuleType) -> tuple[str, ...]:
    """The listener's sounds that this may have been instead of `text`, the likeliest first."""
    texts = [m.tokenizer.encode(f" {t}", add_special_tokens=False).ids for t in (text, *LISTENING)]
    prompt = whisper_decode.prompt_tokens(m, replace(how, language=how.language or "en"))
    chosen, *others = whisper_decode.likelihoods(m, x, prompt, texts, ops)
    if chosen >= _BELIEVED_LOGPROB:
        return ()
    floor = max(_SOUND_LOGPROB, chosen - whisper_decode.NEAR)
    ranked = sorted(zip(others, LISTENING, strict=True), reverse=True)
    return tuple(t for value, t in ranked if value >= floor)


def _loud_for_s(sound: F32) -> float:
    start, end = _loud_s(sound)
    return end - start


def sound(r: whisper_decode.Result, how: whisper_decode.Options) -> bool:
    """Whether a result is likely enough, not repetitive, and not cut off by its limit."""
    return (
        r.avg_logprob >= how.logprob_limit
        and r.compression_ratio <= how.compression_ratio_limit
        and len(r.tokens) < how.max_tokens
        and not _twice(r.text)
    )


def _twice(text: str) -> bool:
    """Whether the text ends with three or more words that stand right before it too: a loop, seldom a person."""
    words = re.sub(r"[^\w' ]", "", text.lower()).split()
    n = len(words)
    return any(words[n - k :] == words[n - 2 * k : n - k] for k in range(3, n // 2 + 1))


def transcribe(m: Model, audio: F32, options: Options, ops: ModuleType = cpu) -> Transcript:
    """The final transcript of a whole recording of any length: float32 [n] at 16 kHz."""
    state = StreamState(m, options, ops)
    state.feed(audio)
    return state.final()


class StreamState:
    """One utterance: its sound so far, what's settled of it, and the last partial."""

    def __init__(self, m: Model, options: Options, ops: ModuleType = cpu) -> None:
        self._m, self._options, self._ops = m, options, ops
        self._sound = np.zeros(SAMPLE_RATE * 8, np.float32)  # grows by doubling
        self._fed = 0
        self._settled: list[whisper_decode.Result] = []
        self._settled_samples = 0
        self._partial: tuple[int, ...] = ()
        self._text = ""
        self._last: tuple[int, Transcript] | None = None  # samples, and the final made of them

    def feed(self, pcm: F32) -> None:
        """Append float32 [n] at 16 kHz, samples in [-1, 1]."""
        need = self._fed + len(pcm)
        if need > len(self._sound):
            grown = np.zeros(max(need, 2 * len(self._sound)), np.float32)
            grown[: self._fed] = self._sound[: self._fed]
            self._sound = grown
        self._sound[self._fed : need] = pcm
        self._fed = need

    def partial(self, num_samples: int | None = None) -> Transcript:
        """`partial_steps`, at once."""
        return _run(self.partial_steps(num_samples))

    def final(self, num_samples: int | None = None) -> Transcript:
        """`final_steps`, at once."""
        return _run(self.final_steps(num_samples))

    def partial_steps(self, num_samples: int | None = None) -> Steps[Transcript]:
        """What the first `num_samples` (all unless told) say so far: greedy, quick, the end may still change."""
        end = self._end(num_samples)
        yield from self._settle(end)
        result = yield from self._decode(self._settled_samples, end, 1, self._partial, thorough=False)
        self._partial = _draft(self._m, result.tokens)
        text = self._joined(result)
        stable = _common_words(self._text, text)
        self._text = text
        return _transcript(result, text, stable)

    def final_steps(self, num_samples: int | None = None) -> Steps[Transcript]:
        """The transcript of the first `num_samples` (all unless told), as good as the options allow.

        Silence after an earlier final's sound changes nothing: that final is returned.
        """
        end = self._end(num_samples)
        if self._last is not None and self.only_silence(self._last[0], end):
            return self._last[1]
        yield from self._settle(end)
        result = yield from self._decode(self._settled_samples, end, self._options.beam, self._partial)
        text = self._joined(result)
        transcript = _transcript(result, text, len(text))
        self._last = (end, transcript)
        return transcript

    def _end(self, num_samples: int | None) -> int:
        return self._fed if num_samples is None else max(0, min(num_samples, self._fed))

    def _joined(self, result: whisper_decode.Result) -> str:
        return " ".join(t for t in (*(r.text for r in self._settled), result.text) if t)

    def _decode(
        self, start: int, end: int, beam: int, draft: tuple[int, ...], *, thorough: bool = True
    ) -> Steps[whisper_decode.Result]:
        before = [t for r in self._settled[-1:] for t in r.tokens if t < self._m.special.eot]
        prompt = (*self._options.prompt, *before)
        options = replace(self._options, prompt=prompt[-100:])
        # A copy: the sound may grow, and move, between steps.
        sound = self._sound[start:end].copy()
        return (yield from transcribe_steps(self._m, sound, options, beam, draft, self._ops, thorough=thorough))

    def _settle(self, end: int) -> Steps[None]:
        """Cut what's too long for one window at its quietest point, and settle the text before the cut."""
        while end - self._settled_samples > _LONGEST_S * SAMPLE_RATE:
            start = self._settled_samples
            cut = start + _quietest(self._sound[start : start + int(_LONGEST_S * SAMPLE_RATE)])
            result = yield from self._decode(start, cut, self._options.beam, ())
            self._settled.append(result)
            self._settled_samples, self._partial = cut, ()

    def only_silence(self, start: int, end: int) -> bool:
        """Whether nothing between these samples is louder than 4% of the utterance's loud parts (and than -50 dB full
        scale); false where `end` is before `start`."""
        if end < start:
            return False
        if end - start < _QUIET_BLOCK:
            return True
        loud = float(np.quantile(_levels(self._sound[:start]), 0.9)) if start >= _QUIET_BLOCK else 0.0
        return bool(_levels(self._sound[start:end]).max() <= max(0.04 * loud, 0.003))


def _draft(m: Model, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """A guess at the tokens of longer sound: all but the stamps that closed the shorter one."""
    end = len(tokens)
    while end > 1 and tokens[end - 1] >= m.special.timestamp_begin:
        end -= 1
    return tokens[:end]


def _run(steps: Steps[Transcript]) -> Transcript:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def _transcript(r: whisper_decode.Result, text: str, stable: int) -> Transcript:
    return Transcript(text, r.avg_logprob, r.no_speech_prob, stable, r.language, r.tokens, r.near)


def _levels(sound: F32) -> F32:
    """Root mean square of each whole 20 ms."""
    blocks = sound[: len(sound) // _QUIET_BLOCK * _QUIET_BLOCK].reshape(-1, _QUIET_BLOCK)
    return np.sqrt(np.square(blocks).mean(1))


def _loud_s(sound: F32) -> tuple[float, float]:
    """Where the 20 ms blocks begin and end that are louder than 4% of the loud parts, in seconds; 0, 0 where none is."""
    levels = _levels(sound)
    above = np.flatnonzero(levels > max(0.04 * float(np.quantile(levels, 0.9)), 0.003)) if len(levels) else []
    block = _QUIET_BLOCK / SAMPLE_RATE
    return (float(above[0]) * block, float(above[-1] + 1) * block) if len(above) else (0.0, 0.0)


def _quietest(sound: F32) -> int:
    """The middle of the quietest 200 ms, not before 15 s, in samples."""
    levels = np.convolve(_levels(sound), np.full(10, 0.1, np.float32), "valid")
    first = int(_EARLIEST_CUT_S * SAMPLE_RATE) // _QUIET_BLOCK
    return (first + int(levels[first:].argmin()) + 5) * _QUIET_BLOCK


def _common_words(before: str, now: str) -> int:
    """Characters of the whole words that `now` begins with and `before` began with too."""
    count = 0
    for a, b in zip(before.split(" "), now.split(" "), strict=False):
        if a != b:
            break
        count += len(b) + 1
    return max(0, count - 1)
