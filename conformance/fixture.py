"""Fixtures: what happens to a session, as data, and what it must say and do (SPEC section 15.1).

A fixture is a JSON object:

    about     what it is a fixture of, in a sentence
    spec      what of the contract it proves: section numbers, I1-I11, W1-W17, error codes
    settings  session settings (a session.update), `limits` the server's, `agent` an agent's; `dialect` (default extended)
    play      the inputs, each a list of a verb and its arguments (`VERBS`); times are relative
    must      written by hand: [type, {path: value}] of events that have to come, in this order, others between them
    never     types (or [type, {...}]) that must not come
    ends      what the state is in the end: {"vad": "Silent", "resp": "Idle", ...}
    chat      what chat was last given, as [role, content] pairs
    why       reasons that the machine gave for commits and suppressions, in order
    trace     the whole canonical trace, recorded and then read

`{"client": {...}}` events may name what is on the trace so far: "ITEM_2", "RESP_1", "CALL_1".
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.ids import Epoch
from bargein.realtime.settings import FORMATS, Agent, Limits, Settings, apply, parse
from bargein.realtime.wire import Append, Encoder, read, session_body

from . import rules
from .canonical import JsonObject, Names, canonical, diff, line
from .play import Play

FOLDER = Path(__file__).parent / "fixtures"
FRAME = b"\0" * 960  # 20 ms of pcm16
Fixture = dict[str, Any]
_NAME = re.compile(r"^(ITEM|RESP|CALL|SESS|CONV)_\d+$")


@dataclass(slots=True)
class Outcome:
    """What came of a fixture. `trace` is canonical; `raw` has the client's events too, each where it was sent."""

    name: str
    trace: list[JsonObject] = field(default_factory=list)
    raw: list[JsonObject] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Player(Play):
    """Plays a fixture's verbs; keeps what went over the wire, both ways."""

    def __init__(self, fixture: Fixture) -> None:
        self.wire: list[JsonObject] = []
        self.known = Names()
        self._encoder = Encoder(fixture.get("dialect", "extended"))
        self._plain = Encoder("extended")
        limits = msgspec.convert(fixture.get("limits", {}), Limits)
        agent = msgspec.convert(fixture.get("agent", {}), Agent)
        super().__init__(limits=limits, agent=agent, **fixture.get("settings", {}))

    def tell(self, ev: e.Input) -> list[f.Effect]:
        effects = super().tell(ev)
        for effect in effects:
            if isinstance(effect, f.Emit):
                text = self._encoder.encode(effect.event, FRAME)
                if text is not None:
                    self.wire.append(json.loads(text))
                    canonical(self.wire[-1:], self.known)
        return effects

    def client(self, ev: JsonObject | str) -> None:
        """An event as the client sends it; a string is sent as it is."""
        raw = ev if isinstance(ev, str) else json.dumps(self._named(ev))
        if isinstance(ev, dict):
            self.wire.append({"sent": True} | json.loads(raw))
        message = read(raw, self.at, self.state.settings.input_format)
        if isinstance(message, Append):
            rate = FORMATS[self.state.settings.input_format]
            width = 2 if self.state.settings.input_format.startswith("pcm16") else 1
            self.audio_ms += len(message.audio) * 1000 // (rate * width)
            self.tell(e.AudioAppended(self.at, self.audio_ms))
        else:
            self.tell(message)

    def _named(self, value: Any) -> Any:
        """`value` with canonical names replaced by the ids that they stand for."""
        if isinstance(value, dict):
            return {k: self._named(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._named(v) for v in value]
        return self.known.ids[value] if isinstance(value, str) and _NAME.match(value) else value

    def epoch_of(self, back: int) -> Epoch:
        """The epoch of the last `StartChat`, or of one before it."""
        return [x.epoch for x in self.effects if isinstance(x, f.StartChat | f.SayLine)][-1 - back]


def _calls(calls: list[list[str]]) -> tuple[e.ToolCall, ...]:
    return tuple(e.ToolCall(*call) for call in calls)


def _fail_words(p: Player) -> None:
    p.fail_words([x for x in p.effects if isinstance(x, f.FlushStt)][-1])


def _late(p: Player, back: int = 1) -> None:
    """Everything that chat, TTS and the pacer can still bring of an epoch that is over."""
    old = p.epoch_of(back)
    p.tell(e.ChatDelta(p.at, old, " more"))
    p.tell(e.ToolDelta(p.at, old, "call_late", "look", "{}"))
    p.tell(e.PhrasePlanned(p.at, old, (), 9000))
    p.tell(e.FrameDue(p.at, old, 8000, 7980))
    p.tell(e.ChatDone(p.at, old))
    p.tell(e.SpeechDone(p.at, old))
    p.tell(e.PlayoutDrained(p.at, old, 9000))
    p.tell(e.SpeechFailed(p.at, old, "late"))
    p.tell(e.ChatFailed(p.at, old, "late"))


def _play_of(p: Player, back: int, ms: int, start_ms: int = 0) -> None:
    """As `play`, for a response that was asked for before the last one."""
    epoch = p.epoch_of(back)
    for n in range(start_ms // 20, (start_ms + ms) // 20):
        p.tell(e.FrameDue(p.at, epoch, (n + 1) * 20, n * 20))
        p.advance(20)


def _burst(p: Player, ms: int) -> None:
    """`ms` of the reply written at once: the lead of a WebSocket."""
    for n in range(ms // 20):
        p.tell(e.FrameDue(p.at, p.epoch, (n + 1) * 20, 0))


VERBS: dict[str, Callable[..., Any]] = {
    "speech": Player.speech,
    "silence": Player.silence,
    "sound": Player.sound,  # ms, probability, level in dBFS
    "wait": Player.advance,  # time passes without input
    "words": lambda p, text, scores=None: p.words(text, **(scores or {})),
    "words_of": lambda p, back, text: p.words(
        text, flush=(x := [x for x in p.effects if isinstance(x, f.FlushStt)][-1 - back]).flush, item_id=x.item_id
    ),
    "words_fail": _fail_words,
    "ahead": lambda p, text, likely=1.0, scores=None: p.ahead(text, likely, **(scores or {})),
    "partial": lambda p, text, stable=None, scores=None: p.partial(text, stable, **(scores or {})),
    "verdict": Player.verdict,
    "turn": lambda p, text, ms=960: p.turn(text, ms=ms),
    "reply": lambda p, text, done=True, word_ms=200: p.reply(text, word_ms=word_ms, done=done),
    "play": lambda p, ms, start_ms=0: p.play(ms, start_ms=start_ms),
    "play_of": _play_of,
    "burst": _burst,
    "drained": Player.drained,
    "delta": lambda p, text, back=0: p.tell(e.ChatDelta(p.at, p.epoch_of(back), text)),
    "chat_done": lambda p, calls=(), limited=False, back=0: p.tell(
        e.ChatDone(p.at, p.epoch_of(back), _calls(list(calls)), limited, 10, 4, 0)
    ),
    "call": lambda p, call_id, name, arguments, back=0: p.tell(
        e.ToolDelta(p.at, p.epoch_of(back), call_id, name, arguments)
    ),
    "chat_fails": lambda p: p.tell(e.ChatFailed(p.at, p.epoch, "broken")),
    "tts_done": lambda p: p.tell(e.SpeechDone(p.at, p.epoch)),
    "tts_fails": lambda p: p.tell(e.SpeechFailed(p.at, p.epoch, "broken")),
    "late": _late,
    "line": lambda p, word_ms=200: p.line(word_ms=word_ms),  # chat node and TTS bring the agent's own line
    "say": lambda p, text: p.tell(e.Say(p.at, text)),
    "tool_done": lambda p, call_id, output, outcome="answered": p.tell(e.ToolDone(p.at, call_id, output, outcome)),
    "key": lambda p, key, taken=False: p.tell(e.KeyPressed(p.at, key, 1700000000, taken)),
    "engine_lost": lambda p: p.tell(e.EngineLost(p.at)),
    "engine_back": lambda p: p.tell(e.EngineBack(p.at)),
    "node_fails": lambda p, code: p.tell(e.NodeFailed(p.at, code, "broken")),
    "drain": lambda p: p.tell(e.DrainRequested(p.at)),
    "hang_up": lambda p: p.tell(e.TransportClosed(p.at)),
    "fault": lambda p, code, message, param=None, event_id=None: p.tell(
        e.ClientFault(p.at, code, message, param, event_id)
    ),
    "client": Player.client,
    "append": lambda p, ms: p.client(
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(48 * ms)).decode()}
    ),
}


# --- expectations --------------------------------------------------------------------------------------------------


def matches(ev: Mapping[str, Any], kind: str, fields: Mapping[str, Any]) -> bool:
    """Whether an event is of that type and has these values at these dotted paths (None also where there is none)."""
    return ev.get("type") == kind and all(_at(ev, path) == value for path, value in fields.items())


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.lstrip("-").isdigit() and -len(value) <= int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _wanted(entry: Any) -> tuple[str, dict[str, Any]]:
    return (entry, {}) if isinstance(entry, str) else (entry[0], entry[1] if len(entry) > 1 else {})


def _reasons(p: Player) -> list[str]:
    notes = [x for x in p.effects if isinstance(x, f.Inspect) and x.lane in ("turn", "bargein")]
    return [x.payload["why"] for x in notes if "why" in x.payload]


def _trim(ev: JsonObject, default: JsonObject) -> JsonObject:
    """A session event with only what differs from the defaults, so that a new setting changes no fixture."""
    if "session" not in ev or not isinstance(ev["session"], dict):
        return ev
    return ev | {"session": {"id": ev["session"].get("id")} | _beyond(ev["session"], default)}


def _beyond(value: JsonObject, default: JsonObject) -> JsonObject:
    out: JsonObject = {}
    for key, mine in value.items():
        theirs = default.get(key)
        if key in ("id", "object") or mine == theirs:
            continue
        out[key] = _beyond(mine, theirs) if isinstance(mine, dict) and isinstance(theirs, dict) else mine
    return out


def play(name: str, fixture: Fixture) -> tuple[Player, Outcome]:
    """Play a fixture, checking the state after every step. Raises what the machine raises."""
    p = Player(fixture)
    for verb, *args in fixture["play"]:
        VERBS[verb](p, *args)
    server = [ev for ev in p.wire if "sent" not in ev]
    default = session_body("", apply(Settings(), parse({"eou": {"kind": "audio"}})), None)
    trace = [_trim(ev, default) for ev in canonical(server)]
    return p, Outcome(name, trace, p.wire)


def run(name: str, fixture: Fixture) -> Outcome:
    """Play a fixture and hold it against everything that it expects, and the wire invariants."""
    try:
        p, got = play(name, fixture)
    except Exception as problem:  # a fixture that breaks the machine is a failed fixture, not a failed run
        return Outcome(name, problems=[f"{type(problem).__name__}: {problem}"])
    bad = got.problems
    ended = any(isinstance(x, f.Close) for x in p.effects)
    bad += [f"{v.rule} at {v.at}: {v.what}" for v in rules.check(p.wire, ended=ended, complete=True)]
    at = 0
    for entry in fixture.get("must", []):
        kind, fields = _wanted(entry)
        found = next((n for n in range(at, len(got.trace)) if matches(got.trace[n], kind, fields)), None)
        if found is None:
            after = f" after {line(got.trace[at - 1])[:200]}" if at else ""
            bad.append(f"never came{after}: {kind} {fields}")
            break
        at = found + 1
    for entry in fixture.get("never", []):
        kind, fields = _wanted(entry)
        bad += [f"must not come: {line(ev)[:200]}" for ev in got.trace if matches(ev, kind, fields)]
    for part, wanted in fixture.get("ends", {}).items():
        is_ = type(getattr(p.state, part)).__name__
        if is_ != wanted:
            bad.append(f"{part} ends in {is_}, not {wanted}")
    if "chat" in fixture and [list(x) for x in p.prompt] != fixture["chat"]:
        bad.append(f"chat was given {p.prompt}, not {fixture['chat']}")
    if "why" in fixture and _reasons(p) != fixture["why"]:
        bad.append(f"reasons {_reasons(p)}, not {fixture['why']}")
    if "trace" in fixture:
        bad += diff(fixture["trace"], got.trace)
    return got


def load(folder: Path = FOLDER) -> dict[str, Fixture]:
    """All fixtures by name. Raises ValueError naming the file."""
    out: dict[str, Fixture] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            out[file.stem] = json.loads(file.read_text())
        except ValueError as problem:
            raise ValueError(f"{file.name}: {problem}") from None
    return out


def dump(fixture: Fixture) -> str:
    """A fixture as text: one input and one event a line."""
    rows = []
    for key, value in fixture.items():
        if key in ("play", "must", "never", "trace") and value:
            lines = ",\n    ".join(json.dumps(x, ensure_ascii=False) for x in value)
            rows.append(f'  "{key}": [\n    {lines}\n  ]')
        else:
            rows.append(f'  "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(rows) + "\n}\n"


def record(path: Path) -> list[str]:
    """Play a fixture and write its trace into its file. Returns what its other expectations complain of; then nothing
    is written. What was recorded has to be read against the contract by somebody."""
    fixture: Fixture = json.loads(path.read_text())
    fixture.pop("trace", None)
    got = run(path.stem, fixture)
    if not got.problems:
        path.write_text(dump(fixture | {"trace": got.trace}))
    return got.problems
