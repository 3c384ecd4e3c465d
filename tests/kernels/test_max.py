"""The largest of a row, found among integers, is NumPy's: whatever the signs, and with infinities and zeros."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels.cpu_max import largest, largest_magnitude

DRAWN = np.random.default_rng(0).standard_normal(1501).astype(np.float32)
ROWS = {
    "both signs": DRAWN,
    "positive": np.abs(DRAWN),
    "negative": -np.abs(DRAWN) - 1,
    "one": DRAWN[:1],
    "one, negative": np.float32([-2.5]),
    "zeros": np.float32([-0.0, 0.0, -0.0]),
    "masked": np.float32([-np.inf, -3, -np.inf, -4]),
    "all masked": np.float32([-np.inf, -np.inf]),
    "infinite": np.float32([1, np.inf, -2]),
    "tiny": np.float32([-1e-44, 3e-45, 1e-45]),
}


@pytest.mark.parametrize("name", ROWS)
def test_is_numpys(name: str) -> None:
    row = ROWS[name]
    assert largest(row) == row.max() and largest_magnitude(row) == np.abs(row).max()


def test_nothing_has_no_magnitude() -> None:
    assert largest_magnitude(np.empty(0, np.float32)) == 0
