"""Re-runs a recorded call: the journal's inputs through `step`, its effects compared with those of the recording.

A journal holds a digest of the effects of every step, so a replay by the build that recorded proves them identical byte
for byte, and a replay by another build names the first step that differs. A file of effects (`write_effects`) shows how.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.invariants import check_state, check_step
from bargein.realtime.machine import step
from bargein.realtime.state import Session

from .journal import decode, digest, encode


class JournalError(ValueError):
    """The file is no journal, or one of another version."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One input; `fx` is the digest of its step's effects where the journal holds one."""

    input: e.Input
    fx: str | None


@dataclass(frozen=True, slots=True)
class Journal:
    """`cut`: the last line is torn (the process was killed). `dropped`: inputs that the disk was too slow for."""

    entries: tuple[Entry, ...]
    cut: bool = False
    dropped: int = 0


def load(path: Path) -> Journal:
    """Read a journal up to its end or to the line at which it was cut off. Raises JournalError, OSError."""
    raw = path.read_bytes()
    lines = raw.split(b"\n")
    entries: list[Entry] = []
    dropped = 0
    for n, line in enumerate(lines):
        if not line:
            continue
        torn = n == len(lines) - 1  # whole lines end in a newline
        try:
            row = msgspec.json.decode(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            if "in" in row:
                entries.append(Entry(decode(row["in"]), row.get("fx")))
            dropped += row.get("dropped", 0)
        except (msgspec.DecodeError, ValueError, TypeError, KeyError) as problem:
            if torn:
                return Journal(tuple(entries), True, dropped)
            raise JournalError(f"{path.name}, line {n + 1}: {problem}") from None
    return Journal(tuple(entries), False, dropped)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a replay. `same`: whether the effects are those of the recording; None: it does not say."""

    number: int
    input: e.Input
    before: Session
    after: Session
    effects: tuple[f.Effect, ...]
    same: bool | None


def steps(journal: Journal) -> Iterator[Step]:
    """Run the inputs. Raises what `step` and the invariants raise."""
    state = Session()
    for n, entry in enumerate(journal.entries):
        after, effects = step(state, entry.input)
        check_state(after)
        check_step(state, after)
        same = None if entry.fx is None else digest(effects) == entry.fx
        yield Step(n, entry.input, state, after, effects, same)
        state = after


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What differs between two states, one line a field."""
    if before == after and type(before) is type(after):
        return
    nested = type(before) is type(after) and dataclasses.is_dataclass(before)
    if not nested or path.count(".") > 1:
        yield f"{path}: {_short(before)} -> {_short(after)}"
        return
    for field in dataclasses.fields(before):
        name = f"{path}.{field.name}" if path else field.name
        yield from changes(getattr(before, field.name), getattr(after, field.name), name)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else text[:157] + "..."


def effects_line(effects: tuple[f.Effect, ...]) -> bytes:
    """A step's effects as one JSON line, the form that `--against` compares."""
    return msgspec.json.encode([encode(x) for x in effects])


def _told(one: Step) -> None:
    print(f"{one.number}: {_short(one.input)}")
    for effect in one.effects:
        print(f"    {_short(effect)}")
    for line in changes(one.before, one.after):
        print(f"    . {line}")


def _expected(path: Path) -> list[bytes] | list[str | None]:
    """What another build made of the same call: lines of effects, or another recording's digests."""
    raw = path.read_bytes()
    if raw.startswith(b"["):
        return raw.splitlines()
    return [entry.fx for entry in load(path).entries]


def _difference(one: Step, wanted: bytes | str | None) -> list[str]:
    """How a step's effects differ from what was wanted; empty where they do not."""
    if wanted is None:
        return []
    if isinstance(wanted, str):
        return [] if digest(one.effects) == wanted else [f"digest {wanted} -> {digest(one.effects)}"]
    line = effects_line(one.effects)
    if line == wanted:
        return []
    was, now = ([msgspec.json.encode(x).decode() for x in msgspec.json.decode(side)] for side in (wanted, line))
    return [f"- {x}" for x in was if x not in now] + [f"+ {x}" for x in now if x not in was] or ["another order"]


def replay(path: Path, *, show: bool = False, against: Path | None = None, effects_to: Path | None = None) -> bool:
    """Replay a journal and print what came of it. Returns whether every step that could be compared was the same.

    `show`: print each input, its effects and what changed in the state. `against`: a file of effects that another build
    wrote, or another journal of the same inputs. `effects_to`: write this build's effects there.
    """
    journal = load(path)
    wanted = None if against is None else _expected(against)
    inputs: Counter[str] = Counter()
    effects: Counter[str] = Counter()
    compared = different = 0
    lines: list[bytes] = []
    last: Session = Session()
    for one in steps(journal):
        inputs[type(one.input).__name__] += 1
        effects.update(type(x).__name__ for x in one.effects)
        last = one.after
        if show:
            _told(one)
        if effects_to is not None:
            lines.append(effects_line(one.effects))
        notes: list[str] = []
        if wanted is not None:
            target = wanted[one.number] if one.number < len(wanted) else None
            compared += target is not None
            notes = _difference(one, target)
        elif one.same is not None:
            compared += 1
            notes = [] if one.same else ["other effects than were recorded"]
        if notes:
            different += 1
            print(f"step {one.number}, {_short(one.input)}:")
            print(*(f"    {_short(note)}" for note in notes), sep="\n")
    if effects_to is not None:
        effects_to.write_bytes(b"".join(line + b"\n" for line in lines))
    for title, counts in (("inputs", inputs), ("effects", effects)):
        print(f"{title}: {counts.total()}")
        print(*(f"  {n:6} {name}" for name, n in counts.most_common()), sep="\n")
    print(f"ends in {type(last.phase).__name__}, {type(last.vad).__name__}, {type(last.resp).__name__}")
    if journal.cut:
        print("the journal is cut off in its last line; replayed up to there")
    if journal.dropped:
        print(f"the recording left out {journal.dropped} lines: from there on a replay is another call")
    print(f"{compared - different} of {compared} steps have the same effects, {inputs.total() - compared} not compared")
    return different == 0
