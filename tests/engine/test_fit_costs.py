"""A table of costs made from real loads: here from simulated ones, whose table is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bargein.engine.costs import load_costs
from bargein.engine.fit_costs import LANES, line
from bargein.engine.simulate import Simulation
from bargein.http_api.cli import main

TABLE = Path(__file__).parent.parent.parent / "bench" / "costs_two_cores.json"
FASTER = {"stt": 0.5, "turn": 0.8, "chat": 0.4, "tts": 0.7}


def load(calls: int, **other: Any) -> dict[str, Any]:
    """What `bench load` would tell of a machine whose lanes are FASTER, and where a call takes 0.04 cores beside."""
    machine = load_costs(TABLE).scaled(FASTER, 0.04, 0.1)
    figures = Simulation(machine, calls, 400, seed=2).run()
    lanes = {lane: {"busy": took / 400, "answered": figures.answered.get(lane, 0)} for lane, took in figures.lanes.items()}
    lanes["vad"] = {"busy": 0.01 * calls, "answered": 0}
    server = {"lanes": lanes, "front_cores": 0.06 + 0.02 * calls}
    return {"calls": calls, "seconds": 400, "server": server} | {
        "callers_cores": 0.04 + 0.01 * calls
    } | other  # fmt: skip


def test_a_table_is_found_again_in_what_it_leads_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads, made = tmp_path / "loads.jsonl", tmp_path / "costs.json"
    loads.write_text("".join(json.dumps(load(n)) + "\n" for n in (3, 8)))
    assert main(["bench", "costs", str(loads), "--like", str(TABLE), "--write", str(made), "--what", "a test"]) == 0
    was, now = load_costs(TABLE), load_costs(made)
    assert now.token(1) / was.token(1) == pytest.approx(FASTER["chat"], rel=0.1)
    for name, lane in (("final", "stt"), ("turn", "turn"), ("judge", "chat"), ("say", "tts")):
        assert now.work[name][0] == was.work[name][0]
        assert now.work[name][1] / was.work[name][1] == pytest.approx(FASTER[lane], rel=0.1)
    assert now.beside == pytest.approx(0.04, abs=1e-3) and now.always == pytest.approx(0.1, abs=1e-3)
    assert "a test: scaled to loads of 3, 8 calls" in made.read_text() and "beside the workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no load in it"),
        ("not JSON", "not the figures"),
        (json.dumps({"calls": 4, "seconds": 10, "server": {"lanes": {"chat": {"busy": 1, "answered": 0}}}}), "not the figures"),
        (json.dumps({"calls": 4, "seconds": 10, "server": 3}), "not the figures"),
        (json.dumps({"calls": 4, "words_transcribed": 9}), "a recording was transcribed beside"),
    ],
)
def test_what_is_no_load_is_refused_by_name(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = tmp_path / "loads.jsonl"
    loads.write_text(text)
    assert main(["bench", "costs", str(loads), "--like", str(TABLE), "--write", str(tmp_path / "out.json")]) == 2
    assert told in (said := capsys.readouterr().out) and "loads.jsonl" in said
    assert not (tmp_path / "out.json").exists()


def test_every_lane_of_a_turn_is_scaled() -> None:
    assert set(LANES) == set(Simulation(load_costs(TABLE), 2, 60).run().lanes)


def test_a_straight_line() -> None:
    assert line([(2, 0.3), (4, 0.5)]) == pytest.approx((0.1, 0.1))
    assert line([(4, 0.5)]) == pytest.approx((0.125, 0.0))
    assert line([(2, 0.5), (4, 0.3)]) == (0.0, pytest.approx(0.4)), "more calls never take less"
