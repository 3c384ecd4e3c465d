"""A bad network inside the test: what a peer sends is dropped, delayed at random, or held back for good in an outage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from .peer import Peer


class Network:
    """Wraps a connected peer's transport. `loss`: 0 to 1; `jitter_ms`: each datagram is delayed by up to this."""

    def __init__(self, peer: Peer, *, loss: float = 0.0, jitter_ms: float = 0.0, seed: int = 1) -> None:
        self.loss, self.jitter_ms = loss, jitter_ms
        self.outage = False
        self.num_sent = self.num_lost = 0
        self._rng = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        transport = peer.pc.sctp.transport.transport
        self._send: Callable[[bytes], Awaitable[None]] = transport._send
        self._receive: Callable[[], Awaitable[bytes]] = transport._recv
        transport._send = self.send
        transport._recv = self.receive

    async def send(self, data: bytes) -> None:
        self.num_sent += 1
        if self.outage or self._rng.random() < self.loss:
            self.num_lost += 1
            return
        if not self.jitter_ms:
            await self._send(data)
            return
        task = asyncio.create_task(self._later(data, self._rng.uniform(0, self.jitter_ms) / 1000))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _later(self, data: bytes, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            await self._send(data)
        except ConnectionError:  # the call is over
            return

    async def receive(self) -> bytes:
        while True:
            data = await self._receive()
            if not (self.outage or self._rng.random() < self.loss):
                return data
