"""The end of a response: its brackets are closed, what was heard is settled, its epoch is retired (SPEC sections 8, 9).

Everything that ends a response ends here, in one step, so that nothing of it can go out after.
"""

from __future__ import annotations

from . import alphabet as a
from . import arguments, tools
from . import events as e
from .asking import view
from .conversation import Item, Message, Part, Status, words_heard
from .draft import Draft
from .effects import RetireEpoch
from .ids import ItemId
from .state import Chat, Created, Drain, Idle, Live, OutOfBand, Plan, Predicted, Streaming, live


def retire(
    d: Draft,
    status: a.ResponseStatus,
    *,
    reason: str | None = None,
    error_code: str | None = None,
) -> int:
    """End the running response: close its brackets, settle what was heard, `response.done`. Returns the snapshot of
    the playout clock (ms). The epoch is retired in the same step, so that nothing of it goes out after."""
    resp = live(d.s.resp)
    assert resp is not None
    plan, v = resp.plan, resp.voice
    snapshot = v.played_at(d.at)
    to_the_end = (status == "completed" or reason == "max_output_tokens") and not v.cleared
    natural = to_the_end and v.cap_ms is None
    d.do(RetireEpoch(plan.epoch))
    d.disarm("drain_cap", "first_token")
    output: list[Item] = []
    started = plan.spoken and not isinstance(resp, Created)
    if not isinstance(resp, Created):
        item = _close_item(d, resp, snapshot, natural)
        if not (plan.spoken and snapshot == 0 and status == "cancelled"):
            output.append(item)
    called = status in ("completed", "incomplete") or (status == "cancelled" and resp.chat.done)
    own = [(c, tools.own_tool(d.s.settings, c.name)) for c in resp.chat.tool_calls if called]
    kept = tuple(c for c, tool in own if tool is None)
    _close_calls(d, plan, resp.chat, kept, output, messages=not isinstance(resp, Created))
    if started and not to_the_end and not v.cleared:
        d.emit(a.OutputCleared(plan.id))
    d.set(resp=Idle(), was_answered=to_the_end)
    done = view(
        plan, status, output=tuple(output), reason=reason, error_code=error_code, chat=resp.chat,
        audio_end_ms=snapshot if plan.spoken else None,
    )  # fmt: skip
    d.emit(a.ResponseDone(done))
    if started and to_the_end:
        d.emit(a.OutputStopped(plan.id))
    d.note("response", "done", response_id=plan.id, status=status, reason=reason, played_ms=snapshot)
    for call, tool in own:
        if tool is not None:
            cut = reason == "turn_detected"
            tools.call(d, tool, call, plan.id, spoke=bool(resp.chat.text.strip()), cut=cut)
    if error_code == "llm_error" and (line := d.s.settings.agent.say_on_failure):
        d.set(lines=(*d.s.lines, line))
    return snapshot


def complete(d: Draft) -> None:
    """Everything was said and heard."""
    resp = live(d.s.resp)
    assert resp is not None
    if resp.chat.limited:
        retire(d, "incomplete", reason="max_output_tokens")
    else:
        retire(d, "completed")


def _close_item(d: Draft, resp: Streaming | Drain, snapshot: int, natural: bool) -> Message:
    """Close the message item's brackets. What was heard is what stays."""
    plan, v, item_id, index = resp.plan, resp.voice, resp.item_id, resp.chat.message_index
    if plan.spoken:
        rest = v.words[v.num_announced :] if natural else ()
        for word in rest:
            d.emit(a.SpokenDelta(plan.id, item_id, index, word.text))
        said = "".join(w.text for w in v.words[: v.num_announced + len(rest)])
        d.emit(a.AudioDone(plan.id, item_id, index))
        d.emit(a.SpokenDone(plan.id, item_id, index, said))
        d.emit(a.ContentPartDone(plan.id, item_id, index, Part("output_audio", said)))
        heard = said if natural else words_heard(v.words, snapshot)
        part = Part("output_audio", heard)
    else:
        said = resp.chat.text
        d.emit(a.TextDone(plan.id, item_id, index, said))
        part = Part("output_text", said)
        d.emit(a.ContentPartDone(plan.id, item_id, index, part))
    whole = natural or (not plan.spoken and resp.chat.done)
    status: Status = "completed" if whole else "incomplete"
    item = Message(item_id, "assistant", (part,), status, v.words if plan.spoken else (), snapshot)
    d.set(conversation=d.s.conversation.put(item))
    d.emit(a.ItemDone(item, d.s.conversation.before(item_id)))
    d.emit(a.OutputItemDone(plan.id, index, item))
    return item


def _close_calls(
    d: Draft, plan: Plan, chat: Chat, kept: tuple[e.ToolCall, ...], output: list[Item], *, messages: int
) -> None:
    """End the response's calls and put their items into `output` (which holds its message, where it has one)."""
    arguments.drop(d, plan, chat, kept)
    before: list[Item] = []
    after: list[Item] = []
    for call in kept:
        index, item = arguments.close(d, plan, chat, call, messages + len(before) + len(after))
        (before if messages and index < chat.message_index else after).append(item)
    output[:] = [*before, *output, *after]


def finish_out_of_band(
    d: Draft,
    out: OutOfBand,
    status: a.ResponseStatus,
    *,
    reason: str | None = None,
    error_code: str | None = None,
) -> None:
    plan = out.plan
    d.do(RetireEpoch(plan.epoch))
    output: list[Item] = []
    if out.item_id is not None:
        part = Part("output_text", out.chat.text)
        d.emit(a.TextDone(plan.id, out.item_id, out.chat.message_index, out.chat.text))
        d.emit(a.ContentPartDone(plan.id, out.item_id, out.chat.message_index, part))
        item = Message(out.item_id, "assistant", (part,), "completed" if status == "completed" else "incomplete")
        d.emit(a.OutputItemDone(plan.id, out.chat.message_index, item))
        output.append(item)
    _close_calls(d, plan, out.chat, out.chat.tool_calls, output, messages=len(output))
    if out.chat.limited:
        reason = "max_output_tokens"
    d.set(oob={k: o for k, o in d.s.oob.items() if k != plan.id})
    done = view(plan, status, output=tuple(output), reason=reason, error_code=error_code, chat=out.chat)
    d.emit(a.ResponseDone(done))


def barge_in(d: Draft) -> None:
    """The user has taken the floor: one step from the snapshot to the truncation (SPEC 9.4)."""
    resp = live(d.s.resp)
    assert resp is not None
    item_id = None if isinstance(resp, Created) else resp.item_id
    snapshot = retire(d, "cancelled", reason="turn_detected")
    d.note("bargein", "commit", response_id=resp.plan.id, played_ms=snapshot)
    settle_cut(d, resp, item_id, snapshot)


def settle_cut(d: Draft, resp: Live, item_id: ItemId | None, snapshot: int) -> None:
    """After a cut: a truncation where something was heard, else the item is taken back."""
    if item_id is None or not resp.plan.spoken:
        return
    if snapshot > 0:
        d.emit(a.ItemTruncated(item_id, snapshot, "server"))
    else:
        d.set(conversation=d.s.conversation.remove(item_id))
        d.emit(a.ItemDeleted(item_id))


def drop_prediction(d: Draft) -> None:
    """The turn did not end as it stood: the draft goes without a trace."""
    if isinstance(d.s.resp, Predicted):
        d.do(RetireEpoch(d.s.resp.plan.epoch))
        d.set(resp=Idle())


def fail_all(d: Draft, error_code: str) -> None:
    """The engine is gone: whatever runs ends as failed."""
    drop_prediction(d)
    for out in list(d.s.oob.values()):
        finish_out_of_band(d, out, "failed", error_code=error_code)
    if live(d.s.resp) is not None:
        retire(d, "failed", error_code=error_code)


def cancel_all(d: Draft, reason: str) -> None:
    """The session ends: whatever runs ends as cancelled."""
    drop_prediction(d)
    for out in list(d.s.oob.values()):
        finish_out_of_band(d, out, "cancelled", reason=reason)
    if live(d.s.resp) is not None:
        retire(d, "cancelled", reason=reason)
