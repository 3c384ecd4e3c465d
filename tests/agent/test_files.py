"""Agents from files: what is said of a wrong one, what a session begins with, what chat is told of a tool."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from bargein.agent import Agent, AgentError, Call
from bargein.agent.load import load
from bargein.http_api.agents import Agents
from bargein.http_api.cli import main
from bargein.realtime.settings import Settings

TOML = """
instructions = "You are {role}."
greeting = "Hello."
speed = 1.2
language = "en"
say_on_failure = "Once more?"
end_call = true
[variables]
role = "a porter"
[chat]
base_url = "http://127.0.0.1:1/v1"
model = "big"
[session.turn_detection]
silence_duration_ms = 250
"""


def write(folder: Path, text: str, name: str = "porter.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_toml_file_is_an_agent_of_its_own_name(tmp_path: Path) -> None:
    (agent,) = load([write(tmp_path, TOML)]).values()
    assert (agent.name, agent.tools.keys()) == ("porter", {"end_call"})
    agents = Agents((str(tmp_path / "porter.toml"),))
    start = agents.begin(Settings(), "porter", {"role": "a guard", "other": "x"})
    s = start.settings
    assert (s.instructions, s.speed, s.agent.greeting) == ("You are a guard.", 1.2, "Hello.")
    assert s.turn_detection is not None and s.turn_detection.silence_duration_ms == 250
    assert s.agent.tools[0]["name"] == "end_call" and s.agent.say_on_failure == "Once more?"
    assert agents.begin(Settings(), "gpt-realtime", {}).settings.instructions == "You are a porter."
    assert agents.begin(Settings(), "gemma-3-270m", {}).settings == Settings()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("greting = 'x'", "greting: there is no such key"),
        ("greeting = 5", "greeting: must be a str"),
        ("speed = 9", "speed: .*must be a number from 0.25 to 1.5"),
        ("profile = 'rapid'", "profile: .*must be one of balanced, fast, patient"),
        ("[session.turn_detection]\nsilence_duration_ms = 9999", "session.turn_detection.silence_duration_ms: "),
        ("[session]\nfoo = 1", "session.foo: unknown setting"),
        ("language = 5", "language: "),
        ("name = 'a b'", "name: 'a b' must be"),
        ("[variables]\nx = 1", "variables.x: "),
        ("[chat]\nurl = 'x'", "chat.url: there is no such key"),
        ("handoffs = ['nobody']", "handoffs: there is no agent nobody"),
        ("tools = ['gone.py:x']", "gone.py: no such file"),
        ("[[mcp]]\nurl = 'x'\ncommand = ['y']", "mcp: give a command or a url"),
        ("x = ", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_with_its_key(tmp_path: Path, text: str, problem: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(AgentError, match=problem) as raised:
        load([file])
    assert str(tmp_path) in str(raised.value) or "agent porter" in str(raised.value)


def test_a_wrong_agent_ends_the_server_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "speed = 9")
    assert main(["serve", "--agent", str(file), "--port", "0"]) == 2
    assert f"{file}: speed: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("def t(x): 'doc'", "tool t: parameter x has no type"),
        ("def t(x: str): pass", "tool t: its docstring"),
        ("def t(*x: str): 'doc'", "tool t: parameter x must be a named one"),
        ("def t(x: object, y: socket.socket): 'doc'", "NameError|socket"),
    ],
)
def test_a_wrong_tool_is_told_with_its_line(tmp_path: Path, body: str, problem: str) -> None:
    text = f"from bargein.agent import Agent\na = Agent('x')\n@a.tool\n{body}\n"
    file = write(tmp_path, text, "wrong.py")
    with pytest.raises(AgentError, match=problem) as raised:
        load([file])
    assert f"{file}:" in str(raised.value)


def test_a_python_file_without_an_agent(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="it makes no Agent"):
        load([write(tmp_path, "x = 1", "empty.py")])


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Address(msgspec.Struct):
    street: str
    number: int


def test_a_schema_from_types_and_back() -> None:
    agent = Agent("a")

    @agent.tool
    async def order(
        call: Call, what: str, size: Size, to: Address, count: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1,
        how: Literal["fast", "slow"] = "fast", notes: list[str] | None = None,
    ) -> str:  # fmt: skip
        """Order something.
        It is delivered.

        Args:
            what: the thing
        """
        return what

    tool = agent.tools["order"]
    assert tool.description == "Order something. It is delivered."
    told = tool.for_chat()["parameters"]
    assert told["type"] == "object" and told["required"] == ["what", "size", "to"] and "call" not in told["properties"]
    assert told["properties"]["what"] == {"description": "the thing", "type": "string"}
    assert told["properties"]["count"]["maximum"] == 9 and "Address" in told["$defs"]
    assert tool.signature is not None and tool.signature.context == "call"
    given = tool.signature.arguments('{"what":"tea","size":"small","to":{"street":"Elm","number":"5"},"count":"2"}')
    assert (given["size"], given["to"].number, given["count"], given["how"]) == (Size.SMALL, 5, 2, "fast")
    for text in ('{"what":"tea"}', "[1]", '{"what":"tea","size":"huge","to":{"street":"a","number":1}}', "{"):
        with pytest.raises(ValueError):
            tool.signature.arguments(text)


def test_two_tools_of_one_name_are_refused() -> None:
    agent = Agent("a", end_call=True)
    with pytest.raises(AgentError, match="there are two"):

        @agent.tool
        def end_call() -> str:
            """Again."""
            return ""


def test_variables_fill_what_is_declared_and_leave_other_braces() -> None:
    agent = Agent("a", instructions='Say {word} as {"json": 1} on {date}. {other}', variables={"word": "hello"})
    text = agent.fill(agent.instructions, {"word": "good day", "other": "no"})
    assert text.startswith('Say good day as {"json": 1} on ') and text.endswith("{other}") and "{date}" not in text
