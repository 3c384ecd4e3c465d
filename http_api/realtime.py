"""`GET /v1/realtime`: from an HTTP request to a running session."""

from __future__ import annotations

import logging

from aiohttp import web

from bargein.engine.client import EngineUnavailable
from bargein.pipeline.runner import SessionRunner
from bargein.pipeline.transports.websocket import WebSocketTransport, serve
from bargein.realtime.names import is_known_model
from bargein.realtime.settings import Settings, apply, parse
from bargein.realtime.wire import MAX_EVENT_BYTES, Dialect

from .doors import key_is_good, offered_protocols, origin_is_good, presented_key, refusal
from .services import SERVICES

log = logging.getLogger("bargein.http")


async def realtime(request: web.Request) -> web.StreamResponse:
    """Upgrade and run one session. Refusals are HTTP statuses before the upgrade."""
    services = request.app[SERVICES]
    config = services.config
    if not origin_is_good(request, config.server.allowed_origins):
        return refusal(403, "this origin is not allowed")
    if not key_is_good(presented_key(request), config.server.api_keys):
        return refusal(401, "the API key is missing or wrong", "invalid_api_key")
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return refusal(426, "this address speaks WebSocket", Upgrade="websocket")
    dialect: Dialect = "extended" if request.query.get("events") == "extended" else "ga"
    if not services.engine.ready:
        return refusal(503, "the engine is starting", "engine_unavailable", Retry_After="2")
    if services.num_sessions >= config.server.max_sessions:
        return refusal(503, "the server is full", "server_full", Retry_After="10")
    model = request.query.get("model", "")[:256]
    if not is_known_model(model, services.model_names):
        return refusal(404, f"the model {model!r} does not exist here; see /v1/models", "model_not_found")
    settings, model_used = _first_settings(request, services.settings, services.chat_model)
    protocols = ("realtime",) if "realtime" in offered_protocols(request) else ()
    ws = web.WebSocketResponse(protocols=protocols, max_msg_size=MAX_EVENT_BYTES + 4096, heartbeat=30, compress=False)
    await ws.prepare(request)
    transport = WebSocketTransport(ws)
    runner = SessionRunner(
        engine=services.engine,
        source=services.chat_source(),
        transport=transport,
        settings=settings,
        dialect=dialect,
        model_used=model_used,
        limits=config.limits,
    )
    try:
        runner.open()
    except EngineUnavailable:
        await ws.close(code=1013, message=b"engine_unavailable")
        return ws
    with services.session(runner):
        await serve(ws, transport, runner)
    return ws


def _first_settings(request: web.Request, defaults: Settings, chat_model: str) -> tuple[Settings, str]:
    """The settings of a new session: `?intent=transcription` and `?model=` before any update."""
    update: dict[str, object] = {}
    if request.query.get("intent") == "transcription":
        update["type"] = "transcription"
    if model := request.query.get("model"):
        update["model"] = model[:256]
    return apply(defaults, parse(update)), chat_model
