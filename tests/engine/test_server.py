"""The engine's door: what goes out to a connection, over a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from bargein.engine import protocol as p
from bargein.engine.client import EngineClient, connect
from bargein.engine.core import Core
from bargein.engine.lane import Lane, Steps, Stream
from bargein.engine.server import Server


class Scores(Lane):
    """Answers with as many scores as samples are asked about; 13 is told as NumPy tells numbers, which no message holds."""

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        assert isinstance(body, p.Transcribe)
        return self._steps(stream, tag, body.num_samples)

    def _steps(self, stream: Stream, tag: int, n: int) -> Steps:
        for k in range(n):
            value: Any = np.float32(k) if n == 13 else float(k)
            stream.send(tag, p.TurnScore(value))
        yield


def ask(tmp_path: Path, *requests: int) -> list[tuple[int, Any]]:
    """What comes back to one connection, in order: (tag, score or what failed), until every tag had its last."""
    got: list[tuple[int, Any]] = []

    async def run() -> None:
        core, client = Core({"turn": Scores()}), EngineClient()
        core.start()
        listener = await Server(core, {}).listen(tmp_path / "engine.sock")
        reading = await connect(client, tmp_path / "engine.sock")
        stream = client.open(
            "turn", {}, on_result=lambda tag, body: got.append((tag, getattr(body, "p", None))),
            on_failed=lambda tag, message: got.append((tag or 0, message)), on_lost=lambda: None,
        )  # fmt: skip
        for tag, n in enumerate(requests, 1):
            stream.feed(tag, p.Transcribe(n, n, "final"))
        wanted = sum(1 if n == 13 else n for n in requests)
        async with asyncio.timeout(10):
            while len(got) < wanted:
                await asyncio.sleep(0.01)
        client.close()
        await reading
        listener.close()
        core.stop()

    asyncio.run(run())
    return got


def test_all_of_many_replies_come_in_order(tmp_path: Path) -> None:
    assert ask(tmp_path, 500, 20) == [(1, float(k)) for k in range(500)] + [(2, float(k)) for k in range(20)]


def test_a_reply_that_cannot_be_told_fails_its_work_and_no_other(tmp_path: Path) -> None:
    (tag, problem), *rest = ask(tmp_path, 13, 3)
    assert tag == 1 and "TypeError" in problem and rest == [(2, 0.0), (2, 1.0), (2, 2.0)]
