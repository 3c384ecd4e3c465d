"""Webhooks against a real receiver: signed as Standard Webhooks says, sent again until they are taken, never awaited."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from bargein.http_api.config import ConfigError, load
from bargein.http_api.webhooks import Webhooks, key_of, signature
from bargein.pipeline.inspect import Summary
from bargein.pipeline.turns import Turn

SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"
SUMMARY = Summary("sess_a", "websocket", "porter", 1000.0, 0.0, 12.5, "client_closed", [
    Turn("item_a", 0.0, voice_end=100.0, first_frame=700.0), Turn("item_b", 0.0, voice_end=0.0, first_frame=900.0),
    Turn("typed_1", 0.0, typed=True, ask=0.0, first_frame=50.0)], [])  # fmt: skip


class Receiver:
    """Answers with each of `statuses` in turn, then 204; status 0: the connection is dropped."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[float, dict[str, str], bytes]] = []
        self.taken = asyncio.Event()

    async def hook(self, request: web.Request) -> web.Response:
        self.got.append((time.monotonic(), {k.lower(): v for k, v in request.headers.items()}, await request.read()))
        status = self.statuses.pop(0) if self.statuses else 204
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
        if status == 204:
            self.taken.set()
        return web.Response(status=status or 500, headers={"Location": "/elsewhere"})


def receiving(receiver: Receiver, play: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        app = web.Application()
        app.router.add_post("/hook", receiver.hook)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            await play(f"http://127.0.0.1:{runner.addresses[0][1]}/hook")
        finally:
            await runner.cleanup()

    asyncio.run(run())


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """Its documentation's own example."""
    body = b'{"event_type":"ping","data":{"success":true}}'
    told = signature(key_of(SECRET), "msg_loFOjxBNrRLzqYUf", 1731705121, body)
    assert told == "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="


def test_a_receiver_that_fails_is_tried_again() -> None:
    """An error, a dropped connection and a redirect are failures; the same message comes again, later and later."""
    receiver = Receiver(500, 0, 302)

    async def play(url: str) -> None:
        hooks = Webhooks((url,), SECRET, 5, (0.1, 0.4, 0.8))
        before = time.monotonic()
        hooks.ended(SUMMARY, True)
        assert time.monotonic() - before < 0.05, "nothing is waited for"
        await asyncio.wait_for(receiver.taken.wait(), 10)
        await hooks.close()

    receiving(receiver, play)
    assert len(receiver.got) == 4
    at, heads, bodies = zip(*receiver.got, strict=True)
    assert at[1] - at[0] > 0.07 and at[2] - at[1] > 0.3 and at[3] - at[2] > 0.6
    assert len({h["webhook-id"] for h in heads}) == 1 and len(set(bodies)) == 1
    for head, body in zip(heads, bodies, strict=True):
        told = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + body
        mac = hmac.new(base64.b64decode(SECRET[6:]), told, hashlib.sha256).digest()
        assert head["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
        assert abs(int(head["webhook-timestamp"]) - time.time()) < 20
    told = json.loads(bodies[0])
    assert told["type"] == "call.ended" and told["data"] == {
        "call_id": "sess_a", "transport": "websocket", "answered_by": "porter", "started_at": "1970-01-01T00:16:40.000Z",
        "ended_at": "1970-01-01T00:16:52.500Z", "seconds": 12.5, "end_reason": "client_closed", "turns": 3,
        "recorded": True, "voice_to_voice_ms": {"median": 900, "most": 900},
    }  # fmt: skip


def test_a_receiver_that_is_gone_is_left_alone_and_none_is_waited_for_long() -> None:
    gone, slow = Receiver(410), Receiver(500, 500)

    async def play(url: str) -> None:
        hooks = Webhooks((url,), "", 5, (0.05, 0.05))
        hooks.started("sess_a", "websocket", "", 0.0)
        await asyncio.sleep(0.4)
        await hooks.close()

    async def at_the_end(url: str) -> None:
        hooks = Webhooks((url,), "", 5, (60.0, 60.0))
        hooks.started("sess_a", "websocket", "", 0.0)
        while not slow.got:
            await asyncio.sleep(0.01)
        before = time.monotonic()
        await hooks.close()
        assert time.monotonic() - before < 2

    receiving(gone, play)
    receiving(slow, at_the_end)
    assert len(gone.got) == 1 and "webhook-signature" not in gone.got[0][1]
    assert len(slow.got) == 2, "a last try at the server's end"


@pytest.mark.parametrize(("key", "value"), [("webhooks.urls", "ftp://a"), ("webhooks.secret", "whsec_not base64")])
def test_what_cannot_be_used_is_refused_at_the_start(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(None, {}, {key: value})
