"""The fixtures, the settings' bounds, and the tools around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bargein.conformance import bounds, fixture
from bargein.conformance.play import Play
from bargein.http_api.cli import main
from bargein.realtime import events as e
from bargein.realtime.settings import FIELDS, Limits

FIXTURES = fixture.load()
HELD = json.loads(bounds.FILE.read_text())


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture(name: str) -> None:
    assert fixture.run(name, FIXTURES[name]).problems == []


def test_there_are_enough_and_each_says_what_it_proves() -> None:
    assert len(FIXTURES) >= 45
    for name, held in FIXTURES.items():
        assert held["about"] and held["spec"] and held["must"] and held["trace"], name
        assert fixture.dump(held) == (fixture.FOLDER / f"{name}.json").read_text(), name
    tags = {tag for held in FIXTURES.values() for tag in held["spec"]}
    assert {f"I{n}" for n in range(1, 12)} <= tags
    assert {f"W{n}" for n in range(1, 18) if n not in (5, 12)} <= tags, "W5 does not exist, W12 is for live traces"


@pytest.mark.parametrize("field", FIELDS, ids=lambda x: x.path)
def test_bounds(field) -> None:  # type: ignore[no-untyped-def]
    row = HELD[field.path]
    assert list(bounds.check(field, row["good"], row["bad"])) == []


def test_bounds_name_no_setting_that_is_not_there() -> None:
    assert set(HELD) == {x.path for x in FIELDS}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda x: x["must"].append(["response.done", {"response.status": "failed"}]), "never came"),
        (lambda x: x["must"].reverse(), "never came"),
        (lambda x: x.update(never=["response.done"]), "must not come"),
        (lambda x: x.update(ends={"vad": "Speaking"}), "vad ends in Silent"),
        (lambda x: x.update(chat=[["user", "Else."]]), "chat was given"),
        (lambda x: x.update(why=["hard_cap"]), "reasons"),
        (lambda x: x["trace"].pop(), "+{"),
        (lambda x: x["play"].append(["verdict"]), "TypeError"),
    ],
)
def test_a_fixture_that_expects_something_else_fails(change, complaint: str) -> None:  # type: ignore[no-untyped-def]
    held = json.loads(json.dumps(FIXTURES["turn_clean"]))
    change(held)
    assert any(complaint in problem for problem in fixture.run("x", held).problems)


def test_what_is_recorded_is_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = dict(FIXTURES["cancel_while_streaming"])
    path = tmp_path / "x.json"
    path.write_text(json.dumps({k: v for k, v in held.items() if k != "trace"}))
    assert main(["conformance", "record", str(path)]) == 0
    assert json.loads(path.read_text()) == held
    path.write_text(json.dumps(held | {"never": ["response.created"]}))
    assert main(["conformance", "record", str(path)]) == 1 and "must not come" in capsys.readouterr().out


def test_the_command_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "run", "dialect_"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"
    assert main(["conformance", "run", "no such fixture"]) == 1


def test_sealed_buffers_are_kept_by_number_but_no_transcript_is_forgotten() -> None:
    p = Play(turn_detection=None, limits=Limits(sealed_buffer_retention_count=2))
    for _ in range(4):
        p.speech(640)
        p.tell(e.CommitBuffer(p.at))
    assert len(p.state.sealed) == 4, "all of them wait for their words"
    for n in range(4):
        asked = [x for x in p.effects if type(x).__name__ == "FlushStt"][n]
        p.words(f"{n}", item_id=asked.item_id, flush=asked.flush)  # type: ignore[attr-defined]
    p.speech(640)
    p.tell(e.CommitBuffer(p.at))
    assert len(p.state.sealed) == 2 and p.names().count("TranscriptionCompleted") == 4
