"""The engine's loop on lanes that count: order, cancellation, credit, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from bargein.engine import protocol as p
from bargein.engine.core import PAUSE_S, Core
from bargein.engine.desk import MAX_BATCH
from bargein.engine.lane import Lane, Steps, Stream, Together


class CountingLane(Lane):
    """A request of n samples takes n steps; each step is written to `log`."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.closed: list[int] = []
        self.gate = threading.Event()
        self.begun = threading.Event()

    def open(self, stream: Stream) -> None:
        if stream.params.get("bad"):
            raise ValueError("bad parameters")

    def close(self, stream: Stream) -> None:
        self.closed.append(stream.id)

    def warm(self) -> None:
        pass

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        assert isinstance(body, p.Transcribe)
        if body.num_samples < 0:
            raise ValueError("negative")
        if body.num_samples == 777:
            raise KeyError("a bug")
        return self._steps(stream, tag, body.num_samples)

    def _steps(self, stream: Stream, tag: int, n: int) -> Steps:
        self.begun.set()
        self.gate.wait(5)
        for _ in range(n):
            self.log.append((stream.id, tag))
            if n == 666:
                raise RuntimeError("boom")
            stream.send(tag, p.TurnScore(0.5))
            yield
        stream.send(tag, p.Generated("stop", 0, n, 0))


class SummingLane(CountingLane):
    """A request of n samples wants the doubles of 1 to n, and answers with their sum; 13 cannot be doubled."""

    shares = True

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    def together(self, kind: str, items: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(items))
        time.sleep(0.003)  # the loop goes by what was used
        if 98 in items:
            raise RuntimeError("all of it")
        return [ValueError("unlucky") if x == 13 else 2 * x for x in items]

    def _steps(self, stream: Stream, tag: int, n: int) -> Steps:
        self.gate.wait(5)
        yield
        total = 0
        for k in range(1, n + 1) if n < 98 else [n]:
            total += yield Together("odd" if n % 2 else "even", k)
        stream.send(tag, p.Generated("stop", 0, total, 0))


class Box:
    """Collects replies; waits for one that ends a tag."""

    def __init__(self) -> None:
        self.replies: list[p.Reply] = []
        self.changed = threading.Condition()

    def __call__(self, reply: p.Reply) -> None:
        with self.changed:
            self.replies.append(reply)
            self.changed.notify()

    def wait(self, *tags: int) -> None:
        def over() -> bool:
            ended = {r.tag for r in self.replies if isinstance(r, p.Failed)}
            ended |= {r.tag for r in self.replies if isinstance(r, p.Result) and isinstance(r.body, p.Generated)}
            return set(tags) <= ended

        with self.changed:
            assert self.changed.wait_for(over, 5), self.replies


@pytest.fixture
def lane() -> CountingLane:
    return CountingLane()


@pytest.fixture
def core(lane: CountingLane) -> Iterator[Core]:
    core = Core({"stt": lane, "chat": lane, "turn": lane})
    core.start()
    yield core
    core.stop()


def feed(core: Core, box: Box, stream: int, tag: int, n: int, due_ms: float = 0) -> None:
    core.submit(1, p.Feed(stream, tag, p.Transcribe(n, 0), due_ms), box)


def opened(core: Core, box: Box, *lanes: str) -> None:
    for number, name in enumerate(lanes, 1):
        core.submit(1, p.Open(number, name, {}), box)  # type: ignore[arg-type]


def test_the_sooner_due_goes_first_and_long_work_is_interleaved(core: Core, lane: CountingLane) -> None:
    box = Box()
    opened(core, box, "stt", "turn")
    feed(core, box, 1, 1, 50, due_ms=1000)
    feed(core, box, 2, 2, 2)
    lane.gate.set()
    box.wait(1, 2)
    assert lane.log.index((2, 2)) <= 1, "the urgent job waits for at most a step"


def summing(requests: dict[int, int]) -> tuple[SummingLane, Box]:
    """A lane and what came of requests (tag: n), each on its own stream, that all began at once."""
    lane, box = SummingLane(), Box()
    core = Core({"chat": lane})
    core.start()
    opened(core, box, *["chat"] * len(requests))
    for number, (tag, n) in enumerate(requests.items(), 1):
        feed(core, box, number, tag, n)
    lane.gate.set()
    box.wait(*requests)
    core.stop()
    return lane, box


def sums(box: Box) -> dict[int, int]:
    found = (r for r in box.replies if isinstance(r, p.Result) and isinstance(r.body, p.Generated))
    return {r.tag: r.body.output_tokens for r in found if isinstance(r.body, p.Generated)}


def test_jobs_that_want_the_same_are_served_in_one_call() -> None:
    lane, box = summing({tag: 12 for tag in range(1, 9)})
    assert sums(box) == {tag: 156 for tag in range(1, 9)}
    assert max(map(len, lane.batches)) == 8, "all eight went together"
    assert len(lane.batches) <= 12 + 12, "but for the steps in which they came and went"


def test_a_batch_has_a_largest_size_and_one_kind() -> None:
    many = 3 * MAX_BATCH  # so that enough meet, however slowly they come
    lane, box = summing({tag: 12 for tag in range(many)} | {100: 5})
    assert set(sums(box).values()) == {156, 30} and len(sums(box)) == many + 1
    assert max(map(len, lane.batches)) == MAX_BATCH


def test_what_fails_in_a_batch_fails_alone_and_a_failed_batch_is_told_to_all() -> None:
    _, box = summing({1: 15, 2: 7, 3: 98})
    assert sums(box) == {2: 56}
    failed = {r.tag: r.message for r in box.replies if isinstance(r, p.Failed)}
    assert failed[1] == "ValueError: unlucky" and failed[3] == "RuntimeError: all of it"


class MeetingLane(CountingLane):
    """Each step waits for a step of another stream; `alone` counts those that nobody joined."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2)
        self.at_once: dict[int, int] = {}
        self.most_of_a_stream = 0

    def _steps(self, stream: Stream, tag: int, n: int) -> Steps:
        for _ in range(n):
            self.at_once[stream.id] = self.at_once.get(stream.id, 0) + 1
            self.most_of_a_stream = max(self.most_of_a_stream, self.at_once[stream.id])
            self.meeting.wait(5)
            self.at_once[stream.id] -= 1
            yield None
        stream.send(tag, p.Generated("stop", 0, n, 0))


def test_two_workers_serve_two_streams_at_once_but_never_one_stream_twice() -> None:
    lane, box, threads = MeetingLane(), Box(), set()
    core = Core({"stt": lane}, None, 2, lambda n: threads.add((threading.current_thread().name, n)))
    core.start()
    opened(core, box, "stt", "stt")
    for tag in range(6):
        feed(core, box, 1 + tag % 2, tag, 20)
    box.wait(*range(6))
    core.stop()
    assert lane.most_of_a_stream == 1 and not [r for r in box.replies if isinstance(r, p.Failed)]
    assert {("device-0", 1), ("device-1", 1)} <= threads, "beside another, a worker keeps to its core"


def test_a_worker_that_is_alone_uses_every_core() -> None:
    lane, box, threads = CountingLane(), Box(), []
    lane.gate.set()
    core = Core({"stt": lane}, None, 2, threads.append)
    core.start()
    opened(core, box, "stt")
    feed(core, box, 1, 1, 5)
    box.wait(1)
    core.stop()
    assert threads and set(threads) == {2}


def test_one_thing_that_can_wait_leaves_the_cores_to_an_urgent_one() -> None:
    lane, box, threads = CountingLane(), Box(), []
    core = Core({"stt": lane, "turn": lane}, None, 2, threads.append)
    core.start()
    opened(core, box, "stt", "turn")
    feed(core, box, 1, 1, 40)
    assert lane.begun.wait(5)
    feed(core, box, 2, 2, 3, due_ms=60_000)
    lane.gate.set()
    box.wait(1, 2)
    core.stop()
    assert lane.log == [(1, 1)] * 40 + [(2, 2)] * 3, "what is due in a minute came last"


def test_what_has_waited_until_it_is_due_is_done_beside_the_rest() -> None:
    lane, box = MeetingLane(), Box()
    core = Core({"stt": lane, "turn": lane}, None, 2)
    core.start()
    opened(core, box, "stt", "turn")
    feed(core, box, 1, 1, 3)
    feed(core, box, 2, 2, 3, due_ms=300)  # each step of the first waits for one of the second
    box.wait(1, 2)
    core.stop()
    assert not [r for r in box.replies if isinstance(r, p.Failed)]


def test_calls_pass_a_flood_of_requests_however_old_it_is() -> None:
    lane, box = CountingLane(), Box()
    core = Core({"stt": lane}, None, 1)
    core.start()
    for number in range(1, 22):
        core.submit(1, p.Open(number, "stt", {}, "live" if number == 21 else "interactive"), box)
    for number in range(1, 21):
        feed(core, box, number, number, 50, due_ms=-10_000)
    feed(core, box, 21, 21, 20, due_ms=0)
    lane.gate.set()
    box.wait(*range(1, 22))
    core.stop()
    last = max(n for n, (stream, _) in enumerate(lane.log) if stream == 21)
    assert last < 200, "of a thousand steps that were due before"


class SlowLane(CountingLane):
    """Every step takes a while."""

    def _steps(self, stream: Stream, tag: int, n: int) -> Steps:
        for step in super()._steps(stream, tag, n):
            time.sleep(0.002)
            yield step


def test_a_long_recording_leaves_every_core_to_a_call_but_for_its_share() -> None:
    lane, box, threads = SlowLane(), Box(), []
    core = Core({"stt": lane}, None, 2, threads.append)
    for number, cls in ((1, "live"), (2, "bulk"), (3, "bulk")):
        core.submit(1, p.Open(number, "stt", {}, cls), box)  # type: ignore[arg-type]
    lane.gate.set()
    for number in (2, 3):
        feed(core, box, number, number, 100, due_ms=-60_000)
    feed(core, box, 1, 1, 100)
    core.start()
    box.wait(1, 2, 3)
    core.stop()
    last = max(n for n, (stream, _) in enumerate(lane.log) if stream == 1)
    assert last - 99 <= 20, "steps of recordings beside a hundred of a call"
    assert threads.count(2) > 50, "which had all cores to itself for most of them"


def test_a_long_recording_goes_on_with_one_core_a_moment_after_a_call_s_step() -> None:
    """An answer's pieces of work follow each other: the next one shall find a core."""
    lane, box, threads = SlowLane(), Box(), []
    core = Core({"stt": lane}, None, 2, threads.append)
    core.submit(1, p.Open(1, "stt", {}, "live"), box)
    core.submit(1, p.Open(2, "stt", {}, "bulk"), box)
    lane.gate.set()
    core.start()
    feed(core, box, 1, 1, 5)
    box.wait(1)
    threads.clear()
    feed(core, box, 2, 2, 5, due_ms=-60_000)
    box.wait(2)
    assert threads == [1] * 6, "five steps and the end, though nothing else was to be done"
    core._called_at -= 10
    threads.clear()
    feed(core, box, 2, 3, 5, due_ms=-60_000)
    box.wait(3)
    core.stop()
    assert threads == [2] * 6, "there were no calls for a while"


def test_a_call_s_work_that_follows_within_a_moment_does_not_meet_a_recording() -> None:
    lane, box = SlowLane(), Box()
    core = Core({"stt": lane}, None, 2, lambda n: None)
    core.submit(1, p.Open(1, "stt", {}, "live"), box)
    core.submit(1, p.Open(2, "stt", {}, "bulk"), box)
    lane.gate.set()
    feed(core, box, 2, 2, 3, due_ms=-60_000)
    for desk in core._desks.values():
        while requests := desk.take(time.monotonic()):
            for asked in requests:
                core._receive(desk, asked)
    core._called_at = time.monotonic() + 60
    assert core._next() is None and 60 < (core._patience or 0) + 1 <= 61 + PAUSE_S
    core._called_at = time.monotonic() - PAUSE_S
    assert core._next() is core._desks[1, 2]


class ReadingLane(SummingLane):
    """Requests of an odd number of samples are answered where they are received, and that takes a while."""

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        assert isinstance(body, p.Transcribe)
        if body.num_samples % 2 == 0:
            return self._steps(stream, tag, body.num_samples)
        time.sleep(0.002)
        self.log.append((stream.id, tag))
        stream.send(tag, p.Generated("length", 0, 0, 0))
        return None


def test_calls_pass_requests_that_are_still_to_be_received_and_those_are_received_all_the_same() -> None:
    lane, box = ReadingLane(), Box()
    lane.gate.set()
    core = Core({"chat": lane}, None, 1)
    for number, cls in ((1, "interactive"), (2, "live")):
        core.submit(1, p.Open(number, "chat", {}, cls), box)  # type: ignore[arg-type]
    core.submit(1, p.Credit(1, 1000), box)
    for tag in range(400):
        feed(core, box, 1, tag, 1)
    feed(core, box, 2, 1000, 12)
    core.start()
    box.wait(1000)
    assert len(lane.log) < 200, "of four hundred that came before"
    box.wait(*range(400))
    assert [tag for _, tag in lane.log] == list(range(400)), "in their order"
    core.stop()


def test_a_closed_stream_leaves_no_desk_behind(core: Core, lane: CountingLane) -> None:
    box = Box()
    lane.gate.set()
    for number in range(1, 30):
        core.submit(1, p.Open(number, "stt", {}), box)
        feed(core, box, number, number, 1)
        box.wait(number)
        core.submit(1, p.Close(number), box)
    until = time.monotonic() + 5
    while (core.num_streams(), len(core._open)) != (0, 0):
        assert time.monotonic() < until
    assert len(lane.closed) == 29


def test_cancel_stops_between_steps(core: Core, lane: CountingLane) -> None:
    box = Box()
    opened(core, box, "stt", "stt")
    feed(core, box, 1, 1, 10)
    core.submit(1, p.Cancel(1, 1), box)
    feed(core, box, 2, 2, 1)
    lane.gate.set()
    box.wait(2)
    assert (1, 1) not in lane.log[2:]


def test_a_failing_step_ends_its_tag_only(core: Core, lane: CountingLane) -> None:
    box = Box()
    opened(core, box, "stt")
    lane.gate.set()
    feed(core, box, 1, 1, 666)
    feed(core, box, 1, 2, 3)
    box.wait(1, 2)
    failed = [r for r in box.replies if isinstance(r, p.Failed)]
    assert [(f.tag, f.message) for f in failed] == [(1, "RuntimeError: boom")]


def test_a_request_that_a_lane_chokes_on_fails_and_the_worker_lives(core: Core, lane: CountingLane) -> None:
    box = Box()
    opened(core, box, "stt")
    lane.gate.set()
    feed(core, box, 1, 1, 777)
    feed(core, box, 1, 2, 3)
    box.wait(1, 2)
    failed = [r for r in box.replies if isinstance(r, p.Failed)]
    assert [(f.tag, f.message) for f in failed] == [(1, "KeyError: 'a bug'")]


def test_refusals_name_the_problem(core: Core, lane: CountingLane) -> None:
    box = Box()
    lane.gate.set()
    core.submit(1, p.Open(1, "stt", {"bad": 1}), box)
    feed(core, box, 1, 5, 1)
    core.submit(1, p.Open(2, "stt", {}), box)
    feed(core, box, 2, 6, -1)
    box.wait(5, 6)
    messages = [r.message for r in box.replies if isinstance(r, p.Failed)]
    assert messages == ["bad parameters", "no such stream", "negative"]


def test_a_reader_without_credit_gets_no_more_and_loses_nothing(core: Core, lane: CountingLane) -> None:
    box = Box()
    opened(core, box, "stt", "stt")
    lane.gate.set()
    feed(core, box, 1, 1, p.CREDIT + 100)
    feed(core, box, 2, 2, 10)
    box.wait(2)
    mine = [r for r in box.replies if isinstance(r, p.Result) and r.stream == 1]
    assert len(mine) <= p.CREDIT
    core.submit(1, p.Credit(1, 1000), box)
    box.wait(1)
    mine = [r for r in box.replies if isinstance(r, p.Result) and r.stream == 1]
    assert len(mine) == p.CREDIT + 101


def test_a_lost_connection_closes_its_streams(core: Core, lane: CountingLane) -> None:
    box = Box()
    opened(core, box, "stt", "chat")
    lane.gate.set()
    feed(core, box, 1, 1, 1)
    box.wait(1)
    core.disconnect(1)
    other = Box()
    core.submit(2, p.Open(1, "stt", {}), other)
    core.submit(2, p.Feed(1, 9, p.Transcribe(1, 0)), other)
    other.wait(9)
    assert sorted(lane.closed) == [1, 2] and core.num_streams() == 1


def test_messages_survive_the_socket() -> None:
    for request in (
        p.Open(1, "chat", {"a": 1}),
        p.Feed(1, 2, p.Generate((p.ChatTurn("user", "hi"),), "be brief", 10, 0.5, 1), 20.0),
        p.Feed(1, 2, p.Say(("a", "", "b c"), 1.1)),
        p.Cancel(1, None),
        p.Credit(3, 4),
    ):
        assert p.unpack_request(p.pack(request)[4:]) == request
    speech = p.Speech(b"ab", ((1, 2),), True)
    for reply in (p.Hello(True, 1, {"stt": "x"}), p.Result(1, 2, speech), p.Failed(1, None, "x")):
        assert p.unpack_reply(p.pack(reply)[4:]) == reply
