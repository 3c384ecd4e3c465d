"""What steps cost, learned from steps: sizes, seconds."""

from __future__ import annotations

import random

import pytest

from bargein.engine.learned import StepCost


def learned(steps: list[tuple[int, float]]) -> StepCost:
    cost = StepCost()
    for size, seconds in steps:
        cost.took(size, seconds)
    return cost


def test_nothing_is_known_at_first() -> None:
    cost = StepCost()
    assert cost.parts is None and cost.expected(5) == 0.0
    assert cost.most(0.008, 4, 32) == 32 and cost.more(0.008, 6) == 6


def test_a_fixed_part_and_a_part_for_each_are_told_apart_also_in_noise() -> None:
    rng = random.Random(1)
    cost = learned([(n, 0.006 + 0.0015 * n + rng.uniform(-0.001, 0.001)) for _ in range(60) for n in (1, 2, 8, 32)])
    assert cost.expected(16) == pytest.approx(0.030, rel=0.05)
    assert cost.most(0.016, 4, 32) in (6, 7) and cost.more(0.008, 16) in (5, 6)
    assert cost.most(0.001, 4, 32) == 4, "less is never asked for"


def test_steps_of_one_size_say_nothing_of_a_fixed_part() -> None:
    cost = learned([(8, 0.016)] * 20)
    assert cost.expected(8) == pytest.approx(0.016) and cost.expected(16) == pytest.approx(0.032)


def test_what_was_long_ago_is_forgotten() -> None:
    cost = learned([(n, 0.02 * n) for _ in range(50) for n in (1, 4)] + [(n, 0.002 * n) for _ in range(200) for n in (1, 4)])
    assert cost.expected(4) == pytest.approx(0.008, rel=0.05)


@pytest.mark.parametrize("steps", [[(1, 0.02), (32, 0.01)], [(2, 0.01), (2, 0.01), (32, 0.5)]])
def test_nothing_costs_less_than_nothing(steps: list[tuple[int, float]]) -> None:
    fixed, each = learned(steps).parts or (-1.0, -1.0)
    assert fixed >= 0 and each >= 0
