"""The agents of this server: which of them answers, what a session with it starts with, who runs its tools.

With agents, the first is who answers where no model is named or a stock name is; the embedded model's own name gets a
bare session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bargein.agent import Agent, AgentError
from bargein.agent.hands import Hands, Workshop
from bargein.agent.load import load
from bargein.agent.mcp import Connections
from bargein.pipeline.nodes.chat import CallPiece, ChatSource, Finish
from bargein.realtime.effects import PrimeChat, StartChat
from bargein.realtime.names import is_known_model
from bargein.realtime.settings import Settings, apply, parse

MAX_VARIABLES, MAX_VALUE = 64, 2000


@dataclass(frozen=True, slots=True)
class Start:
    """What a session begins with: its settings, and who answers where that is an agent."""

    settings: Settings
    agent: Agent | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class Agents:
    """Loaded before the server listens; `start` connects to their MCP servers. Raises AgentError."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self.found: dict[str, Agent] = load([Path(f) for f in files])
        self._workshop = Workshop()
        self._connections = Connections()

    async def start(self) -> None:
        """Raises AgentError."""
        if self.found:
            self._workshop.start()
            await self._workshop.on_loop(self._connections.discover(list(self.found.values())))

    async def close(self) -> None:
        """Let go of MCP servers and running tools; once is enough."""
        if self._workshop.is_open:
            await asyncio.wait([asyncio.ensure_future(self._workshop.on_loop(self._connections.close()))], timeout=5)
            self._workshop.close()

    def of(self, model: str | None) -> Agent | None:
        """Who answers under this model name."""
        if model in self.found:
            return self.found[model]
        stands_for_default = model is None or is_known_model(model, ())
        return next(iter(self.found.values()), None) if stands_for_default else None

    def begin(self, base: Settings, model: str | None, variables: Mapping[str, str]) -> Start:
        """The settings of a session under this model name, before anything that a client says. Raises SettingsError."""
        agent = self.of(model)
        if agent is None:
            return Start(base)
        settings = apply(base, parse(agent.update(variables)))
        return Start(replace(settings, agent=agent.rules(variables)), agent, variables)

    def hands(self, start: Start, source: AgentChat) -> Hands | None:
        """Who runs the tools of a session; None for one without an agent."""
        if start.agent is None:
            return None
        return Hands(
            self._workshop, self.found, start.agent, start.variables, mcp=self._connections, switch=source.switch
        )  # fmt: skip


def variables_of(given: Any) -> dict[str, str]:
    """A client's variables. Raises ValueError."""
    if not isinstance(given, dict) or len(given) > MAX_VARIABLES:
        raise ValueError(f"must be an object of at most {MAX_VARIABLES} texts")
    if not all(isinstance(v, str) and len(v) <= MAX_VALUE for v in given.values()):
        raise ValueError(f"must hold texts of at most {MAX_VALUE} characters")
    return given


class AgentChat:
    """Replies from the source of whoever answers now; a hand-off may change it. `make`: the source of an agent."""

    def __init__(self, make: Any, agent: Agent | None) -> None:
        self._make = make
        self._sources: list[ChatSource] = [make(agent)]

    @property
    def is_local(self) -> bool:
        return self._sources[-1].is_local

    def switch(self, agent: Agent) -> None:
        """From now on this agent answers."""
        self._sources.append(self._make(agent))

    def generate(self, ask: StartChat) -> AsyncGenerator[str | CallPiece | Finish, None]:
        return self._sources[-1].generate(ask)

    def prime(self, prompt: PrimeChat) -> None:
        self._sources[-1].prime(prompt)

    async def close(self) -> None:
        for source in self._sources:
            await source.close()


__all__ = ["AgentChat", "AgentError", "Agents", "Start", "variables_of"]
