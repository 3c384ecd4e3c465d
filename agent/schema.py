"""From a typed Python function to what chat is told of it: a JSON schema of its parameters, and its arguments back."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import msgspec

JsonObject = dict[str, Any]


class SchemaError(Exception):
    """A function whose parameters cannot be described; the message names the parameter."""


class Signature:
    """A function's parameters. `context`: the name of the one that takes the call itself, if it has one."""

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self.context: str | None = None
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError as problem:
            raise SchemaError(str(problem)) from None
        notes = _argument_notes(inspect.getdoc(function) or "")
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise SchemaError(f"parameter {name} must be a named one")
            if name not in hints:
                raise SchemaError(f"parameter {name} has no type")
            kind = hints[name]
            if kind is context_type:
                self.context = name
                continue
            if note := notes.get(name):
                kind = typing.Annotated[kind, msgspec.Meta(description=note)]
            default = parameter.default
            fields.append((name, kind) if default is parameter.empty else (name, kind, default))
        fields.sort(key=lambda f: len(f))  # those without a default first
        self._struct = msgspec.defstruct("Arguments", fields)
        try:
            self.parameters = _flat(msgspec.json.schema(self._struct))
        except TypeError as problem:
            raise SchemaError(str(problem)) from None

    def arguments(self, text: str) -> dict[str, Any]:
        """What chat wrote, as the function's keyword arguments. Raises ValueError."""
        try:
            given = msgspec.json.decode(text or "{}", type=self._struct, strict=False)
        except msgspec.DecodeError as problem:
            raise ValueError(str(problem)) from None
        return {name: getattr(given, name) for name in self._struct.__struct_fields__}


def description(function: Callable[..., Any]) -> str:
    """The docstring up to its list of arguments, on one line a paragraph."""
    text = re.split(r"\n\s*Args:\s*\n", inspect.getdoc(function) or "")[0]
    return "\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text)).strip()


def _argument_notes(doc: str) -> dict[str, str]:
    """What an `Args:` section says of each parameter: lines of the form `name: text`."""
    parts = re.split(r"\n\s*Args:\s*\n", doc)
    found = re.findall(r"^\s*(\w+)(?: \([^)]*\))?: (.+)$", parts[1], re.MULTILINE) if len(parts) > 1 else []
    return {name: note.strip() for name, note in found}


def _flat(schema: JsonObject) -> JsonObject:
    """The schema of the arguments itself, not a reference to it; other definitions stay beside."""
    definitions = dict(schema["$defs"])
    top: JsonObject = definitions.pop("Arguments")
    top.pop("title", None)
    top.setdefault("required", [])
    return top | ({"$defs": definitions} if definitions else {})
