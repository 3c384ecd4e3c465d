"""The effects of a step: what the runner is to do, as data. Commands, in the order in which they are to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .alphabet import EndReason, ServerEvent
from .conversation import ChatMessage
from .ids import Epoch, ItemId, ResponseId


@dataclass(frozen=True, slots=True)
class Emit:
    event: ServerEvent


@dataclass(frozen=True, slots=True)
class Inspect:
    """A note for the inspector: why something was decided."""

    lane: str
    kind: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Arm `key` for the wall time `due` (ms); the firing must carry `token`."""

    key: str
    due: float
    token: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    key: str


@dataclass(frozen=True, slots=True)
class StartStt:
    """Begin to transcribe the utterance whose audio starts at `start_ms`; audio keeps coming."""

    item_id: ItemId
    start_ms: int
    language: str | None
    prompt: str | None


@dataclass(frozen=True, slots=True)
class PrepareStt:
    """The user may have finished: have the words up to here ready, in case a flush with the same `voiced_ms` comes."""

    item_id: ItemId
    end_ms: int
    voiced_ms: int


@dataclass(frozen=True, slots=True)
class FlushStt:
    """Say what was heard up to `end_ms`, now; the last voice was at `voiced_ms`. The answer carries `flush`."""

    item_id: ItemId
    flush: int
    end_ms: int
    voiced_ms: int


@dataclass(frozen=True, slots=True)
class AskPartial:
    """Say soon what this utterance holds so far; while an earlier question is open, as soon as that is answered."""

    item_id: ItemId


@dataclass(frozen=True, slots=True)
class StopStt:
    """Forget this utterance."""

    item_id: ItemId


@dataclass(frozen=True, slots=True)
class SealBuffer:
    """The audio from `start_ms` to `end_ms` became the item; it never changes again."""

    item_id: ItemId
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class DropAudio:
    """Input audio before `before_ms` is not needed any more."""

    before_ms: int


@dataclass(frozen=True, slots=True)
class FeedSilence:
    """Input that did not come counts as silence: take this much of it."""

    ms: int


@dataclass(frozen=True, slots=True)
class PrepareEou:
    """A pause may become a stop: let the classifier think about the sound up to `end_ms` already."""

    item_id: ItemId
    end_ms: int
    voiced_ms: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class AskEou:
    """Has the user finished, by the sound? The last voice was at `voiced_ms`; heard: up to `end_ms`, `window_ms` of it."""

    item_id: ItemId
    ask: int
    end_ms: int
    voiced_ms: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class EouContext:
    """What came before the words. `history`: the last turns, `max_tokens` of them at most; `messages` and
    `instructions`: what chat would be sent, for a chat model that may judge by its own prompt (`own_prompt`)."""

    history: tuple[ChatMessage, ...]
    max_tokens: int
    messages: tuple[ChatMessage, ...]
    instructions: str
    own_prompt: bool


@dataclass(frozen=True, slots=True)
class PrepareEouText:
    """The user begins to speak after these turns: the words' model may read them already."""

    context: EouContext


@dataclass(frozen=True, slots=True)
class AskEouText:
    """Has the user finished, by the words?"""

    item_id: ItemId
    ask: int
    text: str
    context: EouContext


@dataclass(frozen=True, slots=True)
class StartChat:
    epoch: Epoch
    response_id: ResponseId
    messages: tuple[ChatMessage, ...]
    instructions: str
    tools: tuple[dict[str, Any], ...]
    tool_choice: str | dict[str, Any]
    max_output_tokens: int | None
    temperature: float | None
    spoken: bool  # false: text only, nothing goes to TTS
    voice: str
    speed: float
    parallel_tool_calls: bool = True


@dataclass(frozen=True, slots=True)
class SayLine:
    """Say this text: what chat would bring under this epoch is given."""

    epoch: Epoch
    response_id: ResponseId
    text: str
    spoken: bool
    voice: str
    speed: float


@dataclass(frozen=True, slots=True)
class RunTool:
    """Run one of the server's own tools; answered by `ToolDone`. `arguments`: JSON text as chat wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CancelTool:
    """Its answer is not wanted any more."""

    call_id: str


@dataclass(frozen=True, slots=True)
class HoldOutput:
    """Audio of this epoch is made ready but not written until it is released; it goes on at the very next sample."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ReleaseOutput:
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PrimeChat:
    """A reply to these messages is likely soon: have the prompt read, write nothing. May be ignored."""

    messages: tuple[ChatMessage, ...]
    instructions: str


@dataclass(frozen=True, slots=True)
class RetireEpoch:
    """The response is over: nothing of this epoch may have an effect any more, queued audio of it is dropped."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class FlushOutput:
    """Drop the queued audio of this epoch and whatever still comes of it; chat goes on."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Close:
    code: Literal[1000, 1001, 1008, 1011]
    reason: EndReason


Effect = (
    Emit
    | Inspect
    | StartTimer
    | CancelTimer
    | StartStt
    | PrepareStt
    | FlushStt
    | AskPartial
    | StopStt
    | SealBuffer
    | DropAudio
    | FeedSilence
    | PrepareEou
    | AskEou
    | PrepareEouText
    | AskEouText
    | StartChat
    | SayLine
    | RunTool
    | CancelTool
    | HoldOutput
    | ReleaseOutput
    | PrimeChat
    | RetireEpoch
    | FlushOutput
    | Close
)
