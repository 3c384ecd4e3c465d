"""The playout clock, on numbers for time."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.pipeline.pacer import FRAME, Pacer


def audio(ms: int) -> np.ndarray:
    return np.arange(ms * 24, dtype=np.float32)


def drive(p: Pacer, start: float, end: float) -> list[float]:
    """Take frames when they are due; returns when each left."""
    at, now = [], start
    while (due := p.due()) is not None:
        now = max(now, due)
        if now > end:
            break
        p.take(now)
        at.append(now)
    return at


def test_the_lead_goes_out_in_one_burst_and_the_rest_on_schedule() -> None:
    p = Pacer(100)
    p.queue(audio(400))
    at = drive(p, 10.0, 11.0)
    assert at[:5] == [10.0] * 5, "the lead"
    assert np.allclose(np.diff(at[4:]), 0.02)
    assert p.written_ms == 400


@pytest.mark.parametrize("lead_ms", [0, 20, 40, 50, 100, 1000])
def test_what_is_written_is_never_further_ahead_than_the_lead(lead_ms: int) -> None:
    p, now = Pacer(lead_ms), 10.0
    p.queue(audio(2000))
    for _ in range(400):
        while (due := p.due()) is not None and due <= now:
            p.take(now)
            assert p.written_ms - p.played_ms(now) <= max(lead_ms, 20)
        now += 0.003
    assert p.num_underruns == 0 or lead_ms < 40


def test_a_late_wake_up_does_not_move_the_frames_after_it() -> None:
    p = Pacer(0)
    p.queue(audio(200))
    p.take(10.0)
    assert p.due() == pytest.approx(10.02)
    p.take(10.035)  # 15 ms late with no lead: the listener ran dry
    assert p.num_underruns == 1
    lead = Pacer(100)
    lead.queue(audio(400))
    drive(lead, 10.0, 10.0)
    due = lead.due()
    lead.take(due + 0.015)
    assert lead.due() == pytest.approx(due + 0.02) and lead.num_underruns == 0


def test_played_is_at_most_written_and_stands_still_when_starved() -> None:
    p = Pacer(100)
    p.queue(audio(60))
    drive(p, 10.0, 10.0)
    assert [p.played_ms(10.0 + t) for t in (0.0, 0.03, 0.06, 0.5)] == [0, 30, 60, 60]
    assert p.due() is None
    p.queue(audio(60))
    drive(p, 10.5, 10.5)
    assert p.num_underruns == 1
    assert [p.played_ms(10.5 + t) for t in (0.0, 0.02, 1.0)] == [60, 80, 120]


def test_the_last_frame_may_be_short_and_only_the_last() -> None:
    p = Pacer(1000)
    p.queue(audio(50))
    assert len(p.take(0.0)) == FRAME and len(p.take(0.0)) == FRAME
    assert p.due() is None
    p.complete = True
    assert len(p.take(0.0)) == 10 * 24 and p.is_last
    assert p.drained_at() == pytest.approx(0.05)


def test_every_sample_goes_out_once_and_in_order() -> None:
    p = Pacer(10_000)
    rng = np.random.default_rng(0)
    x = np.arange(24 * 1000, dtype=np.float32)
    for part in np.split(x, np.sort(rng.integers(0, len(x), 40))):
        p.queue(part)
    p.complete = True
    out = []
    while p.due() is not None:
        out.append(p.take(0.0))
    assert np.array_equal(np.concatenate(out), x)


def test_on_a_transports_own_clock_frames_are_never_ahead() -> None:
    p = Pacer(40, burst=False)
    p.queue(audio(200))
    for n in range(3):
        assert p.due() == 0.0
        p.take(10.0 + 0.02 * n)
        assert p.played_ms(10.0 + 0.02 * n) == 20 * n
    p.take(10.0 + 0.06 + 0.004)  # the clock ticks a little late: nothing moves
    assert p.num_underruns == 0 and p.played_ms(10.08) == 80
    p.take(10.2)  # a gap: the listener heard nothing meanwhile
    assert p.num_underruns == 1 and p.played_ms(10.2) == 80 and p.played_ms(10.22) == 100


def test_a_pause_resumes_at_the_very_sample_with_a_short_fade() -> None:
    p = Pacer(40)
    x = np.full(400 * 24, 0.5, np.float32)
    p.queue(x)
    drive(p, 10.0, 10.1)
    written = p.written
    assert p.played_ms(10.5) == written // 24, "the clock runs to what was written, and waits"
    p.resume(11.0)
    assert p.due() == pytest.approx(11.0 - 0.02), "the lead goes out at once"
    frame = p.take(11.0)
    fade = np.flatnonzero(frame == 0.5)[0]
    assert 0 < fade <= 20 * 24 and np.all(np.diff(frame[: fade + 1]) > 0) and frame[0] == 0
    assert p.written == written + FRAME and p.num_underruns == 0
    assert p.played_ms(11.01) == written // 24 + 10
    assert np.all(p.take(11.0) == 0.5), "only once"


def test_a_pause_that_the_listener_did_not_notice_leaves_no_trace() -> None:
    p = Pacer(100)
    p.queue(np.full(400 * 24, 0.5, np.float32))
    drive(p, 10.0, 10.0)
    due = p.due()
    p.resume(10.06)
    assert p.due() == due and np.all(p.take(10.06) == 0.5)


def test_a_pause_before_the_first_frame() -> None:
    p = Pacer(100)
    p.queue(np.full(400 * 24, 0.5, np.float32))
    p.resume(10.0)
    assert p.due() == 0.0 and np.all(p.take(12.0) == 0.5) and p.played_ms(12.0) == 0
