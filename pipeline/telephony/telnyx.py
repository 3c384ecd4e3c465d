"""Telnyx media streaming over WebSocket, bidirectional in RTP mode (`stream_bidirectional_mode: rtp`, PCMU).

https://developers.telnyx.com/docs/voice/programmable-voice/media-streaming
"""

from __future__ import annotations

from .framing import (
    Ended,
    Framing,
    JsonObject,
    Key,
    PhoneError,
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

MOST_WAITING = 4  # frames that wait for one before them; then it is taken for lost


class Telnyx(Framing):
    """`connected`, `start`, then `media`, `dtmf`, `mark` until `stop`. Media may come out of order; `chunk` numbers it."""

    name = "telnyx"

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, Sound] = {}

    def take(self, event: str, message: JsonObject) -> list[PhoneEvent]:
        match event:
            case "start":
                start = part(message, "start")
                form = part(start, "media_format")
                check_codec(form.get("encoding"), form.get("sample_rate"), ("pcmu",))
                given = {"caller": start.get("from"), "called": start.get("to")}
                parameters = texts(given) | texts(start.get("custom_parameters"))
                return [Started(word(message, "stream_id"), word(start, "call_control_id"), parameters)]
            case "media":
                media = part(message, "media")
                return self._in_order(media) if media.get("track", "inbound") == "inbound" else []
            case "dtmf":
                return [Key(word(part(message, "dtmf"), "digit"))]
            case "mark":
                return [Played(word(part(message, "mark"), "name"))]
            case "error":
                payload = message.get("payload")
                raise PhoneError(f"telnyx: {payload.get('title') if isinstance(payload, dict) else payload}")
            case "stop":
                return [Ended()]
        return []

    def _in_order(self, media: JsonObject) -> list[PhoneEvent]:
        try:
            number = int(media.get("chunk") or 0)
        except (TypeError, ValueError):
            raise PhoneError("media.chunk is no number") from None
        sound = Sound(audio(media))
        if number < self._next:
            return []  # too late
        self._waiting[number] = sound
        if self._next == 0 or len(self._waiting) > MOST_WAITING:
            self._next = min(self._waiting)
        out: list[PhoneEvent] = []
        while (ready := self._waiting.pop(self._next, None)) is not None:
            out.append(ready)
            self._next += 1
        return out

    def sound(self, payload: bytes) -> JsonObject:
        return {"event": "media", "media": {"payload": payload_of(payload)}}

    def mark(self, name: str) -> JsonObject:
        return {"event": "mark", "mark": {"name": name}}

    def clear(self) -> JsonObject:
        return {"event": "clear"}
