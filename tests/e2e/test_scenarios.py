"""`bargein test` with ten scenarios, two of which are there to fail; `bargein chat`; `bargein call` to an agent."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bargein.client.scenario import ScenarioError, load
from bargein.http_api.cli import main

from .conftest import DATA, Served
from .upstream import Upstream

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.yaml"))
WRONG = {
    "wrong_words": "step 3: the answer does not hold '99 degrees': 'It is 21 degrees in there right now.'",
    "wrong_tool": "step 3: the tool broken_lamp({}) was not called; called: room_temperature({\"room\": \"hall\"})",
}


def test_ten_scenarios_of_which_two_fail_with_their_reasons(
    desk: tuple[Served, Upstream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served, _ = desk
    assert len(SCENARIOS) == 10
    report = tmp_path / "junit.xml"
    files = [str(f) for f in SCENARIOS]
    status = main(["test", *files, "--url", served.url, "--out", str(tmp_path), "--junit", str(report), "--jobs", "4"])
    shown = capsys.readouterr().out
    suite = ElementTree.parse(report).getroot()
    failures = {c.get("name"): f.get("message") for c in suite for f in c}
    assert failures == WRONG, shown
    assert status == 1 and "8 of 10 passed" in shown and (suite.get("tests"), suite.get("failures")) == ("10", "2")
    assert all(why in shown for why in WRONG.values())
    page = (tmp_path / "index.html").read_text()
    assert page.count("<audio") == 10 and "99 degrees" in page
    with wave.open(str(tmp_path / "temperature.wav")) as w:
        assert w.getnchannels() == 2 and w.getnframes() > 24000 * 3


def test_chat_in_the_terminal(
    desk: tuple[Served, Upstream], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, _ = desk
    monkeypatch.setattr("sys.stdin", io.StringIO("What is the temperature of the kitchen?\nNow call it an end.\n"))
    assert main(["chat", "--url", served.url, "--model", "desk"]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "agent: Hello, this is Maple House.",
        '  [room_temperature {"room": "kitchen"}]',
        "  [-> 31 degrees]",
        "agent: It is 31 degrees in there right now.",
        "  [end_call {}]",
        "  [-> ok]",
        "agent: Goodbye.",
        "  [the call has ended: 1000 agent_ended]",
    ]


def test_the_readmes_agent_answers_a_call_from_the_command_line(
    desk: tuple[Served, Upstream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served, _ = desk
    question, out = str(DATA / "questions" / "capital.wav"), str(tmp_path / "reply.wav")
    assert main(["call", question, "--url", served.url, "--model", "porter", "--out", out]) == 0
    shown = capsys.readouterr().out
    assert "greeting: Good evening, this is Maple House. How can I help you?" in shown
    assert "It is 21 degrees in there right now." in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [("steps: 5", "steps"), ("steps: [{shout: x}]", "shout"), ("steps: [{say: a, type: b}]", "step 1: give one of"),
     ("a: [", "not valid YAML"), ("steps: [{hear: {tool: {}}}]", "name")],
)  # fmt: skip
def test_a_wrong_scenario_is_told_with_its_key(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=problem) as raised:
        load(file)
    assert str(file) in str(raised.value)
