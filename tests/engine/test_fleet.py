"""Several engines seen as one: which of them a stream goes to, and what becomes of a session whose engine is lost."""

from __future__ import annotations

import pytest

from bargein.engine import protocol as p
from bargein.engine.client import EngineClient, EngineStream, EngineUnavailable
from bargein.engine.fleet import Engine, Fleet, together


class Link:
    """An engine as its client sees it: what it was asked."""

    def __init__(self, client: EngineClient, call_s: float = 0.1) -> None:
        self.asked: list[p.Request] = []
        client.attach(self)
        client.receive(p.Hello(True, 1, {"stt": "whisper-base"}, call_s))

    def send(self, request: p.Request) -> None:
        self.asked.append(request)

    def close(self) -> None: ...

    @property
    def opened(self) -> list[str]:
        return [x.lane for x in self.asked if isinstance(x, p.Open)]


def fleet(n: int = 2) -> tuple[Fleet, list[Link]]:
    clients = [EngineClient() for _ in range(n)]
    whole = Fleet(clients, ["cpu"] * n)
    return whole, [Link(client) for client in clients]


def stream(engine: Engine, lane: p.LaneName = "stt", lost: list[str] | None = None) -> EngineStream:
    noted = lost if lost is not None else []
    return engine.open(
        lane, {}, on_result=lambda t, b: None, on_failed=lambda t, m: None, on_lost=lambda: noted.append(lane)
    )


def test_a_sessions_streams_go_to_one_engine_and_sessions_spread() -> None:
    whole, links = fleet()
    sessions = [whole.pinned() for _ in range(4)]
    for session in sessions:
        for lane in ("vad", "stt", "chat"):
            stream(session, lane)
    assert [link.opened for link in links] == [["vad", "stt", "chat"] * 2] * 2


def test_work_that_is_one_stream_goes_to_the_quietest() -> None:
    whole, links = fleet(3)
    busy = whole.pinned()
    for _ in range(2):
        stream(busy)
    kept = [stream(whole, "tts") for _ in range(4)]
    assert [len(link.opened) for link in links] == [2, 2, 2]
    kept[0].close()
    stream(whole, "embed")
    assert links[1].opened == ["tts", "tts", "embed"]


def test_a_session_whose_engine_is_lost_goes_on_with_another() -> None:
    whole, links = fleet()
    lost: list[str] = []
    mine, other = whole.pinned(), whole.pinned()
    stream(mine, "vad", lost)
    stream(other, "vad", lost)
    changes: list[bool] = []
    whole.on_change = lambda: changes.append(whole.ready)
    whole.clients[0].lost()
    assert lost == ["vad"] and changes == [True] and whole.ready and mine.ready
    stream(mine, "vad", lost)
    stream(mine, "chat", lost)
    assert links[1].opened == ["vad", "vad", "chat"]
    back = Link(whole.clients[0])  # the engine is replaced: who has moved stays, who comes goes there
    stream(mine, "stt")
    stream(whole.pinned(), "vad")
    assert links[1].opened == ["vad", "vad", "chat", "stt"] and back.opened == ["vad"]


def test_with_no_engine_nothing_is_opened() -> None:
    whole, _ = fleet()
    for client in whole.clients:
        client.lost()
    assert not whole.ready and whole.serving == []
    with pytest.raises(EngineUnavailable):
        stream(whole.pinned())
    with pytest.raises(EngineUnavailable):
        stream(whole)


def test_reports_are_added_up() -> None:
    whole, _ = fleet()
    told: list[p.Load] = []
    whole.on_load = told.append
    a = p.Load(2, 5, {"stt": p.LaneLoad(3, 1, 0.5, 10, 12)}, (1, 2), 4.0, 100, 2.5, 1)
    b = p.Load(1, 7, {"stt": p.LaneLoad(1, 0, 0.25, 5, 5), "tts": p.LaneLoad(2, 0, 0.1, 4, 4)}, (10, 20), 1.0, 200, 0.5, 2)
    whole.clients[0].receive(a)
    whole.clients[1].receive(b)
    lanes = {"stt": p.LaneLoad(4, 1, 0.75, 15, 17), "tts": p.LaneLoad(2, 0, 0.1, 4, 4)}
    assert told == [together([a]), p.Load(3, 12, lanes, (11, 22), 5.0, 300, 3.0, 3)]
    assert together([a]) == a


def test_what_a_call_takes_is_what_the_slowest_engine_says() -> None:
    clients = [EngineClient(), EngineClient()]
    whole = Fleet(clients, ["cpu", "cpu"])
    assert whole.call_s == 0.0
    Link(clients[0], 0.1)
    Link(clients[1], 0.25)
    assert whole.call_s == 0.25
