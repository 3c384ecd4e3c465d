"""Plivo audio streaming, bidirectional (`<Stream bidirectional="true" contentType="audio/x-mulaw;rate=8000">`).

https://www.plivo.com/docs/voice/audio-streaming/audio-streaming
"""

from __future__ import annotations

import re
from typing import Any

from .framing import (
    Ended,
    Framing,
    JsonObject,
    Key,
    PhoneEvent,
    Played,
    Sound,
    Started,
    audio,
    check_codec,
    part,
    payload_of,
    texts,
    word,
)


class Plivo(Framing):
    """`start`, then `media`, `dtmf`, `playedStream`; the socket's close is the end. `extraHeaders` are the parameters."""

    name = "plivo"

    def __init__(self) -> None:
        self._stream = ""

    def take(self, event: str, message: JsonObject) -> list[PhoneEvent]:
        match event:
            case "start":
                start = part(message, "start")
                form = part(start, "mediaFormat")
                check_codec(form.get("encoding"), form.get("sampleRate"), ("audio/x-mulaw",))
                self._stream = word(start, "streamId")
                return [Started(self._stream, word(start, "callId"), _headers(message.get("extra_headers")))]
            case "media":
                media = part(message, "media")
                return [Sound(audio(media))] if media.get("track", "inbound") == "inbound" else []
            case "dtmf":
                return [Key(word(part(message, "dtmf"), "digit"))]
            case "playedStream":
                return [Played(word(message, "name"))]
            case "stop":
                return [Ended()]
        return []

    def sound(self, payload: bytes) -> JsonObject:
        media = {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": payload_of(payload)}
        return {"event": "playAudio", "media": media}

    def mark(self, name: str) -> JsonObject:
        return {"event": "checkpoint", "streamId": self._stream, "name": name}

    def clear(self) -> JsonObject:
        return {"event": "clearAudio", "streamId": self._stream}


def _headers(given: Any) -> dict[str, str]:
    """`extra_headers`: "name=value;name=value" (commas do too), or an object."""
    if not isinstance(given, str):
        return texts(given)
    pairs = (p.partition("=") for p in re.split(r"[;,]", given.strip("{} ")))
    return texts({k.strip(): v.strip() for k, sign, v in pairs if sign})
