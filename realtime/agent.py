"""What an agent does of itself (SPEC section 16): its lines, and how a reply goes on after the server's own tools.

A line is a response whose text is given: it is spoken, held, cut and remembered like any other. Lines wait for what
runs, and are dropped when the caller takes the floor.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import ending, life, response, tools
from . import events as e
from .conversation import Message, Part
from .detector import Quiet
from .draft import Draft
from .ids import ItemId
from .state import Active, Candidate, Idle, Running, Silent, live


def say(d: Draft, text: str) -> None:
    """Say a line as soon as nothing else is being said. A transcription session says nothing."""
    if text.strip() and d.s.settings.type == "realtime":
        d.set(lines=(*d.s.lines, text))


def tool_done(d: Draft, ev: e.ToolDone) -> None:
    """One of the server's own tools has answered; when all of its response's have, the reply goes on."""
    running = next((r for r in d.s.work if r.call_id == ev.call_id and not r.outcome), None)
    if running is None:
        return
    tools.answer(d, running, ev.output)
    batch = [
        replace(r, outcome=ev.outcome) if r is running else r
        for r in d.s.work
        if r.response_id == running.response_id
    ]
    others = tuple(r for r in d.s.work if r.response_id != running.response_id)
    if any(not r.outcome for r in batch):
        d.set(work=(*others, *batch))
        return
    d.set(work=others)
    _go_on(d, batch)


def _go_on(d: Draft, batch: list[Running]) -> None:
    outcomes = {r.outcome for r in batch}
    agent = d.s.settings.agent
    if "ended" in outcomes:
        if not batch[0].spoke:
            say(d, agent.farewell)
        d.set(leaving=True)
        return
    if "failed" in outcomes:
        say(d, agent.apology)
    if "answered" in outcomes or ("failed" in outcomes and not agent.apology):
        response.request(d, e.ResponseParams())


# --- telephone keys ------------------------------------------------------------------------------------------------


def key_pressed(d: Draft, ev: e.KeyPressed) -> None:
    """A key silences a reply as speech does; a row of them is a message unless somebody waits for it (`taken`)."""
    d.emit(a.KeyPressed(ev.key, ev.received_at))
    if live(d.s.resp) is not None and d.s.settings.interrupts and not isinstance(d.s.vad, Candidate):
        ending.barge_in(d)
    d.set(lines=())
    if ev.taken or d.s.settings.type != "realtime":
        return
    d.set(keys=d.s.keys + ev.key)
    if ev.key == "#":
        keys_over(d)
    else:
        d.arm("keys", d.at + d.s.settings.agent.keys_after_ms)


def keys_over(d: Draft) -> None:
    """No further key: what was pressed is what the caller says."""
    d.disarm("keys")
    item = Message(ItemId(d.fresh("item")), "user", (Part("input_text", f"(keys pressed: {' '.join(d.s.keys)})"),))
    d.set(keys="", conversation=d.s.conversation.insert(item))
    previous = d.s.conversation.before(item.id)
    d.emit(a.ItemAdded(item, previous))
    d.emit(a.ItemDone(item, previous))
    response.request(d, e.ResponseParams())


# --- timers --------------------------------------------------------------------------------------------------------


def greeting_due(d: Draft) -> None:
    """Nobody has spoken since the session began."""
    d.set(greeted=True)
    say(d, d.s.settings.agent.greeting)


def filler_due(d: Draft) -> None:
    """A tool takes its time: say so, unless something is being said."""
    waiting = [r for r in d.s.work if not r.outcome]
    if waiting and response.can_start(d.s):
        say(d, waiting[0].filler)
    d.set(work=tuple(replace(r, filler="") for r in d.s.work))


def settle(d: Draft) -> None:
    """Run at the end of every step, the agent's timers live as long as what they wait for."""
    s, agent = d.s, d.s.settings.agent
    if not isinstance(s.phase, Active):
        return
    if not s.greeted and (s.conversation.items or live(s.resp) is not None or s.parked is not None):
        d.set(greeted=True)  # the conversation has begun without it
    greets = agent.greeting and not d.s.greeted and s.settings.type == "realtime"
    is_quiet = isinstance(s.vad, Silent) and isinstance(s.detector.phase, Quiet)
    life.keep(d, "greeting", bool(greets) and is_quiet, d.at + agent.greeting_after_ms)
    fills = any(r.filler and not r.outcome for r in s.work)
    life.keep(d, "filler", fills, d.at + agent.filler_after_ms)
    resp = live(s.resp)
    waits = resp is not None and resp.chat.first_at is None and not resp.chat.done and resp.plan.params.say is None
    life.keep(d, "first_token", bool(agent.say_on_failure) and waits, d.at + agent.first_token_ms)


def leave(d: Draft) -> None:
    """Run at the end of every step, last: an agent that has ended the call goes when its last line has been heard."""
    if d.s.leaving and isinstance(d.s.phase, Active) and isinstance(d.s.resp, Idle) and not d.s.lines:
        life.terminate(d, "agent_ended")
