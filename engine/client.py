"""The front process's side of the engine: streams with callbacks, over a Unix socket or to a Core on this process.

A stream's `on_result` is called on the event loop, in order. When the engine is lost every stream's `on_lost` is
called once; streams opened afterwards go to the engine that comes back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from . import protocol as p
from .core import Core

log = logging.getLogger("bargein.engine.client")

ACK_EVERY = 32


class EngineUnavailable(Exception):
    """There is no engine to open a stream on (yet)."""


class Link(Protocol):
    """Carries requests to an engine."""

    def send(self, request: p.Request) -> None: ...
    def close(self) -> None: ...


class EngineStream:
    """One use of one lane. Results and failures arrive through the callbacks given to `EngineClient.open`."""

    def __init__(
        self,
        client: EngineClient,
        number: int,
        on_result: Callable[[int, p.Answer], None],
        on_failed: Callable[[int | None, str], None],
        on_lost: Callable[[], None],
        on_refused: Callable[[int | None, str], None] | None = None,
    ) -> None:
        self.on_refused = on_refused or on_failed
        self._client, self.number = client, number
        self.on_result, self.on_failed, self.on_lost = on_result, on_failed, on_lost
        self._unacknowledged = 0
        self.closed = False

    def feed(self, tag: int, body: p.Body, due_ms: float = 0.0) -> None:
        """Hand over work. A stream of a lost engine ignores it: `on_lost` has said so."""
        if not self.closed:
            self._client.send(p.Feed(self.number, tag, body, due_ms))

    def cancel(self, tag: int | None = None) -> None:
        if not self.closed:
            self._client.send(p.Cancel(self.number, tag))

    def close(self) -> None:
        """End the stream; nothing of it arrives afterwards."""
        if not self.closed:
            self.closed = True
            self._client.forget(self)
            self._client.send(p.Close(self.number))

    def deliver(self, reply: p.Result) -> None:
        self._unacknowledged += 1
        if self._unacknowledged >= ACK_EVERY:
            self._client.send(p.Credit(self.number, self._unacknowledged))
            self._unacknowledged = 0
        self.on_result(reply.tag, reply.body)


class EngineClient:
    """Opens streams on the engine that is currently connected."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._numbers = itertools.count(1)
        self._streams: dict[int, EngineStream] = {}
        self.hello: p.Hello | None = None
        self.load: p.Load | None = None  # the last that was told
        self.on_change: Callable[[], None] = lambda: None
        self.on_load: Callable[[p.Load], None] = lambda load: None

    @property
    def ready(self) -> bool:
        """Whether the engine is connected and warm."""
        return self._link is not None and self.hello is not None and self.hello.ready

    @property
    def models(self) -> dict[str, str]:
        """Task to model name, of the engine last seen."""
        return self.hello.models if self.hello else {}

    def num_streams(self) -> int:
        return len(self._streams)

    def open(
        self,
        lane: p.LaneName,
        params: dict[str, Any],
        *,
        on_result: Callable[[int, p.Answer], None],
        on_failed: Callable[[int | None, str], None],
        on_lost: Callable[[], None],
        on_refused: Callable[[int | None, str], None] | None = None,
        cls: p.Class = "live",
    ) -> EngineStream:
        """Open a stream. Raises EngineUnavailable where no engine is connected.

        `on_refused`: told of failures that are the caller's fault; without it `on_failed` is.
        """
        if self._link is None:
            raise EngineUnavailable("the engine is not connected")
        stream = EngineStream(self, next(self._numbers), on_result, on_failed, on_lost, on_refused)
        self._streams[stream.number] = stream
        self.send(p.Open(stream.number, lane, params, cls))
        return stream

    def send(self, request: p.Request) -> None:
        if self._link is not None:
            self._link.send(request)

    def forget(self, stream: EngineStream) -> None:
        self._streams.pop(stream.number, None)

    # --- the link's side ---

    def attach(self, link: Link) -> None:
        self._link = link

    def lost(self) -> None:
        """The engine is gone: tell every stream, once."""
        self._link, self.hello = None, None
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.closed = True
        for stream in streams:
            stream.on_lost()
        self.on_change()

    def receive(self, reply: p.Reply) -> None:
        match reply:
            case p.Result(stream=number):
                if (stream := self._streams.get(number)) is not None:
                    stream.deliver(reply)
            case p.Failed(stream=number, tag=tag, message=message, fault=fault):
                if (stream := self._streams.get(number)) is not None:
                    (stream.on_refused if fault == "caller" else stream.on_failed)(tag, message)
            case p.Load():
                self.load = reply
                self.on_load(reply)
            case p.Hello():
                self.hello = reply
                self.on_change()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class SocketLink:
    """A connection to an engine process. What is sent in one round of the event loop goes in one write."""

    def __init__(self, client: EngineClient, writer: asyncio.StreamWriter) -> None:
        self._client, self._writer = client, writer
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []

    def send(self, request: p.Request) -> None:
        if not self._waiting:
            self._loop.call_soon(self._write)
        self._waiting.append(p.pack(request))

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not self._writer.is_closing():
            self._writer.write(b"".join(waiting))

    def close(self) -> None:
        self._write()
        self._writer.close()


async def connect(client: EngineClient, socket: Path) -> asyncio.Task[None]:
    """Connect to an engine's socket; the returned task reads until the engine is gone. Raises OSError."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=p.MAX_FRAME)
    link = SocketLink(client, writer)
    client.attach(link)

    async def read() -> None:
        try:
            while True:
                (length,) = struct.unpack("<I", await reader.readexactly(4))
                client.receive(p.unpack_reply(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except msgspec.DecodeError as problem:
            log.error("the engine sent nonsense: %s", problem)
        finally:
            writer.close()
            client.lost()

    return asyncio.create_task(read(), name="engine-reader")


class InprocLink:
    """An engine on a thread of this process, for tests and debugging; messages still cross as bytes."""

    def __init__(self, client: EngineClient, core: Core, models: dict[str, str]) -> None:
        self._core = core
        loop = asyncio.get_running_loop()

        def deliver(reply: p.Reply) -> None:
            body = p.pack(reply)[4:]
            loop.call_soon_threadsafe(lambda: client.receive(p.unpack_reply(body)))

        self._deliver = deliver
        client.attach(self)
        client.receive(p.Hello(True, 0, models, core.call_s))

    def send(self, request: p.Request) -> None:
        self._core.submit(0, p.unpack_request(p.pack(request)[4:]), self._deliver)

    def close(self) -> None:
        self._core.disconnect(0)
