"""Ids: prefixed strings drawn from a seeded stream, so that a session's ids are a pure function of its seed.

The seed arrives with the first input; the stream is part of the state. A response that is only predicted draws from a
stream of its own, so that a dropped draft leaves no hole in the ids a client sees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal, NewType

ItemId = NewType("ItemId", str)
ResponseId = NewType("ResponseId", str)
Epoch = NewType("Epoch", int)

Prefix = Literal["sess", "conv", "item", "resp", "call", "evt"]


@dataclass(frozen=True, slots=True)
class IdStream:
    """`seed` names the session; `count` ids have been drawn."""

    seed: str
    count: int = 0

    def draw(self, prefix: Prefix) -> tuple[str, IdStream]:
        """The next id and the stream after it."""
        digest = blake2b(f"{self.seed}/{self.count}".encode(), digest_size=11).hexdigest()
        return f"{prefix}_{digest}", replace(self, count=self.count + 1)
