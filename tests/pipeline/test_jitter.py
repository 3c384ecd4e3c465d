"""The jitter buffer on arrival patterns: what leaves, when, and that no time is ever lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from bargein.pipeline.transports.jitter import Coded, Conceal, JitterBuffer, Piece, Recover, Silence

FRAME = 960


@dataclass
class Run:
    """Packets of 20 ms through a buffer, on numbers for time. `arrivals`: packet number to arrival in ms."""

    arrivals: list[tuple[float, int]]
    skip_ts: dict[int, int] = field(default_factory=dict)  # packet number: extra timestamp from there on
    first_seq: int = 0
    first_ts: int = 0
    out: list[tuple[float, Piece]] = field(default_factory=list)
    buffer: JitterBuffer = field(default_factory=JitterBuffer)

    def to(self, end: float) -> Run:
        for at, n in [*sorted(self.arrivals), (end, -1)]:
            while (due := self.buffer.deadline()) is not None and due < at:
                self._pop(due)
            if n >= 0:
                ts = self.first_ts + n * FRAME + sum(v for k, v in self.skip_ts.items() if k <= n)
                payload = str(n).encode()
                self.buffer.push((self.first_seq + n) & 0xFFFF, ts & 0xFFFFFFFF, payload, FRAME, at)
                self._pop(at)
        return self

    def _pop(self, at: float) -> None:
        self.out += [(at, piece) for piece in self.buffer.pop(at)]

    @property
    def played(self) -> list[int]:
        return [int(p.payload) for _, p in self.out if isinstance(p, Coded)]

    @property
    def length_ms(self) -> float:
        return sum(p.duration for _, p in self.out) / 48

    def delay_ms(self, since: float = 0.0) -> float:
        """The longest that a packet sent at n * 20 took from sender to listener."""
        return max(at - 20 * int(p.payload) for at, p in self.out if isinstance(p, Coded) and at >= since)

    def count(self, kind: type) -> int:
        return sum(isinstance(p, kind) for _, p in self.out)


def test_packets_on_time_go_straight_through() -> None:
    run = Run([(5 + 20.0 * n, n) for n in range(500)]).to(10_000)
    assert run.played == list(range(500))
    assert run.delay_ms() == 5
    assert run.buffer.target_ms == 20


def test_numbers_may_wrap_around() -> None:
    run = Run([(20.0 * n, n) for n in range(200)], first_seq=65_500, first_ts=2**32 - 50 * FRAME).to(4000)
    assert run.played == list(range(200)) and run.count(Conceal) == run.count(Silence) == 0


def test_a_lost_packet_is_recovered_from_the_next_and_costs_nothing_later() -> None:
    run = Run([(20.0 * n, n) for n in range(500) if n != 100]).to(10_000)
    assert run.played == [n for n in range(500) if n != 100]
    (lost,) = [p for _, p in run.out if isinstance(p, Recover)]
    assert lost == Recover(b"101", FRAME)
    assert run.delay_ms() <= 40 and run.delay_ms(since=20.0 * 105) == 0


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.2])
def test_every_packet_that_arrives_is_played_whatever_is_lost(loss: float) -> None:
    rng = random.Random(1)
    kept = [n for n in range(3000) if n == 0 or rng.random() >= loss]
    run = Run([(20.0 * n + rng.uniform(0, 8), n) for n in kept]).to(60_000)
    assert run.played == kept
    assert run.length_ms == pytest.approx(60_000, abs=130)
    assert run.delay_ms() <= 90 and run.delay_ms(since=20_000) <= 60


def test_the_target_follows_jitter_and_shrinks_within_ten_seconds() -> None:
    rng = random.Random(2)
    rough = [(20.0 * n + (rng.uniform(0, 100) if 500 <= n < 1000 else rng.uniform(0, 3)), n) for n in range(2000)]
    run = Run([a for a in rough if a[1] < 1000]).to(20_000)
    assert 80 <= run.buffer.target_ms <= 120
    assert len(run.played) >= 980
    after = Run(rough).to(40_000)
    assert after.buffer.target_ms <= 25
    assert after.delay_ms(since=30_000) <= 5
    assert after.length_ms == pytest.approx(40_000, abs=200)


def test_time_goes_on_in_an_outage_and_the_stream_after_it_is_in_place() -> None:
    run = Run([(20.0 * n, n) for n in range(500) if not 100 <= n < 250]).to(10_000)
    assert run.played == [n for n in range(500) if not 100 <= n < 250]
    assert run.length_ms == 10_000
    assert run.count(Conceal) == 5 and run.count(Silence) >= 140
    worst = max(b - a for (a, _), (b, _) in zip(run.out, run.out[1:], strict=False))
    assert worst <= 80, "the listener never waits long for its next piece"


def test_packets_that_were_only_held_up_are_not_lost() -> None:
    held = [(max(20.0 * n, 2000.0 + 400) if 100 <= n < 120 else 20.0 * n, n) for n in range(500)]
    run = Run(held).to(10_000)
    assert run.played == list(range(500))
    assert run.delay_ms(since=5000) == 0


def test_a_slower_path_is_followed() -> None:
    run = Run([(20.0 * n + (300 if n >= 200 else 0), n) for n in range(1500)]).to(30_300)
    assert len(run.played) >= 1490
    assert run.delay_ms(since=15_000) == 300 and run.buffer.target_ms <= 25


def test_a_sender_that_is_silent_sends_nothing_and_that_is_no_loss() -> None:
    gap = 400 * 48
    run = Run([(20.0 * n + (400 if n >= 50 else 0), n) for n in range(100)], skip_ts={50: gap}).to(2400)
    assert run.played == list(range(100)) and run.count(Recover) == 0
    assert run.length_ms == pytest.approx(2400, abs=25)


def test_a_new_stream_starts_over_and_duplicates_play_once() -> None:
    b = JitterBuffer()
    b.push(1, 1000, b"a", FRAME, 0)
    b.push(1, 1000, b"a", FRAME, 1)
    assert b.pop(1) == [Coded(b"a", FRAME)]
    b.push(1, 1000, b"a", FRAME, 2)
    assert b.pop(2) == []
    b.push(40_000, 3_000_000_000, b"z", FRAME, 3)
    assert b.pop(3) == [Coded(b"z", FRAME)]


def test_reordered_packets_are_put_in_order() -> None:
    rng = random.Random(3)
    swapped = {100: 2022.0, 101: 2020.0, 150: 3022.0, 151: 3021.0}
    run = Run([(swapped.get(n, 20.0 * n + rng.uniform(0, 25)), n) for n in range(200)]).to(4000)
    assert run.played == list(range(200))
    assert run.count(Recover) == 0
