"""Chooses Whisper's tokens: greedy (with a draft to verify), beam search, sampling, and the fallback between them.

Owns the rules of the original's decoding (Radford et al. 2022, section 4.5): suppression, timestamp pairs, temperature
fallback, the no-speech test. Beam search scores and finishes as CTranslate2's does, so that transcripts agree with
faster-whisper's. Every function that takes long is a generator that yields between single decoder steps.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bargein.kernels import cpu
from bargein.kernels.host import on_host

from . import whisper
from .whisper import Cross, Model

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_SECONDS_PER_STAMP = 0.02
_END_SLACK_S = 0.3  # a stamp this close to the end of the sound is its end

NEAR = 4.0  # log-probability


@dataclass(frozen=True, slots=True)
class Options:
    """How to decode one window of sound."""

    beam: int = 5  # 1 is greedy
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # tried in turn until the result looks sound
    language: str | None = None  # None: detect (multilingual models); English-only models ignore it
    task: str = "transcribe"  # or "translate", to English (multilingual models)
    timestamps: bool = False
    max_tokens: int = 224
    prompt: tuple[int, ...] = ()  # tokens of the text before this window
    prefix: tuple[int, ...] = ()  # tokens this window's text begins with
    draft: tuple[int, ...] = ()  # a guess at the tokens: greedy search checks it in one step and goes on from there
    length_penalty: float = 1.0
    patience: float = 1.0
    compression_ratio_limit: float = 2.4  # above: the text repeats itself, try the next temperature
    logprob_limit: float = -1.0  # mean log-probability below: try the next temperature
    no_speech_limit: float = 0.6  # above, with a mean log-probability below its limit: there was no speech
    max_initial_stamp_s: float = 1.0
    sound_s: float | None = None  # with timestamps: how long the sound is; a segment closed at its end ends the text
    seed: int = 0


class Segment(NamedTuple):
    """A piece of transcript with its place in the window, in seconds."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """A decoded window."""

    tokens: tuple[int, ...]  # without prompt and end; timestamps included if asked for
    text: str
    avg_logprob: float  # mean over tokens and the end
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    language: str
    silent: bool = False  # judged to hold no speech: text is then empty
    segments: tuple[Segment, ...] = field(default=())
    near: tuple[str, ...] = ()  # other texts that the beam found nearly as likely, the likeliest first


class _Start(NamedTuple):
    """A decoder that has read the prompt: what every hypothesis continues."""

    cache: whisper.Cache  # row 0 holds the prompt
    length: int
    hidden: F32  # [1 + len(draft), D] at the prompt's last token, then at each token of the draft
    no_speech_prob: float


# --- the loop over temperatures --------------------------------------------------------------------------------------


def decode(m: Model, x: Cross, options: Options, ops: ModuleType = cpu) -> Result:
    """Decode one encoded window; see `decode_steps`."""
    steps = decode_steps(m, x, options, ops)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def decode_steps(m: Model, x: Cross, options: Options, ops: ModuleType = cpu) -> Generator[None, None, Result]:
    """Decode one encoded window, yielding after each decoder step; the generator returns the Result.

    Raises ValueError for a language, task or prompt the model cannot take.
    """
    language = options.language or "en"
    if m.special.languages and options.language is None:
        language = detect_language(m, x, ops)[0]
        yield
    prompt = prompt_tokens(m, replace(options, language=language))
    best: Result | None = None
    for temperature in options.temperatures:
        sampled = temperature > 0
        beam = 1 if sampled else options.beam
        start = _read_prompt(m, x, prompt, options, beam, () if sampled or beam > 1 else options.draft, ops)
        yield
        if beam > 1:
            tokens, score, others = yield from _beam(m, x, start, beam, options, ops)
        else:
            others = []
            tokens, score = yield from _single(m, x, start, temperature, options, ops)
        result = _result(m, options, tokens, score, start.no_speech_prob, temperature, language)
        result = replace(result, near=tuple(dict.fromkeys(_text(m, x) for x in others)))
        unsure = result.avg_logprob < options.logprob_limit
        if unsure and result.no_speech_prob > options.no_speech_limit:
            return replace(result, text="", silent=True, segments=())
        if not unsure and result.compression_ratio <= options.compression_ratio_limit:
            return result
        if best is None or _rank(result, options) > _rank(best, options):
            best = result
    assert best is not None, "at least one temperature"
    return best


def _rank(r: Result, options: Options) -> tuple[bool, float]:
    return r.compression_ratio <= options.compression_ratio_limit, r.avg_logprob


def _text(m: Model, tokens: Sequence[int]) -> str:
    text: str = m.tokenizer.decode([t for t in tokens if t < m.special.eot], skip_special_tokens=True)
    return text.strip()


def _result(
    m: Model, o: Options, tokens: Sequence[int], score: float, no_speech: float, temperature: float, language: str
) -> Result:
    text = _text(m, tokens)
    raw = text.encode()
    return Result(
        tokens=tuple(tokens),
        text=text,
        avg_logprob=score / (len(tokens) + 1),
        no_speech_prob=no_speech,
        compression_ratio=len(raw) / len(zlib.compress(raw)) if raw else 0.0,
        temperature=temperature,
        language=language,
        segments=_segments(m, tokens) if o.timestamps else (),
    )


def _segments(m: Model, tokens: Sequence[int]) -> tuple[Segment, ...]:
    """Text between timestamps; text after the last one ends where it begins."""
    out: list[Segment] = []
    start, pending = 0.0, list[int]()
    for token in tokens:
        if token < m.special.timestamp_begin:
            pending.append(token)
            continue
        at = (token - m.special.timestamp_begin) * _SECONDS_PER_STAMP
        if pending:
            out.append(Segment(start, at, m.tokenizer.decode(pending, skip_special_tokens=True).strip()))
            pending = []
        start = at
    if pending:
        out.append(Segment(start, start, m.tokenizer.decode(pending, skip_special_tokens=True).strip()))
    return tuple(out)


def likelihoods(
    m: Model, x: Cross, prompt: Sequence[int], texts: Sequence[Sequence[int]], ops: ModuleType = cpu
) -> list[float]:
    """Log-probability of each text (tokens, at least one), said from the window's start to any end, all at once.

    `prompt` is `prompt_tokens` with timestamps.
    """
    begin = np.array([*prompt, m.special.timestamp_begin], np.int64)
    base = len(begin)
    cache = whisper.init_cache(m, len(texts), base + max(len(t) for t in texts), ops)
    first = whisper.decoder_hidden(m, x, cache, begin, np.zeros_like(begin), np.arange(base, dtype=np.int64), ops)
    whisper.reorder(cache, np.zeros(len(texts), np.int64), base, ops)
    ids = np.array([token for text in texts for token in text], np.int64)
    rows = np.repeat(np.arange(len(texts), dtype=np.int64), [len(t) for t in texts])
    positions = np.concatenate([np.arange(base, base + len(t), dtype=np.int64) for t in texts])
    rest = whisper.decoder_hidden(m, x, cache, ids, rows, positions, ops)
    scores = np.concatenate([whisper.logits(m, first[-1:], ops), whisper.logits(m, rest, ops)])
    scores[:, list(m.cfg.suppress)] = -np.inf
    logs = on_host(ops).log_softmax(scores)
    out, at = [], 1
    for text in texts:
        steps = [0, *range(at, at + len(text))]
        end = logs[steps.pop()]
        closes = np.logaddexp.reduce(np.append(end[m.special.timestamp_begin :], end[m.special.eot]))
        out.append(float(sum(logs[step, token] for step, token in zip(steps, text, strict=True)) + closes))
        at += len(text)
    return out


# --- prompt and language ---------------------------------------------------------------------------------------------


def prompt_tokens(m: Model, o: Options) -> list[int]:
    """What the decoder reads first: earlier text, control tokens, prefix. Raises ValueError as `decode_steps`."""
    s = m.special
    if o.task not in ("transcribe", "translate"):
        raise ValueError(f"task is {o.task!r}; it must be 'transcribe' or 'translate'")
    half = m.cfg.text_positions // 2
    tokens = [s.sot_prev, *o.prompt[-(half - 1) :]] if o.prompt else []
    tokens.append(s.sot)
    if s.languages:
        if o.language not in s.languages:
            raise ValueError(f"language {o.language!r} is not one of this model's")
        tokens += [s.languages[o.language], s.transcribe if o.task == "transcribe" else s.translate]
    if not o.timestamps:
        tokens.append(s.no_timestamps)
    tokens += o.prefix
    if len(tokens) + 1 >= m.cfg.text_positions:
        raise ValueError(f"prompt and prefix hold {len(tokens)} tokens, more than the model reads")
    return tokens


def _read_prompt(
    m: Model, x: Cross, prompt: list[int], o: Options, beam: int, draft: Sequence[int], ops: ModuleType
) -> _Start:
    n = len(prompt)
    room = m.cfg.text_positions - n
    draft = draft[: min(room - 1, o.max_tokens)]
    cache = whisper.init_cache(m, beam, n + min(o.max_tokens, room) + 1, ops)
    block = np.array([*prompt, *draft], np.int64)
    positions = np.arange(len(block), dtype=np.int64)
    hidden = whisper.decoder_hidden(m, x, cache, block, np.zeros_like(block), positions, ops)
    sot = prompt.index(m.special.sot)
    first = whisper.logits(m, hidden[sot : sot + 1], ops)
    no_speech = float(on_host(ops).softmax(first)[0, m.special.no_speech])
    return _Start(cache, n, hidden[n - 1 :], no_speech)


def detect_language(m: Model, x: Cross, ops: ModuleType = cpu) -> tuple[str, float]:
    """The likeliest language of an encoded window and its probability among languages; ("en", 1.0) if English-only."""
    if not m.special.languages:
        return "en", 1.0
    zero = np.zeros(1, np.int64)
    hidden = whisper.decoder_hidden(m, x, whisper.init_cache(m, 1, 1, ops), zero + m.special.sot, zero, zero, ops)
    names, ids = zip(*m.special.languages.items(), strict=True)
    probs = on_host(ops).softmax(whisper.logits(m, hidden, ops)[:, list(ids)])[0]
    return str(names[int(probs.argmax())]), float(probs.max())


# --- rules -----------------------------------------------------------------------------------------------------------


def apply_rules(m: Model, o: Options, logits: F32, written: Sequence[Sequence[int]]) -> F32:
    """Make what may not come next impossible (-inf), in place.

    logits [M, vocab]; written[i] are the tokens row i has chosen so far (no prompt, no prefix). Returns logits.
    """
    logits[:, list(m.cfg.suppress)] = -np.inf
    for i, tokens in enumerate(written):
        if not tokens and not o.prefix:
            logits[i, list(m.cfg.suppress_begin)] = -np.inf
        if o.timestamps:
            _stamp_rules(m, o, logits[i], [*o.prefix, *tokens])
    return logits


def _stamp_rules(m: Model, o: Options, row: F32, tokens: Sequence[int]) -> None:
    """Timestamps come in pairs, never fall, and win when together they are likelier than any word."""
    s = m.special
    first = s.timestamp_begin
    row[s.no_timestamps] = -np.inf
    if tokens and tokens[-1] >= first:
        if len(tokens) < 2 or tokens[-2] >= first:
            row[first:] = -np.inf  # a pair is complete (or the opening stamp stands): words next
        else:
            row[: s.eot] = -np.inf  # one closed a segment: its twin, or the end
    stamps = [t for t in tokens if t >= first]
    if stamps:
        closing = tokens[-1] >= first and not (len(tokens) < 2 or tokens[-2] >= first)
        row[first : stamps[-1] + (0 if closing else 1)] = -np.inf
    if not tokens:
        row[:first] = -np.inf
        row[first + round(o.max_initial_stamp_s / _SECONDS_PER_STAMP) + 1 :] = -np.inf
    stamp_row = row[first:]
    top = stamp_row.max()
    if np.isfinite(top) and top + np.log(np.exp(stamp_row - top).sum()) > row[:first].max():
        row[:first] = -np.inf


def _closes(m: Model, o: Options, tokens: Sequence[int], token: int) -> bool:
    """Whether `token`, after `tokens`, closes a segment where the sound ends: there is nothing left to write.

    In short windows the model likes to begin again after its last words; told by its own stamps, it cannot.
    """
    if o.sound_s is None or not o.timestamps or token < m.special.timestamp_begin or not tokens:
        return False
    at = (token - m.special.timestamp_begin) * _SECONDS_PER_STAMP
    return tokens[-1] < m.special.timestamp_begin and at >= o.sound_s - _END_SLACK_S


# --- one hypothesis --------------------------------------------------------------------------------------------------


def _single(
    m: Model, x: Cross, start: _Start, temperature: float, o: Options, ops: ModuleType
) -> Generator[None, None, tuple[list[int], float]]:
    """Greedy search, or sampling above temperature 0. Returns (tokens, summed log-probability with the end's)."""
    rng = np.random.default_rng(o.seed)
    draft = o.draft[: start.hidden.shape[0] - 1]
    tokens: list[int] = []
    score = 0.0
    rows = whisper.logits(m, start.hidden, ops)  # all of the draft at once
    limit = min(o.max_tokens, m.cfg.text_positions - start.length)
    zero = np.zeros(1, np.int64)
    while True:
        n = len(tokens)
        row = apply_rules(m, o, rows[n : n + 1] if n <= len(draft) else rows, [tokens])
        if temperature > 0:
            token = int(np.argmax(row[0] / temperature + rng.gumbel(size=row.shape[1])))
            score += float(on_host(ops).log_softmax(row)[0, token])
        else:
            values, ids = on_host(ops).top_log_probs(row, 1)
            token = int(ids[0, 0])
            score += float(values[0, 0])
        if token == m.special.eot or n >= limit:
            return tokens, score
        tokens.append(token)
        if _closes(m, o, tokens[:-1], token):
            return tokens, score
        if n < len(draft):
            if token == draft[n]:
                continue
            draft = draft[:n]  # what follows in the draft doesn't apply; its cache entries are overwritten
        hidden = whisper.decoder_hidden(m, x, start.cache, zero + token, zero, zero + (start.length + n), ops)
        rows = whisper.logits(m, hidden, ops)
        draft = draft[: min(n, len(draft))]
        yield


# --- beam search -----------------------------------------------------------------------------------------------------


def _beam(
    m: Model, x: Cross, start: _Start, beam: int, o: Options, ops: ModuleType
) -> Generator[None, None, tuple[list[int], float, list[list[int]]]]:
    """Beam search. Returns (tokens, summed log-probability with the end's) of the best finished hypothesis, and the tokens
    of the others that are at most e**NEAR times less likely, best first.

    Each step keeps 2 * beam candidates; one that ends is finished and the next live candidate takes its place; the
    search is over when beam * patience have finished. Finished ones are ranked by sum / length ** length_penalty.
    """
    eot, length = m.special.eot, start.length
    wanted = max(1, round(beam * o.patience))
    limit = min(o.max_tokens, m.cfg.text_positions - length)
    alive: list[list[int]] = [[]]
    sums = np.zeros(1, np.float32)
    hidden = start.hidden[:1]
    finished: list[tuple[float, list[int], float]] = []
    for n in range(limit + 1):
        rows = apply_rules(m, o, whisper.logits(m, hidden, ops), alive)
        values, ids = on_host(ops).top_log_probs(rows, 2 * beam)
        totals = (values + sums[:, None]).reshape(-1)
        order = np.argsort(-totals, kind="stable")[: 2 * beam]
        candidates = [(float(totals[j]), int(j) // (2 * beam), int(ids.reshape(-1)[j])) for j in order]
        spare = iter([c for c in candidates[beam:] if c[2] != eot and not _closes(m, o, alive[c[1]], c[2])])
        chosen: list[tuple[float, int, int]] = []
        for total, row, token in candidates[:beam]:
            over = _closes(m, o, alive[row], token)
            if token == eot or n == limit or over:
                tokens = [*alive[row], token] if over else alive[row]
                finished.append((total / max(len(tokens), 1) ** o.length_penalty, tokens, total))
                replacement = next(spare, None)
                if replacement is not None:
                    chosen.append(replacement)
            else:
                chosen.append((total, row, token))
        if len(finished) >= wanted or n == limit or not chosen:
            break
        order_rows = np.array([c[1] for c in chosen], np.int64)
        whisper.reorder(start.cache, order_rows, length + n, ops)
        alive = [[*alive[row], token] for _, row, token in chosen]
        sums = np.array([c[0] for c in chosen], np.float32)
        count = len(chosen)
        hidden = whisper.decoder_hidden(
            m,
            x,
            start.cache,
            np.array([c[2] for c in chosen], np.int64),
            np.arange(count, dtype=np.int64),
            np.full(count, length + n, np.int64),
            ops,
        )
        yield
    (_, tokens, total), *rest = sorted(finished, key=lambda f: -f[0])
    return tokens, total, [other for _, other, sum_ in rest if sum_ >= total - NEAR]
