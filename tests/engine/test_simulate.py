"""The simulator: the same seed gives the same figures, and what should help helps."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from bargein.engine import schedule, simulate
from bargein.engine.costs import Costs, load_costs
from bargein.engine.shares import SURE
from bargein.engine.simulate import Beside, Simulation
from bargein.http_api import admission
from bargein.http_api.cli import main

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture(scope="module")
def costs() -> Costs:
    return load_costs(BENCH / "costs_two_cores.json")


def test_a_seed_repeats_and_another_differs(costs: Costs) -> None:
    one, two, other = (Simulation(costs, 4, 120, seed).run() for seed in (1, 1, 2))
    assert one == two and one.delays != other.delays
    assert min(one.delays) > 0.385, "no reply before the stop"


def test_as_many_engines_as_calls_are_as_many_machines(costs: Costs) -> None:
    args = schedule.parser().parse_args(["--engines", "3", "--seconds", "60"])
    figures = schedule.simulated(costs, 4, args)
    assert [f.delays for f in figures] == [Simulation(costs, n, 60, seed).run().delays for n, seed in ((2, 1), (1, 2), (1, 3))]


def test_more_calls_wait_longer_and_miss_more(costs: Costs) -> None:
    few, many, far_too_many = (Simulation(costs, n, 200).run() for n in (2, 8, 24))
    assert sum(few.delays) / len(few.delays) < sum(many.delays) / len(many.delays)
    assert few.missed <= many.missed < far_too_many.missed
    assert few.busy < many.busy < far_too_many.busy <= 1.02


def test_a_second_worker_helps(costs: Costs) -> None:
    one_worker, here = (Simulation(c, 8, 300).run() for c in (replace(costs, workers=1), costs))
    assert statistics.median(here.delays) < statistics.median(one_worker.delays)
    assert here.missed < one_worker.missed


def test_tokens_cost_what_the_table_says(costs: Costs) -> None:
    assert costs.token(1) == pytest.approx(0.017) and costs.token(2) == pytest.approx(0.026)
    assert costs.token(3) == pytest.approx((0.026 + 0.046) / 2)
    assert costs.token(32) == pytest.approx(2 * costs.token(16))


@pytest.fixture(scope="module")
def newer() -> Costs:
    return load_costs(BENCH / "costs_two_newer_cores.json")


def test_recordings_get_on_and_leave_calls_their_time(newer: Costs) -> None:
    alone, beside = (Simulation(newer, 8, 300, beside=Beside(recordings=n)).run() for n in (0, 1))
    idle = Simulation(newer, 0, 300, beside=Beside(recordings=1)).run()
    assert 0.2 * idle.windows < beside.windows < idle.windows, "what calls leave is a recording's"
    assert statistics.median(beside.delays) < 1.25 * statistics.median(alone.delays)


def test_a_recording_keeps_its_share_of_a_machine_that_calls_fill(newer: Costs) -> None:
    full = Simulation(newer, 40, 200, beside=Beside(recordings=1)).run()
    share = full.classes["bulk"] / sum(full.classes.values())
    assert full.busy > 0.9 and share == pytest.approx(SURE["bulk"], rel=0.1)


def test_requests_are_answered_beside_calls_and_are_late_before_them(newer: Costs) -> None:
    some, flood = (Simulation(newer, 8, 200, beside=Beside(requests=n)).run() for n in (0.2, 20.0))
    alone = Simulation(newer, 8, 200).run()
    assert some.requests_missed < 0.1 < flood.requests_missed
    assert flood.missed < 0.2 < flood.requests_missed, "callers go first"
    assert statistics.median(some.delays) < 1.15 * statistics.median(alone.delays)


def test_a_table_without_a_window_is_no_table_of_recordings(newer: Costs) -> None:
    work = {name: cost for name, cost in newer.work.items() if name != "window"}
    with pytest.raises(ValueError, match="'window'"):
        Simulation(replace(newer, work=work), 1, 10, beside=Beside(recordings=1))


def test_steps_of_several_streams_in_one_carry_more_calls() -> None:
    h200 = load_costs(BENCH / "costs_h200.json")
    single, together = (Simulation(h200, 240, 30, together=way).run() for way in (False, True))
    assert together.missed < single.missed and statistics.median(together.delays) < statistics.median(single.delays)
    assert together.busy < single.busy
    a_reply = [figures.lanes["chat"] / figures.answered["chat"] for figures in (single, together)]
    assert a_reply[1] < 0.9 * a_reply[0], "prompts share the chat's desk, and are read together too"


def test_a_step_takes_no_more_together_than_is_allowed() -> None:
    h200 = load_costs(BENCH / "costs_h200.json")
    one, sixteen = (Simulation(h200, 240, 30, together=True, most=n).run() for n in (1, 16))
    a_reply = [figures.lanes["chat"] / figures.answered["chat"] for figures in (one, sixteen)]
    assert a_reply[0] > 1.2 * a_reply[1], "one at a time, nothing is shared"


def test_it_is_busy_when_the_server_is(costs: Costs) -> None:
    names = ("BUSY", "CALM", "BUSY_OVER_S")
    assert [getattr(simulate, n) for n in names] == [getattr(admission, n) for n in names]
    simulation = Simulation(costs, 24, 60)
    simulation.run()
    assert simulation._is_busy


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "schedule", "--costs", str(BENCH / "costs_h200.json"), "--calls", "1,50", "--seconds", "30"]
    assert main(argv) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["calls", "1", "50"]
    loaded = ["--calls", "3", "--engines", "2", "--requests", "0.5", "--recordings", "1", "--together", "--seconds", "30"]
    assert main(["bench", "schedule", "--costs", str(BENCH / "costs_two_newer_cores.json"), *loaded]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[0] == "3" and "requests: first token" in row and "recordings: " in row and "by class: bulk " in row
    for wrong in (["--engines", "0"], ["--batch", "0"], ["--calls", "-1"], ["--calls", "many"], ["--requests", "-1"]):
        assert main(["bench", "schedule", *wrong]) == 2
    capsys.readouterr()
    broken = tmp_path / "costs.json"
    broken.write_text('{"ms": {}}')
    assert main(["bench", "schedule", "--costs", str(broken)]) == 2
    assert "costs.json: not a table of costs" in capsys.readouterr().out
