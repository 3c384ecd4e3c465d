"""The inputs of the turn machine: past facts, each with the wall time `at` (ms, monotonic) at which it arrived.

Audio itself never enters; positions and durations do. Work that was asked for under an epoch or an id comes back under
it, and what is stale is dropped before anything else looks at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .conversation import Item, SpokenWord
from .ids import Epoch, ItemId
from .settings import Limits, Patch, Settings

# --- life of the session -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The transport is up. `seed` makes the ids."""

    at: float
    seed: str
    settings: Settings
    limits: Limits = Limits()
    models: tuple[str, ...] | None = None  # that a session may name; None: any


@dataclass(frozen=True, slots=True)
class TransportClosed:
    at: float


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The server is shutting down."""

    at: float


@dataclass(frozen=True, slots=True)
class EngineLost:
    at: float


@dataclass(frozen=True, slots=True)
class EngineBack:
    at: float


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node of the graph died. `code` is the wire's code for it."""

    at: float
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """`token` is the one of the effect that armed the timer; any other is stale."""

    at: float
    key: str
    token: int


# --- what the client asks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientFault:
    """A client event that could not be read."""

    at: float
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class SettingsRefused:
    at: float
    param: str
    message: str
    code: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateSession:
    at: float
    patch: Patch
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommitBuffer:
    at: float
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClearBuffer:
    at: float
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateItem:
    """`item` has an empty id where the client gave none."""

    at: float
    item: Item
    after: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    at: float
    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    at: float
    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class TruncateItem:
    at: float
    item_id: str
    content_index: int
    audio_end_ms: int
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ItemReference:
    """An item of the conversation, named in a response's input."""

    id: str


@dataclass(frozen=True, slots=True)
class ResponseParams:
    """What a `response.create` overrides; None keeps the session's."""

    instructions: str | None = None
    text_only: bool | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    voice: str | None = None
    metadata: dict[str, str] | None = None
    out_of_band: bool = False
    input: tuple[Item | ItemReference, ...] | None = None
    say: str | None = None  # the server's own line: this is the text, chat is not asked


@dataclass(frozen=True, slots=True)
class CreateResponse:
    at: float
    params: ResponseParams = field(default_factory=ResponseParams)
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    at: float
    response_id: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClearOutput:
    """`output_audio_buffer.clear`: drop queued audio, keep chat going."""

    at: float
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CloseSession:
    at: float
    event_id: str | None = None


# --- what the agent's own side says ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """A line that the server wants said, when nothing else is."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ToolDone:
    """The answer of a tool that the server ran. `failed`: by an error or its time; `quiet`: nothing is to be said about
    it; `ended`: the call is over."""

    at: float
    call_id: str
    output: str
    outcome: Literal["answered", "failed", "quiet", "ended"] = "answered"


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """A key of the caller's telephone. `received_at`: seconds of the epoch. `taken`: a tool waits for it."""

    at: float
    key: str
    received_at: int
    taken: bool = False


# --- what the ears say ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AudioAppended:
    """Input audio reaches to `end_ms` (audio time). `filled`: with silence, for input that did not come."""

    at: float
    end_ms: int
    filled: bool = False


@dataclass(frozen=True, slots=True)
class VadWindow:
    """One 32 ms window that ends at `end_ms` (audio time)."""

    at: float
    end_ms: int
    prob: float
    level_db: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """`near`: what else it may have been, nearly as likely."""

    text: str
    avg_logprob: float | None = None
    no_speech_prob: float | None = None
    near: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadChanged:
    """The server has become busy, or no longer is. While it is, nothing is begun ahead of a turn's end."""

    at: float
    is_busy: bool


@dataclass(frozen=True, slots=True)
class SttPartial:
    """What was heard up to `end_ms` (audio time); the first `stable_chars` are final. The noise gate needs the scores."""

    at: float
    item_id: ItemId
    text: str
    stable_chars: int
    end_ms: int
    avg_logprob: float | None = None
    no_speech_prob: float | None = None


@dataclass(frozen=True, slots=True)
class WordsAhead:
    """The words up to a short silence that may become the stop; `voiced_ms`: the end of the voice (audio time) that they
    are of. `p`: how likely a model takes them for the end of a turn; None: none was asked."""

    at: float
    item_id: ItemId
    voiced_ms: int
    transcript: Transcript
    p: float | None = None


@dataclass(frozen=True, slots=True)
class SttStopTranscript:
    """The flush at a speech stop was answered. `flush` numbers the flush; an older one is stale."""

    at: float
    item_id: ItemId
    flush: int
    transcript: Transcript


@dataclass(frozen=True, slots=True)
class SttFailed:
    at: float
    item_id: ItemId
    flush: int
    message: str


@dataclass(frozen=True, slots=True)
class EouVerdict:
    """An answer to the end-of-turn question `ask`, by the sound or by the words; `p` is None where that failed."""

    at: float
    item_id: ItemId
    ask: int
    p: float | None
    head: Literal["audio", "words"] = "audio"


# --- what the brain and the mouth say ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatDelta:
    at: float
    epoch: Epoch
    text: str


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """The next piece of a call's arguments, while chat writes it. The whole call comes with `ChatDone` all the same."""

    at: float
    epoch: Epoch
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatDone:
    """`limited`: stopped by the token limit. Token counts for `usage`."""

    at: float
    epoch: Epoch
    tool_calls: tuple[ToolCall, ...] = ()
    limited: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChatFailed:
    at: float
    epoch: Epoch
    message: str


@dataclass(frozen=True, slots=True)
class PhrasePlanned:
    """A phrase was synthesized: its words and how far the response's audio now reaches."""

    at: float
    epoch: Epoch
    words: tuple[SpokenWord, ...]
    planned_ms: int


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """Everything chat said has been synthesized."""

    at: float
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SpeechFailed:
    at: float
    epoch: Epoch
    message: str


@dataclass(frozen=True, slots=True)
class FrameDue:
    """The pacer holds the next frame of the response's audio: with it, `written_ms` will have been written.

    `level_db`: the frame's level in dBFS, for the echo guard.
    """

    at: float
    epoch: Epoch
    written_ms: int
    played_ms: int
    level_db: float = -100.0


@dataclass(frozen=True, slots=True)
class PlayoutDrained:
    """Everything written was played."""

    at: float
    epoch: Epoch
    played_ms: int


# What a client asks for, other than audio; a sign that somebody is there.
Requests = (
    UpdateSession
    | CommitBuffer
    | ClearBuffer
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | ClearOutput
)

Input = (
    Opened
    | TransportClosed
    | DrainRequested
    | EngineLost
    | EngineBack
    | NodeFailed
    | TimerFired
    | ClientFault
    | SettingsRefused
    | UpdateSession
    | CommitBuffer
    | ClearBuffer
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | ClearOutput
    | CloseSession
    | Say
    | ToolDone
    | KeyPressed
    | AudioAppended
    | VadWindow
    | LoadChanged
    | SttPartial
    | WordsAhead
    | SttStopTranscript
    | SttFailed
    | EouVerdict
    | ChatDelta
    | ToolDelta
    | ChatDone
    | ChatFailed
    | PhrasePlanned
    | SpeechDone
    | SpeechFailed
    | FrameDue
    | PlayoutDrained
)
