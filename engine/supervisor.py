"""Keeps one engine process alive: starts it, connects, and starts another when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .client import EngineClient, connect

log = logging.getLogger("bargein.supervisor")

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
CONNECT_S = 120.0
CONNECT_EVERY_S = 0.05
WATCH_S = 1.0
RELOAD_S = 10.0  # between two starts of the process that loads, while an engine serves and can wait for it


class EngineExited(Exception):
    """The engine ended before it could be used; the message is its last words."""


class Supervisor:
    """Runs `python -m bargein.engine`, which forks engines. `client` is connected to whichever engine is alive."""

    def __init__(self, client: EngineClient, args: Sequence[str]) -> None:
        self._client, self._args = client, list(args)
        self._dir = Path(tempfile.mkdtemp(prefix="bargein-"))
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None  # that forks, or is itself the engine
        self._engine_pid = 0
        self._loaded_at = 0.0
        self.num_restarts = 0

    @property
    def socket(self) -> Path:
        """Where the engine of the moment is found, by others than its supervisor: a link that is moved to each new one."""
        return self._dir / "engine.sock"

    def _point_to(self, socket: Path) -> None:
        link = self._dir / "next.sock"
        link.symlink_to(socket.name)
        link.replace(self.socket)

    async def start(self) -> None:
        """Start the first engine and wait for its connection. Raises EngineExited where it cannot run at all."""
        reader = await self._engine()
        self._task = asyncio.create_task(self._keep(reader), name="engine-supervisor")

    async def _load(self) -> asyncio.subprocess.Process:
        """The process that has the models, started where it is not alive."""
        if self._process is None or self._process.returncode is not None:
            self._loaded_at = time.monotonic()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bargein.engine", *self._args,
                stdin=asyncio.subprocess.PIPE, env={"OPENBLAS_NUM_THREADS": "1"} | dict(os.environ),
            )  # fmt: skip
        return self._process

    async def _engine(self) -> asyncio.Task[None]:
        """A new engine, connected."""
        process = await self._load()
        socket = self._dir / f"engine-{self.num_restarts}.sock"
        assert process.stdin is not None, "started with a pipe"
        self._point_to(socket)
        with contextlib.suppress(ConnectionError):
            process.stdin.write(f"{socket}\n".encode())
            await process.stdin.drain()
        deadline = time.monotonic() + CONNECT_S
        while True:
            if process.returncode is not None:
                raise EngineExited(f"the engine ended with status {process.returncode}")
            with contextlib.suppress(OSError):
                return await connect(self._client, socket)
            if time.monotonic() > deadline:
                raise EngineExited("the engine did not open its socket in time")
            await asyncio.sleep(CONNECT_EVERY_S)

    async def _keep(self, reader: asyncio.Task[None]) -> None:
        backoff = FIRST_BACKOFF_S
        while True:
            served = False
            while not reader.done():  # it ends with the connection
                served = await self._watch(reader) or served
            self._kill_engine()
            if served:  # only one that does not come up is given more and more time
                backoff = FIRST_BACKOFF_S
            log.error("the engine ended; starting another in %.1f s", backoff)
            while True:
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_S)
                self.num_restarts += 1
                try:
                    reader = await self._engine()
                    break
                except EngineExited as problem:
                    log.error("%s; trying again in %.1f s", problem, backoff)

    async def _watch(self, reader: asyncio.Task[None]) -> bool:
        """A while of the engine's life, whether it serves; where the process that forks has died another is started."""
        assert self._process is not None
        if (hello := self._client.hello) is not None:
            self._engine_pid = hello.pid
        dead = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((reader, dead), timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            dead.cancel()
        if self._process.returncode is not None and not reader.done():
            await asyncio.wait((reader,), timeout=WATCH_S)  # an engine that is that process takes its connection with it
            if not reader.done() and time.monotonic() - self._loaded_at >= RELOAD_S:
                log.error("the process that loads the models ended with %s; starting another", self._process.returncode)
                await self._load()
        return hello is not None and hello.ready

    def _kill_engine(self) -> None:
        """What hangs, or has lost its connection, is not to go on beside the next."""
        if self._engine_pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._engine_pid, signal.SIGKILL)
            self._engine_pid = 0

    async def stop(self) -> None:
        """End the engine and remove its socket."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._client.hello is not None:
            self._engine_pid = self._client.hello.pid
        self._client.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._kill_engine()  # of a process that died before it
        shutil.rmtree(self._dir, ignore_errors=True)
