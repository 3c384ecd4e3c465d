"""The minutes of a call: who said what and when, and what its tools did, gathered step by step while it runs.

Knows the machine's inputs and effects, and nothing of files or clocks. A reply is kept as far as it was heard. Where
in the recording a moment lies (`Place`) is told from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import FunctionCall, FunctionOutput, Message, SpokenWord, words_heard

Place = Callable[[str, float], float | None]  # (item, ms within its audio) -> ms of the recording, None: it is not in it


@dataclass(slots=True)
class Utterance:
    """What the caller said: a stretch of input audio (ms), or typed words."""

    id: str
    at: float
    text: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    language: str | None = None


@dataclass(slots=True)
class Spoken:
    """What the agent said: words with their times within the reply's audio, of which `heard_ms` were heard."""

    id: str
    at: float
    text: str
    status: str
    words: tuple[SpokenWord, ...]
    heard_ms: int


@dataclass(slots=True)
class Tool:
    """A tool's call, the server's own or the client's."""

    call_id: str
    name: str
    arguments: str
    at: float
    run_at: float | None = None
    done_at: float | None = None
    outcome: str = ""
    output: str | None = None


def heard_words(words: tuple[SpokenWord, ...], until_ms: int) -> list[tuple[str, int, int]]:
    """The words that were heard, by the rule of `words_heard`: whole ones, and one more than half heard, with a dash."""
    out: list[tuple[str, int, int]] = []
    for word in words:
        if word.end_ms <= until_ms:
            out.append((word.text.strip(), word.start_ms, word.end_ms))
        elif word.start_ms + word.end_ms < 2 * until_ms:
            out.append((word.text.strip() + "-", word.start_ms, until_ms))
            break
        else:
            break
    return [w for w in out if w[0]]


class Minutes:
    """Fed with every step of a session."""

    def __init__(self) -> None:
        self._utterances: dict[str, Utterance] = {}
        self._spoken: dict[str, Spoken] = {}
        self._tools: dict[str, Tool] = {}
        self._starts: dict[str, f.StartStt] = {}

    def take(self, ev: e.Input, effects: tuple[f.Effect, ...]) -> str | None:
        """One step. Returns the id of a reply of whose audio it became known how much was heard (`heard_ms`)."""
        settled: str | None = None
        if isinstance(ev, e.ToolDone) and (tool := self._tools.get(ev.call_id)) is not None:
            tool.done_at, tool.outcome, tool.output = ev.at, ev.outcome, ev.output
        for effect in effects:
            match effect:
                case f.Emit(event):
                    settled = self._event(ev, event) or settled
                case f.StartStt(item_id):
                    self._starts[item_id] = effect
                case f.SealBuffer(item_id, start_ms, end_ms):
                    start = self._starts.pop(item_id, None)
                    u = self._utterances.setdefault(item_id, Utterance(item_id, ev.at))
                    u.start_ms = start_ms if start is None else max(start_ms, start.start_ms)
                    u.end_ms, u.language = end_ms, None if start is None else start.language
                case f.StopStt(item_id):
                    self._starts.pop(item_id, None)
                case f.RunTool(call_id, name, arguments):
                    self._tools.setdefault(call_id, Tool(call_id, name, arguments, ev.at)).run_at = ev.at
                case f.CancelTool(call_id) if (known := self._tools.get(call_id)) is not None and known.done_at is None:
                    known.done_at, known.outcome = ev.at, "cancelled"
        return settled

    def _event(self, ev: e.Input, event: a.ServerEvent) -> str | None:
        match event:
            case a.TranscriptionCompleted(item_id, transcript):
                self._utterances.setdefault(item_id, Utterance(item_id, ev.at)).text = transcript.strip()
            case a.ItemDone(Message(role="assistant") as item) if item.words:
                self._spoken[item.id] = Spoken(item.id, ev.at, item.text(), item.status, item.words, item.audio_ms)
                return item.id
            case a.ItemDone(Message() as item):
                if item.text().strip() and item.id not in self._utterances:
                    role = "caller" if item.role == "user" else item.role
                    if role == "caller":
                        self._utterances[item.id] = Utterance(item.id, ev.at, item.text())
                    elif role == "assistant":
                        self._spoken[item.id] = Spoken(item.id, ev.at, item.text(), item.status, (), 0)
            case a.ItemDone(FunctionCall() as call):
                self._tools.setdefault(call.call_id, Tool(call.call_id, call.name, call.arguments, ev.at))
            case a.ItemDone(FunctionOutput() as output):
                tool = self._tools.get(output.call_id)
                if tool is not None and tool.done_at is None:
                    tool.done_at, tool.outcome, tool.output = ev.at, "answered", output.output
            case a.ItemTruncated(item_id, audio_end_ms):
                if (reply := self._spoken.get(item_id)) is not None and audio_end_ms < reply.heard_ms:
                    reply.heard_ms, reply.status = audio_end_ms, "incomplete"
                    reply.text = words_heard(reply.words, audio_end_ms)
                    return item_id
        return None

    def heard_ms(self, item_id: str) -> int:
        """How much of a reply's audio was heard."""
        return self._spoken[item_id].heard_ms

    def transcript(self, zero: float, mic: Callable[[float], float | None], out: Place) -> list[dict[str, Any]]:
        """Both sides in the order in which they began, times in ms of the recording. What the caller said has no words'
        times yet: `words` is None."""
        rows: list[dict[str, Any]] = []
        for u in self._utterances.values():
            row: dict[str, Any] = {"id": u.id, "speaker": "caller", "text": u.text, "words": None}
            if u.start_ms is None or u.end_ms is None:
                row |= {"typed": True, "start_ms": round(u.at - zero), "end_ms": round(u.at - zero), "words": []}
            else:
                row |= {"start_ms": _round(mic(u.start_ms)), "end_ms": _round(mic(u.end_ms)), "language": u.language}
            rows.append(row)
        for s in self._spoken.values():
            words = [
                {"word": text, "start_ms": _round(out(s.id, start)), "end_ms": _round(out(s.id, end - 1), 1)}  # before a pause
                for text, start, end in heard_words(s.words, s.heard_ms)
            ]
            if s.words and not words:
                continue
            first = words[0]["start_ms"] if words else round(s.at - zero)
            last = words[-1]["end_ms"] if words else round(s.at - zero)
            rows.append({"id": s.id, "speaker": "agent", "text": s.text, "status": s.status, "start_ms": first,
                         "end_ms": last, "words": words})  # fmt: skip
        return sorted(rows, key=lambda r: (r["start_ms"] is None, r["start_ms"]))

    def tools(self, zero: float) -> list[dict[str, Any]]:
        """Every call in the order in which they came."""
        return [
            {"call_id": t.call_id, "name": t.name, "arguments": t.arguments, "at_ms": round(t.at - zero),
             "run_at_ms": None if t.run_at is None else round(t.run_at - zero),
             "done_at_ms": None if t.done_at is None else round(t.done_at - zero),
             "took_ms": None if t.done_at is None else round(t.done_at - (t.run_at or t.at)),
             "outcome": t.outcome or "open", "output": t.output}
            for t in self._tools.values()
        ]  # fmt: skip


def _round(value: float | None, more: int = 0) -> int | None:
    return None if value is None else round(value) + more
