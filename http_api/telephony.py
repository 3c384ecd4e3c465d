"""`GET /v1/telephony/{provider}`: a telephone call, as its provider's media-stream WebSocket brings it.

The key is `?token=`, an Authorization header, or, as Twilio takes no query, a parameter `token` of the stream; the same
parameters name the agent (`agent`) and give its variables.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from aiohttp import WSMsgType, web

from bargein.engine.client import EngineUnavailable
from bargein.pipeline.telephony import FRAMINGS, Framing
from bargein.pipeline.telephony.framing import PhoneError, Started
from bargein.pipeline.telephony.transport import PhoneTransport, serve
from bargein.realtime.settings import apply, parse

from .agents import Start
from .calls import session_start
from .doors import Grant, Refused, host_is_good, key_is_good, origin_is_good, presented_key, refusal
from .services import SERVICES, Services
from .siblings import learn

log = logging.getLogger("bargein.phone")

START_S = 5.0
MAX_MESSAGE = 256 * 1024
FORMATS = {"input_audio_format": "g711_ulaw", "output_audio_format": "g711_ulaw"}


def _grant(services: Services, token: str) -> Grant | None:
    """What a key opens; None: nothing. Without any keys everybody is let in."""
    if (session := services.secrets.session_of(token)) is not None:
        return Grant(session, True)
    keys = services.config.telephony.tokens or services.config.server.api_keys
    return Grant() if not token.startswith("ek_") and key_is_good(token, keys) else None


async def phone(request: web.Request) -> web.StreamResponse:
    """Take a call. What is wrong before the upgrade is an HTTP status, after it a close code with the reason."""
    services = request.app[SERVICES]
    config = services.config.server
    provider = FRAMINGS.get(request.match_info["provider"])
    if provider is None:
        return refusal(404, f"no such provider (known: {', '.join(FRAMINGS)})", "not_found")
    if not host_is_good(request, config) or not origin_is_good(request, config.allowed_origins):
        return refusal(403, f"this server is not known as {request.host!r}; see server.allowed_hosts")
    telnyx = request.headers.get("x-telnyx-streaming-auth-token", "")
    token = request.query.get("token", "") or presented_key(request) or telnyx
    await learn(request, token)
    grant = _grant(services, token)
    if token and grant is None:
        return refusal(401, "the token is wrong or has expired", "invalid_api_key")
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return refusal(426, "this address speaks WebSocket", Upgrade="websocket")
    if (full := services.why_full()) is not None:
        return full
    ws = web.WebSocketResponse(max_msg_size=MAX_MESSAGE, heartbeat=30, compress=False)
    with services.opening():
        await ws.prepare(request)
        framing = provider()
        try:
            async with asyncio.timeout(START_S):
                started = await _started(ws, framing)
            if grant is None:
                await learn(request, started.parameters.get("token", ""))
                grant = _grant(services, started.parameters.get("token", ""))
            if grant is None:
                raise PhoneError("the parameter token is missing or wrong")
            start = _start(services, request, started, grant)
        except (PhoneError, TimeoutError) as problem:
            log.warning("%s: a call was refused: %s", framing.name, problem or "it did not start")
            await ws.close(code=1008, message=(str(problem) or "no start message").encode()[:120])
            return ws
        transport = PhoneTransport(ws, framing)
        runner = services.runner(transport, start, "ga", framing.name)
        try:
            runner.open()
        except EngineUnavailable:
            await ws.close(code=1013, message=b"engine_unavailable")
            return ws
        log.info("%s is the %s call %s", runner.session_id, framing.name, started.call_id)
    with services.session(runner):
        await serve(ws, framing, transport, runner)
    return ws


async def _started(ws: web.WebSocketResponse, framing: Framing) -> Started:
    """Read up to the start of the stream. Raises PhoneError."""
    async for message in ws:
        if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            for event in framing.read(message.data):
                if isinstance(event, Started):
                    return event
    raise PhoneError("the line was closed before it started")


def _start(services: Services, request: web.Request, started: Started, grant: Grant) -> Start:
    """The session of a call. Raises PhoneError."""
    asked = {k: v for k, v in started.parameters.items() if k not in ("token", "agent")}
    model = started.parameters.get("agent") or request.query.get("agent") or services.config.telephony.agent
    address = {"model": model} if model else {}
    try:
        start = session_start(services, address, grant.session, {"variables": asked | {"call_id": started.call_id}})
    except Refused as refused:
        raise PhoneError(f"refused with status {refused.response.status}: {refused.response.text}") from None
    line = FORMATS | {"pacer": {"lead_ms": services.config.telephony.lead_ms}}
    return replace(start, settings=apply(start.settings, parse(line)))
