"""An agent: what its file says, checked. Python files make `Agent` objects, TOML files name the same fields."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, overload

from bargein.realtime import settings as realtime
from bargein.realtime.settings import SettingsError, parse

from .call import Call
from .schema import SchemaError, Signature, description

JsonObject = dict[str, Any]
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
TOOL_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
END_CALL = "end_call"
TRANSFER = "transfer_to_"
F = TypeVar("F", bound=Callable[..., Any])


class AgentError(Exception):
    """An agent that cannot be used; the message names the file and the key."""


class ToolError(Exception):
    """Raised by a tool to say what went wrong, in words that the chat model may repeat."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function of an agent's. `function` is None for what the server does itself and for tools of MCP servers."""

    name: str
    description: str
    parameters: JsonObject
    function: Callable[..., Any] | None = None
    signature: Signature | None = None
    timeout_s: float = 30.0
    cancel_on_barge_in: bool = False
    filler: str = ""
    mcp: Mcp | None = None

    def for_chat(self) -> JsonObject:
        """In the shape of a session's `tools`, with what the turn machine needs beside."""
        out: JsonObject = {"type": "function", "name": self.name, "description": self.description,
                           "parameters": self.parameters, "cancel_on_barge_in": self.cancel_on_barge_in}  # fmt: skip
        return out | ({"filler": self.filler} if self.filler else {})


@dataclass(frozen=True, eq=False)
class Mcp:
    """A Model Context Protocol server whose tools an agent has: a `command` to run (stdio), or a `url` (streamable HTTP).

    `only`: the names of the tools that are taken; empty: all.
    """

    command: Sequence[str] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    only: Sequence[str] = ()
    timeout_s: float = 30.0
    cancel_on_barge_in: bool = False

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise AgentError("mcp: give a command or a url")


@dataclass(frozen=True, slots=True)
class ChatServer:
    """An OpenAI-compatible server of an agent's own. `api_key_env`: the environment variable that holds the key."""

    base_url: str = ""
    model: str = ""
    api_key: str = ""
    api_key_env: str = ""

    @property
    def key(self) -> str:
        return self.api_key or (os.environ.get(self.api_key_env, "") if self.api_key_env else "")


class Agent:
    """Who answers. `session`: settings in the shape of a `session.update`, which a client may still change; what has a
    parameter of its own here is written with that.

    `variables`: names in braces in the instructions and lines, with their values where the session gives none.
    Raises AgentError, naming the key.
    """

    def __init__(
        self,
        name: str,
        *,
        instructions: str = "",
        greeting: str = "",
        voice: str | None = None,
        speed: float | None = None,
        language: str | None = None,
        profile: str | None = None,
        chat: ChatServer | Mapping[str, str] | None = None,
        session: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        say_on_failure: str = "",
        first_token_ms: int = 5000,
        filler: str = "One moment, please.",
        filler_after_ms: int = 700,
        apology: str = "I'm sorry, something went wrong with that.",
        farewell: str = "Goodbye.",
        end_call: bool = False,
        handoffs: Sequence[str] = (),
        mcp: Sequence[Mcp | Mapping[str, Any]] = (),
    ) -> None:
        self.name, self.instructions, self.greeting = name, instructions, greeting
        self.say_on_failure, self.first_token_ms = say_on_failure, first_token_ms
        self.filler, self.filler_after_ms = filler, filler_after_ms
        self.apology, self.farewell = apology, farewell
        self.variables = dict(variables or {})
        self.handoffs = tuple(handoffs)
        self.tools: dict[str, Tool] = {}
        if not isinstance(name, str) or not NAME.match(name):
            raise AgentError(f"name: {name!r} must be letters, digits, and . _ -, at most 64")
        for key, value in self.variables.items():
            if not key.isidentifier() or not isinstance(value, str):
                raise AgentError(f"variables.{key}: a variable is an identifier with a text")
        for key in ("filler_after_ms", "first_token_ms"):
            value = getattr(self, key)
            if not isinstance(value, int) or not 0 <= value <= 600_000:
                raise AgentError(f"{key}: must be milliseconds, a whole number")
        self.chat = _built("chat", ChatServer, chat) if chat is not None else None
        self.mcp = tuple(_built("mcp", Mcp, m) for m in mcp)
        self.session = dict(session or {})
        own = {"voice": voice, "speed": speed, "profile": profile, "instructions": instructions}
        self.session |= {k: v for k, v in own.items() if v is not None}
        if language is not None:
            self.session["input_audio_transcription"] = {"language": language}
        try:
            parse(self.session)
        except SettingsError as problem:
            raise AgentError(f"{_key(problem.param, own, language)}: {problem.message}") from None
        if end_call:
            self._own(END_CALL, "End the call. Use it when the caller says goodbye or wants nothing more.")
        for other in self.handoffs:
            self._own(TRANSFER + other, f"Hand the caller over to {other}.")

    def _own(self, name: str, what: str) -> None:
        self._add(Tool(name, what, {"type": "object", "properties": {}, "required": []}))

    def _add(self, tool: Tool) -> None:
        if not TOOL_NAME.match(tool.name):
            raise AgentError(f"tool {tool.name!r}: a name is letters, digits, _ and -, at most 64")
        if tool.name in self.tools:
            raise AgentError(f"tool {tool.name}: there are two of that name")
        self.tools[tool.name] = tool

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(
        self, /, *, name: str = "", timeout_s: float = 30.0, cancel_on_barge_in: bool = False, filler: str = ""
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str = "",
        timeout_s: float = 30.0,
        cancel_on_barge_in: bool = False,
        filler: str = "",
    ) -> Callable[..., Any]:
        """Decorator: the chat model may call this function. Its docstring is what the model is told, its types are the
        schema; sync functions run on a thread, async ones on a loop of their own. A parameter of type `Call` gets the call.

        `cancel_on_barge_in`: nobody waits for its answer once the caller speaks. `filler`: said while it takes long,
        instead of the agent's own.
        """

        def add(made: F) -> F:
            label = name or made.__name__
            try:
                signature = Signature(made, Call)
            except SchemaError as problem:
                raise AgentError(f"tool {label}: {problem}") from None
            what = description(made)
            if not what:
                raise AgentError(f"tool {label}: its docstring is what the chat model is told; write one")
            self._add(
                Tool(label, what, signature.parameters, made, signature, timeout_s, cancel_on_barge_in, filler)
            )  # fmt: skip
            return made

        return add if function is None else add(function)

    def add_mcp_tools(self, source: Mcp, found: Sequence[tuple[str, str, JsonObject]]) -> None:
        """The tools that an MCP server has told, as (name, description, schema). Raises AgentError."""
        for name, what, parameters in found:
            if not source.only or name in source.only:
                self._add(
                    Tool(name, what, parameters, timeout_s=source.timeout_s, mcp=source,
                         cancel_on_barge_in=source.cancel_on_barge_in)
                )  # fmt: skip

    # --- for a session ---

    def fill(self, text: str, given: Mapping[str, str]) -> str:
        """`text` with this agent's variables in it: the session's values, else the defaults. Other braces stay."""
        now = datetime.now().astimezone()
        clock = {"date": f"{now:%A, %d %B %Y}", "time": f"{now:%H:%M}"}
        values = clock | self.variables | {k: v for k, v in given.items() if k in self.variables}
        return re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), text)

    def update(self, given: Mapping[str, str]) -> JsonObject:
        """The settings of its sessions, in the shape of a session.update."""
        return self.session | {"instructions": self.fill(self.instructions, given)}

    def rules(self, given: Mapping[str, str]) -> realtime.Agent:
        """Its part of the settings that no client writes. Tools of the file come before the server's own."""
        tools = sorted(self.tools.values(), key=lambda t: t.function is None and t.mcp is None)
        return realtime.Agent(
            name=self.name,
            greeting=self.fill(self.greeting, given),
            tools=tuple(t.for_chat() for t in tools),
            filler=self.fill(self.filler, given),
            filler_after_ms=self.filler_after_ms,
            apology=self.fill(self.apology, given),
            farewell=self.fill(self.farewell, given),
            say_on_failure=self.fill(self.say_on_failure, given),
            first_token_ms=self.first_token_ms,
        )


def _built(key: str, kind: type[Any], given: Any) -> Any:
    """`given` as a `kind`. Raises AgentError."""
    if isinstance(given, kind):
        return given
    known = inspect.signature(kind).parameters
    if not isinstance(given, Mapping):
        raise AgentError(f"{key}: must be a table")
    for name in given:
        if name not in known:
            raise AgentError(f"{key}.{name}: there is no such key (known: {', '.join(known)})")
    try:
        return kind(**given)
    except TypeError as problem:
        raise AgentError(f"{key}: {problem}") from None


def _key(param: str, own: Mapping[str, Any], language: str | None) -> str:
    """The key of the agent's file that a refused setting was written with."""
    name = param.removeprefix("session.")
    if own.get(name) is not None:
        return name
    if name == "input_audio_transcription.language" and language is not None:
        return "language"
    return f"session.{name}"
