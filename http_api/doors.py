"""Who may come in: the name the server is called by, the Origin of browsers, API keys and ephemeral ones."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from .config import Server
from .secrets import Secrets

KEY_PROTOCOL = "openai-insecure-api-key."
HASHED = "sha256:"
HOP = "x-bargein-hop"


def is_sibling(request: web.Request) -> bool:
    """Whether another worker of this server passes on a request that it has let in: only they reach the Unix socket, so
    the header means nothing anywhere else."""
    socket_of = request.get_extra_info("socket")
    return HOP in request.headers and socket_of is not None and socket_of.family == socket.AF_UNIX


def offered_protocols(request: web.Request) -> list[str]:
    """The WebSocket subprotocols that the client offers."""
    values = request.headers.getall("Sec-WebSocket-Protocol", [])
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def presented_key(request: web.Request) -> str:
    """The key in the Authorization or x-api-key header or, for browsers, in a subprotocol; empty where there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    if key := request.headers.get("x-api-key", ""):
        return key.strip()
    for name in offered_protocols(request):
        if name.startswith(KEY_PROTOCOL):
            return name.removeprefix(KEY_PROTOCOL)
    return ""


def hashed_key(key: str) -> str:
    """How a key is kept: "sha256:" and the digest in hex. A key of that form is one already (configuration may hold
    either; keys are long and random, so one round is enough)."""
    if key.startswith(HASHED):
        return key.lower()
    return HASHED + hashlib.sha256(key.encode()).hexdigest()


def key_is_good(presented: str, keys: tuple[str, ...]) -> bool:
    """Compared in constant time, by hash; without configured keys everybody is let in."""
    if not keys:
        return True
    mine = HASHED + hashlib.sha256(presented.encode("utf-8", "replace")).hexdigest()
    matches = [hmac.compare_digest(mine, hashed_key(key)) for key in keys]
    return any(matches)


@cache
def own_names() -> frozenset[str]:
    """What this machine calls itself."""
    name = socket.gethostname().lower()
    return frozenset({"localhost", name, f"{name}.local"})


def host_is_good(request: web.Request, server: Server) -> bool:
    """An address, or a name we know: a page under a foreign name that was pointed at this machine does not get in."""
    try:
        name = (urlsplit(f"//{request.host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        pass
    known = {server.host.lower(), *(h.lower() for h in server.allowed_hosts)}
    known |= {urlsplit(o).hostname or "" for o in server.allowed_origins}
    return name in known or name in own_names() or name.endswith(".localhost") or "*" in server.allowed_hosts


def origin_is_good(request: web.Request, allowed: tuple[str, ...]) -> bool:
    """No Origin (not a browser), the server's own, or an allowed one. WebSockets ignore CORS, so this is the door."""
    origin = request.headers.get("Origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    return urlsplit(origin).netloc == request.host


def refusal(status: int, message: str, code: str | None = None, *, param: str | None = None, **headers: str) -> web.Response:
    """OpenAI's error envelope."""
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    return web.json_response(body, status=status, headers=named)


class Refused(Exception):
    """Carries the response that refuses a request."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(response.status)
        self.response = response


@dataclass(frozen=True, slots=True)
class Grant:
    """Let in. `session`: what an ephemeral key sets, in the shape of a session.update."""

    session: dict[str, Any] = field(default_factory=dict)
    ephemeral: bool = False


def admit(request: web.Request, server: Server, secrets: Secrets, *, ephemeral: bool = True) -> Grant | web.Response:
    """Check name, origin and key of an upgrade or a POST. `ephemeral`: whether such a key is enough."""
    if not host_is_good(request, server):
        return refusal(403, f"this server is not known as {request.host!r}; see server.allowed_hosts")
    if not origin_is_good(request, server.allowed_origins):
        return refusal(403, "this origin is not allowed; see server.allowed_origins")
    presented = presented_key(request)
    if ephemeral and (session := secrets.session_of(presented)) is not None:
        return Grant(session, True)
    if presented.startswith("ek_"):
        what = "the ephemeral key is wrong or has expired" if ephemeral else "an ephemeral key does not open this"
        return refusal(401, what, "invalid_api_key")
    if not key_is_good(presented, server.api_keys):
        return refusal(401, "the API key is missing or wrong", "invalid_api_key")
    return Grant()


def admit_admin(request: web.Request, server: Server) -> web.Response | None:
    """Check an inspector's request; None: let in. Without any keys everybody is an administrator."""
    if not host_is_good(request, server) or not origin_is_good(request, server.allowed_origins):
        return refusal(403, "this host or origin is not allowed")
    if not server.admin_keys and not server.api_keys:
        return None
    if not server.admin_keys:
        return refusal(401, "no admin key is configured (server.admin_keys)", "invalid_api_key")
    if not key_is_good(presented_key(request), server.admin_keys):
        return refusal(401, "this needs an admin key", "invalid_api_key")
    return None


CORS_PATHS = ("/v1/realtime", "/v1/models")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def cors(server: Server) -> Any:
    """Let pages of the allowed origins call the realtime routes and read `Location`."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is None or not request.path.startswith(CORS_PATHS):
            return await handler(request)
        good = origin_is_good(request, server.allowed_origins)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            if not good:
                return refusal(403, "this origin is not allowed; see server.allowed_origins")
            asked = request.headers.get("Access-Control-Request-Headers", "authorization, content-type")
            preflight = {
                "Access-Control-Allow-Methods": "GET, POST, DELETE",
                "Access-Control-Allow-Headers": asked,
                "Access-Control-Max-Age": "600",
            }
            return web.Response(status=204, headers=_allow(origin) | preflight)
        response = await handler(request)
        if good and not response.prepared:
            response.headers.update(_allow(origin))
        return response

    return middleware


def _allow(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "Location", "Vary": "Origin"}
