"""Reads a request's fields by name, so that every refusal names its field and none is ignored in silence."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from ..errors import ApiError, bad

T = TypeVar("T")
JSON = "application/json"


class Fields:
    """One JSON object. Readers take a field, checked; `finish` refuses what nobody took. null is as if absent."""

    def __init__(self, data: Mapping[str, Any], where: str = "") -> None:
        self._data = {k: v for k, v in data.items() if v is not None}
        self._where = where
        self.unused: list[str] = []  # taken, but without effect here: told in a response header

    def path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def __contains__(self, name: str) -> bool:
        return name in self._data

    def take(self, name: str, default: Any = None) -> Any:
        """The field as it came, or the default."""
        return self._data.pop(name, default)

    def need(self, name: str) -> Any:
        """A field that must be there."""
        if name not in self._data:
            raise bad(self.path(name), f"missing required parameter: '{self.path(name)}'", "missing_required_parameter")
        return self._data.pop(name)

    def refuse(self, name: str, why: str, code: str | None = None) -> ApiError:
        return bad(self.path(name), f"'{self.path(name)}': {why}", code)

    def _typed(self, name: str, kind: type[T] | tuple[type, ...], said: str, default: T | None) -> T | None:
        value = self._data.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.refuse(name, f"must be {said}, is {_kind(value)}", "invalid_type")
        return value  # type: ignore[return-value]

    def text(self, name: str, default: str | None = None, choices: Collection[str] = (), max_chars: int = 0) -> str | None:
        """A string, of `choices` where given."""
        value = self._typed(name, str, "a string", default)
        if value is not None and choices and value not in choices:
            raise self.refuse(name, f"must be one of {', '.join(choices)}, is {value[:60]!r}", "invalid_value")
        if value is not None and max_chars and len(value) > max_chars:
            why = f"is {len(value)} characters long; at most {max_chars} are allowed"
            raise self.refuse(name, why, "string_above_max_length")
        return value

    def needed_text(self, name: str, max_chars: int = 0) -> str:
        """A string that must be there."""
        if name not in self:
            self.need(name)
        return str(self.text(name, max_chars=max_chars))

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float | None:
        """A finite number from `low` to `high`."""
        value: Any = self._typed(name, (int, float), "a number", None)
        if value is None:
            return default
        if not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(name, f"must be from {low:g} to {high:g}, is {value}", "invalid_value")
        return float(value)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """A whole number from `low` to `high`."""
        value: Any = self._typed(name, int, "an integer", None)
        if value is None:
            return default
        if not low <= value <= high:
            raise self.refuse(name, f"must be from {low} to {high}, is {value}", "invalid_value")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self._typed(name, bool, "true or false", default))

    def object(self, name: str) -> dict[str, Any] | None:
        value: dict[str, Any] | None = self._typed(name, dict, "an object", None)
        return value

    def array(self, name: str) -> list[Any] | None:
        value: list[Any] | None = self._typed(name, list, "an array", None)
        return value

    def labels(self, *names: str) -> None:
        """Fields that only label a request: by their nature they change nothing."""
        for name in names:
            self._data.pop(name, None)

    def without_effect(self, *names: str) -> None:
        """Fields that stock clients send unasked and this server cannot follow: taken, and told in a header."""
        for name in names:
            if self._data.pop(name, None) is not None:
                self.unused.append(self.path(name))

    def only(self, name: str, values: Collection[Any], why: str) -> None:
        """A field of which only these values can be honoured."""
        value = self._data.pop(name, None)
        if value is not None and value not in values:
            raise self.refuse(name, why, "unsupported_value")

    def finish(self) -> None:
        """Refuse what is left."""
        for name in self._data:
            raise self.refuse(name, "is not a parameter that this server knows", "unknown_parameter")

    @property
    def headers(self) -> dict[str, str]:
        """What the response tells of fields without effect."""
        return {"x-bargein-unused": ", ".join(self.unused)} if self.unused else {}


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "null")


async def read_json(request: web.Request) -> Fields:
    """The body as fields. ApiError where it is no JSON object."""
    raw = await read_body(request)
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ApiError(400, f"the body is not valid JSON: {problem}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return Fields(data)


async def read_body(request: web.Request) -> bytes:
    """The whole body, within the app's limit. ApiError 413 beyond it."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large(request) from None


def too_large(request: web.Request) -> ApiError:
    return ApiError(413, "the request body is too large", code="request_too_large", x_should_retry="false")


MAX_TOKEN_ID = 2**31 - 1


def is_token_ids(value: Any) -> bool:
    """Whether it is a list of what may be token ids."""
    return isinstance(value, list) and bool(value) and all(type(i) is int and 0 <= i <= MAX_TOKEN_ID for i in value)


def check_tree(value: Any, depth: int = 0) -> None:
    """Refuse JSON nested deeper, or with numbers larger, than anything needs. Raises ValueError."""
    if depth > 64:
        raise ValueError("nested too deeply")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number is too large")
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_tree(child, depth + 1)
