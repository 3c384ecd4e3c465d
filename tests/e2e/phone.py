"""A telephone that speaks Twilio's framing: plays what it is sent in real time, answers marks, hears and talks."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from typing import Any

import numpy as np
import soxr
import websockets

from bargein.pipeline.audio import _DECODE, _ENCODE

I16 = np.ndarray
FRAME = 160
SILENCE = bytes([0xFF]) * FRAME


def to_line(x: I16, rate: int = 24000) -> list[bytes]:
    """16-bit samples as frames of mu-law."""
    y = soxr.resample(x.astype(np.float32) / 32768, rate, 8000)
    pcm = np.rint(np.clip(y, -1, 1) * 32767).astype(np.int32)
    data = _ENCODE["g711_ulaw"][pcm + 32768].tobytes()
    return [data[n : n + FRAME].ljust(FRAME, b"\xff") for n in range(0, len(data), FRAME)]


class Phone:
    """`async with Phone(url, parameters)`: a call. `heard`: mu-law as it was played, in real time; `events`: the rest."""

    def __init__(self, url: str, parameters: dict[str, str] | None = None) -> None:
        self._url, self._parameters = url, parameters or {}
        self._say: deque[bytes] = deque()
        self._buffer: deque[bytes | str] = deque()  # frames to play, and marks between them
        self.heard = bytearray()
        self.silent_ms = 10_000  # since a sound was last played
        self.events: list[tuple[float, str]] = []
        self.close: tuple[int, str] | None = None

    async def __aenter__(self) -> Phone:
        self._ws = await websockets.connect(self._url)
        await self.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        start = {"streamSid": "MZ1", "callSid": "CA1", "accountSid": "AC1", "tracks": ["inbound"], "mediaFormat": form}
        await self.send({"event": "start", "sequenceNumber": "1", "streamSid": "MZ1",
                         "start": start | {"customParameters": self._parameters}})  # fmt: skip
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._clock())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._ws.close()

    async def send(self, message: dict[str, Any]) -> None:
        await self._ws.send(json.dumps(message))

    async def _read(self) -> None:
        try:
            async for raw in self._ws:
                message = json.loads(raw)
                self.events.append((time.monotonic(), message["event"]))
                match message["event"]:
                    case "media":
                        data = base64.b64decode(message["media"]["payload"])
                        self._buffer.extend(data[n : n + FRAME] for n in range(0, len(data), FRAME))
                    case "mark":
                        self._buffer.append(message["mark"]["name"])
                    case "clear":
                        marks = [x for x in self._buffer if isinstance(x, str)]
                        self._buffer.clear()
                        for name in marks:
                            await self.send({"event": "mark", "streamSid": "MZ1", "mark": {"name": name}})
        except websockets.ConnectionClosed:
            pass
        self.close = (self._ws.close_code or 0, self._ws.close_reason or "")

    async def _clock(self) -> None:
        start, n = time.monotonic(), 0
        while self.close is None:
            await asyncio.sleep(max(0.0, start + n * 0.02 - time.monotonic()))
            n += 1
            frame = self._say.popleft() if self._say else SILENCE
            media = {"track": "inbound", "chunk": str(n), "timestamp": str(20 * n), "payload": base64.b64encode(frame).decode()}
            try:
                await self.send({"event": "media", "streamSid": "MZ1", "media": media})
                while self._buffer and isinstance(self._buffer[0], str):
                    name = self._buffer.popleft()
                    await self.send({"event": "mark", "streamSid": "MZ1", "mark": {"name": name}})
            except websockets.ConnectionClosed:
                return
            played = self._buffer.popleft() if self._buffer else SILENCE
            assert isinstance(played, bytes)
            self.heard += played
            loud = np.abs(_DECODE["g711_ulaw"][np.frombuffer(played, np.uint8)]).max(initial=0) > 300
            self.silent_ms = 0 if loud else self.silent_ms + 20

    async def say(self, x: I16, rate: int = 24000) -> None:
        """Speak samples and wait until they have been sent."""
        self._say.extend(to_line(x, rate))
        while self._say:
            await asyncio.sleep(0.01)

    async def press(self, key: str) -> None:
        await self.send({"event": "dtmf", "streamSid": "MZ1", "dtmf": {"track": "inbound_track", "digit": key}})

    async def reply(self, timeout: float = 20, quiet_ms: int = 900) -> np.ndarray:
        """Wait for the other side to begin to speak and to fall silent; what was played meanwhile, 8 kHz."""
        mark, deadline = len(self.heard), time.monotonic() + timeout
        while self.silent_ms and self.close is None:
            assert time.monotonic() < deadline, "nobody spoke"
            await asyncio.sleep(0.02)
        while self.silent_ms < quiet_ms and self.close is None:
            assert time.monotonic() < deadline, "it did not end"
            await asyncio.sleep(0.02)
        return _DECODE["g711_ulaw"][np.frombuffer(bytes(self.heard[mark:]), np.uint8)]
