"""Choosing the next token from logits: penalties, temperature, top-k, top-p, min-p, bias, log-probabilities.

Order, as OpenAI-compatible servers have it: bias and penalties on logits, temperature, then top-k, top-p and min-p on
what is left, then one uniform number a token decides. Same seed, same logits, same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

# A token this many nats below the best (at temperature 1) has a chance under 1e-9: it is left out before sorting.
_NEGLIGIBLE_NATS = 21.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose. temperature 0 takes the best token; top_k 0, top_p 1, min_p 0 and penalties of 0 (repetition: 1)
    switch a rule off. repetition_penalty (Keskar et al. 2019) counts prompt and reply, presence and frequency penalties
    the reply alone. logprobs: how many alternatives to report. ValueError for a value out of its range."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    def __post_init__(self) -> None:
        checks = {
            "temperature must be from 0 to 5": 0 <= self.temperature <= 5,
            "top_k must not be negative": self.top_k >= 0,
            "top_p must be over 0 and at most 1": 0 < self.top_p <= 1,
            "min_p must be from 0 to below 1": 0 <= self.min_p < 1,
            "repetition_penalty must be over 0": self.repetition_penalty > 0,
            "presence_penalty must be from -2 to 2": -2 <= self.presence_penalty <= 2,
            "frequency_penalty must be from -2 to 2": -2 <= self.frequency_penalty <= 2,
            "logprobs must be from 0 to 20": self.logprobs is None or 0 <= self.logprobs <= 20,
        }
        for problem, holds in checks.items():
            if not holds:
                raise ValueError(problem)

    @property
    def alters_logits(self) -> bool:
        penalties = (self.repetition_penalty != 1, self.presence_penalty, self.frequency_penalty)
        return bool(self.logit_bias) or any(penalties)


@dataclass(slots=True)
class SamplerState:
    """What choosing depends on besides the logits: the random stream and the tokens so far."""

    random: np.random.Generator
    prompt: set[int]
    counts: Counter[int]


class Choice(NamedTuple):
    """The token, its natural log-probability under the model (before temperature and cuts; nan if not asked for), and
    the best alternatives as (token, log-probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def init_state(params: Sampling, prompt: Iterable[int] = ()) -> SamplerState:
    """A fresh state for one reply; without a seed the stream is unpredictable."""
    return SamplerState(np.random.default_rng(params.seed), set(prompt), Counter())


def choose(logits: F32, params: Sampling, state: SamplerState) -> Choice:
    """The next token for logits float32 [vocab]; remembers it in `state`. ValueError when nothing may be chosen."""
    altered = _altered(logits, params, state) if params.alters_logits else logits
    token = int(np.argmax(altered)) if params.temperature == 0 else _draw(altered, params, state)
    if not np.isfinite(altered[token]):
        raise ValueError("no token may be chosen: every logit is ruled out or not a number")
    state.counts[token] += 1
    if params.logprobs is None:
        return Choice(token, float("nan"), ())
    return _with_logprobs(logits, token, params.logprobs)


def _altered(logits: F32, params: Sampling, state: SamplerState) -> F32:
    result = logits.copy()
    if params.repetition_penalty != 1:
        seen = np.fromiter(state.prompt | state.counts.keys(), np.int64)
        values = result[seen]
        penalty = np.float32(params.repetition_penalty)
        result[seen] = np.where(values > 0, values / penalty, values * penalty)
    if state.counts and (params.presence_penalty or params.frequency_penalty):
        said = np.fromiter(state.counts.keys(), np.int64)
        times = np.fromiter(state.counts.values(), np.float32)
        result[said] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * times
    for token, bias in params.logit_bias.items():
        if 0 <= token < len(result):
            result[token] += np.float32(bias)
    return result


def _draw(logits: F32, params: Sampling, state: SamplerState) -> int:
    top = logits.max()
    ids = np.flatnonzero(logits > top - np.float32(_NEGLIGIBLE_NATS * max(1.0, params.temperature)))
    if len(ids) == 0:
        return int(np.argmax(logits))
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    if params.top_k:
        ids = ids[: params.top_k]
    chances = np.exp((logits[ids].astype(np.float64) - top) / params.temperature)
    chances /= chances.sum()
    if params.top_p < 1:
        before = np.cumsum(chances) - chances
        keep = before < params.top_p  # the first that reaches the mass stays in
        ids, chances = ids[keep], chances[keep]
    if params.min_p:
        keep = chances >= params.min_p * chances[0]
        ids, chances = ids[keep], chances[keep]
    edges = np.cumsum(chances)
    return int(ids[min(np.searchsorted(edges, state.random.random() * edges[-1], side="right"), len(ids) - 1)])


def _with_logprobs(logits: F32, token: int, count: int) -> Choice:
    wide = logits.astype(np.float64)
    top = wide.max()
    total = top + np.log(np.exp(wide - top).sum())
    best = np.argpartition(-logits, count)[:count] if count else np.zeros(0, np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    return Choice(token, float(wide[token] - total), tuple((int(i), float(wide[i] - total)) for i in best))
