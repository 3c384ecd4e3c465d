"""SIGTERM while calls run: they go on for as long as is configured, no others are taken, and the rest is told."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from bargein.client.session import ConnectFailed, RealtimeClient, Seen

from .conftest import serving
from .test_agent_call import ask
from .upstream import Upstream

DRAIN_S = 6.0


def test_two_calls_drain_as_configured(tmp_path: Path) -> None:
    """One ends by itself in that time, its reply whole; the other is ended when the time is up."""
    with Upstream() as upstream:
        args = ["--chat-base-url", upstream.url, "--chat-model", "stub", "--set", f"server.drain_s={DRAIN_S}"]
        running = serving(tmp_path / "log", *args, "--set", f"webhooks.urls={upstream.url.removesuffix('/v1')}/hooks")
        server = next(running)

        async def calls() -> tuple[list[Seen], str | None]:
            async with RealtimeClient(server.url) as short, RealtimeClient(server.url) as long:
                await short.wait("session.created")
                mark = await ask(short, "Say something.")
                await ask(long, "Tell me a story.")
                await asyncio.gather(short.wait("response.output_audio.delta"), long.wait("response.output_audio.delta"))
                os.kill(server.pid, signal.SIGTERM)
                told = time.monotonic()
                await asyncio.sleep(0.3)
                assert server.get("/health/ready") == (503, {"status": "draining"})
                assert server.get("/health")[0] == 200
                with pytest.raises(ConnectFailed, match="503"):
                    async with RealtimeClient(server.url):
                        pass
                done = await short.wait("response.done", mark, 8)
                assert done is not None and done.event["response"]["status"] == "completed"
                await short.send("session.close")
                ended = await long.wait("session.done", 0, 15)
                assert ended is not None and ended.event["reason"] == "draining"
                assert DRAIN_S - 0.5 < ended.at - told < DRAIN_S + 2
                await long.wait(lambda s: False, len(long.seen), 3)  # until it is closed
                return long.seen, long.closed

        seen, closed = asyncio.run(calls())
        assert closed is not None
        assert [s.event["response"]["status"] for s in seen if s.type == "response.done"] == ["cancelled"]
        with pytest.raises(StopIteration):  # it has ended by itself, and cleanly
            next(running)
        reasons = sorted(word for _, body in upstream.hooks for word in ("client_closed", "draining") if word.encode() in body)
        assert reasons == ["client_closed", "draining"], "the last call's webhook went out"
