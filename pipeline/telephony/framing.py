"""What the providers have in common: JSON text frames, base64 mu-law at 8 kHz both ways, marks, clear, keys.

A framing turns a provider's messages into these events and back; it keeps nothing but the ids that it has to repeat.
"""

from __future__ import annotations

import base64
import binascii
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

JsonObject = dict[str, Any]
MAX_PARAMETERS, MAX_PARAMETER = 32, 2000


class PhoneError(Exception):
    """A message that cannot be taken; the text says why."""


@dataclass(frozen=True, slots=True)
class Started:
    """The stream has begun. `parameters`: what whoever set the call up wrote for us."""

    stream_id: str
    call_id: str
    parameters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sound:
    """The caller's voice: mu-law, 8 kHz."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the caller's telephone."""

    key: str


@dataclass(frozen=True, slots=True)
class Played:
    """What was sent before this mark has been played, or cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The caller has hung up, or the provider ends the stream."""


PhoneEvent = Started | Sound | Key | Played | Ended


class Framing(ABC):
    """One stream's. `read` raises PhoneError."""

    name: str

    def read(self, text: str | bytes) -> list[PhoneEvent]:
        """The events of one message; messages that mean nothing to us give none."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            raise PhoneError("a message is not valid JSON") from None
        if not isinstance(message, dict) or not isinstance(message.get("event"), str):
            raise PhoneError("a message has no event")
        return self.take(message["event"], message)

    @abstractmethod
    def take(self, event: str, message: JsonObject) -> list[PhoneEvent]: ...

    @abstractmethod
    def sound(self, payload: bytes) -> JsonObject:
        """A message that plays mu-law audio."""

    @abstractmethod
    def mark(self, name: str) -> JsonObject:
        """A message that is told back when everything before it has been played."""

    @abstractmethod
    def clear(self) -> JsonObject:
        """A message that drops what waits to be played."""


def part(message: JsonObject, key: str) -> JsonObject:
    """An object inside a message. Raises PhoneError."""
    value = message.get(key)
    if not isinstance(value, dict):
        raise PhoneError(f"{message.get('event')} has no {key}")
    return value


def word(obj: JsonObject, key: str) -> str:
    """A text inside an object. Raises PhoneError."""
    value = obj.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 512:
        raise PhoneError(f"{key} is missing or no text")
    return value


def audio(obj: JsonObject) -> bytes:
    """The bytes of `payload`. Raises PhoneError."""
    try:
        return base64.b64decode(obj["payload"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise PhoneError("media.payload is not valid base64") from None


def payload_of(sound: bytes) -> str:
    return base64.b64encode(sound).decode()


def texts(given: Any) -> dict[str, str]:
    """Parameters, the short texts among them."""
    if not isinstance(given, dict):
        return {}
    pairs = [(str(k), v) for k, v in given.items() if isinstance(v, str) and len(v) <= MAX_PARAMETER]
    return dict(pairs[:MAX_PARAMETERS])


def check_codec(encoding: Any, rate: Any, mulaw: tuple[str, ...]) -> None:
    """Only mu-law at 8 kHz. Raises PhoneError naming what it is instead."""
    if str(encoding).lower() not in mulaw or str(rate) != "8000":
        raise PhoneError(f"the codec {encoding} at {rate} Hz is not supported; set the stream to mu-law (PCMU) at 8000 Hz")
