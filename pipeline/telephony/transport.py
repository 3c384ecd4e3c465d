"""A session over a telephone line: frames of mu-law out, the caller's in; marks tell how far behind the line is.

The provider buffers what it is sent. So audio runs a little ahead of the playout clock, as over a WebSocket; when a
reply is cut, what is still buffered is cleared; and marks, which come back when what was before them has been played,
say by how much the caller hears later than our clock thinks: the clock is set back by that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

import msgspec
from aiohttp import WSMsgType, web

from bargein.realtime import events as e

from ..runner import SessionRunner
from ..transports.rates import Rates
from ..transports.websocket import WebSocketTransport
from .framing import Ended, Framing, Key, PhoneError, PhoneEvent, Played, Sound

log = logging.getLogger("bargein.phone")

FRAME_S = 0.02
MARK_EVERY = 10  # frames
MAX_LAG_MS = 1000.0
RECENT = 9  # marks whose median is the lag
CLEARED = '"type":"output_audio_buffer.cleared"'
_JSON = msgspec.json.Encoder()


class PhoneTransport:
    """The sending side. `bind` it to its runner before anything is received."""

    carries_audio = True
    own_clock = False

    def __init__(self, ws: web.WebSocketResponse, framing: Framing) -> None:
        self._out = WebSocketTransport(ws)
        self._framing = framing
        self._loop = asyncio.get_running_loop()
        self._cleared = 0  # replies that were cut: their marks come back early
        self._frames = 0
        self._ends_at = 0.0  # when what was sent will have been played, by our clock
        self._marks: dict[str, float] = {}
        self._lags: deque[float] = deque(maxlen=RECENT)

    def bind(self, runner: SessionRunner) -> None:
        self._out.runner = runner

    def lag_ms(self) -> float:
        """By how much the caller hears later than our clock says."""
        return sorted(self._lags)[len(self._lags) // 2] if self._lags else 0.0

    def send(self, text: str) -> None:
        """Events have nobody to go to; a cut is the line's business."""
        if CLEARED in text[:120]:
            self._cleared += 1
            self._marks.clear()
            self._ends_at = 0.0
            self._put(self._framing.clear())

    def send_audio(self, pcm: bytes) -> None:
        """One frame in the session's format, mu-law."""
        self._put(self._framing.sound(pcm))
        self._ends_at = max(self._ends_at, self._loop.time()) + FRAME_S
        self._frames += 1
        if self._frames % MARK_EVERY == 0:
            name = f"{self._cleared}.{self._frames}"
            self._marks[name] = self._ends_at
            self._put(self._framing.mark(name))

    def played(self, name: str) -> None:
        """A mark came back."""
        expected = self._marks.pop(name, None)
        if expected is not None:
            late = 1000 * (self._loop.time() - expected)
            self._lags.append(min(MAX_LAG_MS, max(0.0, late)))

    def close(self, code: int, reason: str) -> None:
        self._out.close(code, reason)

    def _put(self, message: dict[str, object]) -> None:
        self._out.send(_JSON.encode(message).decode())

    async def write(self) -> None:
        """Empty the queue until the session closes the transport or the line is gone."""
        await self._out.write()


async def serve(
    ws: web.WebSocketResponse, framing: Framing, transport: PhoneTransport, runner: SessionRunner
) -> None:  # fmt: skip
    """Run a session that has been opened, until either side ends it."""
    transport.bind(runner)
    writer = asyncio.create_task(transport.write(), name="phone-writer")
    reader = asyncio.create_task(_read(ws, framing, transport, runner), name="phone-reader")
    try:
        await runner.run()
        await asyncio.wait([writer], timeout=5)
    finally:
        for task in (reader, writer):
            task.cancel()
        await asyncio.gather(reader, writer, return_exceptions=True)


async def _read(
    ws: web.WebSocketResponse, framing: Framing, transport: PhoneTransport, runner: SessionRunner
) -> None:  # fmt: skip
    rates = Rates(runner.limits, time.monotonic())
    async for message in ws:
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            break
        try:
            events = framing.read(message.data)
        except PhoneError as problem:
            log.warning("%s: %s: %s", runner.session_id, framing.name, problem)
            continue
        if any(_take(event, transport, runner) for event in events) or runner.is_over:
            break
        if (wait := rates.take(time.monotonic(), len(message.data))) > 0:
            await asyncio.sleep(wait)
    runner.tell(e.TransportClosed(runner.now()))


def _take(event: PhoneEvent, transport: PhoneTransport, runner: SessionRunner) -> bool:
    """Do what an event asks for; whether it was the end."""
    match event:
        case Sound(payload):
            runner.append(payload)
        case Key(key):
            runner.key(key)
        case Played(name):
            transport.played(name)
        case Ended():
            return True
    return False
