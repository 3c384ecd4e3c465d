"""Recordings are cut at pauses, lose nothing that is speech, and hold no more than a window."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bargein.engine import protocol as p
from bargein.pipeline.cutting import FRAME, LONGEST, RATE, VOICED, Cutter, Window, speech_spans
from bargein.pipeline.recordings import unheard


def run(probs: list[float], soon: bool = False, block: int = 32) -> list[Window]:
    """Windows of frames whose samples hold their own frame's number."""
    sound = np.repeat(np.arange(len(probs), dtype=np.float32), FRAME)
    cutter, out = Cutter(soon), []
    for at in range(0, len(probs), block):
        out += cutter.feed(sound[at * FRAME : (at + block) * FRAME], probs[at : at + block])
        assert len(cutter._probs) <= LONGEST + block
    return out + cutter.finish()


def frames(seconds: float, p: float) -> list[float]:
    return [p] * round(seconds * RATE / FRAME)


def test_silence_gives_nothing_and_holds_nothing() -> None:
    assert run(frames(600, 0.1)) == []


def test_a_long_pause_ends_a_window_and_is_left_out() -> None:
    first, second = run(frames(12, 0.9) + frames(3, 0.0) + frames(5, 0.9))
    assert first.start == 0 and 12 <= len(first.sound) / RATE <= 12.5
    assert 14.5 <= second.start / RATE <= 15


def test_speech_without_a_pause_is_cut_before_it_is_too_long() -> None:
    windows = run(frames(100, 0.9))
    assert all(len(w.sound) <= LONGEST * FRAME for w in windows)
    assert sum(len(w.sound) for w in windows) == len(frames(100, 0.9)) * FRAME


def test_it_is_cut_in_a_pause_where_there_is_one() -> None:
    first, _ = run(frames(20, 0.9) + frames(0.5, 0.0) + frames(15, 0.9))
    assert 20 <= len(first.sound) / RATE <= 20.5


def test_soon_shows_something_early() -> None:
    probs = frames(3, 0.9) + frames(0.6, 0.0) + frames(30, 0.9)
    assert len(run(probs, soon=True)[0].sound) < 4 * RATE < len(run(probs)[0].sound)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.95])), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 70),
)
def test_all_speech_is_in_some_window_once_and_in_place(runs: list[tuple[int, float]], soon: bool, block: int) -> None:
    probs = [p for n, p in runs for _ in range(n)]
    windows = run(probs, soon, block)
    covered = np.zeros(len(probs) * FRAME, np.int64)
    for w in windows:
        assert 0 < len(w.sound) <= LONGEST * FRAME
        np.testing.assert_array_equal(w.sound, np.arange(w.start, w.start + len(w.sound)) // FRAME)
        covered[w.start : w.start + len(w.sound)] += 1
        assert all(0 <= a < b <= len(w.sound) for a, b in w.spans)
    assert covered.max(initial=0) <= 1
    voiced = [i for a, b in speech_spans(probs) for i in range(a // FRAME, b // FRAME) if probs[i] >= VOICED]
    missing = [i for i in voiced if not covered[i * FRAME : (i + 1) * FRAME].all()]
    assert len(missing) <= 1 + len(windows)  # a cut may leave a single frame, which is no speech by itself


def test_what_the_model_left_out_at_a_windows_end_is_heard_again() -> None:
    def heard(*ends: float) -> p.Heard:
        return p.Heard("x", "en", tuple(p.HeardSegment(0, e, "x", ()) for e in ends), (), 0, 0, 1, 0)

    sound = np.arange(10 * RATE, dtype=np.float32)
    window = Window(5 * RATE, sound, ((0, 4 * RATE), (5 * RATE, 10 * RATE)))
    rest = unheard(window, heard(2.0, 7.0))
    assert rest is not None and rest.start == 12 * RATE and rest.spans == ((0, 3 * RATE),)
    np.testing.assert_array_equal(rest.sound, sound[7 * RATE :])
    assert unheard(window, heard(9.6)) is None and unheard(window, heard()) is None
