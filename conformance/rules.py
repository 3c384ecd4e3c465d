"""The wire invariants W1 to W17 (SPEC section 10) over a trace of wire events, as far as a trace shows them.

A trace is what one connection received, in order, as JSON objects (GA or extended dialect). `ended` says whether the
session is over; an unfinished trace may hold open responses.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` is the invariant's number, `at` the index of the offending event."""

    rule: str
    at: int
    what: str


@dataclass(slots=True)
class _Response:
    started: int = 0
    cleared: int = 0
    stopped: int = 0
    paused: bool = False
    capped: bool = False  # the client said that it heard less
    done: bool = False
    num_deltas: int = 0
    bytes_: int = 0


@dataclass(slots=True)
class _Trace:
    """What has been seen so far."""

    found: list[Violation] = field(default_factory=list)
    responses: dict[str, _Response] = field(default_factory=dict)
    items: list[str] = field(default_factory=list)
    ids: Counter[str] = field(default_factory=Counter)
    transcripts: dict[str, str] = field(default_factory=dict)
    spoken: dict[str, str] = field(default_factory=dict)  # item -> its response
    stopped: dict[str, int] = field(default_factory=dict)  # item -> index of a speech_stopped that is still open
    committed: set[str] = field(default_factory=set)


def check(events: Iterable[Event], *, ended: bool = True, lead_ms: int = 1000) -> list[Violation]:
    """Every violation, in order. `lead_ms`: how far writing may run ahead of playing (W13)."""
    t = _Trace()
    n = -1
    for n, ev in enumerate(events):
        _one(t, n, ev, lead_ms)
    if ended:
        for rid, r in t.responses.items():
            if not r.done:
                t.found.append(Violation("W1", n, f"{rid} has no response.done"))
            if r.started > r.stopped + r.cleared:
                t.found.append(Violation("W11", n, f"{rid}: started without stopped or cleared"))
    return t.found


def _one(t: _Trace, n: int, ev: Event, lead_ms: int) -> None:
    kind = ev["type"]

    def bad(rule: str, what: str) -> None:
        t.found.append(Violation(rule, n, f"{kind}: {what}"))

    if (eid := ev.get("event_id")) is not None:
        t.ids[eid] += 1
        if t.ids[eid] > 1:
            bad("W16", f"event id {eid} twice")
    if kind == "response.created":
        rid = ev["response"]["id"]
        if rid in t.responses:
            bad("W1", f"{rid} created twice")
        t.responses[rid] = _Response()
    elif kind.startswith(("response.", "output_audio_buffer.")):
        _of_response(t, ev, kind, lead_ms, bad)
    elif kind == "conversation.item.added":
        _added(t, ev, bad)
    elif kind == "conversation.item.truncated":
        if (r := t.responses.get(t.spoken.get(ev["item_id"], ""))) is not None:
            r.capped = True
    elif kind == "conversation.item.deleted":
        if ev["item_id"] not in t.items:
            bad("W16", f"{ev['item_id']} deleted but never added")
        else:
            t.items.remove(ev["item_id"])
    elif kind == "input_audio_buffer.speech_stopped":
        t.stopped[ev["item_id"]] = n
    elif kind == "input_audio_buffer.speech_started":
        t.stopped.pop(ev["item_id"], None)
        for item in t.stopped:
            bad("W14", f"{item} stopped and then nothing")
        t.stopped.clear()
    elif kind == "input_audio_buffer.committed":
        t.stopped.pop(ev["item_id"], None)
        if ev["item_id"] in t.items:
            bad("W3", f"{ev['item_id']} was added before it was committed")
        t.committed.add(ev["item_id"])
    elif kind in ("input_audio_buffer.cleared", "input_audio_buffer.discarded", "session.updated"):
        t.stopped.clear()
    elif kind == "conversation.item.input_audio_transcription.delta":
        t.transcripts[ev["item_id"]] = t.transcripts.get(ev["item_id"], "") + ev["delta"]
    elif kind == "conversation.item.input_audio_transcription.completed":
        joined = t.transcripts.get(ev["item_id"], "")
        if joined != ev["transcript"]:
            bad("W17", f"deltas join to {joined!r}, not {ev['transcript']!r}")


def _of_response(t: _Trace, ev: Event, kind: str, lead_ms: int, bad: Any) -> None:
    rid = ev["response"]["id"] if kind == "response.done" else ev["response_id"]
    r = t.responses.get(rid)
    if r is None:
        bad("W2", f"{rid} was never created")
        return
    if kind == "output_audio_buffer.stopped":
        r.stopped += 1
        return
    if r.done:
        bad("W6" if kind != "response.done" else "W1", f"after {rid}'s response.done")
        return
    if kind == "response.output_item.added":
        t.spoken[ev["item"]["id"]] = rid
    elif kind == "response.output_audio.delta":
        r.num_deltas += 1
        if r.paused:
            bad("W10", f"{rid}: audio while paused")
        r.bytes_ += len(base64.b64decode(ev["delta"]))
    elif kind == "output_audio_buffer.started":
        r.started += 1
        if r.started > 1 or r.num_deltas == 0:
            bad("W10", f"{rid}: not once, after its first audio delta")
    elif kind in ("output_audio_buffer.paused", "output_audio_buffer.resumed"):
        pausing = kind.endswith("paused")
        if r.paused == pausing or r.started == 0 or r.cleared:
            bad("W10", f"{rid}: not between started and its end, or twice")
        r.paused = pausing
    elif kind == "output_audio_buffer.cleared":
        r.cleared += 1
    elif kind == "response.done":
        r.done = True
        _done(ev["response"], r, lead_ms, bad)


def _done(response: Event, r: _Response, lead_ms: int, bad: Any) -> None:
    if response.get("output_modalities") != ["audio"]:
        return
    end = response.get("audio_end_ms")
    if end is None:
        bad("W4", "an audio response without audio_end_ms")
        return
    fmt = response["audio"]["output"]["format"]
    sent = r.bytes_ / (2 * fmt["rate"] / 1000 if fmt["type"] == "audio/pcm" else 8)
    if sent + 1 < end:
        bad("W13", f"{sent:.0f} ms sent, {end} ms played")
    if response["status"] != "completed" and not r.capped and sent > end + lead_ms + 20:
        bad("W13", f"{sent:.0f} ms sent at a cut, only {end} ms played")


def _added(t: _Trace, ev: Event, bad: Any) -> None:
    item, previous = ev["item"]["id"], ev.get("previous_item_id")
    if item in t.items:
        bad("W8", f"{item} added twice")
    if previous is not None and previous not in t.items:
        bad("W16", f"{item} goes after {previous}, which is not there")
    t.items.insert(0 if previous is None else t.items.index(previous) + 1 if previous in t.items else 0, item)
