"""Classes of work on a device that is always busy: who goes first, and what each is sure of. Time is an argument."""

from __future__ import annotations

import pytest

from bargein.engine import protocol as p
from bargein.engine.desk import Job, _company
from bargein.engine.lane import Stream
from bargein.engine.learned import StepCost
from bargein.engine.shares import MOST_OWED_S, SURE, Shares

STEP_S = 0.01


def served(shares: Shares, waiting: dict[p.Class, float], seconds: float) -> dict[p.Class, float]:
    """Who had the device for how long while every class always had one more job; waiting: when its oldest was due."""
    got: dict[p.Class, float] = dict.fromkeys(waiting, 0.0)
    now = 100.0
    while now < 100.0 + seconds:
        cls = min(waiting, key=lambda c: shares.urgency(c, waiting[c], now))
        shares.worked(cls, STEP_S)
        got[cls] += STEP_S
        now += STEP_S
    return got


def test_a_flood_that_has_grown_old_does_not_pass_a_call() -> None:
    shares = Shares()
    for _ in range(60):
        shares.came("interactive")
    assert shares.urgency("live", 100.1, 100.0) < shares.urgency("interactive", 80.0, 100.0)
    assert shares.urgency("interactive", 80.0, 100.0) < shares.urgency("bulk", 0.0, 100.0)


def test_inside_a_class_the_older_goes_first_once_it_is_owed() -> None:
    shares = Shares()
    shares.came("interactive")
    shares.came("live")
    shares.worked("live", 1.0)
    old, new = shares.urgency("interactive", 80.0, 100.0), shares.urgency("interactive", 99.0, 100.0)
    assert old < new < shares.urgency("live", 0.0, 100.0)


@pytest.mark.parametrize("cls", SURE)
def test_no_class_starves_and_none_takes_more_than_it_is_sure_of(cls: p.Class) -> None:
    shares = Shares()
    for c in ("live", cls):
        shares.came(c)
    got = served(shares, {"live": 0.0, cls: 0.0}, 100)
    assert got[cls] == pytest.approx(100 * SURE[cls], rel=0.02)


def test_what_was_never_there_is_owed_nothing_and_a_long_wait_little() -> None:
    shares = Shares()
    shares.worked("live", 1000)
    shares.came("bulk")
    assert shares.urgency("bulk", 0.0, 100.0) == 105.0
    shares.worked("live", 1000)
    got = served(shares, {"live": 0.0, "bulk": 0.0}, 0.5)
    assert got["bulk"] <= MOST_OWED_S + STEP_S + 0.5 * SURE["bulk"]


def test_a_call_shares_its_token_with_few_others_and_with_every_call() -> None:
    def jobs(cls: p.Class, n: int) -> list[Job]:
        return [Job(Stream(i, "chat", {}, cls, lambda reply: None), i, 0.0, iter(()), 0.0) for i in range(n)]  # type: ignore[arg-type]

    def classes(*found: Job, cost: StepCost = StepCost()) -> list[str]:  # nothing is learned by it
        return [job.stream.cls for job in _company(list(found), cost)]

    assert classes(*jobs("live", 2), *jobs("interactive", 20)) == ["live"] * 2 + ["interactive"] * 6
    assert classes(*jobs("live", 1), *jobs("interactive", 3), *jobs("live", 20)) == ["live"] * 16
    assert classes(*jobs("interactive", 20), *jobs("live", 1)) == ["interactive"] * 16
    slow, slower = StepCost(), StepCost()
    for n in (1, 2, 3, 8):
        slow.took(n, 0.010 + 0.003 * n)
        slower.took(n, 0.020 + 0.010 * n)
    assert classes(*jobs("live", 1), *jobs("interactive", 20), cost=slow) == ["live"] + ["interactive"] * 2, "6 ms more, not 9"
    assert classes(*jobs("live", 3), *jobs("interactive", 20), cost=slower) == ["live"] * 3
    assert classes(*jobs("interactive", 20), cost=slower) == ["interactive"] * 16, "no call waits for it"
