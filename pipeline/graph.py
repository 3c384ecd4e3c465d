"""A graph is data: named nodes and the channels between them. The same description is run and drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from .channel import Channel, Statistics


@dataclass(frozen=True, slots=True)
class Node:
    """`run` is a coroutine function without arguments: its ports are bound already."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    channel: Channel[Any]


@dataclass(slots=True)
class Graph:
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def node(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.nodes.append(Node(name, run))

    def edge(self, source: str, target: str, channel: Channel[Any]) -> None:
        self.edges.append(Edge(source, target, channel))

    def describe(self) -> dict[str, Any]:
        """For drawing: node names, and edges with their policy and capacity."""
        return {
            "nodes": [n.name for n in self.nodes],
            "edges": [
                {"from": x.source, "to": x.target, "capacity": x.channel.capacity, "policy": x.channel.policy}
                for x in self.edges
            ],
        }

    def statistics(self) -> list[Statistics]:
        return [x.channel.statistics() for x in self.edges]

    def start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Run every node in the group."""
        return [group.create_task(n.run(), name=n.name) for n in self.nodes]
