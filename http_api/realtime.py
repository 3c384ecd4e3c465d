"""`GET /v1/realtime`: from an HTTP request to a running session, or to the sideband of a call."""

from __future__ import annotations

import logging

from aiohttp import web

from bargein.engine.client import EngineUnavailable
from bargein.pipeline.transports.websocket import WebSocketTransport, serve
from bargein.realtime.wire import MAX_EVENT_BYTES

from .calls import admitted, asked_dialect, asked_in_address, session_start, sideband
from .doors import offered_protocols, refusal
from .services import SERVICES

log = logging.getLogger("bargein.http")


async def realtime(request: web.Request) -> web.StreamResponse:
    """Upgrade and run one session. Refusals are HTTP statuses before the upgrade."""
    services = request.app[SERVICES]
    grant = admitted(request)
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return refusal(426, "this address speaks WebSocket", Upgrade="websocket")
    if call_id := request.query.get("call_id"):
        return await sideband(request, call_id)
    dialect = asked_dialect(request)
    if (full := services.why_full()) is not None:
        return full
    start = session_start(services, asked_in_address(request), grant.session)
    protocols = ("realtime",) if "realtime" in offered_protocols(request) else ()
    ws = web.WebSocketResponse(protocols=protocols, max_msg_size=MAX_EVENT_BYTES + 4096, heartbeat=30, compress=False)
    with services.opening():
        await ws.prepare(request)
        transport = WebSocketTransport(ws)
        runner = services.runner(transport, start, dialect, "websocket")
        try:
            runner.open()
        except EngineUnavailable:
            await ws.close(code=1013, message=b"engine_unavailable")
            return ws
    with services.session(runner):
        await serve(ws, transport, runner)
    return ws

