"""Who may come in: API keys and the Origin of browsers."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from aiohttp import web

KEY_PROTOCOL = "openai-insecure-api-key."
HASHED = "sha256:"


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


def origin_is_good(request: web.Request, allowed: tuple[str, ...]) -> bool:
    """No Origin (not a browser), the server's own, or an allowed one. WebSockets ignore CORS, so this is the door."""
    origin = request.headers.get("Origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    return urlsplit(origin).netloc == request.host


def refusal(status: int, message: str, code: str | None = None, **headers: str) -> web.Response:
    """OpenAI's error envelope."""
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    return web.json_response(body, status=status, headers=named)
