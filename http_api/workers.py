"""The parent of several workers: `server.workers` front processes on one port, for machines whose cores outnumber what one
event loop can keep busy.

It serves nobody. It holds the port, keeps the engine and the workers alive, passes signals on and says when all are ready.
The kernel picks a worker for each connection (SO_REUSEPORT); that they look like one server is the business of
`siblings.py` (what an id names) and `board.py` (what is counted), in a directory that is this user's alone. A worker is a
process of its own from the start (`worker.py`), not a fork: this one has threads and an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bargein.engine.fleet import Fleet
from bargein.models.store import home
from bargein.pipeline.claims import held_folder

from .app import Stop, models_of, new_fleet, say_listening, supervisors_of
from .board import Board
from .config import Config
from .tls import context
from .worker import Place, board_of

log = logging.getLogger("bargein.http")

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
WELL_S = 10.0  # a worker that has lived for so long was not ill from the start
LOOK_S = 0.1
GRACE_S = 15.0  # from the end of what they may still do to the end of the workers


class WorkerFailed(Exception):
    """A worker cannot start, and has said why; `status` is its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@contextlib.contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Hold a port without listening, so that workers may share it and nobody else -> its number. Raises OSError."""
    with contextlib.ExitStack() as held:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = held.enter_context(socket.socket(family, kind, protocol))
            except OSError:  # a family that this machine has not got
                continue
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Bound alone, beside what is left of old connections; shared only then: so whoever listens, or holds, is found.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = port or int(sock.getsockname()[1])
        yield port


async def serve_with_workers(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, as `app.serve`. Raises OSError (port in use), ConfigError, EngineExited, WorkerFailed."""
    directory = Path(tempfile.mkdtemp(prefix="bargein-workers-"))
    try:
        # Held, so that what clears old files out of such places leaves the directory alone.
        with held_folder(directory), reserved(config.server.host, config.server.port) as port:
            config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=port))
            context(config.server, home() / "tls")  # a certificate is made here, once
            await _serve(config, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _serve(config: Config, directory: Path) -> None:
    fleet, stop = new_fleet(config), Stop()
    supervisors = supervisors_of(config, fleet)
    workers = Workers(config, directory, tuple(str(supervisor.socket) for supervisor in supervisors))
    loading = asyncio.gather(*(supervisor.start() for supervisor in supervisors))
    running = asyncio.create_task(workers.run(), name="workers")
    saying = asyncio.create_task(_say_when_ready(config, fleet, workers), name="ready")
    stopping = asyncio.create_task(stop.told.wait(), name="stop")
    tasks: set[asyncio.Future[Any]] = {loading, running, stopping}
    try:
        while not stopping.done():
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        log.info("ending")
        await workers.end(stop.hurry)
    finally:
        for task in (loading, running, saying, stopping):
            task.cancel()
        await asyncio.gather(loading, running, saying, stopping, return_exceptions=True)
        stop.hurry.set()
        await workers.end(stop.hurry)
        await asyncio.gather(*(supervisor.stop() for supervisor in supervisors))


async def _say_when_ready(config: Config, fleet: Fleet, workers: Workers) -> None:
    """One line whenever the engine and all workers have come to be ready."""
    said_listening = was_ready = False
    while True:
        states = workers.states
        if not said_listening and "starting" not in states:
            said_listening = True
            say_listening(config)
        is_ready = fleet.ready and set(states) == {"ready"}
        if is_ready and not was_ready:
            log.info("ready at %s (%s), %d workers", config.server.address, models_of(fleet), len(states))
        was_ready = is_ready
        await asyncio.sleep(LOOK_S)


class Workers:
    """The workers' processes, by number."""

    def __init__(self, config: Config, directory: Path, engines: tuple[str, ...]) -> None:
        """`engines`: where each device's engine of the moment is found."""
        self._config, self._directory, self._engines = config, directory, engines
        self._num = config.server.workers
        self._board = Board.make(board_of(directory), self._num)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ending = False

    @property
    def states(self) -> list[str]:
        return [self._board.state(n) for n in range(self._num)]

    async def run(self) -> None:
        """Keep all alive. The first is to listen before the others are begun, so that what none can do is said once. Raises
        WorkerFailed."""
        keepers = [asyncio.create_task(self._keep(0), name="worker 1")]
        try:
            while self._board.state(0) == "starting":
                done, _ = await asyncio.wait(keepers, timeout=LOOK_S)
                for keeper in done:
                    keeper.result()
            keepers += [asyncio.create_task(self._keep(n), name=f"worker {n + 1}") for n in range(1, self._num)]
            done, _ = await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
            for keeper in done:
                keeper.result()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, number: int) -> None:
        """One worker after another in a place. Raises WorkerFailed where the first cannot start."""
        backoff, is_first = FIRST_BACKOFF_S, True
        while not self._ending:
            began = time.monotonic()
            process = await self._start(number, is_heir=number == 0 or not is_first)
            status = await process.wait()
            listened = self._board.state(number) != "starting"
            self._board.clear(number)
            if self._ending:
                return
            if is_first and not listened and status > 0:
                raise WorkerFailed(status)
            is_first = False
            if time.monotonic() - began > WELL_S:
                backoff = FIRST_BACKOFF_S
            log.error("worker %d ended with %d; starting another in %.1f s", number + 1, status, backoff)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    async def _start(self, number: int, is_heir: bool) -> asyncio.subprocess.Process:
        # A session of its own: Ctrl-C reaches the workers through this process alone.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bargein.http_api.worker", stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        self._processes[number] = process
        place = Place(os.getpid(), number, self._config, self._engines, str(self._directory), is_heir)
        assert process.stdin is not None, "started with a pipe"
        process.stdin.write(msgspec.json.encode(place))
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        process.stdin.close()
        return process

    def _signal(self, sig: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(sig)

    async def end(self, hurry: asyncio.Event) -> None:
        """End all; what they do may go on as long as is configured, until there is a hurry."""
        self._ending = True
        all_ended = asyncio.gather(*(p.wait() for p in self._processes.values()))
        hurried = asyncio.create_task(hurry.wait())
        patience_s = max(self._config.server.drain_s, self._config.http.drain_s) + GRACE_S
        try:
            self._signal(signal.SIGTERM)
            await asyncio.wait((all_ended, hurried), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not all_ended.done():
                self._signal(signal.SIGINT)
                await asyncio.wait((all_ended,), timeout=GRACE_S)
            self._signal(signal.SIGKILL)
            await all_ended
        finally:
            hurried.cancel()
