"""Rate limits (SPEC sections 10, 11), on numbers for time."""

from __future__ import annotations

from bargein.pipeline.transports.rates import Rates
from bargein.realtime.settings import Limits


def send(r: Rates, start: float, seconds: float, num_bytes: int, every: float = 0.0) -> tuple[int, list[float]]:
    """A client that sends as fast as it is read; how many events were taken, and when it was told that it floods."""
    now, taken, told = start, 0, []
    while now < start + seconds:
        wait = r.take(now, num_bytes)
        taken += 1
        now += max(wait, every, 1e-4)
        if r.is_flood(now):
            told.append(round(now - start, 1))
    return taken, told


def test_a_burst_passes_and_a_flood_is_read_at_the_rate() -> None:
    taken, told = send(Rates(Limits(), 0.0), 0.0, 10.0, 100)
    assert 2000 + 4800 < taken < 2000 + 5200
    assert 2.0 < told[0] < 3.0, "told after two seconds of not being read, the burst before that took 0.2 s"


def test_bytes_have_a_bucket_of_their_own() -> None:
    taken, told = send(Rates(Limits(), 0.0), 0.0, 8.0, 4 * 2**20)
    assert taken == 10 and told, "32 MiB at once, then one event of 4 MiB in four seconds"


def test_a_call_in_real_time_never_waits() -> None:
    r = Rates(Limits(), 0.0)
    assert all(r.take(0.02 * n, 1300) == 0 for n in range(10_000))
    assert not r.is_flood(200.0)


def test_a_flood_that_ends_is_forgiven() -> None:
    r = Rates(Limits(), 0.0)
    _, told = send(r, 0.0, 1.5, 100)
    assert told == []
    assert not r.is_flood(10.0)
    _, told = send(r, 20.0, 1.0, 100)
    assert told == []
