"""Twilio Media Streams, bidirectional (`<Connect><Stream>`).

https://www.twilio.com/docs/voice/media-streams/websocket-messages
"""

from __future__ import annotations

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


class Twilio(Framing):
    """`connected`, `start`, then `media`, `dtmf`, `mark` until `stop`. `<Parameter>`s come as `customParameters`."""

    name = "twilio"

    def __init__(self) -> None:
        self._stream = ""

    def take(self, event: str, message: JsonObject) -> list[PhoneEvent]:
        match event:
            case "start":
                start = part(message, "start")
                form = part(start, "mediaFormat")
                check_codec(form.get("encoding"), form.get("sampleRate"), ("audio/x-mulaw",))
                self._stream = word(start, "streamSid")
                return [Started(self._stream, word(start, "callSid"), texts(start.get("customParameters")))]
            case "media":
                media = part(message, "media")
                return [Sound(audio(media))] if media.get("track", "inbound") == "inbound" else []
            case "dtmf":
                return [Key(word(part(message, "dtmf"), "digit"))]
            case "mark":
                return [Played(word(part(message, "mark"), "name"))]
            case "stop":
                return [Ended()]
        return []

    def sound(self, payload: bytes) -> JsonObject:
        return {"event": "media", "streamSid": self._stream, "media": {"payload": payload_of(payload)}}

    def mark(self, name: str) -> JsonObject:
        return {"event": "mark", "streamSid": self._stream, "mark": {"name": name}}

    def clear(self) -> JsonObject:
        return {"event": "clear", "streamSid": self._stream}
