"""The aiohttp application, and the process around it: engine, server, shutdown."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiohttp import web

from bargein.engine.client import EngineClient, EngineUnavailable, InprocLink
from bargein.engine.device import cache_room
from bargein.engine.fleet import Fleet
from bargein.engine.supervisor import EngineExited, Supervisor
from bargein.models.store import home
from bargein.pipeline.oneshot import WorkFailed, WorkRefused

from . import calls, gate, inspect, pages, routes, siblings, telephony
from .board import Seat
from .capabilities import capabilities
from .config import Config
from .doors import Refused, cors, refusal
from .errors import ApiError
from .memory import give_back
from .openapi import show
from .realtime import realtime
from .services import SERVICES, Services
from .tls import context
from .version import package_version

log = logging.getLogger("bargein.http")

POOL_THREADS = 6  # what files and encoders wait on


def _full_pool() -> ThreadPoolExecutor:
    """A pool whose threads all run already: none is started during a call, and one more than these is a leak."""
    pool = ThreadPoolExecutor(POOL_THREADS, "pool")
    together = threading.Barrier(POOL_THREADS)
    for _ in range(POOL_THREADS):
        pool.submit(together.wait)
    return pool


async def health(request: web.Request) -> web.Response:
    """The process is alive."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """200 only when an engine is warm."""
    engine = request.app[SERVICES].engine
    if request.app[gate.GATE].draining:
        return web.json_response({"status": "draining"}, status=503)
    if engine.ready:
        engines = {"ready": len(engine.serving), "all": len(engine.clients)}
        return web.json_response({"status": "ready", "models": engine.models, "engines": engines})
    return web.json_response({"status": "starting"}, status=503, headers={"Retry-After": "2"})


async def show_version(request: web.Request) -> web.Response:
    return web.json_response({"name": "bargein", "version": package_version()})


@web.middleware
async def envelope(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """Every refusal in OpenAI's shape."""
    try:
        return await handler(request)
    except Refused as refused:
        return refused.response
    except (ApiError, EngineUnavailable, WorkFailed, WorkRefused, ConnectionError):  # for the gate
        raise
    except web.HTTPNotFound:
        return refusal(404, f"no such address: {request.method} {request.path}", "not_found")
    except web.HTTPMethodNotAllowed as problem:
        return refusal(405, f"{request.method} is not possible here", Allow=", ".join(sorted(problem.allowed_methods)))
    except web.HTTPException as problem:
        return refusal(problem.status, problem.reason)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return refusal(500, "internal error")


def make_app(services: Services) -> web.Application:
    limit = services.config.http.max_body_mb * 2**20
    inner = [] if services.seat is None else [siblings.wherever_it_is]
    app = web.Application(middlewares=[gate.gate, cors(services.config.server), envelope, *inner], client_max_size=limit)
    app[SERVICES] = services
    if services.seat is not None:
        siblings.install(app)
    gate.install(app)
    routes.add(app)
    app.router.add_get("/", pages.call_page)
    app.router.add_get("/inspector", pages.inspector_page)
    app.router.add_get("/pages/{name}", pages.page_file)
    app.router.add_get("/health", health)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/version", show_version)
    as_json, as_page = show(package_version())
    app.router.add_get("/openapi.json", as_json)
    app.router.add_get("/docs", as_page)
    app.router.add_get("/v1/realtime", realtime)
    app.router.add_post("/v1/realtime", calls.create_call)
    app.router.add_post("/v1/realtime/calls", calls.create_call)
    app.router.add_post("/v1/realtime/calls/{call_id}/hangup", calls.hang_up)
    app.router.add_delete("/v1/realtime/calls/{call_id}", calls.hang_up)
    app.router.add_post("/v1/realtime/client_secrets", calls.create_secret)
    app.router.add_post("/v1/realtime/sessions", calls.create_session)
    app.router.add_post("/v1/realtime/transcription_sessions", calls.create_session)
    app.router.add_get("/v1/realtime/capabilities", capabilities)
    app.router.add_get("/v1/telephony/{provider}", telephony.phone)
    app.router.add_get("/v1/inspect", inspect.list_sessions)
    app.router.add_get("/v1/inspect/{session}", inspect.follow)
    app.router.add_get("/v1/inspect/{session}/{what}", inspect.recorded_file)
    app.router.add_delete("/v1/inspect/{session}", inspect.delete)

    async def drain(app: web.Application) -> None:
        app[SERVICES].drain()
        await app[SERVICES].calls_ended()

    async def first(app: web.Application) -> None:
        app[SERVICES].finish_recordings()

    async def last(app: web.Application) -> None:
        if (recorder := app[SERVICES].recorder) is not None:
            await asyncio.to_thread(recorder.close)

    async def close(app: web.Application) -> None:
        await app[SERVICES].close()

    app.on_startup.append(first)
    app.on_shutdown.append(drain)
    app.on_cleanup.append(last)
    app.on_cleanup.append(close)
    return app


def new_fleet(config: Config) -> Fleet:
    """A client for each device that is configured, not connected yet."""
    names = [name.strip() for name in config.engine.device.split(",")]
    return Fleet([EngineClient() for _ in names], names)


@asynccontextmanager
async def running_engines(config: Config, fleet: Fleet) -> AsyncIterator[None]:
    """An engine for each client of the fleet, as a process, or one on a thread. Raises EngineExited, WeightsError."""
    if config.engine.mode == "inproc":
        from bargein.engine.build import build  # here: it imports the models and their compiler, which takes seconds

        core, models, _ = await asyncio.to_thread(
            build, stt=config.models.stt, chat=config.models.chat, threads=config.engine.threads,
            device=config.engine.device, gpu_memory=config.engine.gpu_memory, cache_memory=config.engine.cache_memory,
        )  # fmt: skip
        await asyncio.to_thread(core.warm)
        await asyncio.to_thread(core.try_out)
        core.start()
        link = InprocLink(fleet.clients[0], core, models)
        try:
            yield
        finally:
            link.close()
            core.stop()
        return
    supervisors = supervisors_of(config, fleet)
    try:
        await asyncio.gather(*(supervisor.start() for supervisor in supervisors))
        yield
    finally:
        await asyncio.gather(*(supervisor.stop() for supervisor in supervisors))


def supervisors_of(config: Config, fleet: Fleet) -> list[Supervisor]:
    """Who keeps each client's engine alive."""
    pairs = zip(fleet.clients, fleet.names, strict=True)
    return [Supervisor(client, _engine_args(config, name, fleet.names.count(name))) for client, name in pairs]


def _engine_args(config: Config, device: str, alike: int) -> list[str]:
    """For an engine on a device that so many engines have: they share its cores and the memory of their caches."""
    engine, models = config.engine, config.models
    threads, cache = engine.threads, engine.cache_memory
    if alike > 1:
        threads = threads or max(1, len(os.sched_getaffinity(0)) // alike)
        cache = f"{max(1, cache_room(cache) // alike >> 20)}MiB"
    where = ["--device", device, "--gpu-memory", engine.gpu_memory, "--cache-memory", cache]
    return ["--stt", models.stt, "--chat", models.chat, "--threads", str(threads), *where]


class Stop:
    """SIGTERM and SIGINT, from when it is made on. `hurry`: SIGINT, or a second signal of either kind."""

    def __init__(self) -> None:
        self.told, self.hurry = asyncio.Event(), asyncio.Event()
        for sig in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sig, self._take, sig)

    def _take(self, sig: signal.Signals) -> None:
        if sig is signal.SIGINT or self.told.is_set():
            self.hurry.set()
        self.told.set()


async def serve(
    config: Config,
    seat: Seat | None = None,
    engines: Callable[[Config, Fleet], AbstractAsyncContextManager[None]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; after SIGTERM running calls and requests are let finish, for as long as is configured,
    a second signal ends that. `seat`: the place of a worker, one of several on this port; `engines`: how it comes by those.
    Raises OSError (port in use), AgentError, NoTracing and EngineExited."""
    give_back()
    asyncio.get_running_loop().set_default_executor(_full_pool())
    services = Services(config, new_fleet(config), seat)
    await services.agents.start()
    app = make_app(services)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
    await runner.setup()
    stop = Stop()
    try:
        secure = context(config.server, home() / "tls")
        host, port = config.server.host, config.server.port
        await web.TCPSite(runner, host, port, ssl_context=secure, reuse_port=seat is not None or None).start()
        if seat is None:
            say_listening(config)
            services.engine.on_change = lambda: _say_ready(services, config.server.address)
        else:
            await siblings.listen(runner, seat)
            services.engine.on_change = lambda: _sit_ready(services, seat)
        async with (engines or running_engines)(config, services.engine):
            await stop.told.wait()
            log.info("ending")
            await asyncio.gather(
                gate.drained(app, config.http.drain_s, stop.hurry), services.drained(config.server.drain_s, stop.hurry)
            )  # fmt: skip
            await runner.cleanup()
    finally:
        await runner.cleanup()


def say_listening(config: Config) -> None:
    """Where the server is, and who can use it."""
    address = config.server.address
    log.info("listening at %s; loading models", address)
    if config.server.host not in ("127.0.0.1", "localhost", "::1") and not config.server.api_keys:
        log.warning("anyone who reaches %s can use it: no API key is set (server.api_keys)", address)


def _sit_ready(services: Services, seat: Seat) -> None:
    """A worker's engine has come or gone: its parent says when all have theirs."""
    if services.engine.ready:
        _settle()
    seat.set_state("ready" if services.engine.ready else "listening")


def models_of(fleet: Fleet) -> str:
    """What runs, in words."""
    several = f"; {len(fleet.serving)} of {n} engines" if (n := len(fleet.clients)) > 1 else ""
    return ", ".join(f"{task} {name}" for task, name in fleet.models.items()) + several


def _say_ready(services: Services, address: str) -> None:
    if services.engine.ready:
        _settle()
        log.info("ready at %s (%s)", address, models_of(services.engine))


def _settle() -> None:
    """What the server is made of stays: from now on the collector looks through the calls alone. A full pass stops every call;
    it took 40 ms, which is all that a WebRTC call has in hand."""
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()


__all__ = ["EngineExited", "make_app", "serve"]
