"""`POST /v1/messages` and `/v1/messages/count_tokens`: the same chat in Anthropic's form."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from bargein.pipeline.oneshot import WorkFailed
from bargein.pipeline.writing import Ask, Call, CallBegun, CallText, Ended, EngineWriter, Text, Tool, Turn

from ..errors import ApiError, bad
from ..services import SERVICES, Services
from . import asking
from .fields import Fields, read_json
from .names import resolve
from .streams import event, json_response, new_id, stream


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed request."""

    ask: Ask
    model: str
    stream: bool


async def create(request: web.Request) -> web.StreamResponse:
    """Answer."""
    wanted = parse(request.app[SERVICES], await read_json(request))
    if wanted.stream:
        return await stream(request, _events(request, wanted), anthropic=True)
    body: dict[str, Any] = _head(wanted)
    end: Ended | None = None
    async with aclosing(asking.writer(request).write(wanted.ask)) as events:
        async for ev in events:
            match ev:
                case Text():
                    if not body["content"]:
                        body["content"].append({"type": "text", "text": "", "citations": None})
                    body["content"][0]["text"] += ev.text
                case CallBegun():
                    body["content"].append({"type": "tool_use", "id": new_id("toolu_"), "name": ev.name, "input": ""})
                case CallText():
                    body["content"][-1]["input"] += ev.text
                case Ended():
                    end = ev
    if end is None:
        raise WorkFailed("the answer did not end")
    for block in body["content"]:
        if block["type"] == "tool_use":
            block["input"] = _object(block["input"])
    asking.count(request, end.input_tokens, end.output_tokens)
    return json_response(body | _ending(end) | {"usage": _usage(end.input_tokens, end.output_tokens)})


async def count_tokens(request: web.Request) -> web.Response:
    """How many tokens a request's prompt has, by the embedded model's reading."""
    services = request.app[SERVICES]
    wanted = parse(services, await read_json(request), counting=True)
    if services.config.chat.base_url:
        raise ApiError(400, "the chat server's tokens cannot be counted here", code="unsupported")
    return json_response({"input_tokens": await EngineWriter(services.engine).count(wanted.ask)})


def parse(services: Services, f: Fields, counting: bool = False) -> Wanted:
    """Read and check a request. Raises ApiError."""
    model = f.needed_text("model")
    resolve(services, "chat", model)
    raw = f.need("messages")
    if not isinstance(raw, list) or not raw:
        raise bad("messages", "'messages': must be an array of at least one message", "invalid_type")
    limit = None
    if not counting:
        limit = f.integer("max_tokens", 1, asking.MAX_TOKENS) if "max_tokens" in f else f.need("max_tokens")
    system = f.take("system")
    turns = [Turn("system", _text(system, "system"))] if system is not None else []
    for i, message in enumerate(raw):
        turns += _turns(message, f"messages[{i}]")
    tools = tuple(_tool(x, i) for i, x in enumerate(f.array("tools") or []))
    choice, parallel = _choice(f.object("tool_choice"), tools)
    stop = asking.stops(f, "stop_sequences", 16)
    given = {"temperature": f.number("temperature", 0, 1), "top_p": f.number("top_p", 0, 1)}
    given["top_k"] = f.integer("top_k", 0, 10**6)
    sampled: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    streaming = f.flag("stream")
    output = Fields(f.object("output_config") or {}, "output_config")
    schema = _format(output)
    output.only("effort", ("low",), "this model does not reason")
    output.finish()
    f.labels("metadata", "cache_control", "user_profile_id")
    thinking = f.object("thinking")
    if thinking is not None and thinking.get("type") != "disabled":
        raise f.refuse("thinking", "this model does not think aloud", "unsupported_value")
    f.only("service_tier", ("auto", "standard_only"), "there is one tier of service")
    f.finish()
    ask = Ask(
        turns=tuple(turns),
        tools=tools,
        choice=choice,
        parallel=parallel,
        schema=schema,
        max_tokens=limit,
        stop=stop,
        **sampled,
    )
    return Wanted(ask, model, streaming)


def _format(output: Fields) -> dict[str, Any] | None:
    """`output_config.format`: the schema that the answer must fit."""
    value = output.object("format")
    if value is None:
        return None
    f = Fields(value, output.path("format"))
    f.text("type", choices=("json_schema",))
    schema = asking.schema_of(f.need("schema"), f.path("schema"))
    f.finish()
    return schema


def _tool(value: Any, index: int) -> Tool:
    f = Fields(value if isinstance(value, dict) else {}, f"tools[{index}]")
    kind = f.text("type", "custom")
    if kind != "custom":
        raise f.refuse("type", f"{str(kind)[:40]!r} tools are not run here; 'custom' is", "unsupported_value")
    f.labels("cache_control")
    if "input_schema" not in f:
        f.need("input_schema")
    return asking.function(f)


def _choice(value: dict[str, Any] | None, tools: tuple[Tool, ...]) -> tuple[str, bool]:
    """The choice in our words, and whether several calls may come at once."""
    f = Fields(value or {"type": "auto"}, "tool_choice")
    kind = f.needed_text("type")
    parallel = not f.flag("disable_parallel_tool_use")
    choice: str = kind
    match kind:
        case "auto" | "none":
            pass
        case "any":
            choice = asking.check_choice("required", tools)
        case "tool":
            choice = asking.check_choice(f.needed_text("name"), tools)
        case _:
            raise f.refuse("type", "must be 'auto', 'any', 'tool' or 'none'", "invalid_value")
    f.finish()
    return choice, parallel


def _turns(value: Any, where: str) -> list[Turn]:
    """One message: tool results become turns of their own, before what else the user says."""
    f = Fields(value if isinstance(value, dict) else {}, where)
    role = f.needed_text("role")
    if role not in ("user", "assistant", "system"):
        raise f.refuse("role", "must be 'user' or 'assistant'", "invalid_value")
    content = f.need("content")
    f.finish()
    if isinstance(content, str):
        return [Turn(role, content)]
    if not isinstance(content, list):
        raise f.refuse("content", "must be a text or an array of blocks", "invalid_type")
    texts: list[str] = []
    calls: list[Call] = []
    results: list[Turn] = []
    for i, block in enumerate(content):
        b = Fields(block if isinstance(block, dict) else {}, f"{where}.content[{i}]")
        kind = b.needed_text("type")
        b.labels("cache_control", "citations", "caller")
        match kind:
            case "text":
                texts.append(b.needed_text("text"))
            case "tool_use":
                arguments = msgspec.json.encode(b.object("input") or {}).decode()
                calls.append(Call(b.needed_text("id"), b.needed_text("name"), arguments))
            case "tool_result":
                said = _text(b.take("content", ""), b.path("content"))
                failed = b.flag("is_error")
                results.append(Turn("tool", f"Error: {said}" if failed else said, (), b.needed_text("tool_use_id")))
            case _:
                raise b.refuse("type", f"{kind[:40]!r} blocks cannot be read by this model", "unsupported_value")
        b.finish()
    rest = [Turn(role, "\n".join(texts), tuple(calls))] if texts or calls or not results else []
    return results + rest


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(x, dict) and isinstance(x.get("text"), str) for x in value):
        return "\n".join(x["text"] for x in value)
    raise bad(where, f"'{where}': must be a text or an array of text blocks", "invalid_type")


def _object(text: str) -> Any:
    """Arguments that were cut off are no JSON: then there are none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}


def _head(wanted: Wanted) -> dict[str, Any]:
    return {
        "id": new_id("msg_"), "type": "message", "role": "assistant", "model": wanted.model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": _usage(0, 0),
    }  # fmt: skip


def _usage(given: int, made: int) -> dict[str, Any]:
    return {"input_tokens": given, "output_tokens": made, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def _ending(end: Ended) -> dict[str, Any]:
    if end.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[end.reason]
    return {"stop_reason": reason, "stop_sequence": None}


async def _events(request: web.Request, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """The answer as Anthropic's events. Its input is counted first: the first event tells it."""
    writer = asking.writer(request)
    given = await writer.count(wanted.ask) if isinstance(writer, EngineWriter) else 0
    begun = False
    index, kind = -1, ""
    async with aclosing(writer.write(wanted.ask)) as events:
        async for ev in events:
            if not begun:
                begun = True
                head = _head(wanted) | {"usage": _usage(given, 1)}
                yield event({"type": "message_start", "message": head}, "message_start")
            match ev:
                case Text():
                    if kind != "text":
                        index, kind = index + 1, "text"
                        block: dict[str, Any] = {"type": "text", "text": "", "citations": None}
                        yield _block("content_block_start", index, content_block=block)
                    yield _block("content_block_delta", index, delta={"type": "text_delta", "text": ev.text})
                case CallBegun():
                    if kind:
                        yield _block("content_block_stop", index)
                    index, kind = index + 1, "tool_use"
                    block = {"type": "tool_use", "id": new_id("toolu_"), "name": ev.name, "input": {}}
                    yield _block("content_block_start", index, content_block=block)
                case CallText():
                    yield _block("content_block_delta", index, delta={"type": "input_json_delta", "partial_json": ev.text})
                case Ended():
                    if kind:
                        yield _block("content_block_stop", index)
                    asking.count(request, ev.input_tokens, ev.output_tokens)
                    usage = {"output_tokens": ev.output_tokens, "input_tokens": ev.input_tokens}
                    yield event({"type": "message_delta", "delta": _ending(ev), "usage": usage}, "message_delta")
    yield event({"type": "message_stop"}, "message_stop")


def _block(kind: str, index: int, **rest: Any) -> bytes:
    return event({"type": kind, "index": index, **rest}, kind)
