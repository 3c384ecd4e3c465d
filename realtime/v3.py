"""Version 3 of the contract as a dialect: its traces, for the corpus runner only (SPEC section 10).

A pure function of one step's events. What differs: no second `speech_started` on re-entry, `assistant_truncated` also at
0, a refused update is a flat `error` and then an echo, version 3's reasons, audio by its byte count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import alphabet as a
from .wire import JsonObject, render


@dataclass(frozen=True, slots=True)
class V3:
    """What version 3 shows and an event does not hold: each response's item and instructions by its id, and which items'
    `speech_started` has gone out."""

    session_id: str = ""
    items: Mapping[str, str] = field(default_factory=dict)
    instructions: Mapping[str, str] = field(default_factory=dict)
    started: frozenset[str] = frozenset()


def v3(events: Sequence[a.ServerEvent], seen: V3, audio_bytes: int = 0) -> tuple[V3, list[JsonObject]]:
    """Version 3's events for those of one step; `audio_bytes` of a frame among them. -> what is to be passed on, events.

    Events whose shape has not changed are those of the extended dialect.
    """
    ends = {x.response.id: x.response.audio_end_ms or 0 for x in events if isinstance(x, a.ResponseDone)}
    first = (x for x in events if isinstance(x, a.OutputItemAdded) and x.output_index == 0)
    opened: dict[str, str] = {x.response_id: x.item.id for x in first}
    seen = replace(seen, items={**seen.items, **opened})
    cut = {x.item_id for x in events if isinstance(x, a.ItemTruncated)}
    out: list[JsonObject] = []
    for ev in events:
        match ev:
            case a.SessionCreated(session_id):
                seen = replace(seen, session_id=session_id)
                out.append({"type": "session.created", "session": {"id": session_id}})
            case a.SessionUpdated(session_id):
                out.append({"type": "session.updated", "session": {"id": session_id}})
            case a.ErrorEvent(code, message, param):
                out.append({"type": "error", "code": code, "message": message})
                if (param or "").startswith("session"):  # a refused update: what holds is shown again
                    out.append({"type": "session.updated", "session": {"id": seen.session_id}})
            case a.SpeechStarted(item_id, start):
                if item_id not in seen.started:
                    seen = replace(seen, started=seen.started | {item_id})
                    out.append({"type": "input_audio_buffer.speech_started", "item_id": item_id, "audio_start_ms": start})
            case a.AudioDelta(response_id, item_id):
                kind = "response.output_audio.delta"
                body: JsonObject = {"response_id": response_id, "item_id": item_id}
                out.append({"type": kind} | body | {"audio": {"audio_bytes": audio_bytes}})
            case a.AudioDone(response_id):
                end = {"id": response_id, "audio_end_ms": ends.get(response_id, 0)}
                out.append({"type": "response.output_audio.done", "response": end})
            case a.ResponseCreated(view):
                created: JsonObject = {"id": view.id}
                if view.id in seen.instructions:
                    created["instructions"] = seen.instructions[view.id]
                out.append({"type": "response.created", "response": created})
            case a.ResponseDone(view):
                out.append({"type": "response.done", "response": _done(view, seen)})
                item = seen.items.get(view.id)
                if view.status == "cancelled" and item is not None and item not in cut:
                    out.append(_truncated(item, 0))
            case a.ItemTruncated(item_id, end_ms, "server"):
                out.append(_truncated(item_id, end_ms))
            case a.ItemDeleted() if ends:  # taken back after a cut: version 3 truncated it at 0 instead
                pass
            case _:
                if (wire := render(ev, "extended")) is not None:
                    out.append(wire)
    return seen, out


def _truncated(item_id: str, end_ms: int) -> JsonObject:
    return {"type": "conversation.item.assistant_truncated", "item_id": item_id, "audio_end_ms": end_ms}


def _done(view: a.ResponseView, seen: V3) -> JsonObject:
    """Version 3's reasons: `drain_cap` where GA has none, a failure's code without its envelope."""
    body: JsonObject = {"id": view.id, "status": view.status, "audio_end_ms": view.audio_end_ms or 0}
    reason = view.error_code if view.status == "failed" else view.reason
    if view.status == "incomplete" and reason is None:
        reason = "drain_cap"
    if reason is not None:
        body["status_details"] = {"reason": reason}
    if view.id in seen.items:
        body["output"] = [{"id": seen.items[view.id]}]
    return body
