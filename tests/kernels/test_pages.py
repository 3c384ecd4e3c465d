"""Attention over pages is attention over the same keys and values in one piece, to the bit, in any pages and any company."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels import cpu, reference
from bargein.kernels.reference import Caches, Places

RNG = np.random.default_rng(17)
LAYERS, LAYER, SCALE = 2, 1, 0.125
ONE_PIECE = 512
# Tokens of the call, position of the first, window: at a page's beginning, inside of one, across several; a window that
# begins inside of a page, and one longer than everything.
CALLS = [
    (1, 0, 0), (1, 90, 16), (1, 127, 0), (1, 128, 64), (2, 15, 0), (2, 63, 5), (7, 3, 4), (7, 120, 0), (7, 61, 40), (64, 0, 0),
    (64, 100, 0), (64, 9, 32), (64, 200, 1000), (64, 65, 64),
]  # fmt: skip


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Sequence:
    """What a sequence holds, and the rows of the call."""

    def __init__(self, heads: int, kv_heads: int, rows: int, start: int, size: int = 64) -> None:
        self.rows, self.start = rows, start
        self.q = normal(rows, heads, size)
        self.keys, self.values = normal(kv_heads, start + rows, size), normal(kv_heads, start + rows, size)

    def new(self, kind: str) -> np.ndarray:
        return np.ascontiguousarray(getattr(self, kind)[:, self.start :].transpose(1, 0, 2))

    def pages(self, page: int) -> list[np.ndarray]:
        """All but the call's rows, in pages that lie in no order; what is unused holds NaN."""
        kv_heads, _, size = self.keys.shape
        count = -(-(self.start + self.rows) // page)
        slab = np.full((count + 3, LAYERS, 2, kv_heads, page, size), np.nan, np.float32)
        blocks = [slab[n] for n in RNG.permutation(count + 3)[:count]]
        for t in range(self.start):
            for n, kept in enumerate((self.keys, self.values)):
                blocks[t // page][LAYER, n, :, t % page] = kept[:, t]
        return blocks


def caches(sequences: list[Sequence], page: int) -> Caches:
    blocks = [s.pages(page) for s in sequences]
    places = Places(
        np.array([block.ctypes.data for of in blocks for block in of]), np.cumsum([0, *map(len, blocks)]),
        np.cumsum([0, *(s.rows for s in sequences)]), np.array([s.start for s in sequences]),
    )  # fmt: skip
    return Caches(blocks, places, page)


def attend(sequences: list[Sequence], page: int, window: int, ops: object = cpu) -> np.ndarray:
    q, k, v = (np.concatenate(parts) for parts in (
        [s.q for s in sequences], [s.new("keys") for s in sequences], [s.new("values") for s in sequences],
    ))  # fmt: skip
    result: np.ndarray = ops.attend_pages(q, k, v, caches(sequences, page), LAYER, SCALE, window)  # type: ignore[attr-defined]
    return result


@pytest.mark.parametrize("heads", [(4, 1), (9, 3), (2, 2)])
@pytest.mark.parametrize(("rows", "start", "window"), CALLS)
def test_in_any_pages(rows: int, start: int, window: int, heads: tuple[int, int]) -> None:
    one = Sequence(*heads, rows, start)
    whole = attend([one], ONE_PIECE, window)
    np.testing.assert_allclose(
        whole, reference.attend(one.q, one.keys, one.values, start, SCALE, window), rtol=1e-4, atol=2e-6
    )
    for page in (1, 5, 16, 32, 64, 128):
        np.testing.assert_array_equal(attend([one], page, window), whole)


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("page", [16, 64])
def test_in_any_company_and_any_chunk(page: int, window: int) -> None:
    """Also where there is enough to do for the threads."""
    sequences = [Sequence(4, 1, rows, start) for rows, start in ((1, 130), (64, 300), (7, 0), (2, 63), (1, 64))]
    together = attend(sequences, page, window)
    at = 0
    for one in sequences:
        np.testing.assert_array_equal(together[at : at + one.rows], attend([one], page, window))
        at += one.rows
    long = sequences[1]
    rows = attend([long], page, window)
    for m in range(0, long.rows, 9):
        token = Sequence(4, 1, 1, long.start + m)
        token.q, token.keys, token.values = long.q[m : m + 1], long.keys[:, : 301 + m], long.values[:, : 301 + m]
        np.testing.assert_array_equal(attend([token], page, window)[0], rows[m])


@pytest.mark.parametrize(("rows", "start", "window"), [(1, 20, 0), (7, 12, 9), (20, 3, 0)])
def test_the_definition_appends_and_attends(rows: int, start: int, window: int) -> None:
    sequences = [Sequence(4, 2, rows, start, 16), Sequence(4, 2, 1, 33, 16)]
    expected = [reference.attend(s.q, s.keys, s.values, s.start, SCALE, window) for s in sequences]
    np.testing.assert_array_equal(attend(sequences, 8, window, reference), np.concatenate(expected))
    np.testing.assert_allclose(attend(sequences, 8, window), np.concatenate(expected), rtol=1e-4, atol=1e-5)


def test_keys_and_values_are_where_they_belong() -> None:
    """Those of other tokens and layers are not touched."""
    one = Sequence(4, 2, 7, 12)
    there = caches([one], 8)
    before = [block.copy() for block in there.blocks[0]]
    cpu.attend_pages(one.q, one.new("keys"), one.new("values"), there, LAYER, SCALE, 0)
    for n, kept in enumerate((one.keys, one.values)):
        np.testing.assert_array_equal(np.concatenate([b[LAYER, n] for b in there.blocks[0]], axis=1)[:, :19], kept)
    for was, now in zip(before, there.blocks[0], strict=True):
        np.testing.assert_array_equal(was[0], now[0])
    np.testing.assert_array_equal(before[2][LAYER, :, :, 3:], there.blocks[0][2][LAYER, :, :, 3:])


def test_what_the_fast_code_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="divisible by 8"):
        attend([Sequence(2, 1, 1, 3, 12)], 8, 0)
    one = Sequence(4, 1, 3, 14)
    there = caches([one], 8)
    short = there._replace(places=there.places._replace(bounds=np.array([0, 2])))
    with pytest.raises(ValueError, match="too few pages"):
        cpu.attend_pages(one.q, one.new("keys"), one.new("values"), short, LAYER, SCALE, 0)
