"""A reply that is begun before the turn has ended, in case it ends as it stands (SPEC section 8, Predicted).

Nothing of it is on the wire. It is adopted by a response that would ask chat the very same, else dropped without a
trace.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import events as e
from .asking import ask, new_plan, view
from .conversation import Message
from .draft import Draft
from .effects import HoldOutput, ReleaseOutput
from .ending import drop_prediction
from .flight import advance, chat_delta, tell_calls
from .state import Created, Predicted, live

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
    plan = new_plan(d, e.ResponseParams(), new)
    question = ask(d, plan, (*d.s.conversation.items, said))
    d.set(resp=Predicted(plan, question))
    if plan.spoken:
        d.do(HoldOutput(plan.epoch))
    d.do(question)
    d.note("llm", "predicted", response_id=plan.id)


def adopt(d: Draft, draft: Predicted, params: e.ResponseParams) -> bool:
    """Make the prediction the response, if this one would ask chat the very same."""
    wanted = ask(d, replace(draft.plan, params=params), d.s.conversation.items)
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
            d.set(resp=replace(resp, chat=replace(draft.chat, message_index=resp.chat.message_index)))
    tell_calls(d)
    d.note("llm", "adopted", response_id=plan.id)
    advance(d)
    return True
