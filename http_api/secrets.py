"""Ephemeral keys: what a browser is given instead of the real one. `POST /v1/realtime/client_secrets`.

Of several workers each keeps those that it made, and its number is in them: so the others know whom to ask about a key,
and one that nobody made is asked about once at most.
"""

from __future__ import annotations

import re
import secrets as randomness
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DEFAULT_S, MIN_S, MAX_S = 600, 10, 7200
MAX_KEPT = 10_000
MADE_BY = re.compile(r"ek_(\d\d)[\w-]{32}")


@dataclass(frozen=True, slots=True)
class Secret:
    """`expires_at`: seconds of the epoch. `session`: the settings that a call under it starts with."""

    value: str
    expires_at: int
    session: dict[str, Any]


class Secrets:
    """The keys that are alive, in memory only: they end with the process. `maker`: the number of this one, of several."""

    def __init__(self, clock: Callable[[], float] = time.time, maker: int | None = None) -> None:
        self._clock, self._mark = clock, "" if maker is None else f"{maker:02d}"
        self._alive: dict[str, Secret] = {}

    def mint(self, session: dict[str, Any], seconds: int = DEFAULT_S) -> Secret:
        """A new key, valid for `seconds`."""
        now = self._clock()
        self._make_room()
        secret = Secret(f"ek_{self._mark}{randomness.token_urlsafe(24)}", int(now) + seconds, session)
        self._alive[secret.value] = secret
        return secret

    def _make_room(self) -> None:
        if len(self._alive) >= MAX_KEPT:
            now = self._clock()
            self._alive = {k: s for k, s in self._alive.items() if s.expires_at > now}
            while len(self._alive) >= MAX_KEPT:  # still full: the oldest goes
                del self._alive[next(iter(self._alive))]

    def adopt(self, secret: Secret) -> None:
        """Know a key that another worker made."""
        self._make_room()
        self._alive[secret.value] = secret

    def session_of(self, value: str) -> dict[str, Any] | None:
        """The session settings of a living key, else None."""
        secret = self.find(value)
        return None if secret is None else secret.session

    def find(self, value: str) -> Secret | None:
        """A living key."""
        secret = self._alive.get(value)
        if secret is None:
            return None
        if secret.expires_at <= self._clock():
            del self._alive[value]
            return None
        return secret


def maker_of(value: str) -> int | None:
    """The number of the worker that made a key, if one did."""
    found = MADE_BY.fullmatch(value)
    return None if found is None else int(found[1])
