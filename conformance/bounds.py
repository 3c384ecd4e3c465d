"""Every setting's bounds: values that a session takes and values that it refuses, by name (SPEC section 11).

`bounds.json` holds them, read against the contract by hand; this plays them, under each of a setting's two names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bargein.realtime import alphabet as a
from bargein.realtime.settings import FIELDS, Field
from bargein.realtime.wire import read

from .play import Play

FILE = Path(__file__).parent / "bounds.json"
CODES = {"eou.kind": "eou_kind_unsupported", "eou.fusion_rule": "eou_fusion_rule_unsupported"}


def _update(p: Play, name: str, value: Any) -> list[a.ServerEvent]:
    session: Any = value
    for key in reversed(name.split(".")):
        session = {key: session}
    before = len(p.events())
    raw = json.dumps({"type": "session.update", "session": session, "event_id": "c1"})
    message = read(raw, p.at, "pcm16")
    p.tell(message)  # type: ignore[arg-type]
    return p.events()[before:]


def _value(settings: Any, path: str) -> Any:
    for key in path.split("."):
        settings = getattr(settings, key)
    return settings


def _same(held: Any, wanted: Any) -> bool:
    plain = list(held) if isinstance(held, tuple) else held
    return bool(plain == wanted)


def check(field: Field, good: list[Any], bad: list[Any]) -> Iterator[str]:
    """What is wrong with one setting; nothing where all is well."""
    for name in dict.fromkeys((field.flat, field.ga)):
        for value in good:
            p = Play()
            said = _update(p, name, value)
            if [type(x) for x in said] != [a.SessionUpdated] or not _same(
                _value(p.state.settings, field.path), field.check(value)
            ):
                yield f"{name}: {value!r} is not taken"
        for value in bad:
            p = Play()
            before = p.state.settings
            said = _update(p, name, value)
            code = CODES.get(field.path, "session_update_invalid")
            named = [(x.code, x.param, x.event_id) for x in said if isinstance(x, a.ErrorEvent)]
            if named != [(code, f"session.{name}", "c1")] or len(said) != 1 or p.state.settings != before:
                yield f"{name}: {value!r} is not refused by its name: {said}"


def run() -> Iterator[tuple[str, list[str]]]:
    """Each setting's name and what is wrong with it."""
    table = json.loads(FILE.read_text())
    for field in FIELDS:
        row = table.pop(field.path, None)
        yield field.path, ["no bounds are written down"] if row is None else list(check(field, row["good"], row["bad"]))
    for path in table:
        yield path, ["there is no such setting"]
