"""The call page and the inspector: static files of the `inspector` package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from aiohttp import web

KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; media-src 'self' blob: mediastream:; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self)",
    "Cache-Control": "no-cache",
}


def folder() -> Path:
    """Where the pages' files are."""
    return Path(str(files("bargein.inspector")))


def _send(name: str) -> web.FileResponse:
    file = folder() / name
    return web.FileResponse(file, headers=HEADERS | {"Content-Type": KINDS[file.suffix] + "; charset=utf-8"})


async def call_page(request: web.Request) -> web.StreamResponse:
    """`GET /`."""
    return _send("call.html")


async def inspector_page(request: web.Request) -> web.StreamResponse:
    """`GET /inspector`."""
    return _send("inspector.html")


async def page_file(request: web.Request) -> web.StreamResponse:
    """`GET /pages/{name}`: modules and styles; nothing outside the folder, nothing of another kind."""
    name = request.match_info["name"]
    if "/" in name or name.startswith(".") or Path(name).suffix not in KINDS or not (folder() / name).is_file():
        raise web.HTTPNotFound
    return _send(name)
