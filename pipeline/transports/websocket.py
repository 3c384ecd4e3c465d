"""A session over a WebSocket: JSON text frames both ways, audio as base64 inside them.

Sending never blocks the session: text goes into a bounded queue that a writer empties. A client that does not read its
queue empty is too slow and the session ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from aiohttp import WSMsgType, web

from bargein.realtime import events as e

from ..runner import SessionRunner
from .rates import Rates

MAX_SPEED = 8.0  # input is taken at up to this many times real time,
INPUT_BURST_S = 60.0  # beyond a burst of this length


class WebSocketTransport:
    """The sending side. `bind` it to its runner before anything is received."""

    carries_audio = False
    own_clock = False

    def __init__(self, ws: web.WebSocketResponse) -> None:
        self._ws = ws
        self._queue: deque[str] = deque()
        self._wake = asyncio.Event()
        self._close: tuple[int, str] | None = None
        self.runner: SessionRunner | None = None

    def send(self, text: str) -> None:
        self._queue.append(text)
        self._wake.set()
        runner = self.runner
        if runner is not None and len(self._queue) > runner.limits.outbound_queue_cap and self._close is None:
            self._queue.clear()
            runner.tell(e.NodeFailed(runner.now(), "client_too_slow", "the client does not read its events"))

    @property
    def num_waiting(self) -> int:
        """Events that are not written yet."""
        return len(self._queue)

    def lag_ms(self) -> float:
        return 0.0

    def send_audio(self, pcm: bytes) -> None:
        """Never called: audio travels inside the events."""

    def close(self, code: int, reason: str) -> None:
        if self._close is None:
            self._close = (code, reason)
            self._wake.set()

    async def write(self) -> None:
        """Empty the queue until the session closes the transport or the client is gone."""
        while True:
            while self._queue:
                try:
                    await self._ws.send_str(self._queue.popleft())
                except (ConnectionError, RuntimeError):  # gone; the reader notices too
                    return
            if self._close is not None:
                code, reason = self._close
                await self._ws.close(code=code, message=reason.encode())
                return
            self._wake.clear()
            await self._wake.wait()


async def serve(ws: web.WebSocketResponse, transport: WebSocketTransport, runner: SessionRunner) -> None:
    """Run a session that has been opened, until either side ends it."""
    transport.runner = runner
    writer = asyncio.create_task(transport.write(), name="ws-writer")
    reader = asyncio.create_task(_read(ws, transport, runner), name="ws-reader")
    try:
        await runner.run()
        await asyncio.wait([writer], timeout=5)
    finally:
        for task in (reader, writer):
            task.cancel()
        await asyncio.gather(reader, writer, return_exceptions=True)


async def _read(ws: web.WebSocketResponse, transport: WebSocketTransport, runner: SessionRunner) -> None:
    started = time.monotonic()
    rates = Rates(runner.limits, started)
    async for message in ws:
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            break
        runner.receive(message.data)
        if runner.is_over:
            return
        if transport.num_waiting > runner.limits.outbound_queue_cap // 4:
            await asyncio.sleep(0)  # events that lie ready are read without a pause: let their answers out
        wait = rates.take(time.monotonic(), len(message.data))
        if wait > 0:
            await asyncio.sleep(wait)
            if rates.is_flood(time.monotonic()):
                told = "more events or bytes than this server takes; they are read later"
                runner.tell(e.ClientFault(runner.now(), "rate_limit_exceeded", told))
        ahead = runner.heard_s - INPUT_BURST_S - MAX_SPEED * (time.monotonic() - started)
        if ahead > 0:  # read on when the clock has caught up
            await asyncio.sleep(ahead / MAX_SPEED)
    runner.tell(e.TransportClosed(runner.now()))
