"""Tools as they run: their answers, their failures, and that none can hold up the session."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bargein.agent import Agent, AgentError, Call, Mcp
from bargein.agent.hands import MAX_RESULT, Hands, Workshop
from bargein.agent.mcp import Connections
from bargein.realtime import effects as f
from bargein.realtime import events as e


@pytest.fixture
def workshop() -> Iterator[Workshop]:
    shop = Workshop()
    shop.start()
    yield shop
    shop.close()


class Told:
    """A session that keeps what it is told."""

    session_id = "sess_1"

    def __init__(self) -> None:
        self.inputs: list[e.Input] = []
        self.changed = asyncio.Event()

    def tell(self, ev: e.Input) -> None:
        self.inputs.append(ev)
        self.changed.set()

    def now(self) -> float:
        return 0.0

    async def done(self, num: int = 1) -> list[e.ToolDone]:
        async with asyncio.timeout(10):
            while len(found := [x for x in self.inputs if isinstance(x, e.ToolDone)]) < num:
                self.changed.clear()
                await self.changed.wait()
        return found


def run(workshop: Workshop, agent: Agent, *calls: tuple[str, str], others: tuple[Agent, ...] = ()) -> list[Any]:
    """The answers to these calls, in the order in which they came."""

    async def work() -> list[Any]:
        told = Told()
        hands = Hands(workshop, {a.name: a for a in (agent, *others)}, agent, {"who": "Ann"})
        hands.bind(told)
        for n, (name, arguments) in enumerate(calls):
            hands.run(f.RunTool(f"call_{n}", name, arguments))
        await told.done(len(calls))
        hands.close()
        return told.inputs

    return asyncio.run(work())


def answer(workshop: Workshop, agent: Agent, name: str, arguments: str = "{}") -> tuple[str, str]:
    (done,) = run(workshop, agent, (name, arguments))
    return done.output, done.outcome


def test_answers_of_sync_and_async_tools(workshop: Workshop) -> None:
    agent = Agent("a")
    threads: list[str] = []

    @agent.tool
    def sync(x: int, y: int = 2) -> dict[str, int]:
        """Add."""
        threads.append(threading.current_thread().name)
        return {"sum": x + y}

    @agent.tool
    async def later(call: Call, text: str) -> str:
        """Say."""
        threads.append(threading.current_thread().name)
        return f"{text} {call.variables['who']} {call.session_id} {call.agent}"

    assert answer(workshop, agent, "sync", '{"x": 40}') == ('{"sum":42}', "answered")
    assert answer(workshop, agent, "later", '{"text": "hi"}') == ("hi Ann sess_1 a", "answered")
    assert threads == ["tool", "tools"]


def test_what_goes_wrong_is_an_answer(workshop: Workshop) -> None:
    agent = Agent("a")

    @agent.tool
    def raises() -> str:
        """Raise."""
        raise LookupError("no such room")

    @agent.tool
    def exits() -> str:
        """Leave."""
        sys.exit(3)

    @agent.tool(timeout_s=0.1)
    def hangs() -> str:
        """Hang."""
        time.sleep(1)
        return ""

    @agent.tool(timeout_s=0.1)
    async def waits() -> str:
        """Wait."""
        await asyncio.sleep(60)
        return ""

    @agent.tool
    def long() -> str:
        """A long answer."""
        return "x" * 100_000

    @agent.tool
    def huge() -> str:
        """A megabyte."""
        return "x" * 2**20

    @agent.tool
    def strange() -> object:
        """No JSON."""
        return threading.Lock()

    def error(name: str) -> str:
        output, outcome = answer(workshop, agent, name)
        assert outcome == "failed"
        return str(json.loads(output)["error"])

    assert error("raises") == "LookupError: no such room"
    assert error("exits").startswith("SystemExit")
    assert error("hangs") == error("waits") == "it took longer than 0.1 s"
    assert "more than" in error("huge") and "JSON" in error("strange") and "no tool" in error("gone")
    output, outcome = answer(workshop, agent, "long")
    assert outcome == "answered" and len(output) < MAX_RESULT + 100 and "100000 characters" in output


def test_arguments_that_do_not_fit_go_back_to_the_model_but_not_for_ever(workshop: Workshop) -> None:
    agent = Agent("a")

    @agent.tool
    def add(x: int) -> int:
        """Add."""
        return x + 1

    done = run(workshop, agent, *[("add", '{"x": "four"}')] * 3)
    assert sorted(x.outcome for x in done) == ["answered", "answered", "failed"] and "x" in done[0].output


def test_a_cancelled_tool_is_stopped_and_says_nothing(workshop: Workshop) -> None:
    agent, ended = Agent("a"), threading.Event()

    @agent.tool
    async def search() -> str:
        """Search."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    async def work() -> list[e.Input]:
        told = Told()
        hands = Hands(workshop, {"a": agent}, agent, {})
        hands.bind(told)
        hands.run(f.RunTool("call_1", "search", "{}"))
        await asyncio.sleep(0.05)
        hands.cancel("call_1")
        await asyncio.to_thread(ended.wait, 5)
        return told.inputs

    assert asyncio.run(work()) == [] and ended.is_set()


def test_a_hand_off_changes_who_answers(workshop: Workshop) -> None:
    first = Agent("first", handoffs=["second"])
    second = Agent("second", instructions="You are second to {who}.", greeting="Hi {who}.", variables={"who": "none"})
    update, done, said = run(workshop, first, ("transfer_to_second", "{}"), others=(second,))
    assert update.patch.values["instructions"] == "You are second to Ann."
    assert update.patch.values["agent"]["name"] == "second" and done.outcome == "quiet" and said.text == "Hi Ann."


def test_a_tool_that_waits_for_keys_takes_them(workshop: Workshop) -> None:
    agent = Agent("a")

    @agent.tool
    async def code(call: Call) -> str:
        """Ask for a code."""
        call.say("Your code, please.")
        return await call.keys(most=4, timeout_s=5)

    async def work() -> list[Any]:
        told = Told()
        hands = Hands(workshop, {"a": agent}, agent, {})
        hands.bind(told)
        assert not hands.key("9")
        hands.run(f.RunTool("call_1", "code", "{}"))
        while not hands.key("1"):
            await asyncio.sleep(0.01)
        assert hands.key("2") and hands.key("#")
        await told.done()
        assert not hands.key("9")
        return told.inputs

    said, done = asyncio.run(work())
    assert (said.text, done.output) == ("Your code, please.", "12")


SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("house")
@server.tool()
def lamp(room: str) -> str:
    "Switch the lamp of a room on."
    if room == "attic":
        raise ValueError("no lamp there")
    return f"the lamp in the {room} is on"
@server.tool()
def hidden() -> str:
    "Not for the agent."
    return ""
server.run(%s)
"""


def test_mcp_servers_are_sources_of_tools(workshop: Workshop, tmp_path: Path) -> None:
    """Over stdio; the server's process is really started, and made anew when it has died."""
    pytest.importorskip("mcp")
    (tmp_path / "house.py").write_text(SERVER % "'stdio'")
    agent = Agent("a", mcp=[Mcp(command=[sys.executable, str(tmp_path / "house.py")], only=["lamp"])])

    async def work() -> list[e.ToolDone]:
        connections, told = Connections(), Told()
        await workshop.on_loop(connections.discover([agent]))
        hands = Hands(workshop, {"a": agent}, agent, {}, mcp=connections)
        hands.bind(told)
        for n, room in enumerate(("hall", "attic")):
            hands.run(f.RunTool(f"call_{n}", "lamp", json.dumps({"room": room})))
            await told.done(n + 1)
        await workshop.on_loop(connections.close())
        return await told.done(2)

    good, bad = asyncio.run(work())
    assert agent.tools.keys() == {"lamp"} and agent.tools["lamp"].parameters["properties"]["room"]["type"] == "string"
    assert (good.output, good.outcome) == ("the lamp in the hall is on", "answered")
    assert bad.outcome == "failed" and "lamp" in bad.output


def test_an_mcp_server_that_is_not_there_is_named(workshop: Workshop) -> None:
    pytest.importorskip("mcp")
    agent = Agent("a", mcp=[Mcp(command=["/nowhere/house"])])

    async def work() -> None:
        await workshop.on_loop(Connections().discover([agent]))

    with pytest.raises(AgentError, match="agent a: mcp /nowhere/house: "):
        asyncio.run(work())
