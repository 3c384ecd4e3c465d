"""The WebRTC transport's own decisions, with a stand-in for the session: floods, envelopes, what waits for the channel."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable

from bargein.pipeline.transports.framing import Unwrapper, wrap
from bargein.pipeline.transports.sdp import finish_answer
from bargein.pipeline.transports.webrtc import IceSettings, WebRtcTransport
from bargein.realtime import events as e
from bargein.realtime.settings import Limits


class Listener:
    """Takes what a session runner takes."""

    def __init__(self) -> None:
        self.limits = Limits(events_burst=100, events_per_s=10)
        self.received: list[str | bytes] = []
        self.told: list[e.Input] = []

    def now(self) -> float:
        return 0.0

    def receive(self, raw: str | bytes) -> None:
        self.received.append(raw)

    def tell(self, ev: e.Input) -> None:
        self.told.append(ev)


def with_transport(visit: Callable[[WebRtcTransport, Listener], None]) -> None:
    async def run() -> None:
        transport, listener = WebRtcTransport(IceSettings()), Listener()
        transport.runner = listener  # type: ignore[assignment]
        try:
            visit(transport, listener)
        finally:
            await transport.free()

    asyncio.run(run())


def test_a_flood_on_the_channel_is_cut_and_told_once() -> None:
    def visit(transport: WebRtcTransport, listener: Listener) -> None:
        for n in range(3000):
            transport._on_message(json.dumps({"type": "x", "n": n}))
        assert 100 <= len(listener.received) <= 110
        (fault,) = listener.told
        assert isinstance(fault, e.ClientFault) and fault.code == "rate_limit_exceeded"

    with_transport(visit)


def test_events_wait_for_the_channel_and_sidebands_hear_them_at_once() -> None:
    def visit(transport: WebRtcTransport, listener: Listener) -> None:
        heard: list[str | None] = []
        transport.listeners.add(heard.append)
        transport.send("one")
        transport.send("two")
        assert heard == ["one", "two"] and transport._waiting == ["one", "two"]

    with_transport(visit)


def test_long_messages_travel_in_pieces_and_come_out_whole() -> None:
    text = json.dumps({"type": "session.update", "session": {"instructions": "äöü" * 2000}})
    pieces = wrap(text, 7)
    assert len(pieces) > 5 and all(len(p.encode()) <= 900 for p in pieces)
    reader = Unwrapper()
    out = [reader.feed(p) for p in pieces]
    assert out[:-1] == [None] * (len(pieces) - 1)
    assert isinstance(out[-1], bytes) and out[-1].decode() == text
    (short,) = wrap("{}", 8)
    assert reader.feed(short) == b"{}" and reader.feed(text) == text


def test_pieces_out_of_order_are_not_put_together() -> None:
    reader = Unwrapper()
    data = base64.b64encode(b"x").decode()

    def piece(index: object, total: object = 3, name: str = "m") -> str:
        return json.dumps({"type": "partial_message", "id": name, "index": index, "total": total, "data": data})

    assert reader.feed(piece(0)) is None
    assert reader.feed(piece(2)) == piece(2), "handed on as it is: the event reader says what is wrong"
    for odd in (piece("x"), piece(0, 0), piece(0, 10**9), piece(None), '{"type":"full_message","data":5}'):
        assert reader.feed(odd) == odd


def test_the_answer_asks_for_redundancy_and_offers_the_public_address() -> None:
    sdp = "v=0\r\na=rtpmap:111 opus/48000/2\r\na=candidate:f 1 udp 2130706431 10.0.0.5 5000 typ host\r\n"
    lines = finish_answer(sdp, "203.0.113.7").splitlines()
    assert "a=fmtp:111 minptime=10;useinbandfec=1" in lines
    assert "a=candidate:fp 1 udp 2130706430 203.0.113.7 5000 typ srflx raddr 10.0.0.5 rport 5000" in lines
    assert len(finish_answer(sdp).splitlines()) == 4
