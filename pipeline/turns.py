"""Where the time of a turn went: the milestones of every turn of a session, gathered from the inspector's records.

The same account that the inspector's page makes of the same records (`inspector/model.js`, `story.js`); a call's folder
and its trace are written from this one. Times are ms of the monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

Stage = tuple[str, float, float]


class Told(Protocol):
    """An inspector record, as far as it is needed here."""

    @property
    def ts_mono_ns(self) -> int: ...
    @property
    def lane(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def corr(self) -> dict[str, str]: ...
    @property
    def span_id(self) -> str: ...
    @property
    def payload(self) -> Any: ...


@dataclass(slots=True)
class Work:
    """One piece of work, from the record that begins it to the one that ends it. `span_id`: the inspector's."""

    kind: str  # stt, eou, chat, tts, tool
    span_id: str
    start: float
    end: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Turn:
    """What is known of a turn; None where it did not happen. Content is left out."""

    id: str
    start: float | None = None
    typed: bool = False
    voice_end: float | None = None  # the last voiced sound
    stop: float | None = None  # when it was taken as a stop
    transcript: float | None = None
    scored: float | None = None
    score: float | None = None
    delay_ms: float | None = None
    commit: float | None = None
    why: str = ""
    ask: float | None = None
    first_token: float | None = None
    first_chunk: float | None = None
    first_frame: float | None = None
    chat_done: float | None = None
    done: float | None = None
    status: str = ""
    reason: str | None = None
    played_ms: int | None = None
    cut_ms: int | None = None
    response_id: str = ""
    tokens: int | None = None
    work: list[Work] = field(default_factory=list)

    def stages(self) -> list[Stage]:
        """The waterfall: (name, from, to)."""
        out: list[Stage] = []

        def add(name: str, start: float | None, end: float | None) -> None:
            if start is not None and end is not None and end >= start:
                out.append((name, start, end))

        if not self.typed:
            add("Silence until a stop", self.voice_end, self.stop)
            add("Transcript", self.stop, self.transcript)
            add("End-of-turn score", self.stop, self.scored)
            add("Waiting for more", self.scored if self.scored is not None else self.stop, self.commit)
        add("First token", self.ask, self.first_token)
        add("First speech", self.first_token, self.first_chunk)
        add("Held, then sent", self.first_chunk, self.first_frame)
        return out

    @property
    def voice_to_voice_ms(self) -> float | None:
        """From the last voiced sound (a typed turn: from the question to chat) to the first frame of the reply."""
        start = self.ask if self.typed else self.voice_end
        return None if start is None or self.first_frame is None else self.first_frame - start

    def row(self, zero: float) -> dict[str, Any]:
        """The turn as JSON values, its times in ms since `zero`."""

        def at(value: float | None) -> float | None:
            return None if value is None else round(value - zero, 1)

        def length(value: float | None) -> float | None:
            return None if value is None else round(value, 1)

        return {
            "id": self.id, "typed": self.typed, "response_id": self.response_id or None, "status": self.status or None,
            "reason": self.reason, "voice_to_voice_ms": length(self.voice_to_voice_ms), "cut_ms": self.cut_ms,
            "played_ms": self.played_ms, "commit_why": self.why or None, "eou_score": self.score, "eou_delay_ms": self.delay_ms,
            "at_ms": {
                "start": at(self.start), "voice_end": at(self.voice_end), "stop": at(self.stop),
                "transcript": at(self.transcript), "scored": at(self.scored), "commit": at(self.commit), "ask": at(self.ask),
                "first_token": at(self.first_token), "first_speech": at(self.first_chunk),
                "first_frame": at(self.first_frame), "done": at(self.done),
            },
            "stages": [{"name": name, "from_ms": at(a), "to_ms": at(b), "ms": round(b - a, 1)} for name, a, b in self.stages()],
        }  # fmt: skip


class Turns:
    """Fed with a session's records, one at a time, those of the fast lanes left out."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []  # those that began, in order
        self._known: dict[str, Turn] = {}
        self._open: dict[str, Work] = {}

    def loose(self) -> list[Work]:
        """Work that belongs to no turn: a greeting's."""
        return [work for turn in self._known.values() if turn.start is None for work in turn.work]

    def take(self, r: Told) -> None:
        """One record."""
        t = r.ts_mono_ns / 1e6
        turn = self._known.setdefault(r.corr.get("turn_id", ""), Turn(r.corr.get("turn_id", "")))
        match r.lane:
            case "stt" | "eou" | "turn" | "bargein":
                self._hears(turn, r, t)
            case "llm" | "tts_chunk" | "tts_req" | "response" | "wire" | "tool":
                self._answers(turn, r, t)

    def _begin(self, turn: Turn, t: float) -> None:
        if turn.start is None:
            turn.start = t
            self.turns.append(turn)

    def _work(self, turn: Turn, kind: str, span_id: str, t: float) -> Work:
        key = f"{kind}:{span_id}"
        if key not in self._open:
            self._open[key] = Work(kind, span_id, t)
            turn.work.append(self._open[key])
        return self._open[key]

    def _ended(self, kind: str, span_id: str, t: float, **notes: Any) -> None:
        if (work := self._open.pop(f"{kind}:{span_id}", None)) is not None:
            work.end = t
            work.notes |= notes

    def _hears(self, turn: Turn, r: Told, t: float) -> None:
        p = r.payload
        match r.lane, r.kind:
            case "stt", "start":
                self._begin(turn, t)
            case "stt", "flush":
                turn.stop = t
                turn.voice_end = t - (p["audio_ms"] - p["voiced_ms"])
                turn.transcript = turn.scored = None
                self._work(turn, "stt", r.span_id, t)
            case "stt", "transcript":
                turn.transcript = turn.transcript or t
                self._ended("stt", r.span_id, t, took_ms=p["took_ms"])
            case "eou", "ask":
                self._work(turn, "eou", r.span_id, t)
            case "eou", "verdict":
                if p["audio"] is not None or p["words"] is not None:
                    turn.score = p["p"]
                turn.scored, turn.delay_ms = t, p["delay_ms"]
                for work in [w for w in self._open.values() if w.kind == "eou"]:
                    self._ended("eou", work.span_id, t, score=p["p"], delay_ms=p["delay_ms"])
            case "turn", "commit":
                turn.commit, turn.why = t, str(p["why"])
            case "bargein", "commit" if "played_ms" in p:  # told once by who has the floor, once by what was cut
                turn.cut_ms = p["played_ms"]

    def _answers(self, turn: Turn, r: Told, t: float) -> None:
        p = r.payload
        match r.lane, r.kind:
            case "llm", "ask":
                if turn.start is None:  # typed, or asked for by the client
                    turn.typed = True
                    self._begin(turn, t)
                turn.ask = t
                turn.first_token = turn.first_chunk = turn.first_frame = None
                turn.response_id = r.corr.get("response_id", "")
                self._work(turn, "chat", r.span_id, t)
            case "llm", "token":
                turn.first_token = turn.first_token or t
                if (work := self._open.get(f"chat:{r.span_id}")) is not None:
                    work.notes.setdefault("first_token", t)
                self._work(turn, "tts", r.span_id.replace("llm:", "tts:"), t)
            case "llm", "done":
                turn.chat_done, turn.tokens = t, p["output_tokens"]
                self._ended("chat", r.span_id, t, input_tokens=p["input_tokens"], output_tokens=p["output_tokens"])
            case "tts_chunk", "planned":
                turn.first_chunk = turn.first_chunk or t
                self._work(turn, "tts", r.span_id, t).notes.setdefault("first_chunk", t)
            case "tts_req", "done":
                self._ended("tts", r.span_id, t)
            case "tool", "run":
                self._work(turn, "tool", r.span_id, t).notes["name"] = p["name"]
            case "tool", "answer":
                self._ended("tool", r.span_id, t, outcome=p["outcome"])
            case "response", "retired":
                for kind in ("chat", "tts"):
                    self._ended(kind, f"{'llm' if kind == 'chat' else kind}:{p['epoch']}", t, cut=True)
            case "response", "done":
                turn.status, turn.reason, turn.played_ms, turn.done = p["status"], p["reason"], p["played_ms"], t
            case "wire", "out":
                if turn.first_frame is None and _is_first_sound(p):
                    turn.first_frame = t


def _is_first_sound(event: Any) -> bool:
    """Whether a server event tells that the reply can be heard."""
    head = bytes(event)[:120] if isinstance(event, msgspec.Raw) else b""
    return b'"output_audio_buffer.started"' in head or b'"response.content_part.added"' in head
