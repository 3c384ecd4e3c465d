"""Responses checked against the SDKs' own models, as strictly as pydantic can."""

from __future__ import annotations

import json
from typing import Any

import pydantic


def fits(kind: Any, raw: bytes | str) -> Any:
    """The value, or an AssertionError with what does not fit."""
    try:
        return pydantic.TypeAdapter(kind).validate_json(raw, strict=True)
    except pydantic.ValidationError as problem:
        raise AssertionError(f"{problem}\n{raw[:500]!r}") from None


def sse(body: str) -> list[dict[str, Any]]:
    """The JSON events of a stream, [DONE] left out."""
    data = [line[5:].strip() for line in body.splitlines() if line.startswith("data:")]
    return [json.loads(x) for x in data if x != "[DONE]"]
