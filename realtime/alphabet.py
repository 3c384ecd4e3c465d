"""The internal alphabet: what the session says, before a dialect turns it into wire events (`wire.py`).

One frozen type per event; fields carry GA's names. What is None is left out on the wire unless the type says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .conversation import Item, Part
from .ids import ItemId, ResponseId
from .settings import Settings

EndReason = Literal[
    "client_closed", "max_duration", "idle_timeout", "draining", "client_too_slow",
    "internal_state_error", "vad_failed", "stt_failed", "engine_unavailable", "agent_ended",
]  # fmt: skip
ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]


@dataclass(frozen=True, slots=True)
class SessionCreated:
    session_id: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    session_id: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class SessionDone:
    reason: EndReason


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None  # the client event that it answers


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """A key of the caller's telephone; `received_at`: seconds of the epoch."""

    key: str
    received_at: int


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    item_id: ItemId
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    item_id: ItemId
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    item_id: ItemId
    previous_item_id: ItemId | None


@dataclass(frozen=True, slots=True)
class TimeoutTriggered:
    """GA: nobody spoke after a reply; the silence becomes an item."""

    item_id: ItemId
    audio_start_ms: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


@dataclass(frozen=True, slots=True)
class Discarded:
    """Extended: speech too short to be an utterance."""

    item_id: ItemId


@dataclass(frozen=True, slots=True)
class Partial:
    """Extended: what STT hears so far; the first `stable_chars` are never taken back."""

    item_id: ItemId
    text: str
    stable_chars: int


@dataclass(frozen=True, slots=True)
class TranscriptionDelta:
    item_id: ItemId
    delta: str


@dataclass(frozen=True, slots=True)
class TranscriptionCompleted:
    item_id: ItemId
    transcript: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TranscriptionFailed:
    item_id: ItemId
    message: str


@dataclass(frozen=True, slots=True)
class ItemAdded:
    item: Item
    previous_item_id: ItemId | None


@dataclass(frozen=True, slots=True)
class ItemDone:
    item: Item
    previous_item_id: ItemId | None


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    item: Item


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    item_id: ItemId


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    """`decided_by` tells the two apart in the extended dialect."""

    item_id: ItemId
    audio_end_ms: int
    decided_by: Literal["client", "server"]
    content_index: int = 0


@dataclass(frozen=True, slots=True)
class ResponseView:
    """A response as `response.created` and `response.done` show it."""

    id: ResponseId
    status: ResponseStatus
    conversation_id: str | None
    text_only: bool
    voice: str
    output_format: str
    max_output_tokens: int | Literal["inf"]
    output: tuple[Item, ...] = ()
    reason: str | None = None
    error_code: str | None = None
    usage: tuple[int, int, int, bool] | None = None  # input, output, cached tokens; whether output was audio
    metadata: dict[str, str] | None = None
    audio_end_ms: int | None = None
    first_token_ms: int | None = None  # from `response.created`


@dataclass(frozen=True, slots=True)
class ResponseCreated:
    response: ResponseView


@dataclass(frozen=True, slots=True)
class ResponseDone:
    response: ResponseView


@dataclass(frozen=True, slots=True)
class OutputItemAdded:
    response_id: ResponseId
    output_index: int
    item: Item


@dataclass(frozen=True, slots=True)
class OutputItemDone:
    response_id: ResponseId
    output_index: int
    item: Item


@dataclass(frozen=True, slots=True)
class ContentPartAdded:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    part: Part


@dataclass(frozen=True, slots=True)
class ContentPartDone:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    part: Part


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """The frame that the pacer holds; its PCM is attached by whoever writes the event."""

    response_id: ResponseId
    item_id: ItemId
    output_index: int


@dataclass(frozen=True, slots=True)
class AudioDone:
    response_id: ResponseId
    item_id: ItemId
    output_index: int


@dataclass(frozen=True, slots=True)
class SpokenDelta:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    delta: str


@dataclass(frozen=True, slots=True)
class SpokenDone:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    transcript: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    delta: str


@dataclass(frozen=True, slots=True)
class TextDone:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    text: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    call_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class ArgumentsDone:
    response_id: ResponseId
    item_id: ItemId
    output_index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class OutputStarted:
    response_id: ResponseId


@dataclass(frozen=True, slots=True)
class OutputPaused:
    """Extended: somebody may be speaking; the reply waits where it is."""

    response_id: ResponseId


@dataclass(frozen=True, slots=True)
class OutputResumed:
    """Extended: it was nothing; the reply goes on at the next sample."""

    response_id: ResponseId


@dataclass(frozen=True, slots=True)
class OutputStopped:
    response_id: ResponseId


@dataclass(frozen=True, slots=True)
class OutputCleared:
    response_id: ResponseId


ServerEvent = (
    SessionCreated
    | SessionUpdated
    | SessionDone
    | ErrorEvent
    | KeyPressed
    | SpeechStarted
    | SpeechStopped
    | TimeoutTriggered
    | Committed
    | Cleared
    | Discarded
    | Partial
    | TranscriptionDelta
    | TranscriptionCompleted
    | TranscriptionFailed
    | ItemAdded
    | ItemDone
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | ResponseCreated
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | AudioDelta
    | AudioDone
    | SpokenDelta
    | SpokenDone
    | TextDelta
    | TextDone
    | ArgumentsDelta
    | ArgumentsDone
    | OutputStarted
    | OutputPaused
    | OutputResumed
    | OutputStopped
    | OutputCleared
)

JsonObject = dict[str, Any]
