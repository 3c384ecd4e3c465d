"""The simulator: the same seed gives the same figures, and what should help helps."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from bargein.engine import simulate
from bargein.engine.costs import Costs, load_costs
from bargein.engine.simulate import Simulation
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
    broken = tmp_path / "costs.json"
    broken.write_text('{"ms": {}}')
    assert main(["bench", "schedule", "--costs", str(broken)]) == 2
    assert "costs.json: not a table of costs" in capsys.readouterr().out
