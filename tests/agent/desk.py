"""The agents of the tests: a desk with every kind of tool, and the one it hands over to."""

from __future__ import annotations

import asyncio
import time

from bargein.agent import Agent, Call, ToolError

desk = Agent(
    "desk",
    instructions="You are the desk of {house}. Today is {date}.",
    greeting="Hello, this is {house}.",
    variables={"house": "Maple House"},
    say_on_failure="Please say that again.",
    filler="One moment, please.",
    apology="I am sorry, that did not work.",
    end_call=True,
    handoffs=["billing"],
    session={"eou": {"min_delay_ms": 150}},
)
started: list[str] = []


@desk.tool
def room_temperature(room: str) -> str:
    """How warm a room of the house is.

    Args:
        room: which room
    """
    return "21 degrees" if room == "hall" else "31 degrees"


@desk.tool(timeout_s=10)
async def slow_report(call: Call) -> str:
    """A report that takes four seconds."""
    await asyncio.sleep(4)
    return "ready for " + call.variables.get("house", "nobody")


@desk.tool(cancel_on_barge_in=True)
async def cancellable_search() -> str:
    """A search that nobody waits for once the caller speaks."""
    await asyncio.sleep(3)
    return "found"


@desk.tool
def broken_lamp() -> str:
    """Switch a lamp that is broken."""
    raise ToolError("the lamp is broken")


@desk.tool(timeout_s=0.5)
def hanging_door() -> str:
    """Open a door that hangs."""
    time.sleep(2)
    return "open"


@desk.tool
def huge_answer() -> str:
    """An answer of a megabyte."""
    return "x" * 2**20


@desk.tool
async def keypad_code(call: Call) -> str:
    """Ask for a code on the telephone's keys."""
    return "code " + await call.keys(most=4, timeout_s=3)


billing = Agent("billing", instructions="You are billing.", greeting="Billing here.", speed=1.1)
