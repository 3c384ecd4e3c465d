"""The boundary of the engine: what crosses the socket, and how it is framed.

A *stream* is one caller's use of one lane. Work is fed into it under a *tag*; results come back under the same tag.
`Cancel` ends a tag's work, `Close` the stream. Results are paid for with credit: the engine sends at most `CREDIT` more
than were acknowledged, so that a slow reader slows its own stream only.

Framing: a 4-byte little-endian length, then one MessagePack message. Audio is float32 little-endian, mono.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

CREDIT = 256
MAX_FRAME = 64 * 2**20

LaneName = Literal["vad", "stt", "turn", "chat", "tts", "embed"]
Class = Literal["live", "speculative", "interactive", "bulk"]


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of everything on the socket."""


# --- to the engine -------------------------------------------------------------------------------------------------


class Open(Message, frozen=True):
    """Begin a stream. `params` are the lane's own."""

    stream: int
    lane: LaneName
    params: dict[str, Any]
    cls: Class = "live"


class Audio(Message, frozen=True):
    """vad, stt: the next stretch of 16 kHz audio."""

    pcm: bytes


class Hear(Message, frozen=True):
    """stt: everything about one window of a recording, float32 at 16 kHz, at most 30 s. -> Heard

    `language` "": find out. `before`: text that came before. `temperature` 0: as sure as possible, with fallbacks.
    `text`: what is said is known, only its times are asked for.
    """

    pcm: bytes
    language: str = ""
    task: Literal["transcribe", "translate"] = "transcribe"
    before: str = ""
    temperature: float = 0.0
    words: bool = False
    text: str = ""


class Transcribe(Message, frozen=True):
    """stt: say what the stream's first `num_samples` samples say. `voiced_samples`: where its last voiced sample is.

    A `prepare` asks to have the answer ready for a later request with the same last voiced sample; it gets no result.
    """

    num_samples: int
    voiced_samples: int
    kind: Literal["final", "partial", "prepare"] = "final"


class AskTurn(Message, frozen=True):
    """turn: is the utterance over, by its last seconds of 16 kHz audio?"""

    pcm: bytes


class ChatTurn(Message, frozen=True):
    role: str
    content: str


class Generate(Message, frozen=True):
    """chat: continue the conversation. None: the model's own setting. `max_tokens` 0: only read the prompt."""

    messages: tuple[ChatTurn, ...]
    instructions: str
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


class Write(Message, frozen=True):
    """chat: write one text, everything about it told. -> Token, then Generated; with `max_tokens` 0 only its count.

    What is continued is `messages` with `instructions`, or `prompt` (a text or token ids) as it stands; `lead` is put
    after it and not reported. None: the model's own setting. What the text is held to, one of these at most: `schema`: JSON
    that fits it; `regex`: the whole of it matches; `grammar` (Lark's form): it follows from that; `choices`: it is one of them.
    """

    messages: tuple[ChatTurn, ...] = ()
    instructions: str = ""
    prompt: str | tuple[int, ...] | None = None
    lead: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None  # how many alternatives to report beside each token's own
    stop: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    regex: str = ""
    grammar: str = ""
    choices: tuple[str, ...] = ()


class EndOfWords(Message, frozen=True):
    """chat: has a caller who said `text`, after these turns (at most `max_tokens` of them), finished? -> TurnScore."""

    text: str
    messages: tuple[ChatTurn, ...]
    max_tokens: int = 128
    instructions: str = ""


class Say(Message, frozen=True):
    """tts: synthesize one phrase. `words` are pieces to be spoken in order; times come back per piece."""

    words: tuple[str, ...]
    speed: float = 1.0
    last: bool = False  # nothing follows: keep less silence after it


class Embed(Message, frozen=True):
    """embed: vectors of texts, or of token ids. -> Vectors"""

    inputs: tuple[str | tuple[int, ...], ...]


class Voice(Message, frozen=True):
    """embed: who speaks? One vector for each stretch (first sample, end) of 16 kHz audio. -> Vectors"""

    pcm: bytes
    stretches: tuple[tuple[int, int], ...]


Body = Audio | Hear | Transcribe | AskTurn | Generate | Write | EndOfWords | Say | Embed | Voice


class Feed(Message, frozen=True):
    """Work for a stream. `due_ms`: how soon its user would notice, from now."""

    stream: int
    tag: int
    body: Body
    due_ms: float = 0.0


class Cancel(Message, frozen=True):
    """End the work of a tag; None: all of the stream's."""

    stream: int
    tag: int | None = None


class Close(Message, frozen=True):
    stream: int


class Credit(Message, frozen=True):
    """The reader has taken `count` results."""

    stream: int
    count: int


Request = Open | Feed | Cancel | Close | Credit


# --- from the engine -----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message of a connection, and again when `ready` turns true. `models`: task to model name.

    `call_s`: what a call is expected to take of a worker each second, measured at the start; 0 while unknown.
    """

    ready: bool
    pid: int
    models: dict[str, str]
    call_s: float = 0.0


class LaneLoad(Message, frozen=True):
    """Since the engine began. `answered`, `late`: live requests' first answers. `seconds`: of the device."""

    answered: int
    late: int
    seconds: float
    steps: int
    job_steps: int


class Load(Message, frozen=True):
    """How busy the engine is, once a second. `vad_ms`: counts by `stats.VAD_BOUNDS_MS`.

    `live_s`: of the time of so many `workers`, for calls.
    """

    jobs: int
    streams: int
    lanes: dict[str, LaneLoad]
    vad_ms: tuple[int, ...]
    cpu_s: float
    resident_bytes: int
    live_s: float = 0.0
    workers: int = 1


class Windows(Message, frozen=True):
    """vad: consecutive 32 ms windows, the last of which ends at `end_sample`."""

    end_sample: int
    probs: tuple[float, ...]
    levels_db: tuple[float, ...]


class Words(Message, frozen=True):
    """stt: what was said."""

    text: str
    avg_logprob: float
    no_speech_prob: float
    stable_chars: int = 0
    compute_ms: float = 0.0
    near: tuple[str, ...] = ()  # of a final: what else it may have been: other words, then a listener's sounds


class TurnScore(Message, frozen=True):
    p: float
    compute_ms: float = 0.0


class TimedWord(Message, frozen=True):
    """A word as written, and when it was said: seconds from the start of its window."""

    text: str
    start_s: float
    end_s: float


class HeardSegment(Message, frozen=True):
    """A piece of a window's transcript, in seconds from the window's start."""

    start_s: float
    end_s: float
    text: str
    tokens: tuple[int, ...]


class Heard(Message, frozen=True):
    """stt: what one window says. `language`: as the model names it ("en")."""

    text: str
    language: str
    segments: tuple[HeardSegment, ...]
    words: tuple[TimedWord, ...]
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float


class TokenScore(Message, frozen=True):
    """A token of a reply, its natural log-probability, and the likeliest tokens there with theirs."""

    raw: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


class Token(Message, frozen=True):
    """chat: more text, and where that was asked for the scores of the tokens made since the last."""

    text: str
    scores: tuple[TokenScore, ...] = ()


class Generated(Message, frozen=True):
    """chat: the end of a generation."""

    finish: Literal["stop", "length"]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    stop: str = ""  # the asked-for stop string that ended it


class Vectors(Message, frozen=True):
    """embed: rows of float32, little-endian, each of unit length. `num_tokens`: of each text, as the model reads it."""

    data: bytes
    rows: int
    num_tokens: tuple[int, ...] = ()


class Speech(Message, frozen=True):
    """tts: a stretch of 24 kHz audio of the phrase, with (start_ms, end_ms) of the next pieces, in order.

    A piece's times come with or before its audio; after the one that is `final` every piece has had them.
    """

    pcm: bytes
    times_ms: tuple[tuple[int, int], ...]
    final: bool


Answer = Windows | Words | Heard | TurnScore | Token | Generated | Speech | Vectors


class Result(Message, frozen=True):
    stream: int
    tag: int
    body: Answer


class Failed(Message, frozen=True):
    """The tag's work (or, with tag None, the stream) failed."""

    stream: int
    tag: int | None
    message: str
    fault: Literal["engine", "caller"] = "engine"  # caller: the request itself could not be done


Reply = Hello | Load | Result | Failed

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def pack(message: Request | Reply) -> bytes:
    """One framed message."""
    body = _encoder.encode(message)
    return struct.pack("<I", len(body)) + body


def unpack_request(body: bytes) -> Request:
    """Raises msgspec.DecodeError."""
    return _requests.decode(body)


def unpack_reply(body: bytes) -> Reply:
    """Raises msgspec.DecodeError."""
    return _replies.decode(body)
