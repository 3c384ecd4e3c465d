"""The engines behind one front process: one for each device that was asked for, seen as one.

A session's streams go to one engine (`Fleet.pinned`), so that its reply, the judge of its words and whoever shares its
instructions read from the same caches. Where that engine is lost the session goes on with another that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from . import protocol as p
from .client import EngineClient, EngineStream


class Engine(Protocol):
    """What opens streams: one engine, several, or the one that a session keeps to."""

    @property
    def ready(self) -> bool:
        """Whether streams can be opened, and work begins at once."""

    def open(
        self,
        lane: p.LaneName,
        params: dict[str, Any],
        *,
        on_result: Callable[[int, p.Answer], None],
        on_failed: Callable[[int | None, str], None],
        on_lost: Callable[[], None],
        on_refused: Callable[[int | None, str], None] | None = None,
        cls: p.Class = "live",
    ) -> EngineStream:
        """See `EngineClient.open`. Raises EngineUnavailable."""


class _Chooser:
    """Opens each stream on the engine that it chooses."""

    def _choose(self) -> EngineClient:
        raise NotImplementedError

    def open(
        self,
        lane: p.LaneName,
        params: dict[str, Any],
        *,
        on_result: Callable[[int, p.Answer], None],
        on_failed: Callable[[int | None, str], None],
        on_lost: Callable[[], None],
        on_refused: Callable[[int | None, str], None] | None = None,
        cls: p.Class = "live",
    ) -> EngineStream:
        """See `EngineClient.open`. Raises EngineUnavailable."""
        return self._choose().open(
            lane, params, on_result=on_result, on_failed=on_failed, on_lost=on_lost, on_refused=on_refused, cls=cls
        )


class Fleet(_Chooser):
    """Several clients, each connected to the engine of one device; `names` are the devices'. A stream that is opened here,
    work of one stream, goes to the quietest."""

    def __init__(self, clients: Sequence[EngineClient], names: Sequence[str] = ("cpu",)) -> None:
        self.clients, self.names = tuple(clients), tuple(names)
        self.on_change: Callable[[], None] = lambda: None
        self.on_load: Callable[[p.Load], None] = lambda load: None
        for client in self.clients:
            client.on_change = self._changed
            client.on_load = self._loaded

    def _changed(self) -> None:
        self.on_change()

    def _loaded(self, load: p.Load) -> None:
        if (whole := self.load) is not None:
            self.on_load(whole)

    @property
    def serving(self) -> list[EngineClient]:
        """Those that are connected and warm."""
        return [client for client in self.clients if client.ready]

    @property
    def ready(self) -> bool:
        """Whether any of them serves."""
        return bool(self.serving)

    @property
    def models(self) -> dict[str, str]:
        """Task to model name, of an engine that was seen; all have the same."""
        return next((client.models for client in self.clients if client.models), {})

    @property
    def load(self) -> p.Load | None:
        """How busy they are together, by their last reports; None before the first."""
        loads = [client.load for client in self.clients if client.load is not None]
        return together(loads) if loads else None

    @property
    def call_s(self) -> float:
        """What a call is expected to take of a worker each second; 0 where no engine has told."""
        return max((client.hello.call_s for client in self.clients if client.hello is not None), default=0.0)

    def num_streams(self) -> int:
        return sum(client.num_streams() for client in self.clients)

    def quietest(self) -> EngineClient:
        """The one to give more to: of those that serve (else of all) the one with the fewest streams."""
        return min(self.serving or self.clients, key=lambda client: client.num_streams())

    def _choose(self) -> EngineClient:
        return self.quietest()

    def pinned(self) -> Engine:
        """For a session: all streams on one engine, chosen at the first."""
        return _Pinned(self)

    def close(self) -> None:
        for client in self.clients:
            client.close()


class _Pinned(_Chooser):
    """One session's engine: the same as long as it serves."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._client: EngineClient | None = None

    @property
    def ready(self) -> bool:
        return self._fleet.ready

    def _choose(self) -> EngineClient:
        if self._client is None or not self._client.ready:
            self._client = self._fleet.quietest()
        return self._client


def together(loads: Sequence[p.Load]) -> p.Load:
    """The reports of several engines (at least one) as that of one."""
    lanes: dict[str, p.LaneLoad] = {}
    for load in loads:
        for name, one in load.lanes.items():
            a = lanes.get(name, p.LaneLoad(0, 0, 0.0, 0, 0))
            lanes[name] = p.LaneLoad(
                a.answered + one.answered, a.late + one.late, a.seconds + one.seconds, a.steps + one.steps,
                a.job_steps + one.job_steps,
            )  # fmt: skip
    vad = tuple(sum(counts) for counts in zip(*(load.vad_ms for load in loads), strict=True))
    return p.Load(
        sum(x.jobs for x in loads), sum(x.streams for x in loads), lanes, vad, sum(x.cpu_s for x in loads),
        sum(x.resident_bytes for x in loads), sum(x.live_s for x in loads), sum(x.workers for x in loads),
    )  # fmt: skip
