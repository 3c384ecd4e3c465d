"""End of utterance: how long to wait, given how sure we are (SPEC section 6), and the gate for noise (section 7)."""

from __future__ import annotations

import math


def commit_delay_ms(p: float, *, threshold: float, min_ms: int, max_ms: int, k: float) -> int:
    """The wait from the last voiced sample to the commit for an end-of-turn probability `p` in [0, 1].

    Below the threshold the longest wait; above it a logistic curve, rescaled so that certainty waits exactly `min_ms`.
    """
    if p < threshold:
        return max_ms
    if threshold >= 1.0:
        return min_ms
    x = (p - threshold) / (1.0 - threshold)

    def logistic(value: float) -> float:
        return 1.0 / (1.0 + math.exp(-k * (value - 0.5)))

    low, high = logistic(0.0), logistic(1.0)
    s = (logistic(x) - low) / (high - low) if high > low else x
    return round(max_ms + (min_ms - max_ms) * s)


def hard_cap_ms(explicit_ms: int | None, default_ms: int, max_delay_ms: int) -> int:
    """The longest a turn may stay stopped: max(default, max delay + 1000); an explicit smaller value wins."""
    cap = max(default_ms, max_delay_ms + 1000)
    return min(cap, explicit_ms) if explicit_ms is not None else cap


def is_noise(
    *,
    audio_ms: int,
    no_speech_prob: float | None,
    avg_logprob: float | None,
    no_speech_limit: float | None,
    logprob_limit: float | None,
) -> bool:
    """Whether a transcript is to be taken for noise. None switches a test off.

    The log-probability limit stands as given up to 1500 ms of audio, slides to -3.0 at 5000 ms and is off beyond:
    long speech is rarely noise, short noise often reads as a confident-looking word.
    """
    if no_speech_limit is not None and no_speech_prob is not None and no_speech_prob > no_speech_limit:
        return True
    if logprob_limit is None or avg_logprob is None or audio_ms > 5000:
        return False
    slide = max(0.0, (audio_ms - 1500) / 3500)
    return avg_logprob < logprob_limit + (-3.0 - logprob_limit) * slide
