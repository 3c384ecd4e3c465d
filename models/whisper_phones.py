"""When each word was said, where its sounds are known: a forced alignment over what Whisper's encoder says of the sound.

A linear layer (`bench/fit_phones.py`) reads from each 20 ms position of the encoded sound which phoneme it is; the
cheapest path through the phonemes of the text, with silence where it helps, tells where each word begins and ends
(Viterbi 1967). The encoder has run anyway; this costs a matrix product and a search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from . import g2p
from .errors import WeightsError
from .whisper_align import Word

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

POSITION_S = 0.02
SILENCE = 0  # the class of no speech
PRIOR_SHARE = 0.6  # how much of a class's frequency is taken off its score
PAUSE_COST = 2.0  # of a silence between two words


class Phones(NamedTuple):
    """The layer: weight [width, classes], bias and log frequency [classes]; class 0 is silence, then `alphabet`."""

    weight: F32
    bias: F32
    frequency: F32
    alphabet: str


def load(path: Path) -> Phones:
    """Raises WeightsError for a file that is not there or not such a layer."""
    try:
        with safe_open(str(path), "numpy") as file:
            alphabet = (file.metadata() or {})["alphabet"]
            weight, bias, frequency = (file.get_tensor(n).astype(np.float32) for n in ("weight", "bias", "frequency"))
    except (OSError, SafetensorError, KeyError) as error:
        raise WeightsError(path, f"no layer of phonemes ({error})") from error
    if weight.ndim != 2 or not weight.shape[1] == len(bias) == len(frequency) == len(alphabet) + 1:
        raise WeightsError(path, "its tensors do not fit together")
    return Phones(weight, bias, frequency, alphabet)


class Reader(NamedTuple):
    """What finds the words of a language whose sounds are known: the layer, and the phonemes of each word of a text."""

    phones: Phones
    spell: Callable[[str], list[str]]


def reader(model: str, width: int, pronouncer: g2p.Pronouncer) -> Reader | None:
    """For a model of the catalogue; None where no layer was fitted to it. Raises WeightsError as `load`."""
    path = Path(__file__).parent / "phones" / f"{model}.safetensors"
    if not path.is_file():
        return None
    phones = load(path)
    return Reader(phones, lambda text: g2p.spelled(pronouncer, text)) if len(phones.weight) == width else None


def words(r: Reader, encoded: F32, text: str, seconds: float) -> list[Word]:
    """The white-space words of an English text in encoded sound [T, width], of which `seconds` are sound. What is not said,
    as a dash, has no length. Empty where the sound is too short for the text, or nothing of it is said."""
    said = text.split()
    spans = align(r.phones, encoded[: int(np.ceil(seconds / POSITION_S))], [classes(r.phones, w) for w in r.spell(text)])
    if not any(spans):
        return []
    out: list[Word] = []
    for word, span in zip(said, spans, strict=True):
        before = out[-1].end_s if out else next(s for s in spans if s is not None)[0]
        start, end = (before, before) if span is None else span
        out.append(Word(word, min(start, seconds), min(end, seconds)))
    return out


def classes(p: Phones, phonemes: str) -> list[int]:
    """Of a word's phonemes; marks of stress and length have none."""
    return [p.alphabet.index(c) + 1 for c in phonemes if c in p.alphabet]


def scores(p: Phones, encoded: F32) -> F32:
    """Log likelihoods [T, classes], up to a constant each position, of encoded sound [T, width]."""
    x = encoded @ p.weight + p.bias
    x -= x.max(1, keepdims=True)
    x -= np.log(np.exp(x).sum(1, keepdims=True))
    y: F32 = x - np.float32(PRIOR_SHARE) * p.frequency
    return y


def align(p: Phones, encoded: F32, words: Sequence[Sequence[int]]) -> list[tuple[float, float] | None]:
    """Start and end in seconds of each word, given as classes, in encoded sound [T, width]; None: it has no sound, or the
    sound is too short for the text."""
    states, word_of = [SILENCE], [-1]
    for n, word in enumerate(words):
        states += [*word, SILENCE] if word else []
        word_of += [*(n for _ in word), -1] if word else []
    num = sum(n >= 0 for n in word_of)
    if num == 0 or num > len(encoded):
        return [None] * len(words)
    entered: list[int] = path(scores(p, encoded), np.array(states, np.int64), np.float32(PAUSE_COST)).tolist()
    spans: list[tuple[float, float] | None] = [None] * len(words)
    for s, n in enumerate(word_of):
        if n >= 0:
            end = next(t for t in [*entered[s + 1 :], len(encoded)] if t >= 0)
            start = entered[s] * POSITION_S
            known = spans[n]
            spans[n] = (start if known is None else known[0], end * POSITION_S)
    return spans


@njit(cache=True, nogil=True, fastmath=False)  # type: ignore[untyped-decorator]
def path(score: F32, states: I64, pause_cost: np.float32) -> I64:
    """The position at which each state is entered on the best path through score [T, classes]; -1: it is not.

    Every state is passed in order, for one position at least; silences may be left out.
    """
    n, k = len(states), len(score)
    before = np.full(n, -np.inf, np.float32)
    now = np.empty(n, np.float32)
    came = np.zeros((k, n), np.int8)  # 0: stayed, 1: from the state before, 2: over a silence
    before[0] = score[0, states[0]]
    if n > 1:
        before[1] = score[0, states[1]]
    for t in range(1, k):
        for s in range(n):
            best, how = before[s], 0
            silent = states[s] == 0
            if s >= 1:
                x = before[s - 1] - (pause_cost if silent and s < n - 1 else np.float32(0))
                if x > best:
                    best, how = x, 1
            if s >= 2 and states[s - 1] == 0 and not silent and before[s - 2] > best:
                best, how = before[s - 2], 2
            now[s] = best + score[t, states[s]]
            came[t, s] = how
        before[:] = now
    entered = np.full(n, -1, np.int64)
    s = n - 1
    if n > 1 and states[n - 1] == 0 and before[n - 2] > before[n - 1]:
        s = n - 2
    for t in range(k - 1, -1, -1):
        if t == 0 or came[t, s] != 0:
            entered[s] = t
            if t > 0:
                s -= came[t, s]
    return entered
