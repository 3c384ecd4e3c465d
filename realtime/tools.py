"""Calls of the server's own tools, from the end of the response that made them to their answers (SPEC section 16).

Such a call is an item of the conversation and no output of its response, so that no client runs it. This side knows
what runs; what follows from an answer is in `agent`.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import events as e
from .conversation import FunctionCall, FunctionOutput
from .draft import Draft
from .effects import CancelTool, RunTool
from .ids import ItemId, ResponseId
from .settings import JsonObject, Settings
from .state import Running

CANCELLED = '{"error": "cancelled: the caller spoke"}'


def own_tool(settings: Settings, name: str) -> JsonObject | None:
    """The server's own tool of that name."""
    return next((t for t in settings.agent.tools if t["name"] == name), None)


def call(d: Draft, tool: JsonObject, asked: e.ToolCall, response_id: ResponseId, *, spoke: bool, cut: bool) -> None:
    """A response has called one of the server's own tools. `spoke`: it also said something; `cut`: the caller has
    interrupted it, which a tool that may be cancelled does not outlive."""
    item = FunctionCall(ItemId(d.fresh("item")), asked.call_id, asked.name, asked.arguments)
    blank = replace(item, arguments="", status="in_progress")
    d.set(conversation=d.s.conversation.insert(item))
    previous = d.s.conversation.before(item.id)
    d.emit(a.ItemAdded(blank, previous))
    d.emit(a.ItemDone(item, previous))
    running = Running(
        call_id=asked.call_id,
        item_id=item.id,
        response_id=response_id,
        cancels=bool(tool.get("cancel_on_barge_in")),
        filler=str(tool.get("filler") or d.s.settings.agent.filler),
        spoke=spoke,
    )
    if cut and running.cancels:
        answer(d, running, CANCELLED)
        return
    d.set(work=(*d.s.work, running))
    d.do(RunTool(asked.call_id, asked.name, asked.arguments))


def answer(d: Draft, running: Running, output: str) -> None:
    """Put an answer into the conversation; a call that was deleted meanwhile gets none."""
    if d.s.conversation.get(running.item_id) is None:
        return
    item = FunctionOutput(ItemId(d.fresh("item")), running.call_id, output)
    d.set(conversation=d.s.conversation.insert(item))
    previous = d.s.conversation.before(item.id)
    d.emit(a.ItemAdded(item, previous))
    d.emit(a.ItemDone(item, previous))


def floor_taken(d: Draft) -> None:
    """The caller speaks: tools that may be cancelled are, and no line waits to be said after it."""
    for running in d.s.work:
        if running.cancels and not running.outcome:
            d.do(CancelTool(running.call_id))
            d.note("tool", "cancelled", call_id=running.call_id)
            answer(d, running, CANCELLED)
            _mark(d, running, "cancelled")
    left = {r.response_id for r in d.s.work if not r.outcome}
    d.set(lines=(), work=tuple(r for r in d.s.work if r.response_id in left))


def _mark(d: Draft, running: Running, outcome: str) -> None:
    d.set(work=tuple(replace(r, outcome=outcome) if r is running else r for r in d.s.work))


def is_working(d: Draft) -> bool:
    """Whether an answer is still to come."""
    return any(not r.outcome for r in d.s.work)
