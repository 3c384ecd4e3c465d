"""Server-sent events, and generators that may fail before the first of them: such a failure is still a status."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from bargein.engine.client import EngineUnavailable
from bargein.pipeline.oneshot import WorkFailed, WorkRefused

from ..errors import ApiError
from ..gate import refused

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


def new_id(prefix: str) -> str:
    """ "resp_" and the like, with 24 random hex digits."""
    return prefix + secrets.token_hex(12)


def event(data: Any, name: str | None = None) -> bytes:
    """One event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + _encode(data) + b"\n\n"


async def stream(
    request: web.Request, source: AsyncIterator[bytes], *, content_type: str = "text/event-stream",
    headers: dict[str, str] | None = None, anthropic: bool = False,
) -> web.StreamResponse:  # fmt: skip
    """Send what a generator yields. Its first piece is awaited before the head: until then errors are statuses."""
    try:
        try:
            first: bytes | None = await anext(source)
        except StopAsyncIteration:
            first = None
        response = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        response.content_type = content_type
        if content_type == "text/event-stream":
            response.charset = "utf-8"
        await response.prepare(request)
        if first is not None:
            await response.write(first)
        try:
            async for piece in source:
                await response.write(piece)
        except (WorkFailed, WorkRefused, EngineUnavailable, ApiError) as problem:
            if content_type != "text/event-stream":
                raise ConnectionResetError(f"failed in the middle: {problem}") from None
            error = problem if isinstance(problem, ApiError) else ApiError(500, str(problem), code="engine_failed")
            if isinstance(problem, WorkRefused):
                error = refused(str(problem))
            body = {"type": "error", "error": {"type": "api_error", "message": error.message}} if anthropic else error.body()
            await response.write(event(body, "error" if anthropic else None))
        await response.write_eof()
        return response
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


def json_response(body: Any, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer."""
    return web.Response(body=_encode(body), content_type="application/json", headers=headers)
