"""Calls that chat is still writing: their arguments go out as they come (SPEC section 8).

A call is announced once nothing of the response that comes before it is still to be announced. Calls of the server's
own tools are no outputs of the response and are told by `tools`, when it is over.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import events as e
from .conversation import FunctionCall
from .draft import Draft
from .ids import ItemId
from .state import Calling, Chat, Plan
from .tools import own_tool


def wrote(chat: Chat, ev: e.ToolDelta) -> Chat:
    """Chat wrote a piece of a call."""
    before = next((c for c in chat.calling if c.call_id == ev.call_id), None)
    if before is None:
        return replace(chat, calling=(*chat.calling, Calling(ev.call_id, ev.name, ev.arguments)))
    after = replace(before, arguments=before.arguments + ev.arguments)
    return replace(chat, calling=tuple(after if c is before else c for c in chat.calling))


def num_told(chat: Chat) -> int:
    """Calls that have been announced."""
    return sum(c.item_id is not None for c in chat.calling)


def tell(d: Draft, plan: Plan, chat: Chat, *, messages: int) -> Chat:
    """Send what was written and not sent yet. `messages`: items of the response that were announced beside its calls."""
    told: list[Calling] = []
    num = messages + num_told(chat)
    for c in chat.calling:
        if not plan.params.out_of_band and own_tool(d.s.settings, c.name) is not None:
            told.append(c)
            continue
        if c.item_id is None:
            c = replace(c, item_id=ItemId(d.fresh("item")), output_index=num)
            num += 1
            open_item(d, plan, c)
        told.append(_send(d, plan, c, c.arguments))
    return replace(chat, calling=tuple(told))


def open_item(d: Draft, plan: Plan, c: Calling) -> None:
    """Announce a call's item, empty."""
    assert c.item_id is not None
    item = FunctionCall(c.item_id, c.call_id, c.name, "", "in_progress")
    d.emit(a.OutputItemAdded(plan.id, c.output_index, item))
    if not plan.params.out_of_band:
        d.set(conversation=d.s.conversation.insert(item))
        d.emit(a.ItemAdded(item, d.s.conversation.before(item.id)))


def _send(d: Draft, plan: Plan, c: Calling, arguments: str) -> Calling:
    """One delta of what is new in `arguments`."""
    assert c.item_id is not None
    if (new := arguments[c.num_sent :]) != "":
        d.emit(a.ArgumentsDelta(plan.id, c.item_id, c.output_index, c.call_id, new))
    return replace(c, arguments=arguments, num_sent=len(arguments))


def close(d: Draft, plan: Plan, chat: Chat, call: e.ToolCall, index: int) -> tuple[int, FunctionCall]:
    """End a call whose arguments are complete -> its place in the output (`index`, where it was not announced), its item."""
    c = next((c for c in chat.calling if c.call_id == call.call_id and c.item_id is not None), None)
    if c is None:
        c = Calling(call.call_id, call.name, item_id=ItemId(d.fresh("item")), output_index=index)
        open_item(d, plan, c)
    assert c.item_id is not None
    _send(d, plan, c, call.arguments)
    item = FunctionCall(c.item_id, call.call_id, call.name, call.arguments)
    d.emit(a.ArgumentsDone(plan.id, item.id, c.output_index, call.call_id, call.name, call.arguments))
    if not plan.params.out_of_band:
        d.set(conversation=d.s.conversation.put(item))
        d.emit(a.ItemDone(item, d.s.conversation.before(item.id)))
    d.emit(a.OutputItemDone(plan.id, c.output_index, item))
    return c.output_index, item


def drop(d: Draft, plan: Plan, chat: Chat, kept: tuple[e.ToolCall, ...]) -> None:
    """Calls that were announced and will not be made: their arguments did not come to an end."""
    for c in chat.calling:
        if c.item_id is None or any(k.call_id == c.call_id for k in kept):
            continue
        d.emit(a.OutputItemDone(plan.id, c.output_index, FunctionCall(c.item_id, c.call_id, c.name, c.arguments, "incomplete")))
        if not plan.params.out_of_band and d.s.conversation.get(c.item_id) is not None:
            d.set(conversation=d.s.conversation.remove(c.item_id))
            d.emit(a.ItemDeleted(c.item_id))
