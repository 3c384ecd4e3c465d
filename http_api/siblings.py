"""Several workers that look like one server: what one has not got, it asks the others for.

Each worker also listens on a Unix socket in the server's private directory, with the same application. Where an id names
nothing here, the request goes to one sibling after the other, and the first answer that is not "not found" is streamed
through; a header, which means something on that socket alone, says that the request was let in and counted here, and stops
it from going on. A list is the lists of all. A client's key is asked for at the worker whose number is in it.

A sibling that does not answer has nothing: what it held ended with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import WSMsgType, web
from yarl import URL

from .board import Seat
from .doors import HOP, is_sibling, offered_protocols, presented_key
from .errors import ApiError
from .secrets import Secret, maker_of
from .services import SERVICES

log = logging.getLogger("bargein.http")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ASK_S = 5.0  # for a sibling's answer to begin
WORKER = "x-bargein-worker"
CONNECTION = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    "content-length", "expect", "date", "server", HOP, WORKER,
})  # fmt: skip
BY_ID = {
    ("POST", "/v1/realtime/calls/{call_id}/hangup"), ("DELETE", "/v1/realtime/calls/{call_id}"),
    ("GET", "/v1/inspect/{session}"), ("GET", "/v1/responses/{response_id}"), ("DELETE", "/v1/responses/{response_id}"),
    ("GET", "/v1/responses/{response_id}/input_items"),
}  # fmt: skip
OF_ALL = ("DELETE", "/v1/inspect/{session}")  # each may have something of it
CALL = ("GET", "/v1/realtime")


class Siblings:
    """The other workers, as this one reaches them."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    def _to(self, number: int) -> aiohttp.ClientSession:
        if number not in self._sessions:
            self._sessions[number] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self.seat.socket(number)), limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=ASK_S), auto_decompress=False,
            )  # fmt: skip
        return self._sessions[number]

    @asynccontextmanager
    async def ask(self, number: int, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse | None]:
        """A sibling's answer to a request without a body; None where it has none."""
        headers = _end_to_end(request.headers) | {HOP: str(self.seat.number)}
        try:
            async with asyncio.timeout(ASK_S):
                there = self._to(number)
                answer = await there.request(request.method, _address(request), headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, OSError, TimeoutError):
            yield None
            return
        async with answer:
            yield answer

    async def gather(self, request: web.Request) -> dict[int, bytes]:
        """What each of the others answers to the same request, of those that answer."""

        async def one(number: int) -> tuple[int, bytes | None]:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with self.ask(number, request) as answer, asyncio.timeout(ASK_S):
                    if answer is not None and answer.status == 200:
                        return number, await answer.read()
            return number, None

        told = await asyncio.gather(*(one(n) for n in self.seat.others))
        return {number: body for number, body in told if body is not None}

    async def fetch(self, path: str, numbers: list[int] | None = None) -> bytes | None:
        """What the first of the others that has it holds at an internal address."""
        for number in self.seat.others if numbers is None else numbers:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(ASK_S):
                    url = URL(f"http://worker{path}", encoded=True)
                    async with self._to(number).get(url, headers={HOP: str(self.seat.number)}) as answer:
                        if answer.status == 200:
                            return await answer.read()
        return None

    async def pass_on(self, request: web.Request) -> web.StreamResponse | None:
        """The first answer of a sibling that is not 404, on its way to the client; None: nobody has it."""
        for number in self.seat.others:
            async with self.ask(number, request) as answer:
                if answer is not None and answer.status != 404:
                    return await _through(request, answer)
        return None

    async def ask_all(self, request: web.Request, own: web.StreamResponse) -> web.StreamResponse:
        """The answer of all to what each is to do: a refusal before a success before "not found"."""
        best: web.StreamResponse = own
        for number in self.seat.others:
            async with self.ask(number, request) as answer:
                if answer is not None and _rank(answer.status) > _rank(best.status):
                    body = await answer.read()
                    best = web.Response(body=body, status=answer.status, headers=_end_to_end(answer.headers))
        return best

    async def pass_socket_on(self, request: web.Request) -> web.StreamResponse | None:
        """A WebSocket to whichever sibling opens it, both ways; None: nobody does."""
        headers = {k: v for k, v in _end_to_end(request.headers).items() if not k.lower().startswith("sec-websocket-")}
        headers[HOP] = str(self.seat.number)
        for number in self.seat.others:
            try:
                far = await self._to(number).ws_connect(
                    _address(request), headers=headers, protocols=offered_protocols(request), max_msg_size=0, compress=0
                )  # fmt: skip
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
            async with far:
                protocols = (far.protocol,) if far.protocol else ()
                near = web.WebSocketResponse(protocols=protocols, max_msg_size=MAX_MESSAGE, heartbeat=30, compress=False)
                await near.prepare(request)
                await _both_ways(near, far)
                return near
        return None

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()


SIBLINGS = web.AppKey("siblings", Siblings)
MAX_MESSAGE = 2**20


def _rank(status: int) -> int:
    return 0 if status == 404 else 1 if status < 400 else 2


def _address(request: web.Request) -> URL:
    """A request's, at a sibling."""
    asked = request.rel_url
    return URL.build(scheme="http", host="worker", path=asked.raw_path, query_string=asked.raw_query_string, encoded=True)


def _end_to_end(headers: Any) -> dict[str, str]:
    """Those that are not of one connection."""
    return {k: v for k, v in headers.items() if k.lower() not in CONNECTION}


async def _through(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """A sibling's answer as this worker's, piece by piece."""
    response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
    if answer.content_length is None:
        response.enable_chunked_encoding()
    else:
        response.content_length = answer.content_length
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except aiohttp.ClientError:  # the sibling died: the client must see that this is not the end
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass
    return response


async def _both_ways(near: web.WebSocketResponse, far: aiohttp.ClientWebSocketResponse) -> None:
    """Messages from each to the other until either is closed, then the other is, with its code."""

    async def pump(a: Any, b: Any) -> None:
        async for message in a:
            if message.type is WSMsgType.TEXT:
                await b.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await b.send_bytes(message.data)

    tasks = {asyncio.create_task(pump(near, far), name="to-sibling"), asyncio.create_task(pump(far, near), name="from-sibling")}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    code = far.close_code or near.close_code or 1000
    reason = b"call_ended" if far.close_code == 1000 else b""
    with contextlib.suppress(ConnectionError):
        await near.close(code=code if code not in (1005, 1006) else 1011, message=reason)


async def learn(request: web.Request, key: str) -> None:
    """Have a client's key known here, where a sibling made it and it is alive."""
    siblings, maker = request.app.get(SIBLINGS), maker_of(key)
    if siblings is None or maker not in siblings.seat.others:
        return
    secrets = request.app[SERVICES].secrets
    if secrets.find(key) is None:
        told = await siblings.fetch(f"/workers/secrets/{quote(key, safe='')}", [maker])
        if told is not None:
            secrets.adopt(msgspec.json.decode(told, type=Secret))


async def _secret(request: web.Request) -> web.Response:
    """A client's key, for a sibling."""
    secret = request.app[SERVICES].secrets.find(request.match_info["value"])
    return web.Response(status=404) if secret is None else web.Response(body=msgspec.json.encode(secret))


def among_siblings(handler: Handler) -> Handler:
    """A handler for siblings alone; to anybody else there is no such address."""

    async def inner(request: web.Request) -> web.StreamResponse:
        if not is_sibling(request):
            raise web.HTTPNotFound()
        return await handler(request)

    return inner


@web.middleware
async def wherever_it_is(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers from this worker, or from the one that has what the request names. Inside the doors: what is refused here is
    not passed on."""
    await learn(request, presented_key(request))
    if is_sibling(request):
        return await handler(request)
    siblings, resource = request.app[SIBLINGS], request.match_info.route.resource
    route = (request.method, resource.canonical if resource is not None else "")
    if route == OF_ALL:
        own = await handler(request)
        return own if own.status not in (200, 404) else await siblings.ask_all(request, own)
    if route in BY_ID:
        find = siblings.pass_on
    elif route == CALL and request.query.get("call_id"):
        find = siblings.pass_socket_on
    else:
        return await handler(request)
    try:
        own = await handler(request)
    except ApiError as problem:
        if problem.status != 404 or (found := await find(request)) is None:
            raise
        return found
    if own.status != 404 or own.prepared:
        return own
    found = await find(request)
    return own if found is None else found


async def listen(runner: web.AppRunner, seat: Seat) -> None:
    """Answer siblings from now on. The directory is the server's own, so nobody else can."""
    path = seat.socket(seat.number)
    path.unlink(missing_ok=True)  # of the worker before, which died
    await web.UnixSite(runner, str(path)).start()
    seat.set_state("listening")


def install(app: web.Application) -> None:
    """Make an application one of several; the middleware is put where it belongs by whoever makes it."""
    seat = app[SERVICES].seat
    assert seat is not None
    app[SIBLINGS] = Siblings(seat)
    app.router.add_get("/workers/secrets/{value}", among_siblings(_secret))

    async def name(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[WORKER] = str(seat.number + 1)

    async def close(app: web.Application) -> None:
        await app[SIBLINGS].close()

    app.on_response_prepare.append(name)
    app.on_cleanup.append(close)
