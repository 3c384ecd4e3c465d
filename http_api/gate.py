"""What every HTTP request passes: its id, the key, limits, its deadline, what the metrics count, CORS.

Realtime sessions and the inspector have doors of their own; here they only get an id and are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from bargein.engine.client import EngineUnavailable
from bargein.pipeline.oneshot import WorkFailed, WorkRefused

from .board import Crowded, Row, SharedAccounts
from .doors import host_is_good, is_sibling, key_is_good, origin_is_good, presented_key
from .errors import ApiError
from .metrics import METRICS, Metrics
from .services import SERVICES

log = logging.getLogger("bargein.http")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OWN_DOORS = ("/v1/telephony/", "/v1/realtime", "/v1/inspect")  # they check keys themselves
ID = re.compile(r"[\w.:-]{1,128}$")
REQUEST_ID = web.RequestKey("request_id", str)
STARTED = web.RequestKey("started", float)
EXTRA = web.RequestKey("extra", dict[str, str])
POLL_S = 0.1
EXPOSED = "Location, x-request-id, Retry-After, x-bargein-unused"


@dataclass(slots=True)
class _Account:
    """A key's requests: tokens refill evenly over a minute."""

    tokens: float
    at: float
    running: int = 0

    def begin(self) -> None:
        self.running += 1


class Accounts:
    """Each key's account, in this process; `board.SharedAccounts` are those of several workers."""

    def __init__(self) -> None:
        self._kept: dict[str, _Account] = {}

    @contextlib.contextmanager
    def of(self, who: str, now: float, full: float) -> Iterator[_Account]:
        """A key's account; a new one has all its tokens."""
        if len(self._kept) > 10_000:
            self._kept = {k: a for k, a in self._kept.items() if a.running or now - a.at < 60}
        yield self._kept.setdefault(who, _Account(full, now))

    def leave(self, who: str) -> None:
        """One of its requests has ended."""
        self._kept[who].running -= 1


@dataclass(slots=True)
class Gate:
    """Limits of each key; keys are told apart by their hash."""

    per_minute: int
    concurrent: int
    accounts: Accounts | SharedAccounts = field(default_factory=Accounts)
    draining: bool = False
    num_running: int = 0

    def enter(self, who: str, now: float) -> dict[str, str]:
        """Count a request in; what the response says of the limits. ApiError 429 beyond them, 503 where there is no place."""
        try:
            with self.accounts.of(who, now, self.per_minute) as account:
                headers = self._spend(account, now)
                if self.concurrent and account.running >= self.concurrent:
                    message = f"more than {self.concurrent} requests at once"
                    raise ApiError(429, message, code="concurrency_limit_exceeded", Retry_After="1")
                account.begin()
        except Crowded:
            raise ApiError(503, "too many clients at once", code="server_full", Retry_After="1") from None
        self.num_running += 1
        return headers

    def _spend(self, account: _Account | Row, now: float) -> dict[str, str]:
        """Take a token, where they are counted. Raises ApiError."""
        if not self.per_minute:
            account.at = now
            return {}
        rate = self.per_minute / 60
        tokens = min(self.per_minute, account.tokens + (now - account.at) * rate)
        account.tokens, account.at = tokens, now
        if tokens < 1:
            wait = max(1, round((1 - tokens) / rate + 0.5))
            raise ApiError(
                429, f"more than {self.per_minute} requests a minute", code="rate_limit_exceeded",
                Retry_After=str(wait), x_ratelimit_limit_requests=str(self.per_minute),
                x_ratelimit_remaining_requests="0", x_ratelimit_reset_requests=f"{wait}s",
            )  # fmt: skip
        account.tokens = tokens = tokens - 1
        return {
            "x-ratelimit-limit-requests": str(self.per_minute),
            "x-ratelimit-remaining-requests": str(int(tokens)),
            "x-ratelimit-reset-requests": f"{(self.per_minute - tokens) / rate:.1f}s",
        }

    def leave(self, who: str) -> None:
        """A request that was counted in has ended."""
        self.accounts.leave(who)
        self.num_running -= 1


GATE = web.AppKey("gate", Gate)


@web.middleware
async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Around every request."""
    given = request.headers.get("x-request-id", "")
    request[REQUEST_ID] = given if ID.match(given) else f"req_{secrets.token_hex(12)}"
    request[STARTED] = started = time.monotonic()
    request[EXTRA] = {}
    if is_sibling(request):  # counted and let in where it came from
        return await _passed_on(request, handler)
    metrics = request.app[METRICS]
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else "unknown"
    status = 499  # the client has gone
    with metrics.running(route):
        try:
            response = await _guarded(request, handler)
            status = response.status
            return response
        except ConnectionError:  # nobody is there to answer
            return web.Response(status=status)
        finally:
            metrics.count(route, request.method, status, time.monotonic() - started)
            log.info("%s %s %s %.0f ms %s", request.method, route, status, 1000 * (time.monotonic() - started),
                     request[REQUEST_ID])  # fmt: skip


async def _passed_on(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The answer to a sibling."""
    try:
        return await handler(request)
    except ApiError as problem:
        return problem.response()
    except ConnectionError:
        return web.Response(status=499)


async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The handler behind key, limits and deadline; what goes wrong is a response."""
    anthropic = request.path.startswith("/v1/messages")
    if not (request.path.startswith("/v1/") or request.path == "/metrics") or request.path.startswith(OWN_DOORS):
        return await handler(request)
    config = request.app[SERVICES].config
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        return _preflight(request)
    try:
        if not host_is_good(request, config.server):
            raise ApiError(403, f"this server is not known as {request.host!r}; see server.allowed_hosts")
        if not origin_is_good(request, config.server.allowed_origins):
            raise ApiError(403, "this origin is not allowed; see server.allowed_origins")
        key = presented_key(request)
        if not key_is_good(key, config.server.api_keys):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        limits = request.app[GATE]
        if limits.draining:
            raise ApiError(503, "the server is shutting down", code="draining", Retry_After="5", Connection="close")
        who = hashlib.sha256(key.encode()).hexdigest() if config.server.api_keys else str(request.remote)
        request[EXTRA].update(limits.enter(who, time.monotonic()))
        try:
            return await _in_time(request, handler)
        finally:
            limits.leave(who)
    except ApiError as problem:
        return problem.response(anthropic)
    except WorkRefused as problem:
        return refused(str(problem)).response(anthropic)
    except EngineUnavailable:
        starting = ApiError(503, "the engine is starting", code="engine_unavailable", Retry_After="2")
        return starting.response(anthropic)
    except WorkFailed as problem:
        log.error("%s failed: %s", request[REQUEST_ID], problem)
        return ApiError(500, f"the engine failed: {problem}", code="engine_failed").response(anthropic)


def refused(message: str) -> ApiError:
    """An engine's refusal: "param: what is wrong" names the parameter."""
    param, colon, rest = message.partition(": ")
    if param == "context_length_exceeded":
        return ApiError(400, rest, "messages", param)
    if colon and re.fullmatch(r"[a-z_]{2,30}", param):
        return ApiError(400, message, param, "invalid_value")
    return ApiError(400, message, None, "invalid_value")


async def _in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The handler, ended when its time is up or its client has gone."""
    config = request.app[SERVICES].config.http
    seconds = config.request_timeout_s
    if asked := request.headers.get("x-request-timeout-ms"):
        try:
            seconds = min(seconds, float(asked) / 1000)
        except ValueError:
            raise ApiError(400, "x-request-timeout-ms: not a number of milliseconds") from None
        if not seconds > 0:
            raise ApiError(400, "x-request-timeout-ms: must be over 0")
    task = asyncio.ensure_future(handler(request))
    try:
        async with asyncio.timeout(seconds):
            while not task.done():
                await asyncio.wait((task,), timeout=POLL_S)
                if request.transport is None or request.transport.is_closing():
                    break
        if not task.done():
            raise ConnectionResetError("the client has gone")
        return task.result()
    except TimeoutError:
        if task.done() and not task.cancelled() and task.exception() is not None:
            raise
        raise ApiError(408, f"not done within {seconds:g} s", code="timeout", x_should_retry="false") from None
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


def _preflight(request: web.Request) -> web.Response:
    origin = request.headers.get("Origin", "")
    if not origin_is_good(request, request.app[SERVICES].config.server.allowed_origins):
        return ApiError(403, "this origin is not allowed; see server.allowed_origins").response()
    asked = request.headers.get("Access-Control-Request-Headers", "authorization, content-type")
    allow = {
        "Access-Control-Allow-Origin": origin, "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": asked, "Access-Control-Max-Age": "600", "Vary": "Origin",
    }  # fmt: skip
    return web.Response(status=204, headers=allow)


async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put what every response carries on it, streams included."""
    if REQUEST_ID not in request:
        return
    headers = response.headers
    headers["x-request-id"] = request[REQUEST_ID]
    headers.update(request[EXTRA])
    headers.setdefault("openai-processing-ms", str(round(1000 * (time.monotonic() - request[STARTED]))))
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Referrer-Policy", "no-referrer")
    origin = request.headers.get("Origin")
    if origin and not request.path.startswith(OWN_DOORS):
        if origin_is_good(request, request.app[SERVICES].config.server.allowed_origins):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = EXPOSED
        headers["Vary"] = "Origin"


def install(app: web.Application) -> None:
    """Give an application its gate; the middleware itself goes first in its list."""
    http, seat = app[SERVICES].config.http, app[SERVICES].seat
    accounts = Accounts() if seat is None else SharedAccounts(seat)
    app[GATE] = Gate(http.requests_per_minute, http.concurrent_requests, accounts)
    app[METRICS] = Metrics(app[SERVICES])
    app.on_response_prepare.append(finish_headers)


async def drained(app: web.Application, seconds: float, hurry: asyncio.Event) -> None:
    """Take no more requests and wait for those that run, so long at most, or until there is a hurry."""
    app[GATE].draining = True
    until = time.monotonic() + seconds
    while app[GATE].num_running and time.monotonic() < until and not hurry.is_set():
        await asyncio.sleep(0.05)
