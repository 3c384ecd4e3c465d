"""MCP servers as sources of tools, through the official `mcp` package (`pip install bargein[mcp]`).

All of it runs on the tools' loop. A connection is kept by a task of its own; one that has broken is made anew at the next
call, once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from .definition import Agent, AgentError, Mcp, ToolError

log = logging.getLogger("bargein.tools")

CONNECT_S = 20.0


class Connections:
    """The servers of all agents, by their definition."""

    def __init__(self) -> None:
        self._open: dict[Mcp, _Connection] = {}

    async def discover(self, agents: list[Agent]) -> None:
        """Connect to every server and give the agents their tools. Raises AgentError."""
        for agent in agents:
            for source in agent.mcp:
                where = source.url or " ".join(source.command)
                try:
                    client = await self._client(source)
                    found = await client.list_tools()
                except ModuleNotFoundError:
                    raise AgentError("mcp: not installed; pip install bargein[mcp]") from None
                except Exception as problem:  # whatever the package or the server raises, the person is told which server
                    raise AgentError(f"agent {agent.name}: mcp {where}: {_reason(problem)}") from None
                agent.add_mcp_tools(
                    source, [(t.name, t.description or t.name, dict(t.input_schema)) for t in found.tools]
                )

    async def _client(self, source: Mcp) -> Any:
        connection = self._open.get(source)
        if connection is None or connection.task.done():
            connection = self._open[source] = _Connection(source)
        return await asyncio.wait_for(asyncio.shield(connection.ready), CONNECT_S)

    async def call(self, source: Mcp, name: str, arguments: dict[str, Any]) -> str:
        """The answer's text. Raises ToolError."""
        for attempt in (1, 2):
            try:
                client = await self._client(source)
                result = await client.call_tool(name, arguments)
            except Exception as problem:
                log.warning("mcp tool %s: %s", name, _reason(problem))
                if attempt == 2:
                    raise ToolError(_reason(problem)) from None
                self._forget(source)
                continue
            text = "\n".join(getattr(part, "text", f"({part.type})") for part in result.content)
            if result.is_error:
                raise ToolError(text)
            return text
        raise AssertionError

    def _forget(self, source: Mcp) -> None:
        if connection := self._open.pop(source, None):
            connection.task.cancel()

    async def close(self) -> None:
        """End every connection, and with it the processes that were started."""
        tasks = [c.task for c in self._open.values()]
        self._open.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Connection:
    """Enters and leaves the client in one task, as its cancel scopes demand."""

    def __init__(self, source: Mcp) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Any] = loop.create_future()
        self.task = loop.create_task(self._hold(source), name="mcp")

    async def _hold(self, source: Mcp) -> None:
        try:
            from mcp import Client, StdioServerParameters, stdio_client

            if source.url:
                client = Client(source.url)
            else:
                command, *arguments = source.command
                env = dict(source.env) or None
                client = Client(stdio_client(StdioServerParameters(command=command, args=arguments, env=env)))
            async with client:
                self.ready.set_result(client)
                await asyncio.Event().wait()
        except BaseException as problem:
            if self.ready.done() or not isinstance(problem, Exception):
                self.ready.cancel()
                raise
            self.ready.set_exception(problem)
            self.ready.exception()  # whoever waits for it is told; nobody may


def _reason(problem: BaseException) -> str:
    """The innermost message of a group, or the type's name."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return str(problem) or type(problem).__name__
