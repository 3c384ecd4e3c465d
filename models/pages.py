"""Sequences whose keys and values lie in pages of a pool: what decoders on the CPU and on a device have in common.

A page holds some tokens of one sequence, or of several that begin alike: sequences share pages, and a page that is shared is
copied before it is written. This file knows who uses which page; where pages are and what is in them, a pool's own class knows.
"""

from __future__ import annotations

import heapq
import mmap
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class OutOfPages(ValueError):
    """The cache is full; the request that met it fails, the others go on."""


class Pool:
    """Which pages are used, and by how many sequences. `page`: tokens of each; page_bytes: of each, in all layers."""

    def __init__(self, page: int, page_bytes: int, num_pages: int = 0) -> None:
        self.page, self.page_bytes = page, page_bytes
        self._users = [0] * num_pages
        self._free = list(range(num_pages))  # a heap
        self._lock = threading.Lock()
        # Sequences end on whichever thread drops them last, also where the garbage collector finds them, which may be inside of
        # a method of this pool: what they had is counted by whoever comes next.
        self._dropped: deque[list[int]] = deque()

    @property
    def num_free(self) -> int:
        with self._lock:
            self._settle()
            return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages that any sequence uses, each counted once."""
        with self._lock:
            self._settle()
            return len(self._users) - len(self._free)

    @property
    def bytes_used(self) -> int:
        return self.num_used * self.page_bytes

    def users(self) -> dict[int, int]:
        """How many sequences use each page that is used."""
        with self._lock:
            self._settle()
            return {page: count for page, count in enumerate(self._users) if count}

    def take(self) -> int:
        """A free page. Raises OutOfPages."""
        with self._lock:
            self._settle()
            if not self._free:
                self._grow()
            page = heapq.heappop(self._free)
            self._users[page] = 1
            return page

    def share(self, pages: Sequence[int]) -> None:
        """One more sequence uses these pages."""
        with self._lock:
            for page in pages:
                self._users[page] += 1

    def release(self, pages: list[int]) -> None:
        """One sequence less uses these pages; the list is emptied."""
        self._dropped.append(pages[:])
        pages.clear()
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def is_shared(self, page: int) -> bool:
        with self._lock:
            self._settle()
            return self._users[page] > 1

    def _settle(self) -> None:
        """Count what was released. The lock is held."""
        while self._dropped:
            for page in self._dropped.popleft():
                self._users[page] -= 1
                if self._users[page] == 0:
                    heapq.heappush(self._free, page)
            self._shrink()

    def copy(self, source: int, target: int, count: int) -> None:
        """The first `count` tokens of a page, in all layers, into another one."""
        raise NotImplementedError

    def _grow(self) -> None:
        """Make free pages, or raise OutOfPages."""
        raise OutOfPages(f"context_length_exceeded: all {len(self._users)} pages of the cache are in use")

    def _shrink(self) -> None:
        """Let go of memory that is no longer used, where that is possible."""


@dataclass(slots=True)
class KV:
    """One sequence's cache: its pages, `length` tokens of them valid. Pages may be shared."""

    pool: Any  # a Pool
    pages: list[int] = field(default_factory=list)
    length: int = 0
    tokens: list[int] = field(default_factory=list)
    ahead: F32 | None = None  # logits of likely tokens after the last of `tokens`, where those were computed

    def __del__(self) -> None:
        self.pool.release(self.pages)


def copy_kv(kv: KV, length: int) -> KV:
    """A sequence of the first `length` tokens of another, in the same pages."""
    pages = kv.pages[: -(-length // kv.pool.page)]
    kv.pool.share(pages)
    return KV(kv.pool, pages, length, kv.tokens[:length], kv.ahead if length == kv.length else None)


def rewind(kv: KV, length: int) -> None:
    """Forget all but the first `length` tokens, and give back the pages after them. ValueError where it has fewer."""
    if not 0 <= length <= kv.length:
        raise ValueError(f"cannot rewind a cache of {kv.length} tokens to {length}")
    if length < kv.length:
        kv.ahead = None
    kv.length = length
    del kv.tokens[length:]
    kept = -(-length // kv.pool.page)
    spare = kv.pages[kept:]
    del kv.pages[kept:]
    kv.pool.release(spare)


def reserve(kv: KV, count: int) -> None:
    """Pages for `count` more tokens, none of which another sequence reads. Raises OutOfPages."""
    pool = kv.pool
    last, inside = divmod(kv.length, pool.page)
    if inside and pool.is_shared(kv.pages[last]):
        own = pool.take()
        pool.copy(kv.pages[last], own, inside)
        kv.pages[last], before = own, kv.pages[last]
        pool.release([before])
    while len(kv.pages) * pool.page < kv.length + count:
        kv.pages.append(pool.take())


class HostPool(Pool):
    """Pages in this machine's memory, each float32 [layers, 2 (keys, values), kv_heads, page, head_size].

    They come in slabs, when they are needed and no earlier; slabs at the end that hold nothing go back to the system.
    """

    SLAB = 8 << 20  # bytes: enough for huge pages, which take fewer faults and misses of the address cache

    def __init__(self, shape: tuple[int, int, int, int, int]) -> None:
        super().__init__(shape[3], int(np.prod(shape)) * 4)
        self._shape = shape
        self._per_slab = max(1, self.SLAB // self.page_bytes)
        self.blocks: list[F32] = []
        self.addresses: list[int] = []  # of each block

    def copy(self, source: int, target: int, count: int) -> None:
        self.blocks[target][:, :, :, :count] = self.blocks[source][:, :, :, :count]

    def _grow(self) -> None:
        # The system's own pages, which go back to it when the last view of them goes; from an allocator they might not.
        slab = mmap.mmap(-1, self._per_slab * self.page_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            slab.madvise(mmap.MADV_HUGEPAGE)
        for block in np.frombuffer(slab, np.float32).reshape(self._per_slab, *self._shape):
            heapq.heappush(self._free, len(self.blocks))
            self._users.append(0)
            self.blocks.append(block)
            self.addresses.append(block.ctypes.data)

    def _shrink(self) -> None:
        """All but one slab of the free ones at the end: the next page often comes soon."""
        size = len(self.blocks)
        while size >= 2 * self._per_slab and not any(self._users[size - 2 * self._per_slab : size]):
            size -= self._per_slab
        if size < len(self.blocks):
            for part in (self.blocks, self.addresses, self._users):
                del part[size:]  # type: ignore[attr-defined]
            self._free = [page for page in self._free if page < size]
            heapq.heapify(self._free)
