"""`/v1/models`: what is loaded."""

from __future__ import annotations

import time

from aiohttp import web

from ..errors import ApiError
from ..services import SERVICES
from .names import loaded, stock_task

STARTED = int(time.time())


def _entry(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "bargein"}


async def list_models(request: web.Request) -> web.Response:
    """Every model that runs, the chat model first."""
    names = request.app[SERVICES].model_names
    return web.json_response({"object": "list", "data": [_entry(n) for n in names]})


async def get_model(request: web.Request) -> web.Response:
    """One of them; a stock client's name for one is shown under that name."""
    name = request.match_info["model"]
    models = loaded(request.app[SERVICES])
    if name in models.values() or name in request.app[SERVICES].agents.found or stock_task(name) in models:
        return web.json_response(_entry(name))
    raise ApiError(404, f"the model {name[:100]!r} does not exist here; see /v1/models", "model", "model_not_found")
