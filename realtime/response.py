"""The reply's side of the machine: from `response.create` to `response.done` (SPEC sections 8 and 9).

It knows the conversation, chat's text and the playout clock; of the user's side only whether the user is silent.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import events as e
from .conversation import FunctionCall, Item, Message, Part, Status, to_chat, words_heard
from .draft import Draft
from .effects import FlushOutput, HoldOutput, ReleaseOutput, RetireEpoch, StartChat
from .ids import Epoch, ItemId, ResponseId
from .state import (
    Active,
    Chat,
    Created,
    Drain,
    Idle,
    Live,
    OutOfBand,
    Parked,
    Plan,
    Predicted,
    Session,
    Silent,
    Stopped,
    Streaming,
    live,
)

# --- beginning -----------------------------------------------------------------------------------------------------


def can_start(s: Session) -> bool:
    """Whether nothing stands in the way of a response: a talking user, words on their way, a running reply."""
    waiting = any(b.flush is not None for b in s.sealed)
    return not waiting and isinstance(s.vad, Silent) and live(s.resp) is None


def request(d: Draft, params: e.ResponseParams) -> None:
    """Start a response, or park it while the user talks, a transcript is on its way or a reply is running.

    One that is parked already is merged with this one, and what it asked for stands.
    """
    if can_start(d.s):
        start(d, params if d.s.parked is None else d.s.parked.params)
    elif d.s.parked is None:
        d.set(parked=Parked(params))
        d.note("turn", "response_parked")


def settle(d: Draft) -> None:
    """The coupling of the two sides, run at the end of every step: a prediction lives only while the turn is stopped,
    and a parked response starts as soon as it can."""
    if not isinstance(d.s.vad, Stopped):
        drop_prediction(d)
    if d.s.parked is not None and isinstance(d.s.phase, Active) and can_start(d.s):
        start(d, d.s.parked.params)


def _plan(d: Draft, params: e.ResponseParams, response_id: str | None = None) -> Plan:
    s = d.s.settings
    text_only = "audio" not in s.output_modalities if params.text_only is None else params.text_only
    limit = params.max_output_tokens
    if limit is None and isinstance(s.max_output_tokens, int):
        limit = s.max_output_tokens
    epoch = Epoch(d.s.epoch + 1)
    d.set(epoch=epoch)
    return Plan(
        id=ResponseId(response_id or d.fresh("resp")),
        epoch=epoch,
        params=params,
        spoken=not (text_only or params.out_of_band),
        voice=params.voice or s.voice,
        output_format=s.output_format,
        max_output_tokens=limit,
        conversation_id=None if params.out_of_band else d.s.conversation_id,
        created_at=d.at,
    )


def start(d: Draft, params: e.ResponseParams) -> None:
    """Announce a response of the conversation and ask chat for it. It answers all that was said so far."""
    if isinstance(d.s.resp, Predicted) and _adopt(d, d.s.resp, params):
        return
    drop_prediction(d)
    plan = _plan(d, params)
    d.emit(a.ResponseCreated(view(plan, "in_progress")))
    d.set(resp=Created(plan), parked=None)
    d.do(_ask(d, plan, d.s.conversation.items))


# --- predicted -----------------------------------------------------------------------------------------------------

MAX_DRAFTS = 2


def predict(d: Draft, said: Message) -> None:
    """Start to write the reply to the turn as it stands, at most twice a turn."""
    if live(d.s.resp) is not None or d.s.parked is not None or d.s.num_drafts >= MAX_DRAFTS:
        return
    if any(b.flush is not None for b in d.s.sealed):
        return
    drop_prediction(d)
    new, stream = d.s.draft_ids.draw("resp")
    d.set(draft_ids=stream, num_drafts=d.s.num_drafts + 1)
    plan = _plan(d, e.ResponseParams(), new)
    ask = _ask(d, plan, (*d.s.conversation.items, said))
    d.set(resp=Predicted(plan, ask))
    if plan.spoken:
        d.do(HoldOutput(plan.epoch))
    d.do(ask)
    d.note("llm", "predicted", response_id=plan.id)


def _adopt(d: Draft, draft: Predicted, params: e.ResponseParams) -> bool:
    """Make the prediction the response, if this one would ask chat the very same."""
    wanted = _ask(d, replace(draft.plan, params=params), d.s.conversation.items)
    if params != draft.plan.params or wanted != draft.ask:
        return False
    plan = replace(draft.plan, created_at=d.at)
    d.emit(a.ResponseCreated(view(plan, "in_progress")))
    d.set(parked=None)
    if plan.spoken:
        d.set(resp=Created(plan, draft.chat, draft.voice))
        d.do(ReleaseOutput(plan.epoch))
    else:
        d.set(resp=Created(plan))
        if draft.chat.text:
            chat_delta(d, e.ChatDelta(d.at, plan.epoch, draft.chat.text))
        if (resp := live(d.s.resp)) is not None:
            d.set(resp=replace(resp, chat=draft.chat))
    d.note("llm", "adopted", response_id=plan.id)
    _advance(d)
    return True


def drop_prediction(d: Draft) -> None:
    """The turn did not end as it stood: the draft goes without a trace."""
    if isinstance(d.s.resp, Predicted):
        d.do(RetireEpoch(d.s.resp.plan.epoch))
        d.set(resp=Idle())


def start_out_of_band(d: Draft, params: e.ResponseParams) -> None:
    """A text response beside the conversation."""
    plan = _plan(d, params)
    d.emit(a.ResponseCreated(view(plan, "in_progress")))
    d.set(oob={**d.s.oob, plan.id: OutOfBand(plan)})
    d.do(_ask(d, plan, d.s.conversation.items))


def _ask(d: Draft, plan: Plan, items: tuple[Item, ...]) -> StartChat:
    """What chat is asked for a response to these items."""
    s, p = d.s.settings, plan.params
    return StartChat(
        epoch=plan.epoch,
        response_id=plan.id,
        messages=to_chat(items if p.input is None else p.input),
        instructions=s.instructions if p.instructions is None else p.instructions,
        tools=s.tools if p.tools is None else p.tools,
        tool_choice=s.tool_choice if p.tool_choice is None else p.tool_choice,
        max_output_tokens=plan.max_output_tokens,
        temperature=s.temperature if p.temperature is None else p.temperature,
        spoken=plan.spoken,
        voice=plan.voice,
        speed=s.speed,
    )


def view(
    plan: Plan,
    status: a.ResponseStatus,
    *,
    output: tuple[Item, ...] = (),
    reason: str | None = None,
    error_code: str | None = None,
    chat: Chat | None = None,
    audio_end_ms: int | None = None,
) -> a.ResponseView:
    """A response as the wire shows it."""
    usage = None if chat is None else (chat.input_tokens, chat.output_tokens, chat.cached_tokens, plan.spoken)
    return a.ResponseView(
        id=plan.id,
        status=status,
        conversation_id=plan.conversation_id,
        text_only=not plan.spoken,
        voice=plan.voice,
        output_format=plan.output_format,
        max_output_tokens="inf" if plan.max_output_tokens is None else plan.max_output_tokens,
        output=output,
        reason=reason,
        error_code=error_code,
        usage=usage,
        metadata=plan.params.metadata,
        audio_end_ms=audio_end_ms,
        first_token_ms=None if chat is None or chat.first_at is None else round(chat.first_at - plan.created_at),
    )


# --- in flight -----------------------------------------------------------------------------------------------------


def _draft_of(d: Draft, epoch: Epoch) -> Predicted | None:
    resp = d.s.resp
    return resp if isinstance(resp, Predicted) and resp.plan.epoch == epoch else None


def _of_epoch(d: Draft, epoch: Epoch) -> Live | None:
    resp = live(d.s.resp)
    return resp if resp is not None and resp.plan.epoch == epoch else None


def _oob_of(d: Draft, epoch: Epoch) -> OutOfBand | None:
    return next((o for o in d.s.oob.values() if o.plan.epoch == epoch), None)


def _open_item(d: Draft, plan: Plan, kind: str) -> ItemId:
    """Open the message item: in memory, then announced."""
    item_id = ItemId(d.fresh("item"))
    item = Message(item_id, "assistant", (), "in_progress")
    d.emit(a.OutputItemAdded(plan.id, 0, item))
    if not plan.params.out_of_band:
        d.set(conversation=d.s.conversation.insert(item))
        d.emit(a.ItemAdded(item, d.s.conversation.before(item_id)))
    part = Part("output_audio", "") if kind == "audio" else Part("output_text", "")
    d.emit(a.ContentPartAdded(plan.id, item_id, 0, part))
    return item_id


def _wrote(d: Draft, chat: Chat, text: str) -> Chat:
    first = d.at if chat.first_at is None else chat.first_at
    return replace(chat, text=chat.text + text, first_at=first)


def chat_delta(d: Draft, ev: e.ChatDelta) -> None:
    if (out := _oob_of(d, ev.epoch)) is not None:
        item_id = out.item_id or _open_item(d, out.plan, "text")
        d.emit(a.TextDelta(out.plan.id, item_id, 0, ev.text))
        chat = _wrote(d, out.chat, ev.text)
        d.set(oob={**d.s.oob, out.plan.id: replace(out, chat=chat, item_id=item_id)})
        return
    if (draft := _draft_of(d, ev.epoch)) is not None:
        d.set(resp=replace(draft, chat=_wrote(d, draft.chat, ev.text)))
        return
    resp = _of_epoch(d, ev.epoch)
    if resp is None:
        return
    chat = _wrote(d, resp.chat, ev.text)
    if resp.plan.spoken:
        d.set(resp=replace(resp, chat=chat))
        return
    item_id = _open_item(d, resp.plan, "text") if isinstance(resp, Created) else resp.item_id
    d.emit(a.TextDelta(resp.plan.id, item_id, 0, ev.text))
    d.set(resp=Streaming(resp.plan, item_id, chat, resp.voice))


def chat_done(d: Draft, ev: e.ChatDone) -> None:
    def close(chat: Chat) -> Chat:
        return replace(
            chat,
            done=True,
            tool_calls=ev.tool_calls,
            limited=ev.limited,
            input_tokens=ev.input_tokens,
            output_tokens=ev.output_tokens,
            cached_tokens=ev.cached_tokens,
        )

    if (out := _oob_of(d, ev.epoch)) is not None:
        _finish_out_of_band(d, replace(out, chat=close(out.chat)), "incomplete" if ev.limited else "completed")
        return
    if (draft := _draft_of(d, ev.epoch)) is not None:
        d.set(resp=replace(draft, chat=close(draft.chat)))
        return
    resp = _of_epoch(d, ev.epoch)
    if resp is None:
        return
    d.set(resp=replace(resp, chat=close(resp.chat)))
    _advance(d)


def chat_failed(d: Draft, ev: e.ChatFailed) -> None:
    if _draft_of(d, ev.epoch) is not None:
        drop_prediction(d)
    elif (out := _oob_of(d, ev.epoch)) is not None:
        d.note("llm", "failed", message=ev.message)
        _finish_out_of_band(d, out, "failed", error_code="llm_error")
    elif _of_epoch(d, ev.epoch) is not None:
        d.note("llm", "failed", message=ev.message)
        retire(d, "failed", error_code="llm_error")


def phrase_planned(d: Draft, ev: e.PhrasePlanned) -> None:
    resp = _of_epoch(d, ev.epoch) or _draft_of(d, ev.epoch)
    if resp is not None and not resp.voice.cleared:
        v = resp.voice
        d.set(resp=replace(resp, voice=replace(v, words=v.words + ev.words, planned_ms=ev.planned_ms)))


def speech_done(d: Draft, ev: e.SpeechDone) -> None:
    resp = _of_epoch(d, ev.epoch) or _draft_of(d, ev.epoch)
    if resp is not None:
        d.set(resp=replace(resp, voice=replace(resp.voice, done=True)))
        _advance(d)


def speech_failed(d: Draft, ev: e.SpeechFailed) -> None:
    if _draft_of(d, ev.epoch) is not None:
        drop_prediction(d)
    elif _of_epoch(d, ev.epoch) is not None:
        d.note("tts_req", "failed", message=ev.message)
        retire(d, "failed", error_code="tts_error")


def frame_due(d: Draft, ev: e.FrameDue) -> None:
    """The pacer's next frame goes out, and with it the words that begin in it."""
    resp = _of_epoch(d, ev.epoch)
    if resp is None or resp.voice.cleared:
        return
    first = isinstance(resp, Created)
    item_id = _open_item(d, resp.plan, "audio") if isinstance(resp, Created) else resp.item_id
    v = resp.voice
    n = v.num_announced
    while n < len(v.words) and v.words[n].start_ms < ev.written_ms:
        d.emit(a.SpokenDelta(resp.plan.id, item_id, 0, v.words[n].text))
        n += 1
    d.emit(a.AudioDelta(resp.plan.id, item_id, 0))
    if first:
        d.emit(a.OutputStarted(resp.plan.id))
    v = replace(v, num_announced=n, written_ms=ev.written_ms, played_ms=ev.played_ms, frame_at=d.at)
    if isinstance(resp, Drain):
        d.set(resp=replace(resp, voice=v))
    else:
        d.set(resp=Streaming(resp.plan, item_id, resp.chat, v))
        _advance(d)  # everything may have been said before its first frame was due


def playout_drained(d: Draft, ev: e.PlayoutDrained) -> None:
    resp = _of_epoch(d, ev.epoch)
    if resp is not None:
        voice = replace(resp.voice, played_ms=ev.played_ms, frame_at=d.at)
        d.set(resp=replace(resp, voice=voice))
        _advance(d)


def _advance(d: Draft) -> None:
    """Move on where chat and speech allow it: to Drain, or to the end."""
    resp = live(d.s.resp)
    if resp is None or not resp.chat.done:
        return
    status: a.ResponseStatus = "incomplete" if resp.chat.limited else "completed"
    reason = "max_output_tokens" if resp.chat.limited else None
    v = resp.voice
    if not resp.plan.spoken or v.cleared or (v.done and v.played_ms >= v.planned_ms):
        retire(d, status, reason=reason)
        return
    if v.done and isinstance(resp, Streaming):
        s = d.s.settings
        cap = min(max(2 * v.planned_ms, s.drain_cap_floor_ms), s.drain_cap_ceiling_ms)
        d.arm("drain_cap", d.at + cap)
        d.set(resp=Drain(resp.plan, resp.item_id, resp.chat, v))


def drain_cap(d: Draft) -> None:
    retire(d, "incomplete")


# --- ending --------------------------------------------------------------------------------------------------------


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
    d.disarm("drain_cap")
    output: list[Item] = []
    started = plan.spoken and not isinstance(resp, Created)
    if not isinstance(resp, Created):
        item = _close_item(d, resp, snapshot, natural)
        if not (plan.spoken and snapshot == 0 and status == "cancelled"):
            output.append(item)
    if status in ("completed", "incomplete") or (status == "cancelled" and resp.chat.done):
        for call in resp.chat.tool_calls:
            output.append(_tool_item(d, plan, call, len(output)))
    if started and not to_the_end and not v.cleared:
        d.emit(a.OutputCleared(plan.id))
    d.set(resp=Idle())
    done = view(
        plan, status, output=tuple(output), reason=reason, error_code=error_code, chat=resp.chat,
        audio_end_ms=snapshot if plan.spoken else None,
    )  # fmt: skip
    d.emit(a.ResponseDone(done))
    if started and to_the_end:
        d.emit(a.OutputStopped(plan.id))
    d.note("response", "done", response_id=plan.id, status=status, reason=reason, played_ms=snapshot)
    return snapshot


def _close_item(d: Draft, resp: Streaming | Drain, snapshot: int, natural: bool) -> Message:
    """Close the message item's brackets. What was heard is what stays."""
    plan, v, item_id = resp.plan, resp.voice, resp.item_id
    if plan.spoken:
        rest = v.words[v.num_announced :] if natural else ()
        for word in rest:
            d.emit(a.SpokenDelta(plan.id, item_id, 0, word.text))
        said = "".join(w.text for w in v.words[: v.num_announced + len(rest)])
        d.emit(a.AudioDone(plan.id, item_id, 0))
        d.emit(a.SpokenDone(plan.id, item_id, 0, said))
        d.emit(a.ContentPartDone(plan.id, item_id, 0, Part("output_audio", said)))
        heard = said if natural else words_heard(v.words, snapshot)
        part = Part("output_audio", heard)
    else:
        said = resp.chat.text
        d.emit(a.TextDone(plan.id, item_id, 0, said))
        part = Part("output_text", said)
        d.emit(a.ContentPartDone(plan.id, item_id, 0, part))
    whole = natural or (not plan.spoken and resp.chat.done)
    status: Status = "completed" if whole else "incomplete"
    item = Message(item_id, "assistant", (part,), status, v.words, snapshot)
    d.set(conversation=d.s.conversation.put(item))
    d.emit(a.ItemDone(item, d.s.conversation.before(item_id)))
    d.emit(a.OutputItemDone(plan.id, 0, item))
    return item


def _tool_item(d: Draft, plan: Plan, call: e.ToolCall, index: int) -> FunctionCall:
    item = FunctionCall(ItemId(d.fresh("item")), call.call_id, call.name, call.arguments)
    blank = replace(item, arguments="", status="in_progress")
    d.emit(a.OutputItemAdded(plan.id, index, blank))
    if not plan.params.out_of_band:
        d.set(conversation=d.s.conversation.insert(item))
        d.emit(a.ItemAdded(blank, d.s.conversation.before(item.id)))
    d.emit(a.ArgumentsDelta(plan.id, item.id, index, call.call_id, call.arguments))
    d.emit(a.ArgumentsDone(plan.id, item.id, index, call.call_id, call.name, call.arguments))
    if not plan.params.out_of_band:
        d.emit(a.ItemDone(item, d.s.conversation.before(item.id)))
    d.emit(a.OutputItemDone(plan.id, index, item))
    return item


def _finish_out_of_band(
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
        d.emit(a.TextDone(plan.id, out.item_id, 0, out.chat.text))
        d.emit(a.ContentPartDone(plan.id, out.item_id, 0, part))
        item = Message(out.item_id, "assistant", (part,), "completed" if status == "completed" else "incomplete")
        d.emit(a.OutputItemDone(plan.id, 0, item))
        output.append(item)
    for call in out.chat.tool_calls:
        output.append(_tool_item(d, plan, call, len(output)))
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
    _settle_cut(d, resp, item_id, snapshot)


def _settle_cut(d: Draft, resp: Live, item_id: ItemId | None, snapshot: int) -> None:
    """After a cut: a truncation where something was heard, else the item is taken back."""
    if item_id is None or not resp.plan.spoken:
        return
    if snapshot > 0:
        d.emit(a.ItemTruncated(item_id, snapshot, "server"))
    else:
        d.set(conversation=d.s.conversation.remove(item_id))
        d.emit(a.ItemDeleted(item_id))


def cancel(d: Draft, ev: e.CancelResponse) -> None:
    """`response.cancel`: the named response, or the conversation's own."""
    if ev.response_id is not None and ev.response_id in d.s.oob:
        _finish_out_of_band(d, d.s.oob[ev.response_id], "cancelled", reason="client_cancelled")
        return
    resp = live(d.s.resp)
    if resp is None and d.s.parked is not None and ev.response_id is None:
        d.set(parked=None)  # it was never announced
        return
    if resp is None or (ev.response_id is not None and ev.response_id != resp.plan.id):
        d.error("response_cancel_not_active", "there is no active response to cancel", ev.event_id)
        return
    item_id = None if isinstance(resp, Created) else resp.item_id
    snapshot = retire(d, "cancelled", reason="client_cancelled")
    _settle_cut(d, resp, item_id, snapshot)


def clear_output(d: Draft, ev: e.ClearOutput) -> None:
    """Drop queued and later audio of the running response; chat goes on and the item keeps what was heard."""
    resp = live(d.s.resp)
    if resp is None or not resp.plan.spoken or isinstance(resp, Created) or resp.voice.cleared:
        d.note("response", "nothing_to_clear")
        return
    played = resp.voice.played_at(d.at)
    d.do(FlushOutput(resp.plan.epoch))
    d.emit(a.OutputCleared(resp.plan.id))
    voice = replace(resp.voice, cleared=True, cap_ms=played)
    d.set(resp=replace(resp, voice=voice))
    _advance(d)


def fail_all(d: Draft, error_code: str) -> None:
    """The engine is gone: whatever runs ends as failed."""
    drop_prediction(d)
    for out in list(d.s.oob.values()):
        _finish_out_of_band(d, out, "failed", error_code=error_code)
    if live(d.s.resp) is not None:
        retire(d, "failed", error_code=error_code)


def cancel_all(d: Draft, reason: str) -> None:
    """The session ends: whatever runs ends as cancelled."""
    drop_prediction(d)
    for out in list(d.s.oob.values()):
        _finish_out_of_band(d, out, "cancelled", reason=reason)
    if live(d.s.resp) is not None:
        retire(d, "cancelled", reason=reason)


def truncate(d: Draft, ev: e.TruncateItem) -> None:
    """The client says how much of an assistant item was heard; the smaller figure counts."""
    item = d.s.conversation.get(ev.item_id)
    if item is None:
        d.error("item_not_found", f"no item {ev.item_id}", ev.event_id, "item_id")
        return
    if not isinstance(item, Message) or item.role != "assistant":
        d.error("invalid_event", "only assistant messages can be truncated", ev.event_id, "item_id")
        return
    resp = live(d.s.resp)
    if isinstance(resp, Streaming | Drain) and resp.item_id == item.id:
        heard = min(ev.audio_end_ms, resp.voice.played_at(d.at))
        d.set(resp=replace(resp, voice=replace(resp.voice, cap_ms=heard)))
    else:
        heard = min(ev.audio_end_ms, item.audio_ms)
        if item.words and heard < item.audio_ms:
            part = replace(item.content[0], text=words_heard(item.words, heard))
            item = replace(item, content=(part,), status="incomplete", audio_ms=heard)
            d.set(conversation=d.s.conversation.put(item))
    d.emit(a.ItemTruncated(item.id, heard, "client", ev.content_index))
