"""`/v1/responses`: OpenAI's newer form of chat, with responses that are kept and continued."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from bargein.pipeline.oneshot import WorkFailed
from bargein.pipeline.writing import Ask, Call, CallBegun, CallText, Ended, Text, Tool, Turn

from ..errors import ApiError, bad
from ..services import SERVICES, Services
from ..siblings import SIBLINGS
from . import asking
from .fields import Fields, read_json
from .names import resolve
from .streams import event, json_response, new_id, stream


@dataclass(frozen=True, slots=True)
class Stored:
    """A response that is kept: its body, what it was asked, and the whole conversation up to and with its answer."""

    body: dict[str, Any]
    inputs: list[dict[str, Any]]
    turns: tuple[Turn, ...]


class Store:
    """The latest responses, in memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    def keep(self, stored: Stored) -> None:
        self._kept[stored.body["id"]] = stored
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, response_id: str) -> Stored | None:
        return self._kept.get(response_id)

    def drop(self, response_id: str) -> bool:
        return self._kept.pop(response_id, None) is not None


MAX_ID = 100  # of an id that is asked about elsewhere

STORE = web.AppKey("responses", Store)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed request. `echo`: what the response repeats of it."""

    ask: Ask
    echo: dict[str, Any]
    inputs: list[dict[str, Any]]
    stream: bool
    store: bool


async def create(request: web.Request) -> web.StreamResponse:
    """Answer."""
    wanted = await parse(request.app[SERVICES], partial(_find, request), await read_json(request))
    run = Run(request, wanted)
    if wanted.stream:
        return await stream(request, run.events())
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
    return json_response(run.body)


# --- the request -----------------------------------------------------------------------------------------------------


async def parse(services: Services, find: Callable[[str], Awaitable[Stored | None]], f: Fields) -> Wanted:
    """Read and check a request; `find`: a kept response by its id. Raises ApiError."""
    model = f.needed_text("model")
    resolve(services, "chat", model)
    raw = f.need("input")
    previous = f.text("previous_response_id")
    before: tuple[Turn, ...] = ()
    if previous is not None:
        stored = await find(previous)
        if stored is None:
            raise bad("previous_response_id", f"there is no response {previous[:60]!r}", "previous_response_not_found")
        before = stored.turns
    instructions = f.text("instructions")
    items = [{"type": "message", "role": "user", "content": raw}] if isinstance(raw, str) else raw
    if not isinstance(items, list) or not items:
        raise bad("input", "'input': must be a text or an array of items", "invalid_type")
    turns = before + tuple(_turn(x, f"input[{i}]") for i, x in enumerate(items))
    tools = tuple(_tool(x, i) for i, x in enumerate(f.array("tools") or []))
    raw_choice = f.take("tool_choice", "auto")
    choice = _choice(raw_choice, tools)
    text = Fields(f.object("text") or {}, "text")
    schema = asking.response_format(text, "format", nested=False)
    text.only("verbosity", ("medium",), "this model has no such setting; ask for it in words")
    text.finish()
    parallel, limit = f.flag("parallel_tool_calls", True), f.integer("max_output_tokens", 1, asking.MAX_TOKENS)
    chosen = asking.sampling(f)
    reasoning = Fields(f.object("reasoning") or {}, "reasoning")
    reasoning.only("effort", ("none", "minimal"), "this model does not reason")
    reasoning.only("summary", ("auto",), "this model does not reason")
    reasoning.finish()
    keep, streaming = f.flag("store", True), f.flag("stream")
    metadata = f.object("metadata")
    truncation = f.text("truncation", "disabled", choices=("disabled",))
    f.labels("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
    f.labels("prompt_cache_options", "stream_options")
    f.only("background", (False,), "responses are answered at once")
    f.only("include", ([],), "there is nothing more to include")
    f.only("service_tier", ("auto", "default"), "there is one tier of service")
    f.only("top_logprobs", (0,), "the log-probabilities of tokens are given by chat completions")
    f.finish()
    ask = Ask(
        turns=turns if not instructions else (Turn("system", instructions), *turns), tools=tools, choice=choice,
        parallel=parallel, schema=schema, max_tokens=limit, **chosen,
    )  # fmt: skip
    echo = {
        "model": model, "instructions": instructions, "max_output_tokens": limit, "metadata": metadata or {},
        "parallel_tool_calls": parallel, "previous_response_id": previous, "store": keep, "truncation": truncation,
        "temperature": chosen.get("temperature", 1.0), "top_p": chosen.get("top_p", 1.0),
        "tool_choice": raw_choice, "tools": [_tool_echo(t) for t in tools],
        "text": {"format": {"type": "text"} if schema is None else _format_echo(schema)},
        "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "background": False,
    }  # fmt: skip
    inputs = [_as_listed(x) for x in items]
    return Wanted(ask, echo, inputs, streaming, keep)


def _as_listed(item: dict[str, Any]) -> dict[str, Any]:
    """An item of the input in the full form in which it is listed later, however short it was written."""
    full = {"id": new_id("msg_"), "type": "message"} | item
    if full["type"] == "message":
        full.setdefault("status", "completed")
        if isinstance(text := item.get("content"), str):
            said = item.get("role") == "assistant"
            part = {"type": "output_text", "text": text, "annotations": []} if said else {"type": "input_text", "text": text}
            full["content"] = [part]
    return full


def _format_echo(schema: dict[str, Any]) -> dict[str, Any]:
    if schema == {"type": "object"}:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}


def _tool_echo(t: Tool) -> dict[str, Any]:
    return {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters, "strict": True}


def _tool(value: Any, index: int) -> Tool:
    f = Fields(value if isinstance(value, dict) else {}, f"tools[{index}]")
    kind = f.needed_text("type")
    if kind != "function":
        raise f.refuse("type", f"{kind[:40]!r} tools are not run here; 'function' is", "unsupported_value")
    return asking.function(f)


def _choice(value: Any, tools: tuple[Tool, ...]) -> str:
    name = value.get("name") if isinstance(value, dict) and value.get("type") == "function" else value
    if not isinstance(name, str):
        raise bad("tool_choice", "'tool_choice': must be 'auto', 'none', 'required' or a function", "invalid_value")
    return asking.check_choice(name, tools)


def _turn(value: Any, where: str) -> Turn:
    """One item of the input."""
    if not isinstance(value, dict):
        raise bad(where, f"'{where}': must be an item", "invalid_type")
    f = Fields(value, where)
    f.labels("id", "status")
    kind = f.text("type", "message")
    match kind:
        case "message":
            role = f.needed_text("role")
            if role not in ("system", "developer", "user", "assistant"):
                raise f.refuse("role", f"{role[:40]!r} is not a role", "invalid_value")
            turn = Turn("system" if role == "developer" else role, _content(f.need("content"), f.path("content")))
            f.labels("phase")
        case "function_call":
            turn = Turn("assistant", "", (Call(f.needed_text("call_id"), f.needed_text("name"), f.needed_text("arguments")),))
            f.labels("caller", "namespace")
        case "function_call_output":
            output = f.need("output")
            f.labels("caller")
            turn = Turn("tool", _content(output, f.path("output")), (), f.needed_text("call_id"))
        case _:
            raise f.refuse("type", f"{str(kind)[:40]!r} items cannot be read by this model", "unsupported_value")
    f.finish()
    return turn


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad(where, f"'{where}': must be a text or an array of parts", "invalid_type")
    texts = []
    for i, part in enumerate(value):
        f = Fields(part if isinstance(part, dict) else {}, f"{where}[{i}]")
        kind = f.needed_text("type")
        if kind not in ("input_text", "output_text", "text", "refusal"):
            raise f.refuse("type", f"{kind[:40]!r} parts cannot be read by this model", "unsupported_value")
        texts.append(f.needed_text("refusal" if kind == "refusal" else "text"))
        f.labels("annotations", "logprobs")
        f.finish()
    return "\n".join(texts)


# --- the answer ------------------------------------------------------------------------------------------------------


class Run:
    """One response as it is made: its events, numbered, and its body as they change it."""

    def __init__(self, request: web.Request, wanted: Wanted) -> None:
        self._request, self._wanted = request, wanted
        self._number = 0
        self.body: dict[str, Any] = {
            "id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "error": None, "incomplete_details": None, "output": [], "usage": None, "user": None, **wanted.echo,
        }  # fmt: skip

    def _event(self, kind: str, **rest: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **rest}
        self._number += 1
        return event(data, kind)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Everything that a stream shows, in order; the body is whole when it ends."""
        ended: Ended | None = None
        begun = False
        item: dict[str, Any] | None = None
        async with aclosing(asking.writer(self._request).write(self._wanted.ask)) as events:
            async for ev in events:
                if not begun:  # not before the first token: until then a failure is a status
                    begun = True
                    for kind in ("response.created", "response.in_progress"):
                        yield self._event(kind, response=self.body)
                match ev:
                    case Text():
                        if item is None:
                            item, opening = self._begin_message()
                            for data in opening:
                                yield data
                        item["content"][0]["text"] += ev.text
                        yield self._event("response.output_text.delta", **self._place(item), delta=ev.text, logprobs=[])
                    case CallBegun():
                        if item is not None:
                            yield self._end_call(item)
                            yield self._done(item)
                        item = {
                            "id": new_id("fc_"), "type": "function_call", "status": "in_progress", "call_id": new_id("call_"),
                            "name": ev.name, "arguments": "",
                        }  # fmt: skip
                        self.body["output"].append(item)
                        yield self._event("response.output_item.added", output_index=len(self.body["output"]) - 1, item=item)
                    case CallText() if item is not None:
                        item["arguments"] += ev.text
                        at = len(self.body["output"]) - 1
                        kind = "response.function_call_arguments.delta"
                        yield self._event(kind, item_id=item["id"], output_index=at, delta=ev.text)
                    case Ended():
                        ended = ev
        if ended is None:
            raise WorkFailed("the answer did not end")
        cut = ended.reason == "length"
        if item is None:
            item, opening = self._begin_message()
            for data in opening:
                yield data
        if item["type"] == "message":
            for data in self._end_text(item):
                yield data
        else:
            yield self._end_call(item)
        yield self._done(item, "incomplete" if cut else "completed")
        self._finish(ended, cut)
        yield self._event(f"response.{self.body['status']}", response=self.body)

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self.body["output"]) - 1, "content_index": 0}

    def _begin_message(self) -> tuple[dict[str, Any], list[bytes]]:
        item: dict[str, Any] = {
            "id": new_id("msg_"), "type": "message", "status": "in_progress", "role": "assistant", "content": [],
        }  # fmt: skip
        self.body["output"].append(item)
        added = self._event("response.output_item.added", output_index=len(self.body["output"]) - 1, item=item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"].append(part)
        return item, [added, self._event("response.content_part.added", **self._place(item), part=part)]

    def _end_text(self, item: dict[str, Any]) -> list[bytes]:
        part = item["content"][0]
        place = self._place(item)
        return [
            self._event("response.output_text.done", **place, text=part["text"], logprobs=[]),
            self._event("response.content_part.done", **place, part=part),
        ]

    def _end_call(self, item: dict[str, Any]) -> bytes:
        at = len(self.body["output"]) - 1
        kind = "response.function_call_arguments.done"
        return self._event(kind, item_id=item["id"], output_index=at, name=item["name"], arguments=item["arguments"])

    def _done(self, item: dict[str, Any], status: str = "completed") -> bytes:
        item["status"] = status
        return self._event("response.output_item.done", output_index=len(self.body["output"]) - 1, item=item)

    def _finish(self, ended: Ended, cut: bool) -> None:
        self.body["status"] = "incomplete" if cut else "completed"
        self.body["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        self.body["usage"] = {
            "input_tokens": ended.input_tokens,
            "input_tokens_details": {"cached_tokens": min(ended.cached_tokens, ended.input_tokens), "cache_write_tokens": 0},
            "output_tokens": ended.output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": ended.input_tokens + ended.output_tokens,
        }  # fmt: skip
        asking.count(self._request, ended.input_tokens, ended.output_tokens)
        if self._wanted.store:
            # Instructions are of one response and do not carry over.
            turns = self._wanted.ask.turns[1 if self._wanted.echo["instructions"] else 0 :]
            answer = tuple(_answer_turn(x) for x in self.body["output"])
            self._request.app[STORE].keep(Stored(self.body, self._wanted.inputs, turns + answer))


def _answer_turn(item: dict[str, Any]) -> Turn:
    if item["type"] == "message":
        return Turn("assistant", item["content"][0]["text"])
    return Turn("assistant", "", (Call(item["call_id"], item["name"], item["arguments"]),))


# --- what is kept ----------------------------------------------------------------------------------------------------


async def _find(request: web.Request, response_id: str) -> Stored | None:
    """A response that is kept here, or by another worker."""
    stored, siblings = request.app[STORE].get(response_id), request.app.get(SIBLINGS)
    if stored is None and siblings is not None:
        told = await siblings.fetch(f"/workers/responses/{quote(response_id[:MAX_ID], safe='')}")
        stored = None if told is None else msgspec.json.decode(told, type=Stored)
    return stored


async def whole(request: web.Request) -> web.Response:
    """A kept response with its conversation, for another worker."""
    stored = request.app[STORE].get(request.match_info["response_id"])
    return web.Response(status=404) if stored is None else web.Response(body=msgspec.json.encode(stored))


def _stored(request: web.Request) -> Stored:
    response_id = request.match_info["response_id"]
    stored = request.app[STORE].get(response_id)
    if stored is None:
        raise ApiError(404, f"there is no response {response_id[:60]!r}", "response_id", "not_found")
    return stored


async def get(request: web.Request) -> web.Response:
    """A kept response."""
    return json_response(_stored(request).body)


async def delete(request: web.Request) -> web.Response:
    """Forget a response."""
    _stored(request)
    response_id = request.match_info["response_id"]
    request.app[STORE].drop(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def input_items(request: web.Request) -> web.Response:
    """What a kept response was asked."""
    data = _stored(request).inputs
    ids = [x.get("id") for x in data]
    return json_response(
        {"object": "list", "data": data, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None,
         "has_more": False}
    )  # fmt: skip
