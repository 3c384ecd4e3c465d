"""Chooses the next token from logits: greedy, or sampled with the usual controls, in the usual order.

Penalties first (repetition as in Keskar et al. 2019; presence and frequency as OpenAI defines them), then bias,
temperature, top-k, top-p (Holtzman et al. 2020) and min-p (Nguyen et al. 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Settings:
    """temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and penalties of 1 / 0 / 0 are off."""

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


class Choice(NamedTuple):
    """A token, its log-probability before truncation, and the `top_logprobs` most likely ones with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses one sequence's tokens; remembers those it chose, for the penalties."""

    def __init__(self, settings: Settings) -> None:
        self._s = settings
        self._counts: Counter[int] = Counter()
        self._rng = np.random.default_rng(settings.seed)

    def choose(self, logits: F32) -> int:
        """The next token for logits float32 [vocab]."""
        token = self._pick(self._adjusted(logits))
        self._counts[token] += 1
        return token

    def choose_with_logprobs(self, logits: F32, num_top: int) -> Choice:
        """`choose`, with log-probabilities of the distribution after penalties and bias, before truncation."""
        adjusted = self._adjusted(logits)
        log_z = float(np.log(np.exp(adjusted - adjusted.max(), dtype=np.float64).sum()) + adjusted.max())
        token = self._pick(adjusted)
        self._counts[token] += 1
        best = _largest(adjusted, num_top)
        return Choice(token, float(adjusted[token]) - log_z, tuple((int(t), float(adjusted[t]) - log_z) for t in best))

    def _adjusted(self, logits: F32) -> F32:
        s = self._s
        penalised = self._counts and (s.repetition_penalty != 1.0 or s.presence_penalty or s.frequency_penalty)
        if not penalised and not s.logit_bias:
            return logits
        out = logits.copy()
        if penalised:
            ids = np.fromiter(self._counts, np.int64)
            counts = np.fromiter(self._counts.values(), np.float32)
            x = out[ids]
            x = np.where(x > 0, x / s.repetition_penalty, x * s.repetition_penalty)
            out[ids] = x - s.presence_penalty - s.frequency_penalty * counts
        for token, bias in s.logit_bias.items():
            if 0 <= token < len(out):
                out[token] += bias
        return out

    def _pick(self, logits: F32) -> int:
        s = self._s
        if s.temperature <= 0:
            return int(np.argmax(logits))
        ids = _largest(logits, s.top_k or min(len(logits), 1000))
        x = logits[ids].astype(np.float64) / s.temperature
        p = np.exp(x - x[0])
        p /= p.sum()
        keep = np.cumsum(p) - p < s.top_p  # the first is always kept
        keep &= p >= s.min_p * p[0]
        p = np.where(keep, p, 0.0)
        return int(self._rng.choice(ids, p=p / p.sum()))


def _largest(logits: F32, k: int) -> NDArray[np.int64]:
    """Indices of the k largest, largest first."""
    if k <= 0:
        return np.zeros(0, np.int64)
    k = min(k, len(logits))
    ids = np.argpartition(logits, len(logits) - k)[-k:]
    return ids[np.argsort(-logits[ids], kind="stable")]
