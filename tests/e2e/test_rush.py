"""Callers who dial within a moment: those who will not fit are refused before their call starts, and told so."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bargein.client.audio import read_wav
from bargein.client.session import ConnectFailed, RealtimeClient
from bargein.client.turns import Microphone, Reply, converse

from .conftest import DATA, Served, serving

DIAL = 24


async def rush(server: Served) -> tuple[list[Reply], list[str]]:
    """What those who were let in got for a question, and what the others were told."""
    refused: list[str] = []
    dialled = asyncio.Event()
    num_settled = 0

    async def settle() -> None:
        nonlocal num_settled
        num_settled += 1
        if num_settled == DIAL:
            dialled.set()
        await dialled.wait()

    async def call() -> Reply | None:
        try:
            async with RealtimeClient(server.url) as one:
                await one.wait("session.created")
                await settle()
                mic = Microphone(one)
                reply = await converse(one, mic, read_wav(DATA / "questions" / "bees.wav"), 60)
                await mic.stop()
                return reply
        except ConnectFailed as problem:
            refused.append(str(problem))
            await settle()
            return None

    replies = await asyncio.gather(*(call() for _ in range(DIAL)))
    return [reply for reply in replies if reply is not None], refused


def test_a_rush_is_let_in_as_far_as_it_fits(tmp_path: Path) -> None:
    """A quarter of the machine is some calls, whatever machine it is; far less than dial."""
    running = serving(tmp_path / "log", "--set", "server.max_load=0.25", "--set", "server.max_sessions=100")
    server = next(running)
    replies, refused = asyncio.run(rush(server))
    assert 1 <= len(replies) <= DIAL // 2 and len(refused) == DIAL - len(replies)
    assert all("503" in problem for problem in refused), refused
    assert all(reply.status == "completed" and "bees" in reply.user_text.lower() for reply in replies)
    next(running, None)
