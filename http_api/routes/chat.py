"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from bargein.engine import protocol as p
from bargein.pipeline.oneshot import WorkFailed
from bargein.pipeline.writing import Ask, Call, CallBegun, CallText, Ended, Event, Text, Tool, Turn, Writer

from ..errors import ApiError, bad
from ..services import SERVICES, Services
from . import asking, audio_parts
from .fields import Fields, read_json
from .names import resolve
from .streams import DONE, event, json_response, new_id, stream

MAX_CHOICES = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed request. `speak`: how the answer is also to be spoken, if it is."""

    ask: Ask
    model: str
    n: int
    stream: bool
    include_usage: bool
    speak: audio_parts.Speak | None
    headers: dict[str, str]


async def create(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, or hand it to the upstream where one is configured."""
    services = request.app[SERVICES]
    fields = await read_json(request)
    if services.config.chat.base_url:
        return await forward(request, fields, "/chat/completions")
    wanted = await parse(services, fields)
    if wanted.stream:
        return await stream(request, _chunks(request, wanted), headers=wanted.headers)
    return json_response(await _completion(request, wanted), wanted.headers)


# --- the request -----------------------------------------------------------------------------------------------------


async def parse(services: Services, f: Fields) -> Wanted:
    """Read and check a request. Raises ApiError."""
    model = f.needed_text("model")
    resolve(services, "chat", model)
    raw = f.need("messages")
    if not isinstance(raw, list) or not raw:
        raise bad("messages", "'messages': must be an array of at least one message", "invalid_type")
    tools = tuple(_tool(x, i) for i, x in enumerate(f.array("tools") or []))
    if len({t.name for t in tools}) != len(tools):
        raise bad("tools", "'tools': two tools have the same name", "invalid_value")
    choice = _choice(f.take("tool_choice"), tools)
    logprobs = f.flag("logprobs")
    top = f.integer("top_logprobs", 0, 20)
    if top and not logprobs:
        raise bad("top_logprobs", "'top_logprobs': needs 'logprobs': true", "invalid_value")
    newer, older = f.integer("max_completion_tokens", 1, asking.MAX_TOKENS), f.integer("max_tokens", 1, asking.MAX_TOKENS)
    speak = audio_parts.speak(f)
    streaming = f.flag("stream")
    options = Fields(f.object("stream_options") or {}, "stream_options")
    if not streaming and "include_usage" in options:
        raise bad("stream_options", "'stream_options': only with 'stream': true", "invalid_value")
    include_usage = options.flag("include_usage")
    options.labels("include_obfuscation")
    options.finish()
    schema, held = asking.response_format(f), asking.held_to(f)
    if held and (schema is not None or tools):
        raise bad("structured_outputs", "'structured_outputs': not with tools or 'response_format'", "invalid_value")
    held = held or {"schema": schema}
    ask = Ask(
        turns=(),
        tools=tools,
        choice=choice,
        parallel=f.flag("parallel_tool_calls", True),
        **held,
        max_tokens=newer if newer is not None else older,
        logit_bias=asking.bias(f),
        logprobs=(top or 0) if logprobs else None,
        stop=asking.stops(f),
        **asking.sampling(f),
    )
    n = f.integer("n", 1, MAX_CHOICES, 1) or 1
    if speak is not None and (n > 1 or ask.schema is not None or tools):
        raise bad("modalities", "'modalities': audio goes with one answer of plain text", "unsupported_value")
    f.labels("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")
    f.only("store", (False,), "chat completions are not stored here; /v1/responses stores")
    f.only("service_tier", ("auto", "default"), "there is one tier of service")
    f.only("reasoning_effort", ("none", "minimal"), "this model does not reason")
    f.only("verbosity", ("medium",), "this model has no such setting; ask for it in words")
    f.finish()
    turns = tuple([await _turn(services, m, f"messages[{i}]") for i, m in enumerate(raw)])
    return Wanted(replace(ask, turns=turns), model, n, streaming, include_usage, speak, f.headers)


def _tool(value: Any, index: int) -> Tool:
    f = Fields(value if isinstance(value, dict) else {}, f"tools[{index}]")
    f.text("type", choices=("function",))
    inner = Fields(f.object("function") or f.need("function"), f.path("function"))
    f.finish()
    return asking.function(inner)


def _choice(value: Any, tools: tuple[Tool, ...]) -> str:
    if value is None:
        return "auto"
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            raise bad("tool_choice", "'tool_choice': must be 'auto', 'none', 'required' or a function", "invalid_value")
        return asking.check_choice(value, tools)
    name = value.get("function", {}).get("name") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(name, str):
        raise bad("tool_choice", "'tool_choice': must name a function", "invalid_value")
    return asking.check_choice(name, tools)


async def _turn(services: Services, value: Any, where: str) -> Turn:
    if not isinstance(value, dict):
        raise bad(where, f"'{where}': must be a message", "invalid_type")
    f = Fields(value, where)
    role = f.needed_text("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise f.refuse("role", f"{role[:40]!r} is not a role", "invalid_value")
    calls = tuple(_call(x, f"{where}.tool_calls[{i}]") for i, x in enumerate(f.array("tool_calls") or []))
    if calls and role != "assistant":
        raise f.refuse("tool_calls", "only the assistant calls tools", "invalid_value")
    call_id = f.needed_text("tool_call_id") if role == "tool" else ""
    content = f.take("content")
    if content is None and not calls:
        raise f.refuse("content", "is missing", "missing_required_parameter")
    text = await _content(services, content, f.path("content"))
    f.labels("name", "refusal", "annotations", "audio")
    f.only("function_call", (), "use tool_calls")
    f.finish()
    return Turn("system" if role == "developer" else role, text, calls, call_id)


def _call(value: Any, where: str) -> Call:
    f = Fields(value if isinstance(value, dict) else {}, where)
    f.text("type", choices=("function",))
    made = f.needed_text("id")
    inner = Fields(f.object("function") or f.need("function"), f.path("function"))
    return Call(made, inner.needed_text("name"), inner.needed_text("arguments"))


async def _content(services: Services, value: Any, where: str) -> str:
    """The text of a content: a string, or parts, of which spoken ones are transcribed."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise bad(where, f"'{where}': must be a string or an array of parts", "invalid_type")
    texts = []
    for i, part in enumerate(value):
        f = Fields(part if isinstance(part, dict) else {}, f"{where}[{i}]")
        kind = f.needed_text("type")
        if kind in ("text", "refusal"):
            texts.append(f.needed_text(kind))
        elif kind == "input_audio":
            texts.append(await audio_parts.heard(services, Fields(f.object("input_audio") or {}, f.path("input_audio"))))
        else:
            raise f.refuse("type", f"{kind[:40]!r} parts cannot be read by this model", "unsupported_value")
        f.finish()
    return "\n".join(texts)


# --- the answer ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Choice:
    """One answer, as it is gathered."""

    text: str = ""
    scores: list[p.TokenScore] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    end: Ended | None = None

    def take(self, ev: Event) -> None:
        match ev:
            case Text():
                self.text += ev.text
                self.scores += ev.scores
            case CallBegun():
                self.calls.append(_call_head(ev.name))
            case CallText():
                self.calls[ev.index]["function"]["arguments"] += ev.text
            case Ended():
                self.end = ev


def _call_head(name: str) -> dict[str, Any]:
    return {"id": new_id("call_"), "type": "function", "function": {"name": name, "arguments": ""}}


def _seeded(ask: Ask, index: int) -> Ask:
    """The same question for another answer."""
    return ask if ask.seed is None or index == 0 else replace(ask, seed=(ask.seed + index) % 2**63)


async def gather(writer: Writer, ask: Ask) -> Choice:
    """A whole answer."""
    choice = Choice()
    async with aclosing(writer.write(ask)) as events:
        async for ev in events:
            choice.take(ev)
    if choice.end is None:
        raise WorkFailed("the answer did not end")
    return choice


async def _completion(request: web.Request, wanted: Wanted) -> dict[str, Any]:
    writer = asking.writer(request)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_unwrapped(gather(writer, _seeded(wanted.ask, i)))) for i in range(wanted.n)]
    done = [t.result() for t in tasks]
    for outcome in done:
        if isinstance(outcome, Exception):
            raise outcome
    choices = [c for c in done if isinstance(c, Choice)]
    audio = await audio_parts.said(request, wanted.speak, choices[0].text) if wanted.speak is not None else None
    body = _head(wanted, "chat.completion") | {
        "choices": [
            {
                "index": i,
                "message": _message(c, audio),
                "logprobs": _logprobs(c.scores) if wanted.ask.logprobs is not None else None,
                "finish_reason": c.end.reason if c.end is not None else "stop",
            }
            for i, c in enumerate(choices)
        ],
        "usage": _usage([c.end for c in choices if c.end is not None]),
    }
    asking.count(request, body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
    return body


async def _unwrapped(work: Any) -> Choice | Exception:
    """Failures as values: a task group would wrap them."""
    try:
        result: Choice = await work
        return result
    except Exception as problem:
        return problem


def _head(wanted: Wanted, kind: str) -> dict[str, Any]:
    return {
        "id": new_id("chatcmpl-"), "object": kind, "created": int(time.time()), "model": wanted.model,
        "service_tier": "default", "system_fingerprint": "bargein",
    }  # fmt: skip


def _message(c: Choice, audio: dict[str, Any] | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": c.text or (None if c.calls else ""), "refusal": None}
    if c.calls:
        message["tool_calls"] = c.calls
    if audio is not None:
        message |= {"content": None, "audio": audio}
    return message | {"annotations": []}


def _usage(ends: list[Ended]) -> dict[str, Any]:
    """The prompt is counted once, however many answers it has."""
    given, made = max(e.input_tokens for e in ends), sum(e.output_tokens for e in ends)
    return {
        "prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made,
        "prompt_tokens_details": {"cached_tokens": min(given, max(e.cached_tokens for e in ends)), "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }  # fmt: skip


def _logprobs(scores: list[p.TokenScore]) -> dict[str, Any]:
    def one(raw: bytes, logprob: float) -> dict[str, Any]:
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(raw)}

    return {
        "content": [one(s.raw, s.logprob) | {"top_logprobs": [one(*t) for t in s.top]} for s in scores],
        "refusal": None,
    }


async def _merged(writer: Writer, wanted: Wanted) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of all answers as they come."""
    if wanted.n == 1:
        async with aclosing(writer.write(wanted.ask)) as events:
            async for ev in events:
                yield 0, ev
        return
    queue: asyncio.Queue[tuple[int, Event | Exception]] = asyncio.Queue()

    async def run(index: int) -> None:
        try:
            async with aclosing(writer.write(_seeded(wanted.ask, index))) as events:
                async for ev in events:
                    queue.put_nowait((index, ev))
        except Exception as problem:
            queue.put_nowait((index, problem))

    tasks = [asyncio.create_task(run(i)) for i in range(wanted.n)]
    try:
        left = wanted.n
        while left:
            index, got = await queue.get()
            if isinstance(got, Exception):
                raise got
            left -= isinstance(got, Ended)
            yield index, got
    finally:
        for task in tasks:
            task.cancel()


async def _chunks(request: web.Request, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """The answer as chunks. Nothing is sent before the first token: until then a failure is a status."""
    head = _head(wanted, "chat.completion.chunk")
    if wanted.include_usage:
        head["usage"] = None
    begun: set[int] = set()
    ends: list[Ended] = []

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, scores: Any = None) -> bytes:
        if index not in begun:
            begun.add(index)
            delta = {"role": "assistant", **({} if "tool_calls" in delta else {"content": ""}), "refusal": None} | delta
        choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": reason}
        return event(head | {"choices": [choice]})

    text = ""
    async with aclosing(_merged(asking.writer(request), wanted)) as events:
        async for index, ev in events:
            match ev:
                case Text():
                    text += ev.text
                    scores = _logprobs(list(ev.scores)) if wanted.ask.logprobs is not None else None
                    if wanted.speak is None:
                        yield chunk(index, {"content": ev.text}, None, scores)
                case CallBegun():
                    yield chunk(index, {"tool_calls": [{"index": ev.index, **_call_head(ev.name)}]})
                case CallText():
                    yield chunk(index, {"tool_calls": [{"index": ev.index, "function": {"arguments": ev.text}}]})
                case Ended():
                    ends.append(ev)
                    if wanted.speak is not None:
                        async with aclosing(audio_parts.spoken(request, wanted.speak, text)) as deltas:
                            async for delta in deltas:
                                yield chunk(index, {"audio": delta})
                    yield chunk(index, {}, ev.reason)
    usage = _usage(ends)
    asking.count(request, usage["prompt_tokens"], usage["completion_tokens"])
    if wanted.include_usage:
        yield event(head | {"choices": [], "usage": usage})
    yield DONE


# --- an upstream -----------------------------------------------------------------------------------------------------


async def forward(request: web.Request, f: Fields, path: str) -> web.StreamResponse:
    """Hand a request to the upstream as it is, but for the model's name, and its answer back as it comes."""
    services = request.app[SERVICES]
    chat = services.config.chat
    f.need("messages" if path == "/chat/completions" else "prompt")
    body = await request.json(loads=msgspec.json.decode)
    resolve(services, "chat", str(body.get("model", "")))
    if chat.model:
        body["model"] = chat.model
    headers = {"Authorization": f"Bearer {chat.api_key}"} if chat.api_key else {}
    try:
        async with services.http().post(chat.base_url.rstrip("/") + path, json=body, headers=headers) as reply:
            if reply.status in (401, 403):  # our key, not the caller's
                raise ApiError(502, "the chat server refused this server's key", code="upstream_refused")
            kept = ("Content-Type", "Retry-After", "x-ratelimit-remaining-requests")
            kept_headers = {k: reply.headers[k] for k in kept if k in reply.headers}
            response = web.StreamResponse(status=reply.status, headers=kept_headers)
            await response.prepare(request)
            async for piece in reply.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
    except (aiohttp.ClientError, TimeoutError) as problem:
        raise ApiError(502, f"the chat server failed: {type(problem).__name__}", code="upstream_failed") from None
