"""`/v1/inspect`: the sessions that can be looked at, their streams and their recordings. Wants an admin key."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from .doors import admit_admin, is_sibling, refusal
from .services import SERVICES
from .siblings import SIBLINGS

# What a recorded call's folder holds, by the name that the address has for it.
FILES = {"journal": ("journal.jsonl", "application/x-ndjson"), "audio.wav": ("audio.wav", "audio/wav"),
         "transcript.json": ("transcript.json", "application/json"), "turns.json": ("turns.json", "application/json"),
         "tools.jsonl": ("tools.jsonl", "application/x-ndjson")}  # fmt: skip


async def list_sessions(request: web.Request) -> web.Response:
    """Live sessions, the last that ended, and recordings; a recorded one is listed once."""
    services = request.app[SERVICES]
    if (refused := admit_admin(request, services.config.server)) is not None:
        return refused
    data = services.inspections.list()
    siblings = request.app.get(SIBLINGS)
    if siblings is not None:
        if is_sibling(request):
            return web.json_response({"data": data})
        for told in (await siblings.gather(request)).values():
            data += json.loads(told)["data"]
        data.sort(key=lambda s: -s["started"])
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
    """A file of a recorded session; audio can be asked for in ranges."""
    services = request.app[SERVICES]
    if (refused := admit_admin(request, services.config.server)) is not None:
        return refused
    session, what = request.match_info["session"], request.match_info["what"]
    name, kind = FILES.get(what, ("", ""))
    file = services.recorder.file(session, name) if services.recorder is not None else None
    if file is None:
        return refusal(404, "there is no such recording", "session_not_found")
    return web.FileResponse(file, headers={"Content-Type": kind, "Cache-Control": "no-store"})


async def delete(request: web.Request) -> web.Response:
    """Remove all that is kept of a session that is over: its folder and its records."""
    services = request.app[SERVICES]
    if (refused := admit_admin(request, services.config.server)) is not None:
        return refused
    session = request.match_info["session"]
    watch, recorder = services.inspections.get(session), services.recorder
    if (watch is not None and not watch.relay.ended) or (recorder is not None and recorder.is_live(session)):
        return refusal(409, "this session is not over", "session_live")
    gone = recorder is not None and await asyncio.to_thread(recorder.delete, session)
    if not (services.inspections.forget(session) or gone):
        return refusal(404, "there is no such session", "session_not_found")
    return web.json_response({"id": session, "object": "session.deleted", "deleted": True})
