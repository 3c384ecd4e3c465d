"""One step's working copy: the state so far and the effects so far. Lives only inside `machine.step`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from .alphabet import ErrorEvent, ServerEvent
from .effects import CancelTimer, Effect, Emit, Inspect, StartTimer
from .ids import Prefix
from .state import Armed, Session

_FIELDS = tuple((f.name, getattr(Session, f.name)) for f in fields(Session))  # names, and the slots behind them


def _changed(s: Session, changes: dict[str, Any]) -> Session:
    """`dataclasses.replace`, which a step calls several times, without its checks: a seventh of the time."""
    new: Session = object.__new__(Session)
    for name, slot in _FIELDS:
        slot.__set__(new, changes.pop(name) if name in changes else slot.__get__(s))
    if changes:
        raise TypeError(f"a session has no {', '.join(changes)}")
    return new


class Draft:
    """`s` is rebound by `set`; `out` collects effects in order. A draft never outlives its step."""

    __slots__ = ("at", "out", "s")

    def __init__(self, state: Session, at: float) -> None:
        self.s, self.at = state, at
        self.out: list[Effect] = []

    def set(self, **changes: Any) -> None:
        self.s = _changed(self.s, changes)

    def do(self, effect: Effect) -> None:
        self.out.append(effect)

    def emit(self, event: ServerEvent) -> None:
        self.out.append(Emit(event))

    def note(self, lane: str, kind: str, **payload: Any) -> None:
        self.out.append(Inspect(lane, kind, payload))

    def error(self, code: str, message: str, event_id: str | None = None, param: str | None = None) -> None:
        """Refuse a client's request; a transcription session keeps to the one error its clients forgive."""
        if self.s.settings.type == "realtime" or code == "input_audio_buffer_commit_empty":
            self.emit(ErrorEvent(code, message, param, event_id))
        else:
            self.note("error", code, message=message)

    def fresh(self, prefix: Prefix) -> str:
        """A new id of the session's stream."""
        new, stream = self.s.ids.draw(prefix)
        self.set(ids=stream)
        return new

    def token(self) -> int:
        self.set(token=self.s.token + 1)
        return self.s.token

    def arm(self, key: str, due: float) -> None:
        """Arm (or re-arm) a timer for the wall time `due`."""
        token = self.token()
        self.set(timers={**self.s.timers, key: Armed(token, due)})
        self.do(StartTimer(key, due, token))

    def disarm(self, *keys: str) -> None:
        for key in keys:
            if key in self.s.timers:
                self.set(timers={k: v for k, v in self.s.timers.items() if k != key})
                self.do(CancelTimer(key))
