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


# --- what the words say --------------------------------------------------------------------------------------------

# Words that a finished English sentence seldom ends with: articles, prepositions, conjunctions, auxiliaries, fillers.
_OPEN_WORDS = frozenset(
    "a an the my your his our their its this these some any every each no "
    "of to for from with at by on in into onto about between among against during without under over through than as "
    "and or but nor so because if when while until although though unless whether that which who whose what where how "
    "is are was were am be been being has have had do does did will would can could should shall may might must "
    "i we they he she you's very really quite just not also um uh er hmm well like "
    "und oder aber weil dass der die das ein eine mit von zu für et ou mais le la les un une de des du y o pero el los "
    "las una con para por que e il lo gli di che".split()
)
# Of those, what does end a question: "Where are you from?"
_CLOSERS = frozenset(
    "is are was were do does did will would can could should have had not so that this in on to for with at from about "
    "what".split()
)
_NUMBERS = frozenset("zero oh one two three four five six seven eight nine double".split())


def text_score(text: str) -> float:
    """How finished a transcript reads, 0 to 1: by its last mark and its last word. Empty is 0.

    A recognizer closes a sentence with a full stop whenever the sound ends, so a full stop says less than a question
    mark, and a last word that wants another one says more than either.
    """
    text = text.strip()
    if not text:
        return 0.0
    words = [w.strip(".,;:!?…-\"'").lower() for w in text.split()]
    words = [w for w in words if w]
    if not words:
        return 0.0
    last = words[-1]
    if text.endswith(("...", "…", "-", ",", ";", ":")):
        return 0.1
    if last in _OPEN_WORDS:
        return 0.35 if text.endswith("?") and last in _CLOSERS and len(words) > 2 else 0.1
    if len(words) > 1 and all(w in _NUMBERS or w.isdigit() for w in words[-2:]):
        return 0.4  # a number that may go on
    if text.endswith("?"):
        return 0.9
    return 0.75 if text.endswith((".", "!")) else 0.4


# --- two heads -----------------------------------------------------------------------------------------------------


def fuse(rule: str, audio: float, words: float, weight: float) -> float:
    """One end-of-turn probability of the sound's and the words'; `weight` is the words' share in "weighted".

    ValueError for an unknown rule.
    """
    if rule == "noisy_or":
        return 1.0 - (1.0 - audio) * (1.0 - words)
    if rule == "max":
        return max(audio, words)
    if rule == "mean":
        return (audio + words) / 2
    if rule == "weighted":
        return weight * words + (1.0 - weight) * audio
    if rule == "gated":
        return _gated(audio, words)
    raise ValueError(f"unknown fusion rule {rule!r}")


def _logit(p: float) -> float:
    p = min(max(p, 1e-3), 1.0 - 1e-3)
    return math.log(p / (1.0 - p))


def _gated(audio: float, words: float) -> float:
    """A logistic regression of both, fitted on speech synthesized by espeak-ng and flite (bench/TURNS.md).

    `words` is a language model's score. The sound weighs more than the fit gave it: people's intonation says more than
    those voices'. The slope is twice the fit's, so that what is clear is answered soon.
    """
    z = 2.0 * (0.6 + 0.2 * _logit(audio) + 0.7 * _logit(words))
    return 1.0 / (1.0 + math.exp(-z))
