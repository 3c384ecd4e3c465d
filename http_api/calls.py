"""WebRTC calls over HTTP: an offer in, an answer out; hang-up, ephemeral keys, and the sideband of a call."""

from __future__ import annotations

import asyncio
import email.parser
import email.policy
import json
import logging
import secrets as randomness
from dataclasses import replace
from typing import Any

from aiohttp import WSMsgType, web

from bargein.engine.client import EngineUnavailable
from bargein.pipeline.transports.sdp import BadOffer
from bargein.pipeline.transports.webrtc import WebRtcTransport
from bargein.realtime import events as e
from bargein.realtime.dialects import Dialect, asked_for
from bargein.realtime.names import is_known_model
from bargein.realtime.settings import Settings, SettingsError, apply, echo, parse

from .agents import Start, variables_of
from .doors import Grant, Refused, admit, offered_protocols, refusal
from .secrets import DEFAULT_S, MAX_S, MIN_S
from .services import SERVICES, LiveCall, Services

log = logging.getLogger("bargein.http")

MAX_BODY = 64 * 1024
SIDEBAND_CAP = 256
RTC_LEAD_MS = 40


async def _body(request: web.Request) -> bytes:
    """The request's body, at most 64 KiB. Raises Refused."""
    if (request.content_length or 0) > MAX_BODY:
        raise Refused(refusal(413, f"the body is larger than {MAX_BODY} bytes"))
    data = bytearray()
    while chunk := await request.content.readany():
        data += chunk
        if len(data) > MAX_BODY:
            raise Refused(refusal(413, f"the body is larger than {MAX_BODY} bytes"))
    return bytes(data)


def _object(raw: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object, empty for an empty body. Raises Refused."""
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(refusal(400, f"{what} is not valid JSON", "invalid_json")) from None
    if not isinstance(value, dict):
        raise Refused(refusal(400, f"{what} must be a JSON object", "invalid_json"))
    return value


def _offer_of(request: web.Request, body: bytes) -> tuple[str, dict[str, Any]]:
    """The offer and the session settings: an SDP body, or multipart parts `sdp` and `session`. Raises Refused."""
    kind = request.content_type
    if kind == "application/sdp":
        return body.decode("utf-8", "replace"), {}
    if kind != "multipart/form-data":
        raise Refused(refusal(415, f"send application/sdp or multipart/form-data, not {kind}"))
    head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
    whole = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    parts: dict[str, bytes] = {}
    for part in whole.iter_parts() if whole.is_multipart() else ():
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(payload, bytes):
            parts[name] = payload
    if "sdp" not in parts:
        raise Refused(refusal(400, "the form has no part named sdp", param="sdp"))
    return parts["sdp"].decode("utf-8", "replace"), _object(parts.get("session", b""), "session")


def session_start(services: Services, *updates: dict[str, Any], base: Settings | None = None) -> Start:
    """What a session begins with: the defaults, the agent that the last named model is, these updates in turn. Beside
    settings an update may hold `variables`, for the agent's instructions. Raises Refused."""
    model: str | None = None
    variables: dict[str, str] = {}
    for update in updates:
        named = update.get("model")
        if isinstance(named, str) and not is_known_model(named, services.model_names):
            message = f"the model {named[:256]!r} does not exist here; see /v1/models"
            raise Refused(refusal(404, message, "model_not_found", param="model"))
        model = named if isinstance(named, str) else model
        if (given := update.get("variables")) is not None:
            try:
                variables |= variables_of(given)
            except ValueError as problem:
                raise Refused(refusal(400, f"variables {problem}", param="session.variables")) from None
    try:
        start = services.agents.begin(services.settings if base is None else base, model, variables)
        for update in updates:
            known = {k: v for k, v in update.items() if k != "variables"}
            start = replace(start, settings=apply(start.settings, parse(known)))
    except SettingsError as problem:
        raise Refused(refusal(400, problem.message, problem.code, param=problem.param)) from None
    return start


def asked_in_address(request: web.Request) -> dict[str, Any]:
    """What the address itself sets: `?intent=transcription`, `?model=`, `?variables=` (a JSON object). Raises Refused."""
    update: dict[str, Any] = {}
    if request.query.get("intent") == "transcription":
        update["type"] = "transcription"
    if model := request.query.get("model"):
        update["model"] = model[:256]
    if variables := request.query.get("variables"):
        update["variables"] = _object(variables, "variables")
    return update


def asked_dialect(request: web.Request) -> Dialect | None:
    """The dialect that the request asks for, if it does."""
    return asked_for(request.query.get("events"), request.headers.get("OpenAI-Beta"), offered_protocols(request))


def admitted(request: web.Request, *, ephemeral: bool = True) -> Grant:
    """Raises Refused."""
    services = request.app[SERVICES]
    grant = admit(request, services.config.server, services.secrets, ephemeral=ephemeral)
    if isinstance(grant, web.Response):
        raise Refused(grant)
    return grant


async def create_call(request: web.Request) -> web.Response:
    """`POST /v1/realtime` and `/v1/realtime/calls`."""
    services = request.app[SERVICES]
    grant = admitted(request)
    offer, session = _offer_of(request, await _body(request))
    model = asked_in_address(request)
    base = services.settings
    if "pacer" not in services.config.session:
        base = apply(base, parse({"pacer": {"lead_ms": RTC_LEAD_MS}}))
    start = session_start(services, model, grant.session, session, base=base)
    dialect = asked_dialect(request)
    if (full := services.why_full()) is not None:
        return full
    with services.opening():
        transport = WebRtcTransport(services.ice, fragment=request.query.get("framing") == "fragment")
        try:
            answer = await transport.answer(offer)
            runner = services.runner(transport, start, dialect, "webrtc")
            transport.runner = runner
            runner.open()
        except BadOffer as problem:
            await transport.free()
            return refusal(400, str(problem), "invalid_offer", param="sdp")
        except EngineUnavailable:
            await transport.free()
            return refusal(503, "the engine is starting", "engine_unavailable", Retry_After="2")
        except BaseException:
            await transport.free()
            raise
        call = LiveCall("rtc_" + randomness.token_hex(12), runner, transport)
        services.start_call(call)
    headers = {"Location": f"/v1/realtime/calls/{call.id}"}
    return web.Response(text=answer, status=201, content_type="application/sdp", headers=headers)


async def hang_up(request: web.Request) -> web.Response:
    """`POST /v1/realtime/calls/{call_id}/hangup` (and DELETE of the call)."""
    admitted(request)
    call = request.app[SERVICES].calls.get(request.match_info["call_id"])
    if call is None:
        return refusal(404, "there is no such call", "call_not_found")
    call.runner.tell(e.CloseSession(call.runner.now()))
    return web.json_response({"id": call.id, "object": "realtime.call", "status": "ended"})


async def create_secret(request: web.Request) -> web.Response:
    """`POST /v1/realtime/client_secrets`: GA's shape."""
    services = request.app[SERVICES]
    admitted(request, ephemeral=False)
    body = _object(await _body(request), "the body")
    seconds: Any = DEFAULT_S
    if (after := body.get("expires_after")) is not None:
        seconds = after.get("seconds", DEFAULT_S) if isinstance(after, dict) else None
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not MIN_S <= seconds <= MAX_S:
            message = f"expires_after.seconds must be a whole number from {MIN_S} to {MAX_S}"
            return refusal(400, message, param="expires_after.seconds")
    session = body.get("session", {})
    if not isinstance(session, dict):
        return refusal(400, "session must be an object", param="session")
    settings = session_start(services, session).settings
    secret = services.secrets.mint(session, seconds)
    head = {"id": "sess_" + randomness.token_hex(12), "object": "realtime.session", "expires_at": secret.expires_at}
    described = head | echo(settings)
    return web.json_response({"value": secret.value, "expires_at": secret.expires_at, "session": described})


async def create_session(request: web.Request) -> web.Response:
    """`POST /v1/realtime/sessions` and `/transcription_sessions`: beta's shape, the session with a key inside."""
    services = request.app[SERVICES]
    admitted(request, ephemeral=False)
    session = _object(await _body(request), "the body")
    if request.path.endswith("/transcription_sessions"):
        session["type"] = "transcription"
    settings = session_start(services, session).settings
    secret = services.secrets.mint(session)
    described = {"id": "sess_" + randomness.token_hex(12), "object": "realtime.session"} | echo(settings)
    key = {"value": secret.value, "expires_at": secret.expires_at}
    return web.json_response(described | {"client_secret": key})


async def sideband(request: web.Request, call_id: str) -> web.StreamResponse:
    """A WebSocket beside a running call: sees its events and may send some. Its end does not end the call."""
    call = request.app[SERVICES].calls.get(call_id)
    if call is None or call.runner.is_over:
        return refusal(404, f"there is no call {call_id[:100]!r}", "call_not_found")
    protocols = ("realtime",) if "realtime" in offered_protocols(request) else ()
    ws = web.WebSocketResponse(protocols=protocols, max_msg_size=MAX_BODY * 16, heartbeat=30, compress=False)
    await ws.prepare(request)
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def listener(text: str | None) -> None:
        if queue.qsize() >= SIDEBAND_CAP:  # it does not read: let it go
            call.transport.listeners.discard(listener)
            text = None
        queue.put_nowait(text)

    queue.put_nowait(call.runner.describe())
    call.transport.listeners.add(listener)
    reader = asyncio.create_task(_sideband_in(ws, call), name="sideband-reader")
    getter: asyncio.Task[str | None] | None = None
    try:
        while not reader.done():
            getter = asyncio.create_task(queue.get())
            await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
            if not getter.done():
                break
            text = getter.result()
            if text is None:
                await ws.close(code=1000, message=b"call_ended")
                break
            await ws.send_str(text)
    except ConnectionError:
        pass
    finally:
        call.transport.listeners.discard(listener)
        reader.cancel()
        if getter is not None:
            getter.cancel()
        await asyncio.gather(reader, *filter(None, [getter]), return_exceptions=True)
    return ws


async def _sideband_in(ws: web.WebSocketResponse, call: LiveCall) -> None:
    async for message in ws:
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY) or call.runner.is_over:
            return
        call.runner.receive(message.data)
