"""Ephemeral keys: what a browser is given instead of the real one. `POST /v1/realtime/client_secrets`."""

from __future__ import annotations

import secrets as randomness
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DEFAULT_S, MIN_S, MAX_S = 600, 10, 7200
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Secret:
    """`expires_at`: seconds of the epoch. `session`: the settings that a call under it starts with."""

    value: str
    expires_at: int
    session: dict[str, Any]


class Secrets:
    """The keys that are alive, in memory only: they end with the process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._alive: dict[str, Secret] = {}

    def mint(self, session: dict[str, Any], seconds: int = DEFAULT_S) -> Secret:
        """A new key, valid for `seconds`."""
        now = self._clock()
        if len(self._alive) >= MAX_KEPT:
            self._alive = {k: s for k, s in self._alive.items() if s.expires_at > now}
            while len(self._alive) >= MAX_KEPT:  # still full: the oldest goes
                del self._alive[next(iter(self._alive))]
        secret = Secret("ek_" + randomness.token_urlsafe(24), int(now) + seconds, session)
        self._alive[secret.value] = secret
        return secret

    def session_of(self, value: str) -> dict[str, Any] | None:
        """The session settings of a living key, else None."""
        secret = self._alive.get(value)
        if secret is None:
            return None
        if secret.expires_at <= self._clock():
            del self._alive[value]
            return None
        return secret.session
