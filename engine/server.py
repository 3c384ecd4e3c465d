"""The engine's door: a Unix socket, one reader per connection, replies written from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from . import protocol as p
from .core import Core

log = logging.getLogger("bargein.engine")

REPORT_S = 1.0


class Server:
    """Serves one Core on a Unix socket. `models`: task to model name, for Hello."""

    def __init__(self, core: Core, models: dict[str, str]) -> None:
        self._core, self._models = core, models
        self._numbers = itertools.count(1)
        self._writers: set[asyncio.StreamWriter] = set()
        self.ready = False

    def hello(self) -> p.Hello:
        return p.Hello(self.ready, os.getpid(), self._models, self._core.call_s)

    async def listen(self, socket: Path) -> asyncio.Server:
        """Start to accept connections. The socket is made private to this user."""
        server = await asyncio.start_unix_server(self._serve, str(socket), limit=p.MAX_FRAME)
        os.chmod(socket, 0o600)
        return server

    def announce(self) -> None:
        """Tell every connection that the engine is ready now."""
        self.ready = True
        for writer in self._writers:
            writer.write(p.pack(self.hello()))

    async def report(self) -> None:
        """Tell every connection how busy the engine is, for as long as it runs."""
        while True:
            await asyncio.sleep(REPORT_S)
            load = p.pack(self._core.load())
            for writer in self._writers:
                if not writer.is_closing():
                    writer.write(load)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        self._writers.add(writer)
        deliver = _threadsafe(loop, writer)
        writer.write(p.pack(self.hello()))
        try:
            while True:
                (length,) = struct.unpack("<I", await reader.readexactly(4))
                if length > p.MAX_FRAME:
                    raise ValueError(f"frame of {length} bytes")
                self._core.submit(number, p.unpack_request(await reader.readexactly(length)), deliver)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (ValueError, msgspec.DecodeError) as problem:
            log.error("connection %d sent nonsense: %s", number, problem)
        finally:
            self._writers.discard(writer)
            self._core.disconnect(number)
            writer.close()


def _threadsafe(loop: asyncio.AbstractEventLoop, writer: asyncio.StreamWriter) -> Callable[[p.Reply], None]:
    """How any thread sends to a connection. The loop is woken for the first of what waits, and writes all of it."""
    waiting: deque[bytes] = deque()
    lock = threading.Lock()

    def write() -> None:
        with lock:
            replies = list(waiting)
            waiting.clear()
        if not writer.is_closing():
            writer.write(b"".join(replies))

    def deliver(reply: p.Reply) -> None:
        packed = p.pack(reply)  # here: what cannot be packed fails the work that made it
        with lock:
            waiting.append(packed)
            if len(waiting) > 1:
                return
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is there to read
            loop.call_soon_threadsafe(write)

    return deliver
