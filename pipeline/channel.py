"""Edges of the graph: bounded channels whose items carry the epoch they belong to.

Retiring an epoch makes its items fall out at the next port, wherever they are; nobody hunts tasks down. Each channel
says what a full queue does: the sender waits (`block`), or the oldest item goes (`drop_oldest`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from bargein.realtime.ids import Epoch

Policy = Literal["block", "drop_oldest"]


class HasEpoch(Protocol):
    @property
    def epoch(self) -> Epoch: ...


T = TypeVar("T", bound=HasEpoch)


class Epochs:
    """Which epochs are alive. An epoch is admitted when its response starts and retired once."""

    def __init__(self) -> None:
        self._alive: set[Epoch] = set()
        self._scopes: dict[Epoch, set[asyncio.Task[None]]] = {}

    def admit(self, epoch: Epoch) -> None:
        self._alive.add(epoch)

    def retire(self, epoch: Epoch) -> None:
        self._alive.discard(epoch)
        for task in self._scopes.pop(epoch, ()):
            task.cancel()

    def scope(self, epoch: Epoch, task: asyncio.Task[None]) -> None:
        """Tie a task to an epoch: it is cancelled when the epoch is retired."""
        tasks = self._scopes.setdefault(epoch, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def is_alive(self, epoch: Epoch) -> bool:
        return epoch in self._alive


class Closed(Exception):
    """The channel's other end has gone."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the inspector shows of an edge."""

    name: str
    depth: int
    capacity: int
    sent: int
    dropped: int


class Channel(Generic[T]):
    """One edge. Both ends live on the same event loop."""

    def __init__(self, name: str, capacity: int, policy: Policy, epochs: Epochs) -> None:
        self.name, self.capacity, self.policy = name, capacity, policy
        self._epochs = epochs
        self._items: deque[T] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self._sent = self._dropped = 0

    async def send(self, item: T) -> None:
        """Queue an item; a full `block` channel makes the sender wait. Raises Closed."""
        while self.policy == "block" and len(self._items) >= self.capacity and not self._closed:
            self._prune()
            if len(self._items) < self.capacity:
                break
            self._changed.clear()
            await self._changed.wait()
        self.send_nowait(item)

    def send_nowait(self, item: T) -> None:
        """Queue an item at once; a full `drop_oldest` channel loses its oldest. Raises Closed."""
        if self._closed:
            raise Closed(self.name)
        if self.policy == "drop_oldest" and len(self._items) >= self.capacity:
            self._items.popleft()
            self._dropped += 1
        self._items.append(item)
        self._sent += 1
        self._changed.set()

    async def receive(self) -> T:
        """The next item of a living epoch. Raises Closed once the channel is closed and empty."""
        while True:
            while self._items:
                item = self._items.popleft()
                self._changed.set()
                if self._epochs.is_alive(item.epoch):
                    return item
                self._dropped += 1
            if self._closed:
                raise Closed(self.name)
            self._changed.clear()
            await self._changed.wait()

    def _prune(self) -> None:
        alive = [i for i in self._items if self._epochs.is_alive(i.epoch)]
        self._dropped += len(self._items) - len(alive)
        self._items = deque(alive)

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def statistics(self) -> Statistics:
        return Statistics(self.name, len(self._items), self.capacity, self._sent, self._dropped)
