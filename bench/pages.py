"""What the size of the chat cache's pages costs: attention of a token in all layers of Gemma 3 270M, on one core.

    python bench/pages.py [--rounds N]

At contexts of 100, 1000 and 4000 tokens, in pages of 16 to 256 and in one piece, in turns; medians, in microseconds of the
thread's own time, which a busy machine disturbs least. Then what is copied where two sequences part, a page half full.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numba
import numpy as np

from bargein.kernels import cpu
from bargein.models import decoder, store
from bargein.models.pages import KV, HostPool, copy_kv, reserve

CONTEXTS, SIZES = (100, 1000, 4000), (16, 32, 64, 128, 256, 4096)


def filled(cfg: decoder.Config, page: int, length: int) -> KV:
    """A sequence of noise, in pages that are written."""
    rng, pool = np.random.default_rng(0), decoder.new_pool(cfg, page)
    kv = KV(pool)
    reserve(kv, length)
    for n in kv.pages:
        pool.blocks[n][...] = rng.standard_normal(pool.blocks[n].shape, np.float32)
    return kv


def attention(cfg: decoder.Config, kv: KV, length: int) -> Callable[[], None]:
    """The last token's, of `length`."""
    rng, pool = np.random.default_rng(1), kv.pool
    q, k, v = (rng.standard_normal((1, n, cfg.head_size), np.float32) for n in (cfg.heads, cfg.kv_heads, cfg.kv_heads))
    places = cpu.Places(
        np.array([pool.addresses[n] for n in kv.pages]), np.array([0, len(kv.pages)]), np.array([0, 1]), np.array([length - 1])
    )
    caches = cpu.Caches([[pool.blocks[n] for n in kv.pages]], places, pool.page)

    def run() -> None:
        for layer in range(cfg.layers):
            cpu.attend_pages(q, k, v, caches, layer, cfg.attention_scale, cfg.window if cfg.is_local(layer) else 0)

    return run


def medians(runs: dict[int, Callable[[], object]], rounds: int) -> dict[int, float]:
    """Microseconds of each, taken in turns."""
    times: dict[int, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.thread_time()
            run()
            times[name].append(time.thread_time() - began)
    return {name: 1e6 * float(np.median(taken)) for name, taken in times.items()}


def parting(pool: HostPool) -> Callable[[], object]:
    """What the first token after a take-over in the middle of a page costs beside its own reading."""
    kv = KV(pool)
    reserve(kv, pool.page)
    kv.length = pool.page // 2
    return lambda: reserve(copy_kv(kv, kv.length), 1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=100)
    rounds = options.parse_args().rounds
    cfg = decoder.load_config(store.path("gemma-3-270m") / "config.json")
    numba.set_num_threads(1)
    print("| context | " + " | ".join(map(str, SIZES[:-1])) + " | one piece |", "|---|" + "---|" * len(SIZES), sep="\n")
    for length in CONTEXTS:
        found = medians({page: attention(cfg, filled(cfg, page, length), length) for page in SIZES}, rounds)
        print(f"| {length} | " + " | ".join(f"{us:.0f}" for us in found.values()) + " |", flush=True)
    copied = medians({page: parting(decoder.new_pool(cfg, page)) for page in SIZES[:-1]}, rounds)
    print("| half a page copied | " + " | ".join(f"{us:.0f}" for us in copied.values()) + " | - |")


if __name__ == "__main__":
    main()
