"""Text for one request, from the embedded model or an OpenAI-compatible server, as one kind of events.

The embedded models know no tools. What makes them use one: the prompt describes the tools, the model chooses between
using one and speaking (a choice of a few tokens, held to the possible answers), and the arguments are held to the
tool's schema. After a tool's result it speaks, whatever it would rather do: a model this small calls for ever.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import aiohttp

from bargein.engine import protocol as p
from bargein.engine.fleet import Engine

from .oneshot import Use, WorkFailed, WorkRefused

MAX_CALLS = 4


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters`: a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call the model made. `arguments`: JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """role: system, user, assistant or tool."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be written. None: the model's own setting. `choice`: "auto", "none", "required" or a tool's name."""

    turns: tuple[Turn, ...] = ()
    prompt: str | tuple[int, ...] | None = None  # a bare text to continue, instead of turns
    tools: tuple[Tool, ...] = ()
    choice: str = "auto"
    parallel: bool = True
    schema: dict[str, Any] | None = None
    regex: str = ""  # or this, or a grammar, or choices: what the text is held to
    grammar: str = ""
    choices: tuple[str, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """More text, and the scores of its tokens where they were asked for."""

    text: str
    scores: tuple[p.TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class CallBegun:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallText:
    """More of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """`stop`: the asked-for stop string that ended it."""

    reason: Literal["stop", "length", "tool_calls"]
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    stop: str = ""


Event = Text | CallBegun | CallText | Ended


class Writer(Protocol):
    """Where text comes from."""

    def write(self, ask: Ask) -> AsyncGenerator[Event, None]:
        """Events, the last of which is Ended. Raises WorkFailed, WorkRefused, EngineUnavailable."""


class EngineWriter:
    """The embedded model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def count(self, ask: Ask) -> int:
        """How many tokens the prompt has."""
        async with Use(self._engine, "chat") as use:
            end = await use.one(_body(ask, max_tokens=0))
            assert isinstance(end, p.Generated)
            return end.input_tokens

    async def write(self, ask: Ask) -> AsyncGenerator[Event, None]:
        async with Use(self._engine, "chat") as use:
            if ask.tools and ask.choice != "none" and not (ask.choice == "auto" and ask.turns[-1].role == "tool"):
                made = _Made()
                async with aclosing(_calls(use, ask, made)) as events:
                    async for event in events:
                        yield event
                if made.calls:
                    reason: Literal["length", "tool_calls"] = "length" if made.cut else "tool_calls"
                    yield Ended(reason, made.input_tokens, made.output_tokens, made.cached_tokens)
                    return
            at_start = ask.prompt is None
            async with aclosing(use.answers(_body(ask))) as answers:
                async for answer in answers:
                    if isinstance(answer, p.Token):
                        text = answer.text.lstrip() if at_start else answer.text  # the prompt's style begins with a space
                        at_start = at_start and not text
                        if text or answer.scores:
                            yield Text(text, answer.scores)
                    elif isinstance(answer, p.Generated):
                        yield Ended(answer.finish, answer.input_tokens, answer.output_tokens, answer.cached_tokens, answer.stop)


@dataclass(slots=True)
class _Made:
    """Calls so far, as they stand in the prompt after "Assistant:", and what they cost."""

    calls: int = 0
    used: set[str] = field(default_factory=set)
    lead: str = ""
    cut: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def count(self, end: p.Generated) -> None:
        if self.input_tokens == 0:
            self.input_tokens, self.cached_tokens = end.input_tokens, end.cached_tokens
        self.output_tokens += end.output_tokens


async def _calls(use: Use, ask: Ask, made: _Made) -> AsyncGenerator[Event, None]:
    """The model's calls; none, where it would rather speak."""
    while made.calls < MAX_CALLS and not made.cut:
        name = await _choose(use, ask, made)
        if name is None:
            return
        tool = next(t for t in ask.tools if t.name == name)
        yield CallBegun(made.calls, name)
        lead = f"{made.lead}{_uses(name)}"
        arguments = ""
        async with aclosing(use.answers(_body(ask, lead=lead, schema=tool.parameters or {"type": "object"}))) as answers:
            async for answer in answers:
                if isinstance(answer, p.Token):
                    arguments += answer.text
                    yield CallText(made.calls, answer.text)
                elif isinstance(answer, p.Generated):
                    made.count(answer)
                    made.cut = answer.finish == "length"
        made.lead = f"{lead}{arguments})"
        made.calls += 1
        made.used.add(name)
        if not ask.parallel or ask.choice not in ("auto", "required"):
            return


def _uses(name: str) -> str:
    return f" (uses the tool {name} with "


async def _choose(use: Use, ask: Ask, made: _Made) -> str | None:
    """Which tool the model uses next, none twice in a reply; None: it speaks."""
    names = [t.name for t in ask.tools if t.name not in made.used]
    if not names:
        return None
    if ask.choice in names:
        return ask.choice
    if ask.choice == "required" and made.calls == 0 and len(names) == 1:
        return names[0]
    speaks = " (says" if made.calls == 0 else " (waits"
    options = {_uses(n): n for n in names} | ({} if ask.choice == "required" and made.calls == 0 else {speaks: None})
    body = _body(ask, lead=made.lead, choices=tuple(options), max_tokens=32, temperature=0.0)
    text = ""
    async with aclosing(use.answers(body)) as answers:
        async for answer in answers:
            if isinstance(answer, p.Token):
                text += answer.text
            elif isinstance(answer, p.Generated):
                made.count(answer)
    return options.get(text)


def _body(
    ask: Ask, *, lead: str = "", schema: dict[str, Any] | None = None, choices: tuple[str, ...] = (),
    max_tokens: int | None = None, temperature: float | None = None,
) -> p.Write:  # fmt: skip
    """One request to the lane."""
    constrained = schema is not None or bool(choices)
    return p.Write(
        messages=tuple(p.ChatTurn(t.role, _plain(t)) for t in ask.turns if t.role != "system"),
        instructions=_instructions(ask),
        prompt=ask.prompt,
        lead=lead,
        max_tokens=ask.max_tokens if max_tokens is None else max_tokens,
        temperature=ask.temperature if temperature is None else temperature,
        top_p=ask.top_p,
        top_k=ask.top_k,
        min_p=ask.min_p,
        presence_penalty=ask.presence_penalty,
        frequency_penalty=ask.frequency_penalty,
        repetition_penalty=ask.repetition_penalty,
        seed=ask.seed,
        logit_bias={} if constrained else ask.logit_bias,
        logprobs=None if constrained else ask.logprobs,
        stop=() if constrained else ask.stop,
        schema=schema if constrained else ask.schema,
        regex="" if constrained else ask.regex,
        grammar="" if constrained else ask.grammar,
        choices=choices if constrained else ask.choices,
    )


def _instructions(ask: Ask) -> str:
    """What system turns say, and what the model has to know of tools and form."""
    parts = [t.content for t in ask.turns if t.role == "system" and t.content]
    if ask.tools and ask.choice != "none":
        listed = "; ".join(f"{t.name} ({t.description or 'no description'})" for t in ask.tools)
        parts.append(f"The assistant can use these tools where the answer needs one: {listed}.")
    if ask.schema is not None:
        parts.append("The assistant answers with JSON.")
    return " ".join(parts)


def _plain(t: Turn) -> str:
    """Calls, told in the words that the model itself makes them with."""
    return t.content + "".join(f"{_uses(c.name)}{c.arguments})" for c in t.calls).removeprefix("" if t.content else " ")


# --- an upstream -----------------------------------------------------------------------------------------------------


class UpstreamWriter:
    """Any server that speaks OpenAI's chat completions, streaming."""

    def __init__(self, http: aiohttp.ClientSession, base_url: str, api_key: str, model: str) -> None:
        self._http, self._model = http, model
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def write(self, ask: Ask) -> AsyncGenerator[Event, None]:
        reason: Literal["stop", "length", "tool_calls"] = "stop"
        usage: dict[str, Any] = {}
        begun: set[int] = set()
        try:
            async with self._http.post(self._url, json=self._body(ask), headers=self._headers) as reply:
                if reply.status != 200:
                    text = (await reply.text())[:300]
                    kind = WorkRefused if 400 <= reply.status < 500 and reply.status not in (401, 403, 429) else WorkFailed
                    raise kind(f"the chat server answered {reply.status}: {text}")
                async with aclosing(sse(reply.content)) as chunks:
                    async for chunk in chunks:
                        usage = chunk.get("usage") or usage
                        for choice in chunk.get("choices", ())[:1]:
                            delta = choice.get("delta") or {}
                            for call in delta.get("tool_calls") or ():
                                index, function = int(call.get("index") or 0), call.get("function") or {}
                                if index not in begun:
                                    begun.add(index)
                                    yield CallBegun(index, function.get("name") or "")
                                if function.get("arguments"):
                                    yield CallText(index, function["arguments"])
                            finish = choice.get("finish_reason")
                            reason = finish if finish in ("length", "tool_calls") else reason
                            if isinstance(content := delta.get("content"), str) and content:
                                yield Text(content)
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError, TypeError) as problem:
            raise WorkFailed(f"the chat server failed: {type(problem).__name__}: {problem}") from problem
        yield Ended("tool_calls" if begun else reason, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model, "messages": [_openai(t) for t in ask.turns], "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        if ask.tools:
            body["tools"] = [
                {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
                for t in ask.tools
            ]
            named = ask.choice not in ("auto", "none", "required")
            body["tool_choice"] = {"type": "function", "function": {"name": ask.choice}} if named else ask.choice
            body["parallel_tool_calls"] = ask.parallel
        if ask.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ask.schema}}
        held = {"regex": ask.regex, "grammar": ask.grammar, "choice": list(ask.choices)}
        if any(held.values()):
            body["structured_outputs"] = {k: v for k, v in held.items() if v}
        given = {
            "max_tokens": ask.max_tokens, "temperature": ask.temperature, "top_p": ask.top_p, "seed": ask.seed,
            "presence_penalty": ask.presence_penalty, "frequency_penalty": ask.frequency_penalty,
            "stop": list(ask.stop) or None, "top_k": ask.top_k, "min_p": ask.min_p,
            "repetition_penalty": ask.repetition_penalty,
        }  # fmt: skip
        return body | {k: v for k, v in given.items() if v is not None}


def _openai(t: Turn) -> dict[str, Any]:
    body: dict[str, Any] = {"role": t.role, "content": t.content}
    if t.calls:
        body["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in t.calls
        ]
    if t.role == "tool":
        body["tool_call_id"] = t.call_id
    return body


async def sse(content: aiohttp.StreamReader) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON objects of a server-sent event stream. Raises WorkFailed for an error inside it."""
    async for raw in content:
        line = raw.decode("utf-8", "replace").strip()
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            chunk = json.loads(data)
            if isinstance(chunk, dict):
                if isinstance(chunk.get("error"), dict):
                    raise WorkFailed(str(chunk["error"].get("message")))
                yield chunk
