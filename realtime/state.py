"""The state of a session: four sum types and what they share (SPEC section 2).

Every variant is its own frozen type with only its own fields, so that "speaking without an item" cannot be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .alphabet import EndReason
from .conversation import Conversation, SpokenWord
from .detector import Detector
from .echo import Echo
from .effects import StartChat
from .events import ResponseParams, SttPartial, ToolCall, Transcript
from .ids import Epoch, IdStream, ItemId, ResponseId
from .settings import Limits, Settings

# --- session phase -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pending:
    pass


@dataclass(frozen=True, slots=True)
class Active:
    pass


@dataclass(frozen=True, slots=True)
class Terminated:
    reason: EndReason


SessionPhase = Pending | Active | Terminated

# --- the user's side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Silent:
    pass


@dataclass(frozen=True, slots=True)
class Pause:
    """Where speech stopped; `last_voiced_at` is wall time. `flush`: a careful transcript that was asked for."""

    audio_end_ms: int
    last_voiced_ms: int
    last_voiced_at: float
    flush: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Speech over a response, not announced yet.

    Hold mode makes one at the raw onset, before it is `confirmed`. After a `pause` what was `heard` of it decides.
    """

    item_id: ItemId
    audio_start_ms: int
    voiced_ms: int
    earlier_voiced_ms: int = 0
    confirmed: bool = True
    pause: Pause | None = None
    heard: SttPartial | None = None  # what STT said last


@dataclass(frozen=True, slots=True)
class Speaking:
    """`voiced_ms` counts the voiced windows of the whole utterance, `earlier_voiced_ms` those before this stretch."""

    item_id: ItemId
    audio_start_ms: int
    voiced_ms: int
    earlier_voiced_ms: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Has the user finished? Which heads have still to answer ("audio", "words"), and the scores of those that have."""

    waiting: frozenset[str] = frozenset()
    audio: float | None = None
    words: float | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The user stopped; two timers race: the commit (once the classifier has spoken) and the hard cap."""

    item_id: ItemId
    audio_start_ms: int
    audio_end_ms: int
    voiced_ms: int
    last_voiced_at: float  # wall time of the last voiced sample
    flush: int
    ask: int | None  # the number of the question that is open
    transcript: Transcript | None = None
    question: Question = Question()


VadPhase = Silent | Candidate | Speaking | Stopped

# --- the reply's side ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What a response was asked to be; the same for its whole life."""

    id: ResponseId
    epoch: Epoch
    params: ResponseParams
    spoken: bool
    voice: str
    output_format: str
    max_output_tokens: int | None
    conversation_id: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Calling:
    """A call that chat is writing. `item_id`: of its item, once that is announced; `num_sent` characters have gone out."""

    call_id: str
    name: str
    arguments: str = ""
    item_id: ItemId | None = None
    output_index: int = 0
    num_sent: int = 0


@dataclass(frozen=True, slots=True)
class Chat:
    """What chat has produced so far. `message_index`: where its message is in the response's output."""

    text: str = ""
    first_at: float | None = None  # wall time of the first token
    done: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    calling: tuple[Calling, ...] = ()
    message_index: int = 0
    limited: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Voice:
    """What TTS has planned and the pacer has written and played, in ms of this response's audio."""

    words: tuple[SpokenWord, ...] = ()
    planned_ms: int = 0
    written_ms: int = 0
    played_ms: int = 0
    num_announced: int = 0  # words whose transcript delta has gone out
    frame_at: float = 0.0  # wall time of the last frame
    done: bool = False  # nothing more will be planned
    cap_ms: int | None = None  # the client says that it heard no more than this (clear, truncate)
    cleared: bool = False  # later audio of this response is dropped

    def played_at(self, at: float) -> int:
        """The playout clock at wall time `at`: it runs on from the last frame, up to what was written."""
        played = min(self.written_ms, self.played_ms + round(at - self.frame_at)) if self.written_ms else 0
        return played if self.cap_ms is None else min(played, self.cap_ms)


@dataclass(frozen=True, slots=True)
class Idle:
    pass


@dataclass(frozen=True, slots=True)
class Predicted:
    """Being written before the turn has ended, in case it ends as it stands; nothing of it is on the wire.

    `ask` is everything that chat was asked; it is adopted only by a response that would ask the same. `item_id`,
    `voiced_ms`: the turn, and how much voice it held; more of it, and this is the answer to something else.
    """

    plan: Plan
    ask: StartChat
    item_id: ItemId
    voiced_ms: int
    chat: Chat = Chat()
    voice: Voice = Voice()


@dataclass(frozen=True, slots=True)
class Created:
    """Announced; nothing that is said has been put out yet."""

    plan: Plan
    chat: Chat = Chat()
    voice: Voice = Voice()


@dataclass(frozen=True, slots=True)
class Streaming:
    """Its message item is open and chat is still writing or TTS still planning."""

    plan: Plan
    item_id: ItemId
    chat: Chat
    voice: Voice


@dataclass(frozen=True, slots=True)
class Drain:
    """Chat and TTS are done, audio is still playing."""

    plan: Plan
    item_id: ItemId
    chat: Chat
    voice: Voice


Live = Created | Streaming | Drain


@dataclass(frozen=True, slots=True)
class Held:
    """A live response as it was, its output paused by a candidate; chat and TTS go on inside.

    `heard_ms` is the playout clock at the onset. `cap_left_ms`: what was left of the drain cap. `failure`: the code of
    a failure of chat or TTS that waits for what becomes of the candidate. `told`: the client knows of the pause.
    """

    inner: Live
    heard_ms: int
    cap_left_ms: float | None
    told: bool
    failure: str | None = None


RespPhase = Idle | Predicted | Created | Streaming | Drain | Held


@dataclass(frozen=True, slots=True)
class Parked:
    """A response that fell due while the user was talking."""

    params: ResponseParams


@dataclass(frozen=True, slots=True)
class OutOfBand:
    """A text response beside the conversation."""

    plan: Plan
    chat: Chat = Chat()
    item_id: ItemId | None = None


# --- the agent's side ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """A call of one of the server's own tools. `outcome`: "" while it runs, then that of `ToolDone`, or "cancelled"; it
    is kept until all calls of its response have one. `filler`: the line to say if it takes long."""

    call_id: str
    item_id: ItemId
    response_id: ResponseId
    cancels: bool
    filler: str
    spoke: bool
    outcome: str = ""


# --- input buffers and transcription -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sealed:
    """A committed stretch of input audio. `flush` is the transcript that it waits for; None: it has it."""

    item_id: ItemId
    start_ms: int
    end_ms: int
    voiced_ms: int
    flush: int | None
    answer: bool  # a reply is wanted once the words are there


@dataclass(frozen=True, slots=True)
class Armed:
    """A running timer: the token that its firing must carry, and its wall time."""

    token: int
    due: float


@dataclass(frozen=True, slots=True)
class Session:
    """The whole state. `token` numbers timers, flushes and questions; `epoch` responses."""

    phase: SessionPhase = Pending()
    id: str = ""
    conversation_id: str = ""
    settings: Settings = field(default_factory=Settings)
    limits: Limits = Limits()
    models: tuple[str, ...] | None = None  # that `model` may name, beside the aliases; None: any
    ids: IdStream = IdStream("")
    draft_ids: IdStream = IdStream("")  # of predicted responses
    vad: VadPhase = Silent()
    resp: RespPhase = Idle()
    parked: Parked | None = None
    oob: Mapping[str, OutOfBand] = field(default_factory=dict)
    detector: Detector = Detector()
    echo: Echo = Echo()
    conversation: Conversation = Conversation()
    sealed: tuple[Sealed, ...] = ()
    timers: Mapping[str, Armed] = field(default_factory=dict)
    epoch: Epoch = Epoch(0)
    token: int = 0
    audio_ms: int = 0  # input audio reaches this far
    buffer_start_ms: int = 0  # the open buffer begins here
    num_stt_failures: int = 0
    num_drafts: int = 0  # predictions of this turn
    is_busy: bool = False  # the server: it begins nothing ahead
    input_at: float = 0.0  # wall time of the last input audio that came from the client
    covered_at: float = 0.0  # and up to which input is accounted for, by audio or by silence in its place
    active_at: float = 0.0  # wall time of the last sign of life
    work: tuple[Running, ...] = ()  # tools that the server runs
    lines: tuple[str, ...] = ()  # that wait to be said
    greeted: bool = False  # or the conversation began without a greeting
    keys: str = ""  # of a telephone, pressed in a row
    leaving: bool = False  # the agent has ended the call
    was_answered: bool = False  # the last thing in the conversation was a whole reply, and it is the user's turn
    updated: bool = False


def live(resp: RespPhase) -> Live | None:
    """The response that has a `response.created` and no `response.done` yet, held or not."""
    if isinstance(resp, Held):
        return resp.inner
    return resp if isinstance(resp, Created | Streaming | Drain) else None
