"""The voice detector's edges (SPEC section 4): from one probability per 32 ms window to onsets, starts and stops.

Pure: a frozen state, one function. It knows thresholds and durations, nothing of turns or responses. Its state is
physical: only sound, silence and the deaf rule change it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WINDOW_MS = 32


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What the detector needs of the session's settings."""

    threshold: float
    neg_threshold: float
    min_speech_ms: int
    silence_ms: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """No speech. `streak` windows in a row were over the threshold (an onset above a noisy floor takes two)."""

    streak: int = 0


@dataclass(frozen=True, slots=True)
class Onset:
    """Speech was heard from `start_ms`, not yet for long enough to be announced."""

    start_ms: int
    voiced_ms: int
    last_voiced_ms: int


@dataclass(frozen=True, slots=True)
class Voiced:
    """Announced speech; `last_voiced_ms` is the end of the last window over the negative threshold."""

    start_ms: int
    voiced_ms: int
    last_voiced_ms: int


@dataclass(frozen=True, slots=True)
class Deaf:
    """After a manual commit or clear in mid-speech: hears nothing until there has been enough silence."""

    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class Detector:
    phase: Quiet | Onset | Voiced | Deaf = Quiet()
    floor_db: float = -70.0  # slow estimate of the level between utterances
    loud_db: float = -90.0  # how loud the voice is, slowly forgotten
    num_sure: int = 0  # windows in a row, up to the last one, that are certainly voice


@dataclass(frozen=True, slots=True)
class RawOnset:
    start_ms: int


@dataclass(frozen=True, slots=True)
class OnsetLost:
    start_ms: int


@dataclass(frozen=True, slots=True)
class Started:
    """Confirmed: `min_speech_ms` of speech since `start_ms`."""

    start_ms: int
    voiced_ms: int


@dataclass(frozen=True, slots=True)
class Stopped:
    last_voiced_ms: int
    voiced_ms: int


Edge = RawOnset | OnsetLost | Started | Stopped

NOISY_FLOOR_DB = -45.0


SURE, SURE_WINDOWS = 0.9, 6  # a voice in the middle of speech
FALLS_DB, FORGETS_DB = 12.0, 0.5


def falls(d: Detector, prob: float, level_db: float) -> bool:
    """Whether a voice that was certain is going away in this window: so it does a window or two before it is silence, and
    seldom anywhere else."""
    voiced = isinstance(d.phase, Voiced) and d.num_sure >= SURE_WINDOWS
    return voiced and prob < SURE and level_db < d.loud_db - FALLS_DB


def detect(d: Detector, t: Thresholds, end_ms: int, prob: float, level_db: float) -> tuple[Detector, tuple[Edge, ...]]:
    """Take one window that ends at `end_ms` (audio time) and return the edges that it makes.

    `prob` is the model's speech probability, `level_db` the window's level in dBFS.
    """
    after, edges = _detect(d, t, end_ms, prob, level_db)
    loud = max(level_db, d.loud_db - FORGETS_DB) if prob >= SURE else d.loud_db - FORGETS_DB
    return replace(after, loud_db=max(-90.0, loud), num_sure=d.num_sure + 1 if prob >= SURE else 0), edges


def _detect(d: Detector, t: Thresholds, end_ms: int, prob: float, level_db: float) -> tuple[Detector, tuple[Edge, ...]]:
    start = end_ms - WINDOW_MS
    over, held = prob >= t.threshold, prob >= t.neg_threshold
    match d.phase:
        case Deaf(silent_ms):
            silent = 0 if held else silent_ms + WINDOW_MS
            return replace(d, phase=Quiet() if silent >= t.silence_ms else Deaf(silent)), ()
        case Quiet(streak):
            if not over:
                floor = d.floor_db + 0.05 * (max(level_db, -90.0) - d.floor_db)
                return replace(d, phase=Quiet(), floor_db=floor), ()
            need = 2 if d.floor_db > NOISY_FLOOR_DB else 1
            if streak + 1 < need:
                return replace(d, phase=Quiet(streak + 1)), ()
            start -= streak * WINDOW_MS
            voiced = (streak + 1) * WINDOW_MS
            onset = replace(d, phase=Onset(start, voiced, end_ms))
            edges: tuple[Edge, ...] = (RawOnset(start),)
            return _confirm(onset, t, edges)
        case Onset(onset_start, voiced, last):
            if held:
                grown = replace(d, phase=Onset(onset_start, voiced + WINDOW_MS, end_ms))
                return _confirm(grown, t, ())
            if end_ms - last >= min(t.silence_ms, 100):
                return replace(d, phase=Quiet()), (OnsetLost(onset_start),)
            return d, ()
        case Voiced(voice_start, voiced, last):
            if held:
                return replace(d, phase=Voiced(voice_start, voiced + WINDOW_MS, end_ms)), ()
            if end_ms - last >= t.silence_ms:
                return replace(d, phase=Quiet()), (Stopped(last, voiced),)
            return d, ()


def _confirm(d: Detector, t: Thresholds, edges: tuple[Edge, ...]) -> tuple[Detector, tuple[Edge, ...]]:
    assert isinstance(d.phase, Onset)
    o = d.phase
    if o.voiced_ms < t.min_speech_ms:
        return d, edges
    voiced = Voiced(o.start_ms, o.voiced_ms, o.last_voiced_ms)
    return replace(d, phase=voiced), (*edges, Started(o.start_ms, o.voiced_ms))


def deafen(d: Detector) -> Detector:
    """The state after a manual commit or clear: deaf where speech was going on, else unchanged."""
    return replace(d, phase=Deaf()) if isinstance(d.phase, (Onset, Voiced)) else d
