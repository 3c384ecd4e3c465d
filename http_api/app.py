"""The aiohttp application, and the process around it: engine, server, shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version

from aiohttp import web
from bargein.engine.client import EngineClient, InprocLink
from bargein.engine.supervisor import EngineExited, Supervisor

from .config import Config
from .doors import refusal
from .realtime import realtime
from .services import SERVICES, Services

log = logging.getLogger("bargein.http")


def package_version() -> str:
    """The installed version, "0" in a bare source tree."""
    try:
        return version("bargein")
    except PackageNotFoundError:
        return "0"


async def health(request: web.Request) -> web.Response:
    """The process is alive."""
    return web.json_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """200 only when the engine is warm."""
    engine = request.app[SERVICES].engine
    if engine.ready:
        return web.json_response({"status": "ready", "models": engine.models})
    return web.json_response({"status": "starting"}, status=503, headers={"Retry-After": "2"})


async def show_version(request: web.Request) -> web.Response:
    return web.json_response({"name": "bargein", "version": package_version()})


async def list_models(request: web.Request) -> web.Response:
    """OpenAI's model list, from what is loaded."""
    services = request.app[SERVICES]
    names = dict.fromkeys(filter(None, [services.chat_model, *services.engine.models.values()]))
    data = [{"id": n, "object": "model", "created": STARTED, "owned_by": "bargein"} for n in names]
    return web.json_response({"object": "list", "data": data})


STARTED = int(time.time())


@web.middleware
async def envelope(request: web.Request, handler: web.RequestHandler) -> web.StreamResponse:  # type: ignore[type-arg]
    """Every refusal in OpenAI's shape."""
    try:
        response: web.StreamResponse = await handler(request)  # type: ignore[operator]
        return response
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
    app = web.Application(middlewares=[envelope])
    app[SERVICES] = services
    app.router.add_get("/health", health)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/version", show_version)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/v1/realtime", realtime)

    async def drain(app: web.Application) -> None:
        app[SERVICES].drain()

    app.on_shutdown.append(drain)
    return app


async def run_engine(app: web.Application) -> AsyncIterator[None]:
    """Start the engine with the application and end it with it (a cleanup context)."""
    services = app[SERVICES]
    config = services.config
    if config.engine.mode == "inproc":
        from bargein.engine.build import build  # here: it imports the models and their compiler, which takes seconds

        core, models = await asyncio.to_thread(
            build, stt=config.models.stt, chat=config.models.chat, threads=config.engine.threads
        )
        await asyncio.to_thread(core.warm)
        core.start()
        link = InprocLink(services.engine, core, models)
        yield
        link.close()
        core.stop()
        return
    supervisor = Supervisor(services.engine, _engine_args(config))
    await supervisor.start()
    yield
    await supervisor.stop()


def _engine_args(config: Config) -> list[str]:
    threads = str(config.engine.threads)
    return ["--stt", config.models.stt, "--chat", config.models.chat, "--threads", threads]


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError (port in use) and EngineExited."""
    services = Services(config, EngineClient())
    app = make_app(services)
    app.cleanup_ctx.append(run_engine)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
    try:
        await _check_port(config)
        await runner.setup()
        site = web.TCPSite(runner, config.server.host, config.server.port)
        await site.start()
        stop = asyncio.Event()
        for sig in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(sig, stop.set)
        address = f"http://{config.server.host}:{config.server.port}"
        services.engine.on_change = lambda: _say_ready(services, address)
        _say_ready(services, address)
        if config.server.host not in ("127.0.0.1", "localhost", "::1") and not config.server.api_keys:
            log.warning("anyone who reaches %s can use it: no API key is set (server.api_keys)", address)
        await stop.wait()
        log.info("ending")
    finally:
        await runner.cleanup()


async def _check_port(config: Config) -> None:
    """Fail before the models are loaded when the port is taken."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, config.server.host, config.server.port)
    server.close()
    await server.wait_closed()


def _say_ready(services: Services, address: str) -> None:
    if services.engine.ready:
        models = ", ".join(f"{task} {name}" for task, name in services.engine.models.items())
        log.info("ready at %s (%s)", address, models)


__all__ = ["EngineExited", "make_app", "serve"]
