"""A reply whose output waits (SPEC section 9.3): paused at a raw onset, resumed at the next sample, or given up.

Chat and TTS go on meanwhile; what they bring is kept inside, and what would end the response waits for the outcome.
"""

from __future__ import annotations

from . import alphabet as a
from .draft import Draft
from .effects import HoldOutput, ReleaseOutput
from .ending import retire
from .flight import advance
from .state import Created, Drain, Held, Live, live


def hold(d: Draft) -> None:
    """Pause the output of the live response. The drain cap stands still."""
    resp = live(d.s.resp)
    assert resp is not None and not isinstance(d.s.resp, Held)
    cap = d.s.timers.get("drain_cap")
    d.disarm("drain_cap")
    told = resp.plan.spoken and not isinstance(resp, Created) and not resp.voice.cleared
    d.set(resp=Held(resp, resp.voice.played_at(d.at), None if cap is None else max(0.0, cap.due - d.at), told))
    if resp.plan.spoken:
        d.do(HoldOutput(resp.plan.epoch))
    if told:
        d.emit(a.OutputPaused(resp.plan.id))


def resume(d: Draft, held: Held) -> None:
    """Nobody took the floor: go on where it stopped, or end where it would have ended meanwhile."""
    resp = held.inner
    d.set(resp=resp)
    if resp.plan.spoken:
        d.do(ReleaseOutput(resp.plan.epoch))
    if held.told and not resp.voice.cleared:
        d.emit(a.OutputResumed(resp.plan.id))
    if held.failure is not None:
        retire(d, "failed", error_code=held.failure)
        return
    if isinstance(resp, Drain):
        d.arm("drain_cap", d.at + (held.cap_left_ms or 0.0))
    advance(d)


def is_all_heard(resp: Live, at: float) -> bool:
    """Whether the user has heard (or read) everything that this response has to say."""
    if not resp.plan.spoken:
        return resp.chat.done
    v = resp.voice
    whole = resp.chat.done and v.done and not v.cleared and v.cap_ms is None
    return whole and bool(v.words) and v.played_at(at) >= v.words[-1].end_ms


def is_near_its_end(held: Held, boundary_ms: int) -> bool:
    """Whether the pause began so near the end of the reply's last word that what was said may be an answer to it."""
    resp = held.inner
    v = resp.voice
    return resp.chat.done and v.done and bool(v.words) and held.heard_ms >= v.words[-1].end_ms - boundary_ms
