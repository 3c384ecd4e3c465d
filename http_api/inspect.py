"""`/v1/inspect`: the sessions that can be looked at, their streams and their recordings. Wants an admin key."""

from __future__ import annotations

import re
from pathlib import Path

from aiohttp import web

from .doors import admit_admin, refusal
from .services import SERVICES

FILES = {"journal": (".jsonl", "application/x-ndjson"), "mic.wav": (".mic.wav", "audio/wav"),
         "out.wav": (".out.wav", "audio/wav")}  # fmt: skip


async def list_sessions(request: web.Request) -> web.Response:
    """Live sessions, the last that ended, and recordings; a recorded one is listed once."""
    services = request.app[SERVICES]
    if (refused := admit_admin(request, services.config.server)) is not None:
        return refused
    data = services.inspections.list()
    if services.recorder is not None:
        known = {s["session_id"]: s for s in data}
        for recording in services.recorder.list():
            if (live := known.get(recording["session_id"])) is not None:
                live["recorded"] = True
            else:
                data.append(recording)
    return web.json_response({"object": "list", "recording": services.recorder is not None, "data": data})


async def follow(request: web.Request) -> web.StreamResponse:
    """A session's records as JSON lines, from what is still held on, until it ends or the reader goes."""
    services = request.app[SERVICES]
    if (refused := admit_admin(request, services.config.server)) is not None:
        return refused
    watch = services.inspections.get(request.match_info["session"])
    if watch is None:
        return refusal(404, "there is no such session (a recorded one is at …/journal)", "session_not_found")
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    reader = watch.relay.follow()
    try:
        while lines := await reader.next():
            await response.write(lines)
        await response.write_eof()
    except ConnectionError:
        pass
    finally:
        watch.relay.leave(reader)
    return response


async def recorded_file(request: web.Request) -> web.StreamResponse:
    """The journal or one side's audio of a recorded session; audio can be asked for in ranges."""
    services = request.app[SERVICES]
    if (refused := admit_admin(request, services.config.server)) is not None:
        return refused
    session, what = request.match_info["session"], request.match_info["what"]
    if services.recorder is None or what not in FILES or not re.fullmatch(r"sess_\w+", session):
        return refusal(404, "there is no such recording", "session_not_found")
    ending, kind = FILES[what]
    file = Path(services.recorder.folder) / (session + ending)
    if not file.is_file():
        return refusal(404, "there is no such recording", "session_not_found")
    return web.FileResponse(file, headers={"Content-Type": kind, "Cache-Control": "no-store"})
