"""A seeded walker: every kind of input in every phase, the state checked after each step, the trace at the end."""

from __future__ import annotations

import os

import pytest

from bargein.conformance.rules import check
from bargein.conformance.walker import trace, walk

BUDGET = int(os.environ.get("FUZZ_SEEDS", "30"))


@pytest.mark.parametrize("seed", range(BUDGET))
def test_any_order_of_inputs_keeps_the_invariants(seed: int) -> None:
    assert check(trace(walk(seed, 600))) == []


def test_a_long_walk() -> None:
    assert check(trace(walk(1_000_003, 5000))) == []
