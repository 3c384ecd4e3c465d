"""Runs a corpus of version 3: folders with `input.jsonl` (operations) and `expected.jsonl` (wire events).

The operations are played on this machine with version 3's settings, and what it says is told in the `v3` dialect. What is
expected has to be an ordered subsequence of that, each event holding its fields; ids match by first appearance. A corpus
has no wall clock: time stands still, timers fire where an operation says so, and the playout position is what it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import SpokenWord
from bargein.realtime.ids import Epoch, ItemId
from bargein.realtime.settings import parse
from bargein.realtime.state import Created, Silent, live
from bargein.realtime.v3 import V3, v3

from .canonical import JsonObject
from .play import Play

Op = Mapping[str, Any]
SETTINGS: dict[str, Any] = {
    "turn_detection": {
        "type": "server_vad",
        "create_response": False,  # responses are operations of their own
        "min_speech_duration_ms": 0,
        "prefix_padding_ms": 0,
        "silence_duration_ms": 500,
        "barge_in_delay_ms": 0,
    },
    "barge_in": {"mode": "cancel", "echo_guard": "off"},
    "eou": {"kind": "vad", "stack_silence": True},
    "min_speech_ms": 0,
    "no_speech_prob_threshold": None,
    "avg_logprob_threshold": None,
}
UNBOUNDED_MS = 10**9  # how much was written is not in a corpus; only the playout position is


class CorpusPlayer(Play):
    """Plays operations; `trace` holds version 3's events."""

    def __init__(self) -> None:
        self.trace: list[JsonObject] = []
        self._seen = V3()
        self._bytes = 0
        self._items: dict[str, ItemId] = {}  # the corpus's item ids
        self._epochs: dict[str, Epoch] = {}  # its response ids
        self._order: list[Epoch] = []  # its epochs count responses from 1
        self._flushes: dict[str, int] = {}
        super().__init__(**SETTINGS)

    def tell(self, ev: e.Input) -> list[f.Effect]:
        effects = super().tell(ev)
        for x in effects:
            if isinstance(x, f.FlushStt):
                self._flushes[x.item_id] = x.flush
        self._seen, said = v3([x.event for x in effects if isinstance(x, f.Emit)], self._seen, self._bytes)
        self.trace += said
        return effects

    def op(self, op: Op) -> None:
        """One operation. Raises KeyError for one that version 3 does not have or that lacks a field."""
        getattr(self, "_" + _OPS[op["op"]])(op)

    def _mark_active(self, op: Op) -> None:
        pass

    def _window(self, end_ms: int, prob: float) -> None:
        self.audio_ms = end_ms
        self.tell(e.AudioAppended(self.at, end_ms))
        self.tell(e.VadWindow(self.at, end_ms, prob, -20.0 if prob > 0.5 else -70.0))

    def _speech_start(self, op: Op) -> None:
        self._window(int(op["start_ms"]) + 32, 0.95)
        vad = self.state.vad
        if not isinstance(vad, Silent) and "item_id" in op:
            self._items.setdefault(op["item_id"], vad.item_id)

    def _speech_end(self, op: Op) -> None:
        end = int(op["end_ms"])
        self._window(end, 0.95)
        self._window(end + 500, 0.01)

    def _fire(self, key: str) -> None:
        if key in self.timers:
            _, token = self.timers.pop(key)
            self.tell(e.TimerFired(self.at, key, token))

    def _commit_fire(self, op: Op) -> None:
        self._fire("commit")

    def _transcription(self, op: Op) -> None:
        item = self._items.get(op["item_id"], ItemId(op["item_id"]))
        said = e.Transcript(op.get("transcript", ""))
        self.tell(e.SttStopTranscript(self.at, item, self._flushes.get(item, -1), said))
        if op.get("auto_response", False):
            self.tell(e.CreateResponse(self.at))

    def _response(self, op: Op) -> None:
        """Asks for a response; or gives its name to the one that a transcript has started."""
        rid = op["resp_id"]
        resp = live(self.state.resp)
        if resp is None or resp.plan.epoch in self._order:
            asked = op.get("instructions")
            plan_id = self.state.ids.draw("resp")[0]
            if asked is not None:
                self._seen = replace(self._seen, instructions={**self._seen.instructions, plan_id: asked})
            self.tell(e.CreateResponse(self.at, e.ResponseParams(instructions=asked)))
            resp = live(self.state.resp)
        if resp is None:
            return
        self._epochs[rid] = resp.plan.epoch
        self._order.append(resp.plan.epoch)
        item = op.get("item_id", f"item of {rid}")
        self._seen = replace(self._seen, items={**self._seen.items, resp.plan.id: item})

    def _audio(self, op: Op) -> None:
        self._bytes = int(op["audio_bytes"])
        epoch = self._epochs.get(op["resp_id"], Epoch(-1))
        resp = live(self.state.resp)
        played = resp.voice.played_ms if resp is not None else 0
        self.tell(e.FrameDue(self.at, epoch, UNBOUNDED_MS, played))

    def _epoch(self, op: Op) -> Epoch:
        n = int(op["epoch"])
        return self._order[n - 1] if 1 <= n <= len(self._order) else Epoch(-1)

    def _complete(self, op: Op) -> None:
        epoch, planned = self._epoch(op), int(op.get("planned_ms", 0))
        text = str(op.get("transcript", ""))
        self.tell(e.ChatDelta(self.at, epoch, text))
        if planned:
            self.tell(e.PhrasePlanned(self.at, epoch, (SpokenWord(text, 0, planned),), planned))
        self.tell(e.ChatDone(self.at, epoch))
        self.tell(e.SpeechDone(self.at, epoch))

    def _drained(self, op: Op) -> None:
        resp = live(self.state.resp)
        if isinstance(resp, Created):  # it was played, so something of it was written
            self._bytes = 0
            self.tell(e.FrameDue(self.at, self._epoch(op), UNBOUNDED_MS, 0))
        self.tell(e.PlayoutDrained(self.at, self._epoch(op), int(op["played_ms"])))

    def _drain_cap(self, op: Op) -> None:
        """Version 3 has the last of chat, the position and the firing in one operation."""
        self._drained({"epoch": op.get("epoch", len(self._order)), "played_ms": op.get("played_ms", 0)})
        if "planned_ms" in op:
            self._complete({"epoch": len(self._order)} | dict(op))
        self._fire("drain_cap")

    def _failed(self, op: Op) -> None:
        self._drained({"epoch": op["epoch"], "played_ms": op.get("played_ms", 0)})
        kind = e.SpeechFailed if op.get("reason") == "tts_error" else e.ChatFailed
        self.tell(kind(self.at, self._epoch(op), "failed"))

    def _update_invalid(self, op: Op) -> None:
        code = op.get("code", "session_update_invalid")
        self.tell(e.SettingsRefused(self.at, "session", op.get("message", ""), code))

    def _update(self, op: Op) -> None:
        self.tell(e.UpdateSession(self.at, parse(op.get("session", {}))))


_OPS = {
    "markActive": "mark_active",
    "vad_speech_start": "speech_start",
    "vad_speech_end": "speech_end",
    "commit_fire": "commit_fire",
    "transcription_complete": "transcription",
    "response_create": "response",
    "audio_delta": "audio",
    "llm_complete": "complete",
    "audio_drained": "drained",
    "response_drain_cap_expired": "drain_cap",
    "response_failed": "failed",
    "session_update_invalid": "update_invalid",
    "session_update": "update",
}


# --- matching ------------------------------------------------------------------------------------------------------


class Ids:
    """Which expected id stands for which real one; one to one."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def matches(self, expected: Any, real: Any) -> bool:
        """Whether `real` holds all that `expected` has. Only a match binds ids."""
        bound = dict(self._real)
        if _within(expected, real, "", bound):
            self._real = bound
            return True
        return False


def _within(expected: Any, real: Any, key: str, bound: dict[str, str]) -> bool:
    if isinstance(expected, dict):
        return isinstance(real, dict) and all(k in real and _within(v, real[k], k, bound) for k, v in expected.items())
    if isinstance(expected, list):
        pairs = zip(expected, real, strict=False) if isinstance(real, list) else ()
        return isinstance(real, list) and len(real) >= len(expected) and all(_within(x, y, key, bound) for x, y in pairs)
    if (key == "id" or key.endswith("_id")) and isinstance(expected, str) and isinstance(real, str):
        if expected not in bound and real in bound.values():
            return False
        return bound.setdefault(expected, real) == real
    return bool(expected == real)


def missing(expected: list[JsonObject], trace: list[JsonObject]) -> tuple[int, JsonObject] | None:
    """The first expected event that the trace does not have in its place, and its number; None: it has all."""
    ids, at = Ids(), 0
    for n, wanted in enumerate(expected):
        found = next((i for i in range(at, len(trace)) if ids.matches(wanted, trace[i])), None)
        if found is None:
            return n, wanted
        at = found + 1
    return None


def _lines(path: Path) -> list[JsonObject]:
    rows = (line.strip() for line in path.read_text().splitlines())
    return [json.loads(row) for row in rows if row and not row.startswith(("#", "//"))]


def run(folder: Path) -> str | None:
    """Run one folder. -> what is wrong, or None."""
    try:
        player = CorpusPlayer()
        for op in _lines(folder / "input.jsonl"):
            player.op(op)
        lost = missing(_lines(folder / "expected.jsonl"), player.trace)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as problem:
        return f"{type(problem).__name__}: {problem}"
    if lost is None:
        return None
    kinds = {lost[1].get("type")}
    real = [ev for ev in player.trace if ev["type"] in kinds]
    return f"expected event {lost[0] + 1} does not come: {json.dumps(lost[1])}; of its type came {json.dumps(real)}"


def run_all(corpus: Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder under `corpus` that holds an input and an expectation (or `corpus` itself), and what is wrong."""
    found = sorted(p.parent for p in corpus.rglob("input.jsonl") if (p.parent / "expected.jsonl").is_file())
    for folder in found:
        problem = run(folder)
        yield folder.name, [] if problem is None else [problem]
