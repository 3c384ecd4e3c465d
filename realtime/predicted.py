"""A reply that is begun before the turn has ended, in case it ends as it stands (SPEC section 8, Predicted).

It is begun in the first silence whose words are likely to be the last ones, or else at the stop transcript. Nothing of it
is on the wire. It is adopted by a response that would ask chat the very same, else dropped without a trace.
"""

from __future__ import annotations

import re
from dataclasses import replace

from . import alphabet as a
from . import events as e
from .asking import ask, new_plan, view
from .conversation import Message
from .draft import Draft
from .effects import HoldOutput, ReleaseOutput, StartChat
from .ending import drop_prediction
from .flight import advance, chat_delta, tell_calls
from .state import Created, Predicted, Session, Silent, Speaking, Stopped, live

MAX_DRAFTS = 2


def predict(d: Draft, said: Message, voiced_ms: int) -> None:
    """Start to write the reply to the turn as it stands, at most twice a turn. What is being written already goes on."""
    if live(d.s.resp) is not None or d.s.parked is not None:
        return
    if any(b.flush is not None for b in d.s.sealed):
        return
    items = (*d.s.conversation.items, said)
    if isinstance(d.s.resp, Predicted) and _is_same(ask(d, d.s.resp.plan, items), d.s.resp.ask):
        return
    drop_prediction(d)
    if d.s.num_drafts >= MAX_DRAFTS or d.s.is_busy:
        return
    new, stream = d.s.draft_ids.draw("resp")
    d.set(draft_ids=stream, num_drafts=d.s.num_drafts + 1)
    plan = new_plan(d, e.ResponseParams(), new)
    question = ask(d, plan, items)
    d.set(resp=Predicted(plan, question, said.id, voiced_ms))
    if plan.spoken:
        d.do(HoldOutput(plan.epoch))
    d.do(question)
    d.note("llm", "predicted", response_id=plan.id)


def stands(s: Session) -> bool:
    """Whether a prediction may live: nothing was said since it was begun, and the turn has not got its final words."""
    draft = s.resp
    if not isinstance(draft, Predicted):
        return False
    if isinstance(s.vad, Speaking | Stopped):
        return (s.vad.item_id, s.vad.voiced_ms) == (draft.item_id, draft.voiced_ms)
    return isinstance(s.vad, Silent) and any(b.item_id == draft.item_id and b.flush is not None for b in s.sealed)


def _is_same(wanted: StartChat, asked: StartChat) -> bool:
    """Whether two questions to chat are one: the user's last words count as they are said, not as they are written."""
    if wanted == asked:
        return True
    *before, last = wanted.messages or (None,)
    *others, other = asked.messages or (None,)
    if last is None or other is None or before != others or _as_said(last.content) != _as_said(other.content):
        return False
    last = replace(last, content=other.content)
    return replace(wanted, messages=(*before, last)) == asked


def _as_said(text: str) -> list[str]:
    """The words without case and spacing, and without the marks at their ends."""
    return re.sub(r"[.,!?;:…]+(?=\s|$)", " ", text).casefold().split()


def adopt(d: Draft, draft: Predicted, params: e.ResponseParams) -> bool:
    """Make the prediction the response, if this one would ask chat the very same."""
    wanted = ask(d, replace(draft.plan, params=params), d.s.conversation.items)
    if params != draft.plan.params or not _is_same(wanted, draft.ask):
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
