"""What the server's own recognizer makes of a sound, and where the server's HTTP routes are."""

from __future__ import annotations

import aiohttp

from .session import ConnectFailed


def http_root(url: str) -> str:
    """Of a server whose calls go to `url`, as ws://host:port/v1/realtime: http://host:port."""
    return url.replace("ws", "http", 1).split("/v1/")[0]


async def transcribed(url: str, key: str, file: bytes, language: str = "") -> str:
    """The words in a sound file. Raises ConnectFailed where the server does not tell, aiohttp.ClientError without one."""
    url = http_root(url) + "/v1/audio/transcriptions"
    form = aiohttp.FormData({"model": "whisper-1"} | ({"language": language} if language else {}))
    form.add_field("file", file, filename="sound.wav")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None)  # an hour's recording takes minutes
    async with aiohttp.ClientSession(timeout=timeout) as http, http.post(url, data=form, headers=headers) as answer:
        if answer.status != 200:
            raise ConnectFailed(f"{url}: {answer.status} {(await answer.text())[:200]}")
        return str((await answer.json())["text"])
