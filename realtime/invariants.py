"""What must hold after every step (SPEC section 2.1). A violation is our bug and ends the session."""

from __future__ import annotations

from .conversation import Message, words_heard
from .predicted import stands
from .state import (
    Active,
    Candidate,
    Drain,
    Held,
    Pending,
    Predicted,
    Session,
    Silent,
    Speaking,
    Stopped,
    Streaming,
    Terminated,
    live,
)

TIMER_PHASES: dict[str, tuple[type, ...]] = {
    "commit": (Stopped,),
    "hard_cap": (Stopped,),
    "eou_timeout": (Stopped,),
    "barge_in": (Candidate,),
    "hold_cap": (Candidate,),
    "input_gap": (Candidate, Speaking),
    "idle": (Silent,),
    "partial": (Candidate,),
}


class InvariantViolation(Exception):
    """`name` is the invariant's number in the SPEC."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


def check_state(s: Session) -> None:
    """Raises InvariantViolation."""
    if s.settings.interrupts and isinstance(s.vad, Speaking) and live(s.resp) is not None:
        raise InvariantViolation("I1", "speaking over a live response that interruption should have cut")
    if isinstance(s.resp, Held) and not isinstance(s.vad, Candidate):
        raise InvariantViolation("I1", f"a held response in {type(s.vad).__name__}")
    if isinstance(s.vad, Candidate) and live(s.resp) is None:
        raise InvariantViolation("I1", "a candidate for a floor that is free")
    ids = [i.id for i in s.conversation.items]
    if len(ids) != len(set(ids)):
        raise InvariantViolation("I2", "an item stands in the conversation twice")
    if isinstance(s.vad, Speaking | Stopped | Candidate) and s.vad.item_id in ids:
        raise InvariantViolation("I6", "an item was born before its buffer was committed")
    for key in s.timers:
        phases = TIMER_PHASES.get(key)
        if phases is not None and not isinstance(s.vad, phases):
            raise InvariantViolation("I10", f"timer {key} is armed in {type(s.vad).__name__}")
    if "drain_cap" in s.timers and not isinstance(s.resp, Drain):
        raise InvariantViolation("I10", f"timer drain_cap is armed in {type(s.resp).__name__}")
    if "filler" in s.timers and not any(r.filler and not r.outcome for r in s.work):
        raise InvariantViolation("I10", "timer filler is armed and no tool runs")
    if "first_token" in s.timers and live(s.resp) is None:
        raise InvariantViolation("I10", "timer first_token is armed without a response")
    if isinstance(s.phase, Terminated) and (s.work or s.lines or s.timers or live(s.resp) or not isinstance(s.vad, Silent)):
        raise InvariantViolation("I8", "something lives on in a terminated session")
    resp = live(s.resp)
    speaking = resp.item_id if isinstance(resp, Streaming | Drain) else None
    for item in s.conversation.items:
        if isinstance(item, Message) and item.words and item.status == "incomplete":
            heard = words_heard(item.words, item.audio_ms)
            if item.text() != heard:
                raise InvariantViolation("I11", f"item {item.id} holds {item.text()!r}, heard was {heard!r}")
        if isinstance(item, Message) and item.status == "in_progress" and item.id != speaking:
            raise InvariantViolation("I4", f"item {item.id} is in progress outside a response")
    if isinstance(s.resp, Predicted) and not stands(s):
        raise InvariantViolation("I1", "a prediction outlived the silence that it was made in")
    if resp is not None and resp.plan.epoch > s.epoch:
        raise InvariantViolation("I5", "a response is ahead of the epoch counter")


def check_step(before: Session, after: Session) -> None:
    """What must hold between two states that follow each other. Raises InvariantViolation."""
    if after.epoch < before.epoch:
        raise InvariantViolation("I5", "the epoch went back")
    old, new = live(before.resp), live(after.resp)
    if old is not None and new is not None and old.plan.id != new.plan.id and new.plan.epoch <= old.plan.epoch:
        raise InvariantViolation("I5", "a new response under an old epoch")
    order = (Pending, Active, Terminated)
    if order.index(type(after.phase)) < order.index(type(before.phase)):
        raise InvariantViolation("I8", f"from {type(before.phase).__name__} to {type(after.phase).__name__}")
    sealed = {b.item_id: (b.start_ms, b.end_ms) for b in before.sealed}
    for b in after.sealed:
        if sealed.get(b.item_id, (b.start_ms, b.end_ms)) != (b.start_ms, b.end_ms):
            raise InvariantViolation("I3", f"the sealed audio of {b.item_id} changed")
    vad, was = after.vad, before.vad
    if isinstance(vad, Speaking | Stopped | Candidate) and isinstance(was, Speaking | Stopped | Candidate):
        moved = vad.item_id == was.item_id and vad.audio_start_ms != was.audio_start_ms
        if moved:
            raise InvariantViolation("I7", f"the start of {vad.item_id} moved while it was open")
