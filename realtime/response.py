"""The reply's side of the machine, as it is asked for: create, cancel, clear, truncate (SPEC sections 8, 10).

It knows the conversation, chat's text and the playout clock; of the user's side only whether the user is silent. What a
response then goes through is in `flight`, how it ends in `ending`.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import events as e
from .asking import ask, new_plan, view
from .conversation import Message, words_heard
from .draft import Draft
from .effects import FlushOutput, SayLine
from .ending import drop_prediction, finish_out_of_band, retire, settle_cut
from .flight import advance, keep
from .predicted import adopt, stands
from .state import Active, Created, Drain, OutOfBand, Parked, Predicted, Session, Silent, Streaming, live


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
    """The coupling of the two sides, run at the end of every step: a prediction lives only in the silence it was made in,
    and a line of the agent's, then a parked response, starts as soon as it can."""
    if not stands(d.s):
        drop_prediction(d)
    if not isinstance(d.s.phase, Active) or not can_start(d.s):
        return
    if d.s.lines:
        line, *rest = d.s.lines
        d.set(lines=tuple(rest))
        start(d, e.ResponseParams(say=line))
    elif d.s.parked is not None:
        start(d, d.s.parked.params)


def start(d: Draft, params: e.ResponseParams) -> None:
    """Announce a response of the conversation and ask chat for it. It answers all that was said so far."""
    if isinstance(d.s.resp, Predicted) and adopt(d, d.s.resp, params):
        return
    drop_prediction(d)
    plan = new_plan(d, params)
    d.emit(a.ResponseCreated(view(plan, "in_progress")))
    d.set(resp=Created(plan), was_answered=False)
    if params.say is not None:
        d.do(SayLine(plan.epoch, plan.id, params.say, plan.spoken, plan.voice, d.s.settings.speed))
    else:
        d.set(parked=None)
        d.do(ask(d, plan, d.s.conversation.items))


def start_out_of_band(d: Draft, params: e.ResponseParams) -> None:
    """A text response beside the conversation."""
    plan = new_plan(d, params)
    d.emit(a.ResponseCreated(view(plan, "in_progress")))
    d.set(oob={**d.s.oob, plan.id: OutOfBand(plan)})
    d.do(ask(d, plan, d.s.conversation.items))


def cancel(d: Draft, ev: e.CancelResponse) -> None:
    """`response.cancel`: the named response, or the conversation's own."""
    if ev.response_id is not None and ev.response_id in d.s.oob:
        finish_out_of_band(d, d.s.oob[ev.response_id], "cancelled", reason="client_cancelled")
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
    settle_cut(d, resp, item_id, snapshot)


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
    keep(d, replace(resp, voice=voice))
    advance(d)


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
        keep(d, replace(resp, voice=replace(resp.voice, cap_ms=heard)))
    else:
        heard = min(ev.audio_end_ms, item.audio_ms)
        if item.words and heard < item.audio_ms:
            part = replace(item.content[0], text=words_heard(item.words, heard))
            item = replace(item, content=(part,), status="incomplete", audio_ms=heard)
            d.set(conversation=d.s.conversation.put(item))
    d.emit(a.ItemTruncated(item.id, heard, "client", ev.content_index))
