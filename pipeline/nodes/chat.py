"""The chat node: a prompt in, text out, from the local engine or any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from bargein.engine import protocol as p
from bargein.engine.client import EngineStream, EngineUnavailable
from bargein.engine.fleet import Engine
from bargein.realtime import events as e
from bargein.realtime.conversation import ChatMessage
from bargein.realtime.effects import PrimeChat, SayLine, StartChat

from ..channel import Channel, Epochs
from ..messages import TextPiece

log = logging.getLogger("bargein.chat")

Tell = Callable[[e.Input], None]
Now = Callable[[], float]

PRIME_TAG = 0  # of a prompt that is read ahead; responses are numbered from 1


class ChatFailure(Exception):
    """The source could not answer; the message is for the log and the inspector."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation."""

    tool_calls: tuple[e.ToolCall, ...] = ()
    limited: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call that is being written."""

    call_id: str
    name: str
    arguments: str


class ChatSource(Protocol):
    """Where replies come from. `is_local`: from the embedded model."""

    @property
    def is_local(self) -> bool: ...

    def generate(self, ask: StartChat) -> AsyncGenerator[str | CallPiece | Finish, None]:
        """Text and calls as they come, then one Finish. Raises ChatFailure."""

    def prime(self, prompt: PrimeChat) -> None:
        """Read a prompt that may be asked soon. Never fails."""

    async def close(self) -> None:
        """Let go of connections."""


async def chat_node(
    inp: Channel[StartChat | SayLine], out: Channel[TextPiece], source: ChatSource, epochs: Epochs, tell: Tell, now: Now
) -> None:
    """Answer prompts as they come; out-of-band ones run beside the conversation's own."""
    async with asyncio.TaskGroup() as group:
        while True:
            ask = await inp.receive()
            if isinstance(ask, SayLine):
                task = group.create_task(_say(ask, out, tell, now))
            else:
                task = group.create_task(_answer(ask, out, source, tell, now))
            epochs.scope(ask.epoch, task)


async def _say(line: SayLine, out: Channel[TextPiece], tell: Tell, now: Now) -> None:
    """The server's own words: what chat would bring is given."""
    tell(e.ChatDelta(now(), line.epoch, line.text))
    tell(e.ChatDone(now(), line.epoch))
    if line.spoken:
        await out.send(TextPiece(line.epoch, line.text, True, line.speed))


async def _answer(ask: StartChat, out: Channel[TextPiece], source: ChatSource, tell: Tell, now: Now) -> None:
    finish = Finish()
    try:
        async with aclosing(source.generate(ask)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Finish):
                    finish = piece
                    continue
                if isinstance(piece, CallPiece):
                    tell(e.ToolDelta(now(), ask.epoch, piece.call_id, piece.name, piece.arguments))
                    continue
                tell(e.ChatDelta(now(), ask.epoch, piece))
                if ask.spoken:
                    await out.send(TextPiece(ask.epoch, piece, False, ask.speed))
    except (ChatFailure, EngineUnavailable) as problem:
        log.warning("chat failed: %s", problem)
        tell(e.ChatFailed(now(), ask.epoch, str(problem)))
        return
    tell(
        e.ChatDone(
            now(), ask.epoch, finish.tool_calls, finish.limited,
            finish.input_tokens, finish.output_tokens, finish.cached_tokens,
        )
    )  # fmt: skip
    if ask.spoken:
        await out.send(TextPiece(ask.epoch, "", True, ask.speed))


class EngineChat:
    """The local model, through one stream of the session's: its cache outlives turns.

    A stream's cache is one sequence, so it writes one reply at a time; a second one beside it gets a stream for itself.
    """

    is_local = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stream: EngineStream | None = None
        self._queues: dict[int, asyncio.Queue[p.Answer | Exception]] = {}

    def _new(self) -> EngineStream:
        return self._engine.open("chat", {}, on_result=self._result, on_failed=self._failed, on_lost=self._lost)

    def _open(self) -> EngineStream:
        if self._stream is None or self._stream.closed:
            self._stream = self._new()
        return self._stream

    def _result(self, tag: int, body: p.Answer) -> None:
        if (queue := self._queues.get(tag)) is not None:
            queue.put_nowait(body)

    def _failed(self, tag: int | None, message: str) -> None:
        for number, queue in self._queues.items():
            if tag is None or number == tag:
                queue.put_nowait(ChatFailure(message))

    def _lost(self) -> None:
        self._failed(None, "the engine was lost")

    def prime(self, prompt: PrimeChat) -> None:
        if self._queues:  # being written to
            return
        try:
            stream = self._open()
        except EngineUnavailable:
            return
        stream.cancel(PRIME_TAG)
        stream.feed(PRIME_TAG, p.Generate(_turns(prompt.messages), prompt.instructions, max_tokens=0))

    async def generate(self, ask: StartChat) -> AsyncGenerator[str | Finish, None]:
        beside = bool(self._queues)
        stream = self._new() if beside else self._open()
        tag = int(ask.epoch)
        queue: asyncio.Queue[p.Answer | Exception] = asyncio.Queue()
        self._queues[tag] = queue
        body = p.Generate(_turns(ask.messages), ask.instructions, ask.max_output_tokens, ask.temperature)
        stream.cancel(PRIME_TAG)
        stream.feed(tag, body)
        finished = False
        try:
            while True:
                match await queue.get():
                    case p.Token(text):
                        yield text
                    case p.Generated(finish, given, made, cached):
                        finished = True
                        yield Finish((), finish == "length", given, made, cached)
                        return
                    case Exception() as problem:
                        finished = True
                        raise problem
        finally:
            del self._queues[tag]
            if beside:
                stream.close()
            elif not finished:
                stream.cancel(tag)

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _turns(messages: tuple[ChatMessage, ...]) -> tuple[p.ChatTurn, ...]:
    return tuple(p.ChatTurn(m.role, _plain(m)) for m in messages)


def _plain(m: ChatMessage) -> str:
    """The embedded models know no tools: calls and results are told in words."""
    calls = "".join(f"\n(called {name} with {arguments})" for _, name, arguments in m.tool_calls)
    return m.content + calls


class UpstreamChat:
    """Any server that speaks OpenAI's chat completions, streaming."""

    is_local = False

    def __init__(self, base_url: str, api_key: str, model: str) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = model
        self._http: aiohttp.ClientSession | None = None

    def prime(self, prompt: PrimeChat) -> None:
        """The server is not ours: nothing to do."""

    async def generate(self, ask: StartChat) -> AsyncGenerator[str | CallPiece | Finish, None]:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=None, connect=5, sock_read=60)
            self._http = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        calls: dict[int, dict[str, str]] = {}
        limited, usage = False, {"prompt_tokens": 0, "completion_tokens": 0}
        try:
            async with self._http.post(self._url, json=self._body(ask)) as reply:
                if reply.status != 200:
                    text = (await reply.text())[:300]
                    raise ChatFailure(f"the chat server answered {reply.status}: {text}")
                async with aclosing(_sse(reply.content)) as chunks:
                    async for chunk in chunks:
                        if isinstance(chunk.get("error"), dict):
                            raise ChatFailure(str(chunk["error"].get("message")))
                        usage = chunk.get("usage") or usage
                        for choice in chunk.get("choices", ())[:1]:
                            delta = choice.get("delta") or {}
                            for call in delta.get("tool_calls") or ():
                                if (piece := _collect(calls, call, ask.response_id)) is not None:
                                    yield piece
                            limited |= choice.get("finish_reason") == "length"
                            if isinstance(content := delta.get("content"), str) and content:
                                yield content
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError, TypeError) as problem:
            raise ChatFailure(f"the chat server failed: {type(problem).__name__}: {problem}") from problem
        made = tuple(
            e.ToolCall(c["id"], c["name"], c["arguments"] or "{}") for _, c in sorted(calls.items())
        )
        yield Finish(made, limited, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), 0)

    def _body(self, ask: StartChat) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        if ask.instructions:
            messages.append({"role": "system", "content": ask.instructions})
        messages += [_openai(m) for m in ask.messages]
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if ask.tools:
            keys = ("name", "description", "parameters")
            body["tools"] = [{"type": "function", "function": {k: t[k] for k in keys if k in t}} for t in ask.tools]
            choice = ask.tool_choice
            if isinstance(choice, dict):
                choice = {"type": "function", "function": {"name": choice["name"]}}
            body["tool_choice"] = choice
            if not ask.parallel_tool_calls:
                body["parallel_tool_calls"] = False
        if ask.max_output_tokens is not None:
            body["max_tokens"] = ask.max_output_tokens
        if ask.temperature is not None:
            body["temperature"] = ask.temperature
        return body

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


def _openai(m: ChatMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"role": m.role, "content": m.content}
    if m.tool_calls:
        body["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, name, arguments in m.tool_calls
        ]
    if m.tool_call_id is not None:
        body["tool_call_id"] = m.tool_call_id
    return body


def _collect(calls: dict[int, dict[str, str]], delta: dict[str, Any], response_id: str) -> CallPiece | None:
    """Add one streamed piece of a tool call; returns it, once the call has a name."""
    n = int(delta.get("index") or 0)
    call = calls.setdefault(n, {"id": delta.get("id") or f"call_{response_id}_{n}", "name": "", "arguments": ""})
    function = delta.get("function") or {}
    call["name"] = call["name"] or function.get("name") or ""
    new = function.get("arguments") or ""
    call["arguments"] += new
    return CallPiece(call["id"], call["name"], new) if call["name"] else None


async def _sse(content: aiohttp.StreamReader) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of a server-sent event stream."""
    async for raw in content:
        line = raw.decode("utf-8", "replace").strip()
        if line.startswith("data:"):
            data = line[5:].strip()
            if data == "[DONE]":
                return
            chunk = json.loads(data)
            if isinstance(chunk, dict):
                yield chunk
