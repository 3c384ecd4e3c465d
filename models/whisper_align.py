"""When each word was said: Whisper's cross-attention read as an alignment of text to sound.

The heads that follow the sound (listed with the checkpoint) give each token a distribution over the encoder's 20 ms
positions; dynamic time warping finds the path of rising time through them (the method of OpenAI's `whisper/timing.py`,
2022; DTW: Sakoe & Chiba 1978). English words are found more exactly by their sounds (`whisper_phones`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bargein.kernels import cpu
from bargein.kernels.host import on_host

from . import whisper
from .whisper import Cross, Model

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_POSITION_S = 0.02  # what one encoder position stands for
_EARLY_S = 0.04  # attention turns to a token this much before it is said (median, beside two forced alignments)
_MEDIAN = 7  # positions


class Word(NamedTuple):
    """A word as written (punctuation and all) and when it was said, in seconds from the window's start."""

    text: str
    start_s: float
    end_s: float


def align(m: Model, x: Cross, tokens: Sequence[int], seconds: float, language: str = "en", ops: ModuleType = cpu) -> list[Word]:
    """Words of `tokens` (text tokens of one window; stamps are skipped) with their times, at most `seconds`.

    x: the encoded window. One teacher-forced pass through the decoder. Empty for no text.
    """
    s = m.special
    text = [t for t in tokens if t < s.eot]
    if not text:
        return []
    start = [s.sot, *([s.languages.get(language, s.languages["en"]), s.transcribe] if s.languages else []), s.no_timestamps]
    block = np.array([*start, *text, s.eot], np.int64)
    positions = np.arange(len(block), dtype=np.int64)
    queries: list[F32] = []
    cache = whisper.init_cache(m, 1, len(block), ops)
    whisper.decoder_hidden(m, x, cache, block, np.zeros_like(block), positions, ops, queries)
    frames = max(1, min(x.k[0].shape[1], round(seconds / _POSITION_S)))
    # A token is looked for where it is predicted: at the one before it.
    matrix = _attention(m, x, queries, frames, ops)[len(start) - 1 : -1]
    at = np.minimum(_path(np.ascontiguousarray(-matrix)) * _POSITION_S + _EARLY_S, seconds)
    return _words(m, text, at, seconds)


def _attention(m: Model, x: Cross, queries: list[F32], frames: int, ops: ModuleType) -> F32:
    """[tokens, frames]: the alignment heads' weights, each normalised over the tokens, smoothed, averaged."""
    d = m.cfg.width // m.cfg.heads
    total: F32 | None = None
    for layer, head in m.cfg.alignment_heads:
        q = ops.to_host(queries[layer][:, head * d : (head + 1) * d])
        k = ops.to_host(x.k[layer][head, :frames])
        w = on_host(ops).softmax(np.float32(m.cfg.scale) * (q @ k.T))
        w = (w - w.mean(0)) / (w.std(0) + np.float32(1e-6))
        padded = np.pad(w, ((0, 0), (_MEDIAN // 2, _MEDIAN // 2)), mode="reflect" if frames > _MEDIAN // 2 else "edge")
        w = np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN, axis=1), axis=-1).astype(np.float32)
        total = w if total is None else total + w
    assert total is not None, "a checkpoint lists at least one alignment head"
    mean: F32 = total / np.float32(len(m.cfg.alignment_heads))
    return mean


@njit(cache=True, nogil=True, fastmath=False)  # type: ignore[untyped-decorator]
def _path(cost: F32) -> I64:
    """First position of each row on the cheapest monotonic path through cost [rows, positions]."""
    n, k = cost.shape
    best = np.full((n + 1, k + 1), np.inf, np.float32)
    came = np.zeros((n + 1, k + 1), np.int8)
    best[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, k + 1):
            diagonal, up, left = best[i - 1, j - 1], best[i - 1, j], best[i, j - 1]
            if diagonal < up and diagonal < left:
                best[i, j], came[i, j] = diagonal + cost[i - 1, j - 1], 0
            elif up < left:
                best[i, j], came[i, j] = up + cost[i - 1, j - 1], 1
            else:
                best[i, j], came[i, j] = left + cost[i - 1, j - 1], 2
    first = np.zeros(n, np.int64)
    i, j = n, k
    while i > 0 and j > 0:
        first[i - 1] = j - 1
        if came[i, j] == 0:
            i, j = i - 1, j - 1
        elif came[i, j] == 1:
            i -= 1
        else:
            j -= 1
    return first


def _words(m: Model, text: list[int], at: NDArray[np.float64], seconds: float) -> list[Word]:
    """Tokens gathered into words: a token that begins with a space begins one; half characters wait for their rest."""
    out: list[Word] = []
    first, done = 0, ""
    for i in range(len(text)):
        last = i + 1 == len(text)
        now = m.tokenizer.decode(text[: i + 1], skip_special_tokens=True)
        after = "" if last else m.tokenizer.decode(text[: i + 2], skip_special_tokens=True)
        if not last and (now.endswith("\ufffd") or not after[len(now) : len(now) + 1].isspace()):
            continue
        piece = now[len(done) :].strip()
        if piece:
            end = min(float(at[i + 1]), seconds)
            out.append(Word(piece, min(float(at[first]), end), end))
        first, done = i + 1, now
    return out
