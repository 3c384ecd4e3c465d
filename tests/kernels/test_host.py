"""Weights side by side in memory: the same values in the same tuples and dictionaries, shared where they were."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bargein.kernels import host
from bargein.kernels.reference import Int8Matrix, pack_rows


class Layer(NamedTuple):
    matrix: Int8Matrix
    bias: np.ndarray
    name: str


def test_place_copies_everything_large_into_one_arena() -> None:
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((70, 33)).astype(np.float32)
    tiny, turned = np.ones(4, np.float32), rng.standard_normal((90, 80)).T
    matrix = pack_rows(rng.integers(-127, 127, (333, 77)).astype(np.int8), np.ones(333, np.float32))
    given = {"layers": (Layer(matrix, shared, "one"), Layer(matrix, shared, "two")), "rest": [tiny, turned, None, 3]}
    placed = host.place(given)
    one, two = placed["layers"]
    assert type(one) is Layer and type(one.matrix) is Int8Matrix and (one.name, two.name) == ("one", "two")
    assert np.array_equal(one.matrix.packed, matrix.packed) and np.array_equal(one.bias, shared)
    assert one.bias is two.bias and one.matrix.packed is two.matrix.packed, "shared as before"
    assert one.matrix.rows == 333 and one.matrix.packed.flags.c_contiguous
    assert not np.shares_memory(one.bias, shared) and np.shares_memory(one.bias, two.bias)
    assert all(x.ctypes.data % 64 == 0 for x in (one.matrix.packed, one.bias))
    assert one.bias.base is not None and one.matrix.packed.base is one.bias.base, "one allocation"
    assert placed["rest"][0] is tiny and placed["rest"][1] is turned and placed["rest"][2:] == [None, 3]


def test_place_of_nothing() -> None:
    assert host.place({"a": (), "b": None}) == {"a": (), "b": None}
