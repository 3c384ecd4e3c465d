"""One front process before two engines (here both on the CPU, a core each): a call keeps to one, and outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bargein.client.audio import read_wav
from bargein.client.session import RealtimeClient
from bargein.client.turns import Microphone, Reply, converse

from .conftest import DATA, Served, children, serving
from .test_call import QUESTIONS, word_error

BACK_S = 20  # an engine of one core beside a busy other


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("two") / "log"
    running = serving(log, "--device", "cpu,cpu")
    server = next(running)
    until = time.monotonic() + 60
    while server.get("/health/ready")[1]["engines"]["ready"] < 2:
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    yield server
    next(running, None)


def engines(server: Served) -> list[int]:
    loaders = [c for c in children(server.pid) if "bargein.engine" in Path(f"/proc/{c}/cmdline").read_text()]
    return [engine for loader in loaders for engine in children(loader)]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def answered(call: RealtimeClient, mic: Microphone, question: str) -> Reply:
    reply = await converse(call, mic, read_wav(DATA / "questions" / f"{question}.wav"), 40)
    assert reply.status == "completed" and word_error(QUESTIONS[question], reply.user_text) == 0, reply.user_text
    return reply


def test_two_calls_are_on_two_engines_and_either_may_be_killed(server: Served) -> None:
    async def run() -> None:
        async with RealtimeClient(server.url) as a, RealtimeClient(server.url) as b:
            calls = [(call, Microphone(call)) for call in (a, b)]
            for call, _ in calls:
                await call.update(profile="fast")
            before = {pid: cpu_s(pid) for pid in engines(server)}
            assert len(before) == 2
            await asyncio.gather(*(answered(call, mic, "bees") for call, mic in calls))
            took = {pid: cpu_s(pid) - then for pid, then in before.items()}
            assert min(took.values()) > 0.3 * max(took.values()), "each has one of the calls"
            for pid in before:  # with one engine left there is no time without any: the next turn needs no waiting
                while len(engines(server)) < 2 or server.get("/health/ready")[1]["engines"]["ready"] < 2:
                    await asyncio.sleep(0.05)
                os.kill(pid, signal.SIGKILL)
                await asyncio.gather(*(answered(call, mic, "capital") for call, mic in calls))
                assert server.get("/health/ready")[0] == 200
            assert a.closed is None and b.closed is None
            for _, mic in calls:
                await mic.stop()

    asyncio.run(run())


def test_what_is_lost_comes_back(server: Served) -> None:
    gone = engines(server)[0]
    os.kill(gone, signal.SIGKILL)
    until = time.monotonic() + BACK_S
    while gone in engines(server) or len(engines(server)) < 2 or server.get("/health/ready")[1]["engines"]["ready"] < 2:
        assert server.get("/health/ready")[0] == 200, "the other one serves"
        assert time.monotonic() < until
        time.sleep(0.05)


def test_requests_are_answered_whichever_engine_has_them(server: Served) -> None:
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    wav = (DATA / "questions" / "capital.wav").read_bytes()
    texts = {client.audio.transcriptions.create(model="whisper-1", file=("a.wav", wav)).text for _ in range(4)}
    assert len(texts) == 1 and "capital of france" in texts.pop().lower()
