"""A session's journal: every input of the turn machine, as JSON that gives back the very same values.

Replaying the inputs through `step` reproduces every effect. Plain values stay plain; what JSON has no shape for is an
object with the key "_" that names its type.
"""

from __future__ import annotations

import dataclasses
import math
from hashlib import blake2b
from types import ModuleType
from typing import Any

import msgspec

from bargein.realtime import conversation, settings
from bargein.realtime import effects as f
from bargein.realtime import events as e


def _classes(*modules: ModuleType) -> dict[str, type]:
    found: dict[str, type] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and (dataclasses.is_dataclass(value) or issubclass(value, msgspec.Struct)):
                found[value.__name__] = value
    return found


CLASSES = _classes(e, conversation, settings)


def encode(value: Any) -> Any:
    """A value of the machine's as JSON values."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"_": "float", "v": str(value)}
        case tuple():
            return {"_": "tuple", "v": [encode(v) for v in value]}
        case frozenset():
            return {"_": "frozenset", "v": [encode(v) for v in sorted(value)]}
        case list():
            return [encode(v) for v in value]
        case dict():
            plain = {str(k): encode(v) for k, v in value.items()}
            return {"_": "dict", "v": plain} if "_" in plain else plain
    name = type(value).__name__
    if isinstance(value, msgspec.Struct):
        return {"_": name} | {k: encode(getattr(value, k)) for k in value.__struct_fields__}
    return {"_": name} | {x.name: encode(getattr(value, x.name)) for x in dataclasses.fields(value)}


def decode(value: Any) -> Any:
    """The value that `encode` was given. Raises ValueError for anything else."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    name = value.get("_")
    if name is None:
        return {k: decode(v) for k, v in value.items()}
    match name:
        case "tuple":
            return tuple(decode(v) for v in value["v"])
        case "frozenset":
            return frozenset(decode(v) for v in value["v"])
        case "float":
            return float(value["v"])
        case "dict":
            return {k: decode(v) for k, v in value["v"].items()}
    if name not in CLASSES:
        raise ValueError(f"a journal of another version: it holds a {name}")
    return CLASSES[name](**{k: decode(v) for k, v in value.items() if k != "_"})


def digest(effects: tuple[f.Effect, ...]) -> str:
    """16 hex digits that stand for a step's effects, byte for byte; empty where there are none."""
    if not effects:
        return ""
    return blake2b(msgspec.json.encode(encode(effects)), digest_size=8).hexdigest()


def inputs(lines: list[str]) -> list[e.Input]:
    """The inputs in a journal's lines, in order."""
    parsed = (msgspec.json.decode(line) for line in lines)
    return [decode(entry["in"]) for entry in parsed if "in" in entry]
