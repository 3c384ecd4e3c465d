"""Keeps one engine process alive: starts it, connects, and starts another when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .client import EngineClient, connect

log = logging.getLogger("bargein.supervisor")

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
STEADY_S = 30.0  # an engine that lived this long has its back-off forgotten
CONNECT_S = 120.0


class EngineExited(Exception):
    """The engine ended before it could be used; the message is its last words."""


class Supervisor:
    """Runs `python -m bargein.engine`. `client` is connected to whichever process is alive."""

    def __init__(self, client: EngineClient, args: Sequence[str]) -> None:
        self._client, self._args = client, list(args)
        self._dir = Path(tempfile.mkdtemp(prefix="bargein-"))
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.num_restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the first engine and wait for its connection. Raises EngineExited where it cannot run at all."""
        reader = await self._spawn()
        self._task = asyncio.create_task(self._keep(reader), name="engine-supervisor")

    async def _spawn(self) -> asyncio.Task[None]:
        socket = self._dir / f"engine-{self.num_restarts}.sock"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bargein.engine", "--socket", str(socket), *self._args,
            stdin=asyncio.subprocess.DEVNULL, env={"OPENBLAS_NUM_THREADS": "1"} | dict(os.environ),
        )  # fmt: skip
        deadline = time.monotonic() + CONNECT_S
        while True:
            if self._process.returncode is not None:
                raise EngineExited(f"the engine ended with status {self._process.returncode}")
            with contextlib.suppress(OSError):
                return await connect(self._client, socket)
            if time.monotonic() > deadline:
                raise EngineExited("the engine did not open its socket in time")
            await asyncio.sleep(0.05)

    async def _keep(self, reader: asyncio.Task[None]) -> None:
        backoff = FIRST_BACKOFF_S
        while True:
            born = time.monotonic()
            await reader  # ends with the connection
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            status = await self._process.wait()
            if time.monotonic() - born > STEADY_S:
                backoff = FIRST_BACKOFF_S
            log.error("the engine ended with status %s; starting another in %.1f s", status, backoff)
            while True:
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_S)
                self.num_restarts += 1
                try:
                    reader = await self._spawn()
                    break
                except EngineExited as problem:
                    log.error("%s; trying again in %.1f s", problem, backoff)

    async def stop(self) -> None:
        """End the engine and remove its socket."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._client.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)
