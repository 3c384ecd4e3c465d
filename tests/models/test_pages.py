"""Who uses which page: counted right whatever sequences do, and no sequence sees what another one writes."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter

import numpy as np
import pytest

from bargein.models import decoder
from bargein.models.pages import KV, HostPool, Pool, reserve

from .test_decoder_chunks import CFG, weights  # noqa: F401


def held(pool: Pool, kvs: list[KV]) -> None:
    """Every page has the users it has; the others are free."""
    assert pool.users() == Counter(page for kv in kvs for page in kv.pages)
    for kv in kvs:
        assert len(kv.tokens) == kv.length <= len(kv.pages) * pool.page


def live_on(w: decoder.Weights, rng: random.Random, kvs: list[KV]) -> None:
    """One thing that happens to sequences."""
    n = rng.randrange(len(kvs))
    kv = kvs[n]
    match rng.choice(["read", "read", "read", "together", "take over", "continue", "rewind", "close"]):
        case "read":
            count = min(rng.randrange(1, 20), CFG.max_positions - kv.length)
            if count:
                decoder.extend(w, CFG, kv, [rng.randrange(CFG.vocab) for _ in range(count)])
        case "together":
            some = [(one, [rng.randrange(CFG.vocab)]) for one in kvs if one.length < CFG.max_positions]
            if some:
                decoder.forward_spans(w, CFG, some)
        case "take over" if len(kvs) < 8:
            kvs.append(decoder.copy_kv(kv, rng.randrange(kv.length + 1)))
        case "continue":
            other = rng.choice(kvs)
            kvs[n] = decoder.copy_kv(other, rng.randrange(other.length + 1))
        case "rewind":
            decoder.rewind(kv, rng.randrange(kv.length + 1))
        case "close" if len(kvs) > 2:
            del kvs[n]


@pytest.mark.parametrize("seed", range(6))
def test_random_lives(weights: decoder.Weights, seed: int) -> None:  # noqa: F811
    """Sequences read, write, are taken over, cut and closed; each says what a fresh one would after its tokens."""
    rng = random.Random(seed)
    pool = decoder.new_pool(CFG, rng.choice([4, 8, 16]))
    kvs = [decoder.new_kv(CFG, pool) for _ in range(3)]
    for _ in range(150):
        live_on(weights, rng, kvs)
        held(pool, kvs)
    for kv in kvs:
        if kv.length == CFG.max_positions:
            decoder.rewind(kv, kv.length - 1)
        expected = decoder.prefill(weights, CFG, decoder.new_kv(CFG), [*kv.tokens, 5], 16)
        np.testing.assert_array_equal(decoder.forward(weights, CFG, kv, [5]), expected)
    held(pool, kvs)
    del kvs, kv
    assert pool.num_used == 0


def test_only_the_page_where_two_part_is_copied() -> None:
    pool = decoder.new_pool(CFG, 8)
    one = decoder.new_kv(CFG, pool)
    reserve(one, 21)
    one.length, one.tokens = 21, [3] * 21
    two, three = decoder.copy_kv(one, 16), decoder.copy_kv(one, 19)
    assert pool.num_used == 3
    reserve(two, 1)  # begins a page
    assert pool.num_used == 4 and two.pages[:2] == one.pages[:2]
    reserve(three, 1)
    assert pool.num_used == 5 and three.pages[:2] == one.pages[:2] and three.pages[2] != one.pages[2]
    reserve(one, 1)  # alone on its last page again
    assert pool.num_used == 5
    decoder.rewind(one, 12)
    assert pool.num_used == 4, "its last page came back; its second one others still read"
    reserve(one, 1)
    assert pool.num_used == 5


def test_memory_comes_in_slabs_and_goes_back() -> None:
    class Small(HostPool):
        SLAB = 4 * 3 * 2 * 2 * 8 * 32 * 4  # four pages

    pool = Small((3, 2, 2, 8, 32))
    assert pool.blocks == [] and pool.page_bytes == Small.SLAB // 4
    kvs = [KV(pool) for _ in range(5)]
    for kv in kvs:
        reserve(kv, 24)
    assert (pool.num_used, len(pool.blocks)) == (15, 16)
    assert all(address % 64 == 0 for address in pool.addresses)
    del kvs[0], kv
    reserve(again := KV(pool), 24)
    assert len(pool.blocks) == 16 and max(again.pages) < 15, "what was given back is used first"
    del kvs[1:]
    assert len(pool.blocks) == len(pool.addresses) == 12 and pool.num_used == 6, "one free slab is kept"
    del kvs[:], again
    assert (len(pool.blocks), pool.num_free, pool.num_used) == (4, 4, 0)


def test_sequences_end_on_any_thread_and_in_the_garbage_collector() -> None:
    """As where a stream's generator keeps its cache in a cycle, and the cycle is found while a page is taken."""
    pool = decoder.new_pool(CFG, 4)
    first = decoder.new_kv(CFG, pool)
    reserve(first, 40)
    first.length, first.tokens = 40, [1] * 40
    problems: list[BaseException] = []

    def live(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                kv = decoder.copy_kv(first, rng.randrange(41))
                reserve(kv, rng.randrange(1, 9))
                if rng.random() < 0.5:
                    circle: list[object] = [kv]
                    circle.append(circle)
        except BaseException as problem:  # told below
            problems.append(problem)

    usual = gc.get_threshold()
    gc.set_threshold(20)
    try:
        threads = [threading.Thread(target=live, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        gc.set_threshold(*usual)
    gc.collect()
    assert not problems and not any(thread.is_alive() for thread in threads)
    held(pool, [first])
