"""`GET /v1/realtime/capabilities`: what this server can do and every setting of a session, from the settings table."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
from aiohttp import web

from bargein.realtime import settings as table
from bargein.realtime.settings import FIELDS, Settings

from .services import SERVICES

KINDS = {"number": "number", "integer": "integer", "choice": "choice", "text": "text"}


def describe(check: Any) -> dict[str, Any]:
    """A setting's check as data: its kind, bounds or choices, and whether it may be null."""
    if check is table.flag:
        return {"kind": "flag"}
    maker = getattr(check, "__qualname__", "").partition(".")[0]
    held = inspect.getclosurevars(check).nonlocals if inspect.isfunction(check) else {}
    match maker:
        case "nullable":
            return describe(held["inner"]) | {"nullable": True}
        case "number" | "integer":
            return {"kind": maker, "min": held["low"], "max": held["high"]}
        case "choice":
            return {"kind": "choice", "choices": list(held["names"])}
        case "text":
            return {"kind": "text", "max_length": held["limit"]}
        case _:
            return {"kind": maker}


def settings_description(defaults: Settings) -> list[dict[str, Any]]:
    """One entry per setting: its name in a session.update, what it may be, what it is by default."""
    flat: dict[str, Any] = msgspec.to_builtins(defaults)
    out = []
    for field in FIELDS:
        value: Any = flat
        for part in field.path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        out.append({"path": field.path, "name": field.ga, "doc": field.doc, "default": value} | describe(field.check))
    return out


async def capabilities(request: web.Request) -> web.Response:
    """Open to all: the call page asks here whether it needs a key."""
    services = request.app[SERVICES]
    config = services.config
    body = {
        "object": "realtime.capabilities",
        "transports": ["websocket", "webrtc"],
        "events": ["ga", "extended"],
        "key_required": bool(config.server.api_keys),
        "ready": services.engine.ready,
        "models": services.engine.models if services.engine.ready else {},
        "chat_model": services.chat_model,
        "agents": list(services.agents.found),
        "recording": bool(config.inspector.session_dir),
        "ice_servers": [{"urls": config.webrtc.stun}] if config.webrtc.stun else [],
        "settings": settings_description(services.settings),
    }
    return web.json_response(body)
