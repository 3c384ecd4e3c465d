"""Sound inside chat: spoken parts of a question are transcribed, an answer is spoken where that is asked for."""

from __future__ import annotations

import asyncio
import base64
import binascii
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from bargein.pipeline import recordings
from bargein.pipeline.encoding import Encoder
from bargein.pipeline.speaking import speak as speak_text

from ..errors import bad
from ..services import SERVICES, Services
from .fields import Fields
from .streams import new_id
from .uploads import decoded
from .voices import voice

FORMATS = {"wav": "wav", "mp3": "mp3", "flac": "flac", "opus": "opus", "aac": "aac", "pcm16": "pcm"}
MAX_AUDIO_S = 600.0


@dataclass(frozen=True, slots=True)
class Speak:
    """`format`: an encoder's."""

    format: str


def speak(f: Fields) -> Speak | None:
    """`modalities` and `audio`: how the answer is to be spoken, if it is."""
    modalities = f.array("modalities") or ["text"]
    if modalities not in (["text"], ["text", "audio"], ["audio", "text"]):
        raise bad("modalities", "'modalities': must be ['text'] or ['text', 'audio']", "invalid_value")
    audio = f.object("audio")
    if "audio" not in modalities:
        if audio is not None:
            raise bad("audio", "'audio': only with 'audio' in 'modalities'", "invalid_value")
        return None
    inner = Fields(audio or {}, "audio")
    voice(inner)
    fmt = inner.text("format", "wav", choices=tuple(FORMATS)) or "wav"
    inner.finish()
    return Speak(FORMATS[fmt])


async def heard(services: Services, f: Fields) -> str:
    """What an `input_audio` part says."""
    f.text("format", choices=("wav", "mp3", "flac", "opus", "aac", "m4a", "ogg", "webm"))
    try:
        data = base64.b64decode(f.needed_text("data"), validate=True)
    except (binascii.Error, ValueError):
        raise f.refuse("data", "is not base64", "invalid_value") from None
    f.finish()
    with tempfile.NamedTemporaryFile(prefix="bargein-part-") as file:
        file.write(data)
        file.flush()
        sound = decoded(services.media, Path(file.name), MAX_AUDIO_S, f.path("data"))
        async with aclosing(recordings.transcribe(services.engine, sound, recordings.Wish(), recordings.Tally())) as parts:
            return " ".join([part.heard.text async for part in parts])


async def _encoded(request: web.Request, how: Speak, text: str) -> AsyncGenerator[bytes, None]:
    encoder = Encoder(how.format)
    async with aclosing(speak_text(request.app[SERVICES].engine, text)) as chunks:
        async for chunk in chunks:
            if data := await asyncio.to_thread(encoder.feed, chunk):
                yield data
    if data := await asyncio.to_thread(encoder.finish):
        yield data


async def said(request: web.Request, how: Speak, text: str) -> dict[str, Any]:
    """The answer's `audio`, whole."""
    data = b"".join([x async for x in _encoded(request, how, text)])
    return {
        "id": new_id("audio_"), "data": base64.b64encode(data).decode(), "transcript": text,
        "expires_at": int(time.time()) + 3600,
    }  # fmt: skip


async def spoken(request: web.Request, how: Speak, text: str) -> AsyncGenerator[dict[str, Any], None]:
    """The answer's `audio` in deltas: the transcript, then sound."""
    made = new_id("audio_")
    yield {"id": made, "transcript": text}
    async with aclosing(_encoded(request, how, text)) as pieces:
        async for data in pieces:
            yield {"id": made, "data": base64.b64encode(data).decode()}
    yield {"id": made, "expires_at": int(time.time()) + 3600}
