"""`step(state, input) -> (state, effects)`: the whole session as one pure function.

No clock, no I/O, no randomness, no await: a barge-in observes and acts in one step by construction. The work is in
`turn` (the user's side) and `response`, `flight`, `ending` (the reply's side); this file dispatches, handles requests
about the conversation and the session itself, and couples the two sides at the end of each step.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import candidate, ending, flight, response, sound, turn
from . import events as e
from .conversation import Message
from .draft import Draft
from .effects import Close, Effect, PrimeChat, StopStt
from .ids import IdStream, ItemId
from .settings import Settings, apply
from .state import Active, Pending, Session, Silent, Terminated, live

MAX_ITEMS = 2000
ENGINE_PATIENCE_MS = 15_000

CLOSE_CODES: dict[a.EndReason, int] = {
    "client_closed": 1000,
    "max_duration": 1000,
    "idle_timeout": 1000,
    "draining": 1001,
    "client_too_slow": 1008,
}


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
    return d.s, tuple(d.out)


def _dispatch(d: Draft, ev: e.Input) -> None:
    match ev:
        case e.VadWindow():
            sound.vad_window(d, ev)
        case e.AudioAppended():
            sound.audio_appended(d, ev)
        case e.FrameDue():
            flight.frame_due(d, ev)
        case e.ChatDelta():
            flight.chat_delta(d, ev)
        case e.PhrasePlanned():
            flight.phrase_planned(d, ev)
        case e.PlayoutDrained():
            flight.playout_drained(d, ev)
        case e.TimerFired():
            _timer(d, ev)
        case e.SttPartial():
            sound.stt_partial(d, ev)
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
        case e.ClientFault():
            d.error(ev.code, ev.message, ev.event_id, ev.param)
        case e.SettingsRefused():
            d.error(ev.code, ev.message, ev.event_id, ev.param)
        case e.Opened():
            _open(d, ev)
        case e.CloseSession() | e.TransportClosed():
            terminate(d, "client_closed")
        case e.DrainRequested():
            terminate(d, "draining")
        case e.EngineLost():
            ending.fail_all(d, "engine_unavailable")
            turn.classifier_lost(d)
            d.arm("engine", d.at + ENGINE_PATIENCE_MS)
        case e.EngineBack():
            d.disarm("engine")
        case e.NodeFailed():
            d.emit(a.ErrorEvent(ev.code, ev.message))
            terminate(d, _end_reason(ev.code))


def _end_reason(code: str) -> a.EndReason:
    known: dict[str, a.EndReason] = {
        "vad_failed": "vad_failed",
        "stt_failed": "stt_failed",
        "engine_unavailable": "engine_unavailable",
        "client_too_slow": "client_too_slow",
    }
    return known.get(code, "internal_state_error")


def _open(d: Draft, ev: e.Opened) -> None:
    d.set(phase=Active(), settings=ev.settings, ids=IdStream(ev.seed), draft_ids=IdStream(ev.seed + "/drafts"))
    d.set(id=d.fresh("sess"))
    d.set(conversation_id=d.fresh("conv"))
    d.emit(a.SessionCreated(d.s.id, d.s.settings))
    d.do(PrimeChat((), ev.settings.instructions))
    d.arm("max_duration", d.at + 1000 * ev.settings.session_max_duration_s)


def terminate(d: Draft, reason: a.EndReason) -> None:
    """End the session: what runs is closed, then `session.done`, then the transport."""
    cause = "client_cancelled" if reason == "client_closed" else "turn_detected"
    if reason == "engine_unavailable":
        ending.fail_all(d, reason)
    else:
        ending.cancel_all(d, cause)
    if not isinstance(d.s.vad, Silent):
        d.do(StopStt(d.s.vad.item_id))
    d.disarm(*d.s.timers)
    d.emit(a.SessionDone(reason))
    d.set(phase=Terminated(reason), vad=Silent(), parked=None)
    match CLOSE_CODES.get(reason, 1011):
        case 1000:
            d.do(Close(1000, reason))
        case 1001:
            d.do(Close(1001, reason))
        case 1008:
            d.do(Close(1008, reason))
        case _:
            d.do(Close(1011, reason))


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
        case "max_duration":
            terminate(d, "max_duration")
        case "engine":
            d.emit(a.ErrorEvent("engine_unavailable", "the engine did not come back"))
            terminate(d, "engine_unavailable")
        case _:
            raise ValueError(f"unknown timer {ev.key}")


def _update(d: Draft, ev: e.UpdateSession) -> None:
    before = d.s.settings
    after = apply(before, ev.patch)
    if after.type != before.type and d.s.updated:
        d.error("session_update_invalid", "the session type cannot change", ev.event_id, "session.type")
        return
    if after.voice != before.voice and live(d.s.resp) is not None:
        d.note("state", "voice_changes_at_next_response")
    d.set(settings=after, updated=True)
    sound.detection_changed(d, before.turn_detection)
    _rearm_duration(d, before, after)
    d.emit(a.SessionUpdated(d.s.id, after))
    if after.instructions != before.instructions and live(d.s.resp) is None:
        d.do(PrimeChat(d.s.conversation.chat_messages(), after.instructions))


def _rearm_duration(d: Draft, before: Settings, after: Settings) -> None:
    if after.session_max_duration_s != before.session_max_duration_s:
        d.arm("max_duration", d.at + 1000 * after.session_max_duration_s)


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
    elif ev.params.out_of_band:
        response.start_out_of_band(d, ev.params)
    elif live(d.s.resp) is not None or d.s.parked is not None:
        d.error("conversation_already_has_active_response", "a response is running or waiting", ev.event_id)
    else:
        response.request(d, ev.params)


