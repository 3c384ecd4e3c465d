"""What chat, completions, responses and messages share: reading sampling, tools and formats into an Ask."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

from bargein.pipeline.writing import EngineWriter, Tool, UpstreamWriter, Writer

from ..errors import bad
from ..metrics import METRICS
from ..services import SERVICES
from .fields import Fields, check_tree

NAME = re.compile(r"[\w.:-]{1,64}$")
MAX_TOKENS = 1_000_000
MAX_HELD, MAX_HELD_CHARS = 1000, 20_000  # of what an answer is held to: choices, characters


def writer(request: web.Request) -> Writer:
    """Where text comes from here."""
    services = request.app[SERVICES]
    chat = services.config.chat
    if chat.base_url:
        return UpstreamWriter(services.http(), chat.base_url, chat.api_key, chat.model)
    return EngineWriter(services.engine)


def sampling(fields: Fields, max_temperature: float = 2.0) -> dict[str, Any]:
    """The parameters of choosing tokens, checked, by their names in Ask; those that were not given are left out."""
    given = {
        "temperature": fields.number("temperature", 0, max_temperature),
        "top_p": fields.number("top_p", 0, 1),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "top_k": fields.integer("top_k", -1, 10**6),
        "min_p": fields.number("min_p", 0, 1),
        "repetition_penalty": fields.number("repetition_penalty", 0.1, 5),
        "seed": fields.integer("seed", -(2**63), 2**63 - 1),
    }
    if given["top_p"] == 0:
        given["top_p"] = 1e-6  # the likeliest token alone
    if given["top_k"] == -1:
        given["top_k"] = 0  # all of them, as vLLM writes it
    if given["min_p"] == 1:
        given["min_p"] = 1 - 1e-6
    if given["seed"] is not None:
        given["seed"] = int(given["seed"]) % 2**63
    return {k: v for k, v in given.items() if v is not None}


def bias(fields: Fields) -> dict[int, float]:
    """`logit_bias`: token id (of the model that is loaded) to -100..100."""
    out: dict[int, float] = {}
    for key, value in (fields.object("logit_bias") or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise fields.refuse("logit_bias", f"{key[:20]!r} is not a token id", "invalid_value")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise fields.refuse("logit_bias", f"the bias of {key} must be a number from -100 to 100", "invalid_value")
        out[int(key)] = float(value)
    return out


def stops(fields: Fields, name: str = "stop", most: int = 4) -> tuple[str, ...]:
    """A stop string or a list of them."""
    value = fields.take(name)
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(x, str) and x for x in texts) or len(texts) > most:
        raise fields.refuse(name, f"must be a string or up to {most} of them, none empty", "invalid_value")
    return tuple(texts)


def schema_of(value: Any, where: str) -> dict[str, Any]:
    """A JSON schema, as far as it can be told without compiling it."""
    if not isinstance(value, dict):
        raise bad(where, f"'{where}': must be a JSON schema", "invalid_type")
    try:
        check_tree(value)
    except ValueError as problem:
        raise bad(where, f"'{where}': {problem}", "invalid_value") from None
    return value


def response_format(fields: Fields, name: str = "response_format", nested: bool = True) -> dict[str, Any] | None:
    """The schema that the answer must fit; None for text. `nested`: chat's form, with a `json_schema` inside."""
    value = fields.object(name)
    if value is None:
        return None
    inner = Fields(value, fields.path(name))
    kind = inner.text("type", choices=("text", "json_object", "json_schema"))
    if kind == "text" or kind is None:
        if kind is None:
            inner.need("type")
        inner.finish()
        return None
    if kind == "json_object":
        inner.finish()
        return {"type": "object"}
    described = Fields(inner.need("json_schema"), inner.path("json_schema")) if nested else inner
    described.labels("description", "strict")
    if not NAME.match(described.needed_text("name")):
        raise described.refuse("name", "must be 1 to 64 letters, digits, dashes or underscores", "invalid_value")
    schema = schema_of(described.take("schema", {"type": "object"}), described.path("schema"))
    described.finish()
    inner.finish()
    return schema


def held_to(fields: Fields, name: str = "structured_outputs") -> dict[str, Any]:
    """vLLM's `structured_outputs`: one of `json`, `regex`, `choice` and `grammar` (Lark) -> by their names in Ask."""
    value = fields.object(name)
    if value is None:
        return {}
    inner = Fields(value, fields.path(name))
    if len(value) != 1:
        raise fields.refuse(name, "must have one of 'json', 'regex', 'choice' and 'grammar'", "invalid_value")
    held: dict[str, Any] = {}
    if "json" in inner:
        held["schema"] = schema_of(inner.take("json"), inner.path("json"))
    elif "choice" in inner:
        choices = inner.array("choice") or []
        if not 0 < len(choices) <= MAX_HELD or not all(isinstance(x, str) and x for x in choices):
            raise inner.refuse("choice", f"must be 1 to {MAX_HELD} texts, none empty", "invalid_value")
        if sum(map(len, choices)) > MAX_HELD_CHARS:
            raise inner.refuse("choice", f"more than {MAX_HELD_CHARS} characters in all", "string_above_max_length")
        held["choices"] = tuple(choices)
    elif "regex" in inner or "grammar" in inner:
        key = "regex" if "regex" in inner else "grammar"
        held[key] = inner.text(key, max_chars=MAX_HELD_CHARS)
        if not held[key]:
            raise inner.refuse(key, "must not be empty", "invalid_value")
    inner.finish()
    return held


def function(fields: Fields) -> Tool:
    """One function's description."""
    name = fields.needed_text("name")
    if not NAME.match(name):
        raise fields.refuse("name", "must be 1 to 64 letters, digits, dashes or underscores", "invalid_value")
    description = fields.text("description", "", max_chars=16384) or ""
    key = "input_schema" if "input_schema" in fields else "parameters"
    parameters = schema_of(fields.take(key, {"type": "object", "properties": {}, "additionalProperties": False}), key)
    fields.labels("strict")
    fields.finish()
    return Tool(name, description, parameters)


def check_choice(choice: str, tools: tuple[Tool, ...], param: str = "tool_choice") -> str:
    """A choice that the tools allow."""
    if choice == "required" and not tools:
        raise bad(param, f"'{param}': 'required' needs tools", "invalid_value")
    if choice not in ("auto", "none", "required") and choice not in {t.name for t in tools}:
        raise bad(param, f"'{param}': there is no tool named {choice[:64]!r}", "invalid_value")
    return choice


def count(request: web.Request, given: int, made: int) -> None:
    """Tell the metrics of a generation's tokens."""
    request.app[METRICS].used(given, made)
