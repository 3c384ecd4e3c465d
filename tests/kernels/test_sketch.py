"""The two-stage head: the 4-bit sketch agrees with its definition, and what it keeps has the exact scores."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels import cpu, reference


def matrix(rows: int, columns: int, seed: int = 0) -> reference.Int8Matrix:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(rows, columns)).astype(np.float32) * rng.uniform(0.1, 2.0, (rows, 1)).astype(np.float32)
    return reference.pack_rows(*reference.quantize_rows(weight))


@pytest.mark.parametrize(("rows", "columns"), [(64, 8), (640, 64), (1003, 128), (4096, 640), (7, 4)])
def test_sketch_and_scores_are_the_references(rows: int, columns: int) -> None:
    weight = matrix(rows, columns, rows)
    ours, theirs = cpu.sketch_of(weight), reference.sketch_of(weight)
    np.testing.assert_array_equal(ours.packed, theirs.packed)
    np.testing.assert_array_equal(ours.scale, theirs.scale)
    x = np.random.default_rng(1).normal(size=(3, columns)).astype(np.float32)
    np.testing.assert_allclose(
        cpu.sketch_scores(x, ours, columns), reference.sketch_scores(x, theirs, columns), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(("rows", "columns", "count"), [(640, 64, 5), (1003, 128, 3), (4096, 640, 16), (64, 8, 256)])
def test_what_is_kept_is_exact_and_holds_the_sketchs_best(rows: int, columns: int, count: int) -> None:
    weight = matrix(rows, columns)
    sketch = cpu.sketch_of(weight)
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(3, columns)).astype(np.float32)
        out, wanted = cpu.head_top(x, weight, sketch, count), reference.head_top(x, weight, sketch, count)
        np.testing.assert_array_equal(np.isfinite(out), np.isfinite(wanted))
        exact, rough = cpu.linear_int8(x, weight), reference.sketch_scores(x, sketch, columns)[:, :rows]
        for m in range(3):
            kept = np.flatnonzero(np.isfinite(out[m]))
            np.testing.assert_array_equal(out[m, kept], exact[m, kept])
            assert set(np.argsort(-rough[m])[: min(count, rows)]) <= set(kept)
            np.testing.assert_array_equal(out[m], cpu.head_top(x[m : m + 1], weight, sketch, count)[0])


def test_a_sketch_needs_columns_in_fours() -> None:
    with pytest.raises(ValueError, match="in fours"):
        cpu.sketch_of(matrix(8, 6))
