"""The thread of voice activity: a call's window never waits for a recording's, and whoever waits is told of a failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bargein.engine import protocol as p
from bargein.engine.lane import Stream
from bargein.engine.stats import Stats
from bargein.engine.vad_thread import VadThread


class Windows:
    """A lane in which a byte is a window; 0 cannot be done. Each batch waits for `go`."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[tuple[int, float]]] = {}
        self.batches: list[list[int]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def open(self, stream: Stream) -> None:
        pass

    def close(self, stream: Stream) -> None:
        self.waiting.pop(stream.id, None)

    def warm(self) -> None:
        pass

    def feed(self, stream: Stream, tag: int, pcm: bytes, at: float) -> None:
        self.waiting.setdefault(stream.id, []).extend((x, at) for x in pcm)

    def run_batch(self) -> list[float]:
        batch = {n: windows.pop(0) for n, windows in self.waiting.items() if windows}
        if not batch:
            return []
        self.begun.release()
        assert self.go.acquire(timeout=5)
        if any(x == 0 for x, _ in batch.values()):
            raise RuntimeError("a window that cannot be")
        self.batches.append(sorted(batch))
        return [at for _, at in batch.values()]


@pytest.fixture
def running() -> Iterator[tuple[VadThread, Windows, Stats]]:
    lane, stats = Windows(), Stats()
    thread = VadThread(lane, stats)
    thread.start()
    yield thread, lane, stats
    for _ in range(100):
        lane.go.release()
    thread.stop()


def stream(number: int, cls: p.Class, told: list[p.Reply]) -> Stream:
    return Stream(number, "vad", {}, cls, told.append)


def next_batch(lane: Windows) -> None:
    assert lane.begun.acquire(timeout=5)


def test_a_calls_window_goes_with_the_next_of_a_recording_and_only_it_is_counted(
    running: tuple[VadThread, Windows, Stats],
) -> None:
    thread, lane, stats = running
    thread.feed(stream(1, "interactive", []), 0, p.Audio(bytes([7] * 20)))
    next_batch(lane)
    thread.feed(stream(2, "live", []), 0, p.Audio(b"\7"))
    for _ in range(3):
        lane.go.release()
        next_batch(lane)
    assert lane.batches[:3] == [[1], [1, 2], [1]]
    assert sum(stats.vad_ms) == 1, "nobody listens to a recording as it comes"


def test_who_waits_is_told_of_a_failure_in_whichever_window_it_was(running: tuple[VadThread, Windows, Stats]) -> None:
    thread, lane, _ = running
    told: list[p.Reply] = []
    recording = stream(1, "interactive", told)
    thread.feed(recording, 0, p.Audio(bytes([7, 7, 0, 7])))
    for _ in range(3):
        next_batch(lane)
        lane.go.release()
    thread.feed(stream(2, "live", []), 0, p.Audio(b"\7"))
    next_batch(lane)
    assert [r.message for r in told if isinstance(r, p.Failed)] == ["RuntimeError: a window that cannot be"]
    lane.go.release()
    thread.feed(stream(3, "live", []), 0, p.Audio(b"\7"))
    next_batch(lane)
    assert lane.batches == [[1], [1], [2]], "and the others are served"
