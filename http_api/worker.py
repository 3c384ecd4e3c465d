"""`python -m bargein.http_api.worker`: one of several processes that serve, before an engine that their parent keeps alive.

Told on stdin who it is. It ends with its parent, and connects again when the engine is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import uvloop

from bargein.agent.definition import AgentError
from bargein.engine.client import EngineClient, connect
from bargein.engine.fleet import Fleet
from bargein.engine.nursery import follow

from .app import serve
from .board import Board, Seat
from .config import Config, ConfigError
from .logs import configure
from .tracing import NoTracing

AGAIN_S = 0.05


class Place(msgspec.Struct, frozen=True):
    """What a worker is told. `number`: from 0; `engines`: where each device's engine of the moment is found; `directory`: the
    server's own; `is_heir`: see board.Seat."""

    parent: int
    number: int
    config: Config
    engines: tuple[str, ...]
    directory: str
    is_heir: bool


def board_of(directory: Path) -> Path:
    """Where the workers' board lies."""
    return directory / "board"


def main() -> int:
    """Serve as the worker that stdin describes -> exit status (2: something to fix first, said in one line)."""
    raw = sys.stdin.buffer.read()
    if not raw:  # the parent has gone meanwhile
        return 0
    place = msgspec.json.decode(raw, type=Place)
    follow(place.parent)
    if os.getppid() != place.parent:
        return 0
    config, directory = place.config, Path(place.directory)
    configure(config.log, place.number + 1)
    seat = Seat(Board(board_of(directory), config.server.workers), place.number, directory, place.is_heir)

    @asynccontextmanager
    async def engines(_: Config, fleet: Fleet) -> AsyncIterator[None]:
        links = zip(fleet.clients, place.engines, strict=True)
        keeping = [asyncio.create_task(stay_connected(client, Path(at)), name="engine-link") for client, at in links]
        try:
            yield
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            fleet.close()

    try:
        uvloop.run(serve(config, seat, engines))
    except (AgentError, ConfigError, NoTracing) as problem:
        return _fail(problem)
    except OSError as problem:
        return _fail(f"cannot listen on {config.server.host}:{config.server.port}: {problem.strerror or problem}")
    return 0


async def stay_connected(client: EngineClient, socket: Path) -> None:
    """Connect to the engine, and to the next one whenever it is lost."""
    while True:
        with contextlib.suppress(OSError):  # there is none yet
            await (await connect(client, socket))
        await asyncio.sleep(AGAIN_S)


def _fail(problem: object) -> int:
    print(f"bargein: {problem}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
