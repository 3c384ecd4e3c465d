"""Webhooks: a call's start and end, told to other servers in the manner of Standard Webhooks.

Each message is a POST of JSON with `webhook-id`, `webhook-timestamp` and, where there is a secret, `webhook-signature`:
`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`. What is not answered with a 2xx is sent again, under the
same id, later and later. No content of a call is told. Messages wait in memory: those that could not be delivered when
the server ends are lost, and said so in the log.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import random
import secrets
import time
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec

from bargein.pipeline.inspect import Summary

log = logging.getLogger("bargein.webhooks")

BACKOFF_S = (1.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0)  # after the first try
WAITING = 1000  # messages; more are not taken
ENDING_S = 5.0  # for what is still under way when the server ends
GONE = 410


def key_of(secret: str) -> bytes:
    """The signing key: the base64 after `whsec_`. Raises ValueError."""
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError("must be whsec_ and base64") from None


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    told = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, told, hashlib.sha256).digest()).decode()


class Webhooks:
    """Sends from tasks of its own; nothing here makes a call wait. `backoff_s`: the pauses between tries."""

    def __init__(
        self, urls: tuple[str, ...], secret: str, timeout_s: float, backoff_s: tuple[float, ...] = BACKOFF_S
    ) -> None:  # fmt: skip
        """Raises ValueError."""
        self._urls, self._key = urls, key_of(secret) if secret else b""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._backoff_s = backoff_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: aiohttp.ClientSession | None = None
        self._ending = asyncio.Event()

    def started(self, session_id: str, transport: str, answered_by: str, started: float) -> None:
        """A call has begun."""
        self._tell("call.started", _call(session_id, transport, answered_by, started))

    def ended(self, summary: Summary, recorded: bool) -> None:
        """A call is over."""
        waits = sorted(t.voice_to_voice_ms for t in summary.turns if t.voice_to_voice_ms is not None and not t.typed)
        data = _call(summary.session_id, summary.transport, summary.answered_by, summary.started) | {
            "ended_at": _iso(summary.started + summary.seconds), "seconds": round(summary.seconds, 3),
            "end_reason": summary.end_reason, "turns": len(summary.turns), "recorded": recorded,
            "voice_to_voice_ms": {"median": round(waits[len(waits) // 2]), "most": round(waits[-1])} if waits else None,
        }  # fmt: skip
        self._tell("call.ended", data)

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        body = msgspec.json.encode({"type": kind, "timestamp": _iso(time.time()), "data": data})
        for url in self._urls:
            if len(self._tasks) >= WAITING:
                log.error("%s of %s is not told to %s: %d messages wait", kind, data["call_id"], url, WAITING)
                continue
            task = asyncio.create_task(self._deliver(url, f"msg_{secrets.token_hex(16)}", body, kind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, url: str, message_id: str, body: bytes, kind: str) -> None:
        for wait_s in (*self._backoff_s, None):
            problem, final = await self._post(url, message_id, body)
            if not problem:
                return
            if final or wait_s is None or self._ending.is_set():
                log.error("%s is not told to %s: %s", kind, url, problem)
                return
            log.warning("%s: %s answered %s; again in %.0f s", kind, url, problem, wait_s)
            with contextlib.suppress(TimeoutError):  # if the server ends before that: one last try
                await asyncio.wait_for(self._ending.wait(), wait_s * random.uniform(0.8, 1.2))

    async def _post(self, url: str, message_id: str, body: bytes) -> tuple[str, bool]:
        """What was wrong ("": nothing), and whether to leave it at that."""
        now = int(time.time())
        head = {"Content-Type": "application/json", "webhook-id": message_id, "webhook-timestamp": str(now)}
        if self._key:
            head["webhook-signature"] = signature(self._key, message_id, now, body)
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=self._timeout)
        try:
            async with self._http.post(url, data=body, headers=head, allow_redirects=False) as reply:
                return ("" if 200 <= reply.status < 300 else f"status {reply.status}"), reply.status == GONE
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            return str(problem) or type(problem).__name__, False

    async def close(self) -> None:
        """Give what is under way a last moment."""
        self._ending.set()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=ENDING_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()


def _call(session_id: str, transport: str, answered_by: str, started: float) -> dict[str, Any]:
    return {"call_id": session_id, "transport": transport, "answered_by": answered_by, "started_at": _iso(started)}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
