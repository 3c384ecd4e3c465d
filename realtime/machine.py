"""`step(state, input) -> (state, effects)`: the whole session as one pure function.

No clock, no I/O, no randomness, no await: a barge-in observes and acts in one step by construction. The work is in
`turn` (the user's side) and `response`, `flight`, `ending` (the reply's side); this file dispatches, handles requests
about the conversation and the session itself, and couples the two sides at the end of each step.
"""

from __future__ import annotations

from dataclasses import replace

from . import agent, candidate, ending, flight, life, response, sound, turn
from . import alphabet as a
from . import events as e
from .asking import context_items
from .conversation import Message, to_chat
from .draft import Draft
from .effects import Effect, PrimeChat
from .ids import ItemId
from .names import is_known_model
from .settings import apply
from .state import Active, Pending, Session, Terminated, live

MAX_OUT_OF_BAND = 8  # each has a cache of its own
MAX_ITEMS = 2000
ENGINE_PATIENCE_MS = 15_000


def step(state: Session, ev: e.Input) -> tuple[Session, tuple[Effect, ...]]:
    """Take one input. What is stale (a fired timer that was re-armed, work of a retired epoch) has no effect."""
    match state.phase, ev:
        case Terminated(), _:
            return state, ()
        case Pending(), e.Opened():
            pass
        case Pending(), _:
            raise ValueError(f"{type(ev).__name__} before Opened")
        case Active(), e.Opened():
            raise ValueError("a session is opened once")
    d = Draft(state, ev.at)
    _dispatch(d, ev)
    candidate.settle(d)
    response.settle(d)
    agent.settle(d)
    life.settle(d, ev)
    agent.leave(d)
    return d.s, tuple(d.out)


def _dispatch(d: Draft, ev: e.Input) -> None:
    match ev:
        case e.VadWindow():
            sound.vad_window(d, ev)
        case e.AudioAppended():
            sound.audio_appended(d, ev)
        case e.FrameDue():
            flight.frame_due(d, ev)
        case e.ToolDelta():
            flight.tool_delta(d, ev)
        case e.ChatDelta():
            flight.chat_delta(d, ev)
        case e.PhrasePlanned():
            flight.phrase_planned(d, ev)
        case e.PlayoutDrained():
            flight.playout_drained(d, ev)
        case e.TimerFired():
            _timer(d, ev)
        case e.LoadChanged(is_busy=is_busy):
            d.set(is_busy=is_busy)
        case e.SttPartial():
            sound.stt_partial(d, ev)
        case e.WordsAhead():
            turn.words_ahead(d, ev)
        case e.SttStopTranscript():
            sound.stop_transcript(d, ev)
        case e.SttFailed():
            sound.stt_failed(d, ev)
        case e.EouVerdict():
            turn.eou_verdict(d, ev)
        case e.ChatDone():
            flight.chat_done(d, ev)
        case e.ChatFailed():
            flight.chat_failed(d, ev)
        case e.SpeechDone():
            flight.speech_done(d, ev)
        case e.SpeechFailed():
            flight.speech_failed(d, ev)
        case e.UpdateSession():
            _update(d, ev)
        case e.CommitBuffer():
            candidate.claim(d)
            turn.commit_buffer(d, ev)
        case e.ClearBuffer():
            turn.clear_buffer(d, ev)
        case e.CreateItem():
            _create_item(d, ev)
        case e.RetrieveItem():
            _retrieve_item(d, ev)
        case e.DeleteItem():
            _delete_item(d, ev)
        case e.TruncateItem():
            response.truncate(d, ev)
        case e.CreateResponse():
            _create_response(d, ev)
        case e.CancelResponse():
            response.cancel(d, ev)
        case e.ClearOutput():
            response.clear_output(d, ev)
        case e.Say(_, text):
            agent.say(d, text)
        case e.ToolDone():
            agent.tool_done(d, ev)
        case e.KeyPressed():
            agent.key_pressed(d, ev)
        case e.ClientFault():
            d.error(ev.code, ev.message, ev.event_id, ev.param)
        case e.SettingsRefused():
            d.error(ev.code, ev.message, ev.event_id, ev.param)
        case e.Opened():
            life.open_session(d, ev)
        case e.CloseSession() | e.TransportClosed():
            life.terminate(d, "client_closed")
        case e.DrainRequested():
            life.terminate(d, "draining")
        case e.EngineLost():
            ending.fail_all(d, "engine_unavailable")
            turn.classifier_lost(d)
            d.arm("engine", d.at + ENGINE_PATIENCE_MS)
        case e.EngineBack():
            d.disarm("engine")
        case e.NodeFailed():
            life.fail(d, ev.code, ev.message)


def _timer(d: Draft, ev: e.TimerFired) -> None:
    armed = d.s.timers.get(ev.key)
    if armed is None or armed.token != ev.token:
        return
    d.set(timers={k: v for k, v in d.s.timers.items() if k != ev.key})
    match ev.key:
        case "commit":
            turn.commit_timer(d, "wait")
        case "hard_cap":
            turn.commit_timer(d, "hard_cap")
        case "eou_timeout":
            turn.eou_timeout(d)
        case "barge_in":
            candidate.barge_in_timer(d)
        case "hold_cap":
            candidate.hold_cap(d)
        case "partial":
            candidate.partial_timer(d)
        case "drain_cap":
            if live(d.s.resp) is not None:
                flight.drain_cap(d)
        case "greeting":
            agent.greeting_due(d)
        case "filler":
            agent.filler_due(d)
        case "first_token":
            flight.too_slow(d)
        case "keys":
            agent.keys_over(d)
        case "max_duration":
            life.terminate(d, "max_duration")
        case "engine":
            life.fail(d, "engine_unavailable", "the engine did not come back")
        case "input_gap":
            life.input_gap(d)
        case "idle":
            turn.idle_timeout(d)
        case "session_idle":
            life.session_idle(d)
        case _:
            raise ValueError(f"unknown timer {ev.key}")


def _update(d: Draft, ev: e.UpdateSession) -> None:
    before = d.s.settings
    after = apply(before, ev.patch)
    if after.type != before.type and d.s.updated:
        d.error("session_update_invalid", "the session type cannot change", ev.event_id, "session.type")
        return
    longest = d.s.limits.session_max_duration_s
    if after.session_max_duration_s > longest and after.session_max_duration_s != before.session_max_duration_s:
        message = f"session_max_duration_s is at most {longest} here"
        d.error("session_update_invalid", message, ev.event_id, "session.session_max_duration_s")
        return
    if after.model != before.model and d.s.models is not None and not is_known_model(after.model, d.s.models):
        d.error("model_not_found", f"the model {after.model!r} does not exist here", ev.event_id, "session.model")
        return
    if after.voice != before.voice and live(d.s.resp) is not None:
        d.note("state", "voice_changes_at_next_response")
    d.set(settings=after, updated=True)
    sound.detection_changed(d, before.turn_detection)
    if after.session_max_duration_s != before.session_max_duration_s:
        life.arm_duration(d, after)
    d.emit(a.SessionUpdated(d.s.id, after))
    if after.instructions != before.instructions and live(d.s.resp) is None:
        d.do(PrimeChat(to_chat(context_items(d, d.s.conversation.items)), after.instructions))


def _create_item(d: Draft, ev: e.CreateItem) -> None:
    item = ev.item
    if len(d.s.conversation.items) >= MAX_ITEMS:
        d.error("invalid_event", f"a conversation holds at most {MAX_ITEMS} items", ev.event_id, "item")
        return
    if not item.id:
        item = replace(item, id=ItemId(d.fresh("item")))
    elif d.s.conversation.get(item.id) is not None:
        d.error("invalid_event", f"item {item.id} exists already", ev.event_id, "item.id")
        return
    try:
        d.set(conversation=d.s.conversation.insert(item, ev.after))
    except KeyError:
        d.error("item_not_found", f"no item {ev.after}", ev.event_id, "previous_item_id")
        return
    previous = d.s.conversation.before(item.id)
    d.emit(a.ItemAdded(item, previous))
    d.emit(a.ItemDone(item, previous))


def _retrieve_item(d: Draft, ev: e.RetrieveItem) -> None:
    item = d.s.conversation.get(ev.item_id)
    if item is None:
        d.error("item_not_found", f"no item {ev.item_id}", ev.event_id, "item_id")
    else:
        d.emit(a.ItemRetrieved(item))


def _delete_item(d: Draft, ev: e.DeleteItem) -> None:
    item = d.s.conversation.get(ev.item_id)
    if item is None:
        d.error("item_not_found", f"no item {ev.item_id}", ev.event_id, "item_id")
        return
    if isinstance(item, Message) and item.status == "in_progress":
        d.error("invalid_event", "the item is still being spoken; cancel its response first", ev.event_id, "item_id")
        return
    d.set(conversation=d.s.conversation.remove(ev.item_id))
    d.emit(a.ItemDeleted(item.id))


def _create_response(d: Draft, ev: e.CreateResponse) -> None:
    if d.s.settings.type == "transcription":
        d.error("invalid_event", "a transcription session has no responses", ev.event_id)
        return
    for n, item in enumerate(ev.params.input or ()):
        if isinstance(item, e.ItemReference) and d.s.conversation.get(item.id) is None:
            d.error("item_not_found", f"no item {item.id}", ev.event_id, f"response.input[{n}].id")
            return
    if ev.params.out_of_band:
        if len(d.s.oob) >= MAX_OUT_OF_BAND:
            d.error("rate_limit_exceeded", f"at most {MAX_OUT_OF_BAND} out-of-band responses run at once", ev.event_id)
            return
        response.start_out_of_band(d, ev.params)
    elif live(d.s.resp) is not None or d.s.parked is not None:
        d.error("conversation_already_has_active_response", "a response is running or waiting", ev.event_id)
    else:
        response.request(d, ev.params)


