"""The wire invariants W1 to W17 (SPEC section 10) over a trace of wire events, as far as a trace shows them.

A trace is what one connection received, in order, as JSON objects (GA or extended dialect). It may also hold what the
client sent, each event where it was sent: then what was asked for is known, and the rules about answers (W3, W7, W8, W9,
W15) are checked too. `check_pace` is for traces with times of arrival.
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
    before: bool = False  # it was created before the trace begins
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
    heard: set[str] = field(default_factory=set)  # items whose speech has stopped, or timed out
    statuses: dict[str, tuple[str, int | None]] = field(default_factory=dict)  # response -> status, audio_end_ms
    complete: bool = False  # the trace holds what the client sent
    sound: bool = True  # and the replies' audio, which over WebRTC is on the track
    joined: bool = False  # the trace begins in the middle of a session
    asked: Counter[str] = field(default_factory=Counter)  # event ids of the client
    anonymous: bool = False  # the client sent an event without one
    commits: int = 0  # of the client, not answered yet
    retrieves: dict[str, str] = field(default_factory=dict)  # event id -> item, not answered yet
    wanted: dict[str, Counter[str]] = field(default_factory=dict)  # kind of request -> item id -> how many are open


CLIENT_TYPES = {
    "session.update", "transcription_session.update", "session.close", "input_audio_buffer.append",
    "input_audio_buffer.commit", "input_audio_buffer.clear", "conversation.item.create", "conversation.item.retrieve",
    "conversation.item.delete", "conversation.item.truncate", "response.create", "response.cancel",
    "output_audio_buffer.clear",
}  # fmt: skip


def audio_bytes(delta: object) -> int | None:
    """Bytes of an audio delta: base64, or in a kept trace "(960 bytes)"."""
    try:
        if isinstance(delta, str) and delta.startswith("(") and delta.endswith(" bytes)"):
            return int(delta[1:].split()[0])
        return len(base64.b64decode(str(delta), validate=True))
    except ValueError:
        return None


def check(
    events: Iterable[Event],
    *,
    ended: bool = True,
    lead_ms: int = 1000,
    complete: bool | None = None,
    sound: bool = True,
    joined: bool = False,
) -> list[Violation]:
    """Every violation, in order. `ended`: the session is over; else responses may be open. `lead_ms`: how far writing
    may run ahead of playing (W13). `complete`: the trace holds the client's events; None: look.
    `sound`: it holds the replies' audio, which a data channel does not carry. `joined`: it begins in the middle of a session,
    as a sideband's does: what it does not show the beginning of may have begun before."""
    events = list(events)
    sent = [ev.get("type") in CLIENT_TYPES or "sent" in ev for ev in events]
    t = _Trace(complete=any(sent) if complete is None else complete, sound=sound, joined=joined)
    n = -1
    for n, ev in enumerate(events):
        if sent[n]:
            _sent(t, ev)
        else:
            _one(t, n, ev, lead_ms)
    t.found += [Violation("W9", n, f"no answer to the retrieve {eid!r} of {item}") for eid, item in t.retrieves.items()]
    if ended:
        for rid, r in t.responses.items():
            if not r.done:
                t.found.append(Violation("W1", n, f"{rid} has no response.done"))
            if r.started > r.stopped + r.cleared:
                t.found.append(Violation("W11", n, f"{rid}: started without stopped or cleared"))
    return t.found


def _sent(t: _Trace, ev: Event) -> None:
    """What the client asked for."""
    kind = ev.get("type")
    if isinstance(eid := ev.get("event_id"), str):
        t.asked[eid] += 1
    else:
        t.anonymous = True
    if kind == "input_audio_buffer.commit":
        t.commits += 1
    item = ev.get("item") if kind == "conversation.item.create" else ev
    item_id = (item.get("id") or item.get("item_id")) if isinstance(item, Mapping) else None
    if isinstance(item_id, str):
        t.wanted.setdefault(str(kind), Counter())[item_id] += 1
        if kind == "conversation.item.retrieve" and isinstance(eid, str):
            t.retrieves[eid] = item_id


def _answer(t: _Trace, kind: str, item_id: str) -> bool:
    """Note the answer to a request for an item; False where nobody asked."""
    open_ = t.wanted.setdefault(kind, Counter())
    open_[item_id] -= 1
    return open_[item_id] >= 0


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
    elif kind == "error":
        _error(t, ev["error"], bad)
    elif kind == "conversation.item.retrieved":
        item_id = ev["item"]["id"]
        if t.complete and not _answer(t, "conversation.item.retrieve", item_id):
            bad("W9", f"{item_id} was not asked for")
        if (eid := next((k for k, v in t.retrieves.items() if v == item_id), None)) is not None:
            del t.retrieves[eid]
    elif kind == "conversation.item.assistant_truncated":
        _server_truncated(t, ev, bad)
    elif kind == "conversation.item.truncated":
        if t.complete and not _answer(t, "conversation.item.truncate", ev["item_id"]):
            _server_truncated(t, ev, bad)
        if (r := t.responses.get(t.spoken.get(ev["item_id"], ""))) is not None:
            r.capped = True
    elif kind == "conversation.item.deleted":
        if ev["item_id"] in t.items:
            t.items.remove(ev["item_id"])
        elif not t.joined:
            bad("W16", f"{ev['item_id']} deleted but never added")
    elif kind == "input_audio_buffer.timeout_triggered":
        t.heard.add(ev["item_id"])
    elif kind == "input_audio_buffer.speech_stopped":
        t.stopped[ev["item_id"]] = n
        t.heard.add(ev["item_id"])
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
        if t.complete and ev["item_id"] not in t.heard:
            if t.commits == 0:
                bad("W3", f"{ev['item_id']} without a speech stop or a commit of the client")
            t.commits -= 1
    elif kind in ("input_audio_buffer.cleared", "input_audio_buffer.discarded", "session.updated"):
        t.stopped.clear()
    elif kind == "conversation.item.input_audio_transcription.delta":
        t.transcripts[ev["item_id"]] = t.transcripts.get(ev["item_id"], "") + ev["delta"]
    elif kind == "conversation.item.input_audio_transcription.completed":
        deltas = t.transcripts.get(ev["item_id"], "")
        if deltas != ev["transcript"] and not (t.joined and ev["item_id"] not in t.transcripts):
            bad("W17", f"deltas join to {deltas!r}, not {ev['transcript']!r}")


def _error(t: _Trace, error: Event, bad: Any) -> None:
    """A client's fault names the client's event, where that had an id."""
    eid = error.get("event_id")
    if not t.complete:
        return
    t.retrieves.pop(str(eid), None)
    if eid is not None and eid not in t.asked:
        bad("W15", f"answers {eid!r}, which was never sent")
    if eid is None and error.get("type") == "invalid_request_error" and t.asked and not t.anonymous:
        bad("W15", f"{error.get('code')} names no event")


def _server_truncated(t: _Trace, ev: Event, bad: Any) -> None:
    rid = t.spoken.get(ev["item_id"], "")
    if t.joined and not rid:
        return
    status, end = t.statuses.get(rid, ("", None))
    if status not in ("cancelled", "incomplete") or not end:
        bad("W7", f"{ev['item_id']}, whose response is {status or 'not done'}, played {end}")


def _of_response(t: _Trace, ev: Event, kind: str, lead_ms: int, bad: Any) -> None:
    rid = ev["response"]["id"] if kind == "response.done" else ev["response_id"]
    r = t.responses.get(rid)
    if r is None and t.joined:
        r = t.responses[rid] = _Response(before=True)
    if r is None:
        bad("W2", f"{rid} was never created")
        return
    if r.before and not r.done and kind != "response.done":
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
        r.bytes_ += audio_bytes(ev["delta"]) or 0
    elif kind == "output_audio_buffer.started":
        r.started += 1
        if r.started > 1 or (t.sound and r.num_deltas == 0):
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
        t.statuses[rid] = (ev["response"]["status"], ev["response"].get("audio_end_ms"))
        if not r.before:
            _done(ev["response"], r, lead_ms, t.sound, bad)


def _done(response: Event, r: _Response, lead_ms: int, sound: bool, bad: Any) -> None:
    if response.get("output_modalities") != ["audio"]:
        return
    end = response.get("audio_end_ms")
    if end is None:
        bad("W4", "an audio response without audio_end_ms")
        return
    if not sound:
        return
    fmt = response["audio"]["output"]["format"]
    sent = r.bytes_ / (2 * fmt["rate"] / 1000 if fmt["type"] == "audio/pcm" else 8)
    if sent + 1 < end:
        bad("W13", f"{sent:.0f} ms sent, {end} ms played")
    if response["status"] != "completed" and not r.capped and sent > end + max(lead_ms, 20) + 1:
        bad("W13", f"{sent:.0f} ms sent at a cut, only {end} ms played")


def _added(t: _Trace, ev: Event, bad: Any) -> None:
    item, previous = ev["item"]["id"], ev.get("previous_item_id")
    if item in t.items:
        bad("W8", f"{item} added twice")
    if t.complete and ev["item"].get("role") == "user" and ev["item"]["content"][:1]:
        typed = ev["item"]["content"][0]["type"] == "input_text"
        asked = t.wanted.get("conversation.item.create", Counter())
        if typed and item in asked and not _answer(t, "conversation.item.create", item):
            bad("W8", f"{item} added more often than it was created")
    if previous is not None and previous not in t.items and t.joined:
        t.items.append(previous)
    if previous is not None and previous not in t.items:
        bad("W16", f"{item} goes after {previous}, which is not there")
    t.items.insert(0 if previous is None else t.items.index(previous) + 1 if previous in t.items else 0, item)


def check_pace(
    events: Iterable[tuple[float, Event]], *, max_inter_delta_ms: float = 1500, max_terminal_stall_ms: float = 500
) -> list[Violation]:
    """W12 over a live trace: (time of arrival in ms, event). Pauses of a held reply and the playing out do not count."""
    found: list[Violation] = []
    last: dict[tuple[str, str], float] = {}
    for n, (at, ev) in enumerate(events):
        kind = str(ev.get("type"))
        stream, _, what = kind.rpartition(".")
        if kind in ("output_audio_buffer.paused", "output_audio_buffer.resumed"):
            last.clear()
        if "response_id" not in ev or what not in ("delta", "done"):
            continue
        key = (stream, ev["response_id"])
        limit = max_inter_delta_ms if what == "delta" else max_terminal_stall_ms
        waited = at - last.get(key, at)
        if waited > limit and not (what == "done" and "audio" in stream):  # audio is done when it has been heard
            found.append(Violation("W12", n, f"{kind}: {waited:.0f} ms after the one before"))
        last[key] = at
    return found
