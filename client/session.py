"""A small asyncio client for a realtime session: send events, read events, keep the trace."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import websockets
from websockets.asyncio.client import ClientConnection

from .audio import I16

Event = dict[str, Any]


class ConnectFailed(Exception):
    """The server could not be reached, or refused; the message says which."""


def with_model(url: str, model: str, **more: str) -> str:
    """An address that names who answers."""
    query = {"model": model} | more if model else more
    return url + ("&" if "?" in url else "?") + urlencode(query) if query else url


@dataclass(slots=True)
class Seen:
    """One event from the server, with the time (seconds, monotonic) at which it arrived."""

    at: float
    event: Event

    @property
    def type(self) -> str:
        return str(self.event.get("type"))


@dataclass(slots=True)
class RealtimeClient:
    """`async with RealtimeClient(url) as call:` then `send`, `append`, `wait`. `seen` holds every event, in order."""

    url: str
    key: str = ""
    on_event: Callable[[Seen], None] | None = None
    seen: list[Seen] = field(default_factory=list)
    sent: list[tuple[float, Event]] = field(default_factory=list)
    closed: str | None = None
    _ws: ClientConnection | None = None
    _reader: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> RealtimeClient:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        url = self.url if "events=" in self.url else self.url + ("&" if "?" in self.url else "?") + "events=extended"
        try:
            self._ws = await websockets.connect(url, additional_headers=headers, max_size=2**24, compression=None)
        except websockets.InvalidStatus as problem:
            body = problem.response.body.decode(errors="replace")[:300]
            raise ConnectFailed(f"{self.url}: refused with status {problem.response.status_code} {body}") from None
        except (OSError, websockets.InvalidURI, websockets.InvalidHandshake, TimeoutError) as problem:
            raise ConnectFailed(f"{self.url}: cannot connect ({problem}); is `bargein serve` running?") from None
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ws is not None:
            await self._ws.close()
        if self._reader is not None:
            await self._reader

    async def _read(self) -> None:
        assert self._ws is not None
        try:
            async for raw in self._ws:
                seen = Seen(time.monotonic(), json.loads(raw))
                self.seen.append(seen)
                if self.on_event is not None:
                    self.on_event(seen)
                self._changed.set()
        except websockets.ConnectionClosed:
            pass
        self.closed = f"{self._ws.close_code} {self._ws.close_reason}"
        self._changed.set()

    async def send(self, kind: str, **fields: Any) -> None:
        """One client event."""
        assert self._ws is not None
        event = {"type": kind} | fields
        if kind != "input_audio_buffer.append":
            self.sent.append((time.monotonic(), event))
        await self._ws.send(json.dumps(event))

    async def append(self, pcm: I16) -> None:
        """24 kHz mono 16-bit samples."""
        await self.send("input_audio_buffer.append", audio=base64.b64encode(pcm.astype("<i2").tobytes()).decode())

    async def update(self, **session: Any) -> None:
        """`session.update`; raises ConnectFailed where it is refused."""
        mark = len(self.seen)
        await self.send("session.update", session={"type": "realtime"} | session)
        answer = await self.wait(lambda s: s.type in ("session.updated", "error"), mark, 10)
        if answer is None or answer.type == "error":
            raise ConnectFailed(f"session.update was refused: {answer.event['error'] if answer else 'no answer'}")

    async def wait(self, match: str | Callable[[Seen], bool], since: int = 0, timeout: float = 30) -> Seen | None:
        """The first event at or after index `since` that matches; None after `timeout` seconds or at the end."""
        test = (lambda s: s.type == match) if isinstance(match, str) else match
        deadline = time.monotonic() + timeout
        at = since
        while True:
            while at < len(self.seen):
                if test(self.seen[at]):
                    return self.seen[at]
                at += 1
            left = deadline - time.monotonic()
            if self.closed is not None or left <= 0:
                return None
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return None

    def of(self, kind: str, since: int = 0) -> list[Seen]:
        """Every event of a type at or after index `since`."""
        return [s for s in self.seen[since:] if s.type == kind]
