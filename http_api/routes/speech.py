"""`POST /v1/audio/speech`: a text, spoken, as it is synthesized."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from aiohttp import web

from bargein.pipeline.encoding import FORMATS, Encoder
from bargein.pipeline.speaking import RATE, speak

from ..errors import bad
from ..metrics import METRICS
from ..services import SERVICES, Services
from .fields import Fields, read_json
from .names import resolve
from .streams import event, stream
from .voices import voice

MIME = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}  # fmt: skip
MAX_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed request."""

    text: str
    format: str
    speed: float
    sse: bool
    headers: dict[str, str]


def parse(services: Services, f: Fields) -> Wanted:
    """Read and check a request. Raises ApiError."""
    resolve(services, "tts", f.needed_text("model"))
    text = f.needed_text("input", MAX_CHARS)
    if not text.strip():
        raise bad("input", "'input': is empty", "invalid_value")
    if "voice" not in f:
        f.need("voice")
    voice(f)
    fmt = f.text("response_format", "mp3", choices=FORMATS) or "mp3"
    speed = f.number("speed", 0.25, 4.0, 1.0) or 1.0
    sse = f.text("stream_format", "audio", choices=("audio", "sse")) == "sse"
    f.without_effect("instructions")  # stock clients always send them; this voice has one manner
    f.finish()
    return Wanted(text, fmt, speed, sse, f.headers)


async def create(request: web.Request) -> web.StreamResponse:
    """Speak."""
    wanted = parse(request.app[SERVICES], await read_json(request))
    if wanted.sse:
        return await stream(request, _events(request, wanted), headers=wanted.headers)
    return await stream(request, _bytes(request, wanted), content_type=MIME[wanted.format], headers=wanted.headers)


async def _bytes(request: web.Request, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """The file, piece by piece. Sound is made while the piece before is encoded and sent."""
    encoder = Encoder(wanted.format)
    samples = 0
    async with aclosing(speak(request.app[SERVICES].engine, wanted.text, wanted.speed)) as chunks:
        async for chunk in chunks:
            samples += len(chunk)
            if data := await asyncio.to_thread(encoder.feed, chunk):
                yield data
    if samples == 0:
        raise bad("input", "'input': holds nothing that can be spoken", "invalid_value")
    request.app[METRICS].audio.labels("spoken").inc(samples / RATE)
    if data := await asyncio.to_thread(encoder.finish):
        yield data


async def _events(request: web.Request, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    made = 0
    async with aclosing(_bytes(request, wanted)) as pieces:
        async for data in pieces:
            made += len(data)
            yield event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}, "speech.audio.delta")
    # This voice has no tokens: the text counts in words, the sound in bytes of the format.
    words = len(wanted.text.split())
    usage = {"input_tokens": words, "output_tokens": made, "total_tokens": words + made}
    yield event({"type": "speech.audio.done", "usage": usage}, "speech.audio.done")
