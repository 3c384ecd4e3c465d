"""Session settings (SPEC section 11): one table that validates, merges, echoes and documents them.

`FIELDS` is the table. A setting has one inner path ("turn_detection.threshold"); GA's nested names and the flat names
are two ways to write it. An update is parsed whole, validated whole, then applied: all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

JsonObject = dict[str, Any]


class SettingsError(Exception):
    """A refused update: nothing of it was applied. `param` names the key as the client wrote it."""

    def __init__(self, param: str, message: str, code: str = "session_update_invalid") -> None:
        super().__init__(message)
        self.param, self.message, self.code = param, message, code


class TurnDetection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["server_vad", "semantic_vad"] = "semantic_vad"
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 100
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 350
    barge_in_delay_ms: int = 0
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None

    @property
    def stop_threshold(self) -> float:
        """`neg_threshold`, or its default when null."""
        return max(self.threshold - 0.15, 0.01) if self.neg_threshold is None else self.neg_threshold


class BargeIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["hold", "cancel", "off"] = "hold"
    echo_guard: Literal["auto", "off"] = "auto"
    min_words: int = 1
    unworded_ms: int = 800
    boundary_ms: int = 1000
    hold_cap_ms: int = 2000
    backchannels: tuple[str, ...] | None = None  # null: the language's list


FusionRule = Literal["noisy_or", "max", "mean", "weighted", "gated"]
EouKind = Literal["vad", "heuristic", "text", "audio", "fusion", "integrated"]
BEST_EOU: EouKind = "fusion"  # of those installed, by measurement


class Eou(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: EouKind = BEST_EOU
    fusion_rule: FusionRule = "gated"
    fusion_weight_text: float = 0.5
    context_turns: int = 4
    max_context_tokens: int = 128
    p_threshold: float = 0.5
    thresholds: dict[str, float] = {}
    curve_k: float = 12.0
    min_delay_ms: int = 400
    max_delay_ms: int = 4000
    silence_hard_cap_ms: int | None = None  # null: max(5000, max delay + 1000)
    inference_timeout_ms: int = 250
    audio_window_ms: int = 8000
    audio_pad_alignment: Literal["leading"] = "leading"
    stack_silence: bool = False  # count delays from the speech stop, not from the last voiced sample


class Transcription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str = "default"
    language: str | None = "en"
    prompt: str | None = None


class Pacer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lead_ms: int = 100


class Agent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent does beside answering (SPEC section 16). The server's own: no client can write it, no echo shows it.

    `tools`: function tools that the server runs itself, in the shape of `tools`, with `cancel_on_barge_in` and `filler`
    beside. An empty line is not said.
    """

    name: str = ""
    greeting: str = ""
    greeting_after_ms: int = 300
    tools: tuple[JsonObject, ...] = ()
    filler: str = ""
    filler_after_ms: int = 700
    apology: str = ""
    farewell: str = ""
    say_on_failure: str = ""
    first_token_ms: int = 5000
    keys_after_ms: int = 1500  # telephone keys are a message when so long no other was pressed


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a session can be told. Null (None) means switched off."""

    type: Literal["realtime", "transcription"] = "realtime"
    model: str = "default"
    profile: Literal["balanced", "fast", "patient"] = "balanced"
    instructions: str = ""
    voice: str = "default"
    speed: float = 1.0
    output_modalities: tuple[Literal["audio", "text"], ...] = ("audio",)
    tools: tuple[JsonObject, ...] = ()
    tool_choice: str | JsonObject = "auto"
    parallel_tool_calls: bool = True
    truncation: str | JsonObject = "auto"
    temperature: float | None = None
    max_output_tokens: int | Literal["inf"] = "inf"
    input_format: str = "pcm16"
    output_format: str = "pcm16"
    transcription: Transcription | None = Transcription()
    predict: bool = True  # begin to write a reply while the turn may still go on
    transcribe: bool = True  # false: transcription is null on the wire; STT runs all the same
    turn_detection: TurnDetection | None = TurnDetection()
    noise_reduction: JsonObject | None = None
    barge_in: BargeIn = BargeIn()
    eou: Eou = Eou()
    pacer: Pacer = Pacer()
    min_speech_ms: int = 100
    min_speech_for_response_ms: int = 0
    max_utterance_ms: int = 60000
    input_gap_ms: int = 200
    max_manual_ms: int = 600000
    no_speech_prob_threshold: float | None = 0.6
    avg_logprob_threshold: float | None = -1.0
    drain_cap_floor_ms: int = 5000
    drain_cap_ceiling_ms: int = 60000
    session_max_duration_s: int = 1800
    ignored_fields: tuple[str, ...] = ()
    agent: Agent = Agent()

    @property
    def interrupts(self) -> bool:
        """Whether speech over a reply may cut it."""
        td = self.turn_detection
        return td is not None and td.interrupt_response and self.barge_in.mode != "off"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server decides and no client can change."""

    session_max_duration_s: int = 3600  # what a client may ask for at most
    session_idle_timeout_s: int | None = None
    sealed_buffer_retention_count: int = 4
    stt_failure_limit: int = 3
    outbound_queue_cap: int = 256
    events_per_s: float = 500.0
    events_burst: float = 2000.0
    bytes_per_s: float = 2.0**20
    bytes_burst: float = 32 * 2.0**20
    context_tokens: int = 8192  # of the chat model: older turns are dropped beyond it


Check = Callable[[Any], Any]


def number(low: float, high: float) -> Check:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return float(value)

    return check


def integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return check


def choice(*names: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError("must be one of " + ", ".join(names))
        return value

    return check


class Unsupported(ValueError):
    """A value that has an error code of its own."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def coded(check: Check, code: str) -> Check:
    """`check`, refusing with an error code of its own."""

    def inner(value: Any) -> Any:
        try:
            return check(value)
        except ValueError as problem:
            raise Unsupported(str(problem), code) from None

    return inner


eou_kind = coded(choice(*get_args(EouKind)), "eou_kind_unsupported")
fusion_rule = coded(choice(*get_args(FusionRule)), "eou_fusion_rule_unsupported")


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def text(limit: int) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > limit:
            raise ValueError(f"must be a string of at most {limit} characters")
        return value

    return check


def nullable(inner: Check) -> Check:
    def check(value: Any) -> Any:
        return None if value is None else inner(value)

    return check


FORMATS = {"pcm16": 24000, "pcm16_16k": 16000, "g711_ulaw": 8000, "g711_alaw": 8000}
_GA_FORMATS = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}


def audio_format(value: Any) -> str:
    """Both shapes: the flat name, or GA's object. Returns the flat name."""
    if isinstance(value, str):
        return str(choice(*FORMATS)(value))
    if not isinstance(value, dict) or value.get("type") not in _GA_FORMATS:
        raise ValueError("type must be one of " + ", ".join(_GA_FORMATS))
    name = _GA_FORMATS[value["type"]]
    rate = value.get("rate", FORMATS[name])
    if name == "pcm16" and rate == 16000:
        return "pcm16_16k"
    if rate != FORMATS[name]:
        raise ValueError(f"rate must be {FORMATS[name]}")
    return name


def ga_format(name: str) -> JsonObject:
    """GA's object for a flat format name."""
    if name.startswith("pcm16"):
        return {"type": "audio/pcm", "rate": FORMATS[name]}
    return {"type": "audio/pcmu" if name == "g711_ulaw" else "audio/pcma"}


def modalities(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or set(value) - {"audio", "text"}:
        raise ValueError('must be ["audio"] or ["text"]')
    return ["audio"] if "audio" in value else ["text"]


def voice(value: Any) -> str:
    name = value.get("id") if isinstance(value, dict) else value
    return str(text(256)(name))


def tools(value: Any) -> list[JsonObject]:
    if not isinstance(value, list) or len(value) > 128:
        raise ValueError("must be a list of at most 128 tools")
    for n, tool in enumerate(value):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise ValueError(f"[{n}].type must be function")
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            raise ValueError(f"[{n}].name must be a string")
        if not isinstance(tool.get("parameters", {}), dict):
            raise ValueError(f"[{n}].parameters must be an object")
    return value


def tool_choice(value: Any) -> str | JsonObject:
    if isinstance(value, dict):
        if value.get("type") != "function" or not isinstance(value.get("name"), str):
            raise ValueError("must name a function")
        return value
    return str(choice("none", "auto", "required")(value))


def truncation(value: Any) -> str | JsonObject:
    if not isinstance(value, dict):
        return str(choice("auto", "disabled")(value))
    if value.get("type") != "retention_ratio":
        raise ValueError("type must be retention_ratio")
    return {"type": "retention_ratio", "retention_ratio": number(0, 1)(value.get("retention_ratio"))}


def max_tokens(value: Any) -> int | str:
    return "inf" if value == "inf" else int(integer(1, 4096)(value))


def noise_reduction(value: Any) -> JsonObject | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("must be null or an object")
    choice("near_field", "far_field")(value.get("type"))
    return {"type": value["type"]}


def phrases(value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > 500 or not all(isinstance(x, str) and len(x) <= 100 for x in value):
        raise ValueError("must be a list of at most 500 short strings")
    return value


def thresholds(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError("must be an object of language: number")
    return {str(k): number(0, 1)(v) for k, v in value.items()}


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: where it lives inside, how GA nests it, its flat name, its check, and a line of documentation."""

    path: str
    ga: str
    flat: str
    check: Check
    doc: str = ""


def _same(path: str, check: Check, doc: str = "") -> Field:
    return Field(path, path, path, check, doc)


def _turn(name: str, check: Check, doc: str = "") -> Field:
    return Field(f"turn_detection.{name}", f"audio.input.turn_detection.{name}", f"turn_detection.{name}", check, doc)


FIELDS: tuple[Field, ...] = (
    _same("type", choice("realtime", "transcription"), "what the session does"),
    _same("model", text(256), "chat model, or `default`"),
    _same("profile", choice("balanced", "fast", "patient"), "a set of turn-taking delays"),
    _same("instructions", text(200_000), "system prompt"),
    _same("temperature", nullable(number(0, 2)), "sampling temperature; null: the model's own"),
    Field("voice", "audio.output.voice", "voice", voice, "TTS voice"),
    Field("speed", "audio.output.speed", "speed", number(0.25, 1.5), "speaking rate"),
    Field("output_modalities", "output_modalities", "modalities", modalities, "audio or text"),
    _same("tools", tools, "functions that chat may call"),
    _same("tool_choice", tool_choice, "none, auto, required or one function"),
    _same("parallel_tool_calls", flag, "several calls at once"),
    _same("truncation", truncation, "auto, disabled, or how much of a full context is kept"),
    Field("max_output_tokens", "max_output_tokens", "max_response_output_tokens", max_tokens, "tokens of one response"),
    Field("input_format", "audio.input.format", "input_audio_format", audio_format, "format of appended audio"),
    Field("output_format", "audio.output.format", "output_audio_format", audio_format, "format of reply audio"),
    Field("noise_reduction", "audio.input.noise_reduction", "input_audio_noise_reduction", noise_reduction),
    Field("transcription.model", "audio.input.transcription.model", "input_audio_transcription.model", text(256)),
    Field(
        "transcription.language",
        "audio.input.transcription.language",
        "input_audio_transcription.language",
        nullable(text(16)),
    ),
    Field(
        "transcription.prompt",
        "audio.input.transcription.prompt",
        "input_audio_transcription.prompt",
        nullable(text(2000)),
    ),
    _turn("type", choice("server_vad", "semantic_vad"), "how the end of a turn is found"),
    _turn("eagerness", choice("low", "medium", "high", "auto"), "semantic_vad: how soon to answer"),
    _turn("threshold", number(0, 1), "speech probability that counts as voice"),
    _turn("neg_threshold", nullable(number(0, 1)), "below this it counts as silence; null: threshold - 0.15"),
    _turn("min_speech_duration_ms", integer(0, 60000), "speech before a start is announced"),
    _turn("prefix_padding_ms", integer(0, 1000), "audio kept from before the onset"),
    _turn("silence_duration_ms", integer(50, 5000), "silence that stops speech"),
    _turn("barge_in_delay_ms", integer(0, 1000), "cancel mode: further speech before a reply is cut"),
    _turn("create_response", flag, "answer each turn by itself"),
    _turn("interrupt_response", flag, "speech over a reply cuts it"),
    _turn("idle_timeout_ms", nullable(integer(5000, 30000)), "silence after a reply that makes it speak again"),
    _same("barge_in.mode", choice("hold", "cancel", "off"), "what speech over a reply does"),
    _same("barge_in.echo_guard", choice("auto", "off"), "the reply's own echo is nobody's speech"),
    _same("barge_in.min_words", integer(1, 20), "hold: words that take the floor"),
    _same("barge_in.unworded_ms", integer(100, 10000), "hold: voiced speech that takes the floor without words"),
    _same("barge_in.boundary_ms", integer(0, 10000), "hold: so near the reply's end any word is an answer"),
    _same("barge_in.hold_cap_ms", integer(100, 10000), "hold: longest pause before the floor is given"),
    _same("barge_in.backchannels", nullable(phrases), "sounds that take no floor; null: a list per language"),
    _same("eou.kind", eou_kind, "classifier of the end of an utterance"),
    _same("eou.fusion_rule", fusion_rule, "how sound and words make one score"),
    _same("eou.fusion_weight_text", number(0, 1), "the words' share in the rule `weighted`"),
    _same("eou.context_turns", integer(0, 32), "turns that the words' model is given"),
    _same("eou.max_context_tokens", integer(16, 1024), "and at most so many tokens of them"),
    _same("eou.p_threshold", number(0, 1), "end-of-turn probability that counts"),
    _same("eou.thresholds", thresholds, "per language, instead of p_threshold"),
    _same("eou.curve_k", number(0.1, 100), "steepness of the delay curve"),
    _same("eou.min_delay_ms", integer(0, 10000), "wait when sure, from the last voiced sample"),
    _same("eou.max_delay_ms", integer(0, 30000), "wait when unsure"),
    _same("eou.silence_hard_cap_ms", nullable(integer(100, 60000)), "longest a turn may stay stopped"),
    _same("eou.inference_timeout_ms", integer(10, 5000), "patience with the classifier"),
    _same("eou.audio_window_ms", integer(1000, 8000), "audio the classifier hears"),
    _same("eou.audio_pad_alignment", choice("leading"), "where silence fills the window up"),
    _same("eou.stack_silence", flag, "count delays from the speech stop, not from the last voiced sample"),
    _same("pacer.lead_ms", integer(0, 1000), "audio sent ahead of the playout clock"),
    _same("min_speech_ms", integer(0, 60000), "voiced audio below this is refused or discarded"),
    _same("min_speech_for_response_ms", integer(0, 60000), "voiced audio below this gets no reply"),
    _same("max_utterance_ms", integer(1000, 600000), "speech longer than this commits by itself"),
    _same("input_gap_ms", integer(60, 5000), "missing input in mid-speech counts as silence after this"),
    _same("max_manual_ms", integer(1000, 3600000), "buffer limit with detection off"),
    _same("no_speech_prob_threshold", nullable(number(0, 1)), "noise gate; null: off"),
    _same("avg_logprob_threshold", nullable(number(-100, 0)), "noise gate; null: off"),
    _same("drain_cap_floor_ms", integer(0, 600000)),
    _same("drain_cap_ceiling_ms", integer(0, 600000)),
    _same("predict", flag, "a reply may be begun before the turn has ended; a draft costs chat even where it is dropped"),
    _same("session_max_duration_s", integer(1, 3600), "the session ends after this"),
)

# A setting that is an object on the wire and can be null as a whole.
_NULLABLE_GROUPS = {
    "audio.input.turn_detection": "turn_detection",
    "turn_detection": "turn_detection",
    "audio.input.transcription": "transcription",
    "input_audio_transcription": "transcription",
}
# Known to OpenAI, without effect here: accepted and listed in `ignored_fields`.
_IGNORED = {
    "tracing", "reasoning", "include",
}
_READ_ONLY = {"id", "object", "expires_at", "ignored_fields", "model_used", "client_secret", "events"}
_REFUSED = {"prompt": "stored prompts are not supported"}
_GA_OBJECTS = ("audio.", "audio.input.", "audio.output.", "turn_detection.", "input_audio_transcription.")

_EAGERNESS = {"low": (800, 8000), "medium": (500, 4000), "high": (200, 2000), "auto": (400, 4000)}
_PROFILES: dict[str, JsonObject] = {
    "balanced": {},
    "fast": {"turn_detection.silence_duration_ms": 200, "eou.min_delay_ms": 100, "eou.max_delay_ms": 1500},
    "patient": {"turn_detection.silence_duration_ms": 500, "eou.min_delay_ms": 800, "eou.max_delay_ms": 6000},
}

_BY_NAME: dict[str, Field] = {f.ga: f for f in FIELDS} | {f.flat: f for f in FIELDS}
_BY_NAME["modalities"] = _BY_NAME["output_modalities"]
_CONTAINERS = {n.rsplit(".", k)[0] for n in _BY_NAME for k in range(1, n.count(".") + 1)}
_LEAF_CHECKS = (audio_format, noise_reduction, voice, tool_choice, thresholds, truncation)
_LEAF_OBJECTS = {f.ga for f in FIELDS if f.check in _LEAF_CHECKS} | {
    f.flat for f in FIELDS if f.check in _LEAF_CHECKS
}


@dataclass(frozen=True, slots=True)
class Patch:
    """A validated update: inner paths to values, groups switched off, keys ignored."""

    values: Mapping[str, Any]
    off: frozenset[str]
    on: frozenset[str]
    ignored: tuple[str, ...]


def parse(update: Any) -> Patch:
    """Validate a client's session object, in either shape. Raises SettingsError naming the first bad key."""
    if not isinstance(update, dict):
        raise SettingsError("session", "session must be an object")
    values: JsonObject = {}
    off: set[str] = set()
    on: set[str] = set()
    ignored: list[str] = []

    def walk(obj: JsonObject, prefix: str) -> None:
        for key, value in obj.items():
            name = prefix + key
            if prefix == "" and key in _READ_ONLY:
                continue
            if name in _REFUSED:
                if value is not None:
                    raise SettingsError(f"session.{name}", _REFUSED[name])
            elif name in _NULLABLE_GROUPS and value is None:
                off.add(_NULLABLE_GROUPS[name])
            elif name in _IGNORED:
                ignored.append(name)
            elif name in _CONTAINERS and name not in _LEAF_OBJECTS:
                if not isinstance(value, dict):
                    raise SettingsError(f"session.{name}", f"{name} must be an object")
                if name in _NULLABLE_GROUPS:
                    on.add(_NULLABLE_GROUPS[name])
                walk(value, name + ".")
            elif name in _BY_NAME:
                try:
                    values[_BY_NAME[name].path] = _BY_NAME[name].check(value)
                except ValueError as problem:
                    code = getattr(problem, "code", "session_update_invalid")
                    raise SettingsError(f"session.{name}", f"{name} {problem}", code) from None
            elif prefix in _GA_OBJECTS:
                ignored.append(name)
            else:
                raise SettingsError(f"session.{name}", f"unknown setting {name}")

    walk(update, "")
    return Patch(values, frozenset(off), frozenset(on), tuple(ignored))


def apply(settings: Settings, patch: Patch) -> Settings:
    """Merge a validated patch: what it names changes, what it does not name stays."""
    flat: JsonObject = msgspec.to_builtins(settings)
    defaults: JsonObject = msgspec.to_builtins(Settings())
    given = dict(patch.values)
    if "profile" in given:
        given = _profile_values(given["profile"]) | given
    kind = given.get("turn_detection.type")
    if kind == "server_vad":
        given.setdefault("eou.kind", "vad")
    elif kind == "semantic_vad":
        given.setdefault("eou.kind", BEST_EOU)
    if (eagerness := given.get("turn_detection.eagerness")) and "profile" not in patch.values:
        low, high = _EAGERNESS[eagerness]
        given.setdefault("eou.min_delay_ms", low)
        given.setdefault("eou.max_delay_ms", high)
    for group in patch.on:
        if group == "transcription":
            flat["transcribe"] = True
        if flat[group] is None:
            flat[group] = defaults[group]
    for path, value in given.items():
        _set(flat, defaults, path, value)
    for group in patch.off:
        if group == "transcription":
            flat["transcribe"] = False
        else:
            flat[group] = None
    flat["ignored_fields"] = list(patch.ignored)
    return msgspec.convert(flat, Settings)


def _profile_values(name: str) -> JsonObject:
    base: JsonObject = {"turn_detection.silence_duration_ms": 350, "eou.min_delay_ms": 400, "eou.max_delay_ms": 4000}
    return base | _PROFILES[name]


def _set(flat: JsonObject, defaults: JsonObject, path: str, value: Any) -> None:
    *groups, leaf = path.split(".")
    node = flat
    for group in groups:
        if node[group] is None:
            node[group] = defaults[group]
        node = node[group]
    node[leaf] = value


def echo(settings: Settings) -> JsonObject:
    """The whole effective session in GA's nested shape, our own settings beside it."""
    td = settings.turn_detection
    turn: JsonObject | None = None
    if td is not None:
        turn = msgspec.to_builtins(td)
        if td.type == "server_vad":
            turn.pop("eagerness")
        if settings.type == "transcription":
            turn.pop("create_response")
            turn.pop("interrupt_response")
    stt: JsonObject | None = None
    if settings.transcribe and settings.transcription is not None:
        stt = {k: v for k, v in msgspec.to_builtins(settings.transcription).items() if v is not None}
    audio_in: JsonObject = {
        "format": ga_format(settings.input_format),
        "transcription": stt,
        "noise_reduction": settings.noise_reduction,
        "turn_detection": turn,
    }
    out: JsonObject = {"type": settings.type}
    if settings.type == "realtime":
        out |= {
            "model": settings.model,
            "output_modalities": list(settings.output_modalities),
            "instructions": settings.instructions,
            "tools": list(settings.tools),
            "tool_choice": settings.tool_choice,
            "parallel_tool_calls": settings.parallel_tool_calls,
            "truncation": settings.truncation,
            "max_output_tokens": settings.max_output_tokens,
            "audio": {
                "input": audio_in,
                "output": {
                    "format": ga_format(settings.output_format),
                    "voice": settings.voice,
                    "speed": settings.speed,
                },
            },
        }
    else:
        out["audio"] = {"input": audio_in}
    own = (
        "profile", "barge_in", "eou", "pacer", "min_speech_ms", "min_speech_for_response_ms", "max_utterance_ms",
        "input_gap_ms", "max_manual_ms", "no_speech_prob_threshold", "avg_logprob_threshold", "session_max_duration_s",
    )  # fmt: skip
    flat: JsonObject = msgspec.to_builtins(settings)
    out |= {k: flat[k] for k in own}
    if settings.ignored_fields:
        out["ignored_fields"] = list(settings.ignored_fields)
    return out
