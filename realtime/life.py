"""The life of a session: how it opens and ends, and what happens when nothing does (SPEC sections 1, 2, 10).

Two clocks meet here: input that does not come while somebody speaks counts as silence at wall-clock speed.
"""

from __future__ import annotations

from . import alphabet as a
from . import ending
from . import events as e
from .draft import Draft
from .effects import CancelTool, Close, FeedSilence, PrimeChat, StopStt
from .ids import IdStream
from .settings import Settings
from .state import Active, Candidate, Idle, Silent, Speaking, Terminated, live

FILL_EVERY_MS = 96
CLOSE_CODES: dict[a.EndReason, int] = {
    "client_closed": 1000,
    "agent_ended": 1000,
    "max_duration": 1000,
    "idle_timeout": 1000,
    "draining": 1001,
    "client_too_slow": 1008,
}
ERROR_REASONS: dict[str, a.EndReason] = {
    "vad_failed": "vad_failed",
    "stt_failed": "stt_failed",
    "engine_unavailable": "engine_unavailable",
    "client_too_slow": "client_too_slow",
}


def open_session(d: Draft, ev: e.Opened) -> None:
    """Announce the session; its timers run from here."""
    d.set(phase=Active(), settings=ev.settings, limits=ev.limits, models=ev.models, active_at=d.at)
    d.set(ids=IdStream(ev.seed), draft_ids=IdStream(ev.seed + "/drafts"))
    d.set(id=d.fresh("sess"))
    d.set(conversation_id=d.fresh("conv"))
    d.emit(a.SessionCreated(d.s.id, d.s.settings))
    d.do(PrimeChat((), ev.settings.instructions))
    arm_duration(d, ev.settings)
    if ev.limits.session_idle_timeout_s is not None:
        d.arm("session_idle", d.at + 1000 * ev.limits.session_idle_timeout_s)


def arm_duration(d: Draft, settings: Settings) -> None:
    longest = min(settings.session_max_duration_s, d.s.limits.session_max_duration_s)
    d.arm("max_duration", d.at + 1000 * longest)


def fail(d: Draft, code: str, message: str) -> None:
    """Something the session cannot do without is gone."""
    terminate(d, ERROR_REASONS.get(code, "internal_state_error"), error=(code, message))


def terminate(d: Draft, reason: a.EndReason, error: tuple[str, str] | None = None) -> None:
    """End the session: what runs is closed, then the error, then `session.done`, then the transport."""
    if reason == "engine_unavailable":
        ending.fail_all(d, reason)
    else:
        ending.cancel_all(d, "client_cancelled" if reason == "client_closed" else "turn_detected")
    if error is not None:
        d.error(*error)
    if not isinstance(d.s.vad, Silent):
        d.do(StopStt(d.s.vad.item_id))
    for running in d.s.work:
        if not running.outcome:
            d.do(CancelTool(running.call_id))
    d.disarm(*d.s.timers)
    d.emit(a.SessionDone(reason))
    d.set(phase=Terminated(reason), vad=Silent(), parked=None, work=(), lines=())
    match CLOSE_CODES.get(reason, 1011):
        case 1000:
            d.do(Close(1000, reason))
        case 1001:
            d.do(Close(1001, reason))
        case 1008:
            d.do(Close(1008, reason))
        case _:
            d.do(Close(1011, reason))


# --- when nothing happens ------------------------------------------------------------------------------------------


def input_gap(d: Draft) -> None:
    """Somebody is speaking and the input may have stopped: what is missing is silence (a muted microphone, say)."""
    if d.at - d.s.input_at < d.s.settings.input_gap_ms:
        d.arm("input_gap", d.s.input_at + d.s.settings.input_gap_ms)
        return
    missing = round(d.at - d.s.covered_at)
    d.note("vad", "input_gap", ms=missing)
    d.set(covered_at=d.at)
    d.do(FeedSilence(missing))
    d.arm("input_gap", d.at + FILL_EVERY_MS)


def session_idle(d: Draft) -> None:
    """The server's own limit: neither speech nor a request nor a reply for that long."""
    limit = d.s.limits.session_idle_timeout_s
    assert limit is not None
    due = d.s.active_at + 1000 * limit
    if due <= d.at:
        terminate(d, "idle_timeout")
    else:
        d.arm("session_idle", due)


def settle(d: Draft, ev: e.Input) -> None:
    """Run at the end of every step: timers of waiting live exactly as long as there is something to wait for."""
    if not isinstance(d.s.phase, Active):
        return
    s = d.s
    speaking = isinstance(s.vad, Speaking) or (isinstance(s.vad, Candidate) and s.vad.pause is None)
    keep(d, "input_gap", speaking, s.input_at + s.settings.input_gap_ms)
    td = s.settings.turn_detection
    idle_ms = td.idle_timeout_ms if td is not None and s.settings.type == "realtime" else None
    quiet = isinstance(s.vad, Silent) and isinstance(s.resp, Idle) and s.parked is None
    waits = s.was_answered and quiet and not any(b.flush is not None for b in s.sealed)
    keep(d, "idle", idle_ms is not None and waits, d.at + (idle_ms or 0))
    if not isinstance(s.vad, Silent) or live(s.resp) is not None or isinstance(ev, e.Requests):
        d.set(active_at=d.at)


def keep(d: Draft, key: str, wanted: bool, due: float) -> None:
    """Have the timer run where it is wanted, and only there; one that runs keeps its time."""
    if wanted and key not in d.s.timers:
        d.arm(key, max(d.at, due))
    elif not wanted:
        d.disarm(key)
