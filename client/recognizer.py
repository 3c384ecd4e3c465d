"""What the server's own recognizer makes of a sound, and where the server's HTTP routes are."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from .session import ConnectFailed


def http_root(url: str) -> str:
    """Of a server whose calls go to `url`, as ws://host:port/v1/realtime: http://host:port."""
    return url.replace("ws", "http", 1).split("/v1/")[0]


async def transcribed(url: str, key: str, file: bytes, language: str = "") -> str:
    """The words in a sound file. Raises ConnectFailed where the server does not tell, aiohttp.ClientError without one."""
    async with _asked(url, key, file, {"language": language} if language else {}) as answer:
        return str((await answer.json())["text"])


async def words_of(url: str, key: str, file: bytes) -> AsyncGenerator[int, None]:
    """How many words came, piece by piece, while a sound file is transcribed. Raises as `transcribed` does."""
    async with _asked(url, key, file, {"stream": "true"}) as answer:
        async for line in answer.content:
            if line.startswith(b'data: {"'):
                said = json.loads(line[6:])
                if said["type"] == "transcript.text.delta":
                    yield len(said["delta"].split())


@asynccontextmanager
async def _asked(url: str, key: str, file: bytes, fields: dict[str, str]) -> AsyncGenerator[aiohttp.ClientResponse, None]:
    url = http_root(url) + "/v1/audio/transcriptions"
    form = aiohttp.FormData({"model": "whisper-1"} | fields)
    form.add_field("file", io.BytesIO(file), filename="sound.wav")  # in pieces: an hour at once would hold up its sender
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None)  # an hour's recording takes minutes
    async with aiohttp.ClientSession(timeout=timeout) as http, http.post(url, data=form, headers=headers) as answer:
        if answer.status != 200:
            raise ConnectFailed(f"{url}: {answer.status} {(await answer.text())[:200]}")
        yield answer
