"""Traces that can be compared: ids by first appearance, no times, audio by its length (SPEC section 13).

A trace is a list of wire events, of one connection, in order. Two traces of the same behaviour have the same canonical
form, whatever server, clock and source of ids made them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .rules import audio_bytes

JsonObject = dict[str, Any]

# Keys that hold an id, and what kind; `id` itself is named by the object around it.
_ID_KEYS = {
    "item_id": "ITEM", "previous_item_id": "ITEM", "response_id": "RESP", "call_id": "CALL", "conversation_id": "CONV",
    "session_id": "SESS",
}  # fmt: skip
_AROUND = {"item": "ITEM", "output": "ITEM", "response": "RESP", "session": "SESS", "conversation": "CONV"}
_TIMES = {"at", "t", "ts", "time", "timing", "expires_at", "first_token_ms"}
_SCORES = {"p", "score", "avg_logprob", "no_speech_prob", "threshold"}


class Names:
    """Ids seen so far, and their canonical names."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self.ids: dict[str, str] = {}  # canonical name -> id

    def name(self, kind: str, value: str) -> str:
        if (kind, value) not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[kind, value] = f"{kind}_{self._counts[kind]}"
            self.ids[self._names[kind, value]] = value
        return self._names[kind, value]


def event(ev: Mapping[str, Any], names: Names) -> JsonObject:
    """One wire event in canonical form; audio becomes `audio_bytes`."""
    out: JsonObject = {}
    audio = str(ev.get("type", "")).endswith("audio.delta")
    for key, value in ev.items():
        if key in _TIMES or key == "event_id":  # the server's own: its place says as much
            continue
        if audio and key == "delta":
            out["audio_bytes"] = audio_bytes(value)
        else:
            out[key] = _value(key, value, "", names)
    return out


def _value(key: str, value: Any, around: str, names: Names) -> Any:
    if isinstance(value, dict):
        inner = around if key == "" else key
        return {k: _value(k, v, inner, names) for k, v in value.items() if k not in _TIMES}
    if isinstance(value, list):
        return [_value("", v, key, names) for v in value]
    if isinstance(value, str) and value:
        if key in _ID_KEYS:
            return names.name(_ID_KEYS[key], value)
        if key == "id" and around in _AROUND:
            return names.name(_AROUND[around], value)
    if isinstance(value, float) and key in _SCORES:
        return round(value, 3)
    return value


def canonical(events: Iterable[Mapping[str, Any]], names: Names | None = None) -> list[JsonObject]:
    """A whole trace. Audio deltas in a row are one, with the bytes of all: how audio is cut is nobody's business."""
    names = names or Names()
    out: list[JsonObject] = []
    for ev in events:
        one = event(ev, names)
        if "audio_bytes" in one and out and _same_stream(out[-1], one):
            out[-1] = out[-1] | {"audio_bytes": (out[-1]["audio_bytes"] or 0) + (one["audio_bytes"] or 0)}
        else:
            out.append(one)
    return out


def _same_stream(one: JsonObject, other: JsonObject) -> bool:
    return {k: v for k, v in one.items() if k != "audio_bytes"} == {k: v for k, v in other.items() if k != "audio_bytes"}


def read_trace(path: Path) -> list[JsonObject]:
    """Events from a file: JSON lines (or one list), each an event or an object that holds one under `event`.

    Raises ValueError naming the line, OSError.
    """
    text = path.read_text()
    if text.lstrip().startswith("["):
        rows = json.loads(text)
    else:
        rows = []
        for n, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith(("#", "//")):
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    raise ValueError(f"{path.name}, line {n}: not JSON") from None
    out: list[JsonObject] = []
    for n, row in enumerate(rows, 1):
        ev = row.get("event", row) if isinstance(row, dict) else row
        if isinstance(row, dict) and row.get("from") == "client" and isinstance(ev, dict):
            ev = ev | {"sent": True}
        if not isinstance(ev, dict) or not isinstance(ev.get("type"), str):
            raise ValueError(f"{path.name}, entry {n}: not a wire event")
        out.append(ev)
    return out


def line(ev: Mapping[str, Any]) -> str:
    """An event as one line, its type first."""
    return json.dumps({"type": ev.get("type")} | {k: v for k, v in ev.items() if k != "type"}, ensure_ascii=False)


def diff(a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines that differ between two canonical traces, as a unified diff; empty where there are none."""
    left, right = ([line(ev) for ev in side] for side in (a, b))
    return list(difflib.unified_diff(left, right, "a", "b", lineterm="", n=2))
