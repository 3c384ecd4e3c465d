"""A request whose caller goes leaves nothing open, at once: no stream of the engine, no decoder. Not when the garbage
collector comes by: an exception that a task keeps can hold a suspended generator for minutes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bargein.engine import protocol as p
from bargein.engine.client import EngineClient
from bargein.pipeline.diarization import Voices
from bargein.pipeline.recordings import Tally, Wish, transcribe
from bargein.pipeline.speaking import speak
from bargein.pipeline.writing import Ask, EngineWriter, Turn

F32 = npt.NDArray[np.float32]


class Half:
    """An engine that hears voice everywhere and begins to answer, but never ends."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.began = asyncio.Event()
        client.attach(self)

    def send(self, request: p.Request) -> None:
        match request:
            case p.Feed(stream, tag, p.Audio(pcm)):
                count = len(pcm) // 2048
                body = p.Windows(len(pcm) // 4 * tag, (1.0,) * count, (-20.0,) * count)
                asyncio.get_running_loop().call_soon(self._client.receive, p.Result(stream, tag, body))
            case p.Feed(stream, tag, p.Write()):
                token = p.Result(stream, tag, p.Token("word ", ()))
                asyncio.get_running_loop().call_soon(self._client.receive, token)
                self.began.set()
            case p.Feed():
                self.began.set()

    def close(self) -> None: ...


class Recording:
    """An hour of sound, a second at a time."""

    def __init__(self) -> None:
        self.is_open = False

    async def pieces(self) -> AsyncGenerator[F32, None]:
        self.is_open = True
        try:
            for _ in range(3600):
                yield np.zeros(16000, np.float32)
        finally:
            self.is_open = False


async def _transcribed(client: EngineClient, recording: Recording) -> None:
    async for _ in transcribe(client, recording.pieces(), Wish(), Tally()):
        pass


async def _told_apart(client: EngineClient, recording: Recording) -> None:
    await Voices(client).listen(recording.pieces())


async def _written(client: EngineClient, recording: Recording) -> None:
    async for _ in EngineWriter(client).write(Ask((Turn("user", "Hello"),))):
        pass


async def _spoken(client: EngineClient, recording: Recording) -> None:
    async for _ in speak(client, "One sentence. And another one."):
        pass


@pytest.mark.parametrize("use", [_transcribed, _told_apart, _written, _spoken])
def test_nothing_is_left_open(use: Any) -> None:
    async def run() -> None:
        client = EngineClient()
        engine, recording = Half(client), Recording()
        work: Coroutine[Any, Any, None] = use(client, recording)
        task = asyncio.create_task(work)
        async with asyncio.timeout(10):
            await engine.began.wait()
        assert client.num_streams() > 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:
            await task
        assert kept.value.__traceback__ is not None, "it holds every frame that was left"
        assert client.num_streams() == 0 and not recording.is_open

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
