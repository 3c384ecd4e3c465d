"""What the routes share: configuration, the engine's client, the chat source, the live sessions and calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from bargein.agent.definition import Agent, ChatServer
from bargein.engine import protocol as p
from bargein.engine.fleet import Engine, Fleet
from bargein.pipeline.alignment import Aligner
from bargein.pipeline.inspect import Inspections, Summary, Watch
from bargein.pipeline.media import Media
from bargein.pipeline.nodes.chat import ChatSource, EngineChat, UpstreamChat
from bargein.pipeline.recording import Recorder
from bargein.pipeline.runner import SessionRunner, Transport
from bargein.pipeline.transports.webrtc import IceSettings, WebRtcTransport
from bargein.realtime import events as e
from bargein.realtime.dialects import Dialect
from bargein.realtime.settings import Settings

from .admission import Admission
from .agents import AgentChat, Agents, Start
from .board import Seat
from .config import Config
from .doors import Refused, refusal
from .secrets import Secrets
from .tracing import Tracer
from .version import package_version
from .webhooks import Webhooks

log = logging.getLogger("bargein.http")


def _full() -> web.Response:
    return refusal(503, "the server is full", "server_full", Retry_After="10")


@dataclass(frozen=True, slots=True, eq=False)
class LiveCall:
    """A WebRTC call under the id that its `Location` names."""

    id: str
    runner: SessionRunner
    transport: WebRtcTransport


class Services:
    """One per front process."""

    def __init__(self, config: Config, engine: Fleet, seat: Seat | None = None) -> None:
        """`seat`: this process' place among several that are one server. Raises AgentError, NoTracing."""
        self.config, self.engine, self.seat = config, engine, seat
        self.settings: Settings = config.session_settings()
        self.secrets = Secrets(maker=None if seat is None else seat.number)
        self.agents = Agents(config.server.agents)
        self.calls: dict[str, LiveCall] = {}
        rtc = config.webrtc
        self.ice = IceSettings(
            rtc.public_address, (rtc.port_min, rtc.port_max), rtc.stun, rtc.turn, rtc.turn_username, rtc.turn_credential
        )
        self.inspections = Inspections(config.inspector.relay_cap, self.load)
        inspector = config.inspector
        self.recorder: Recorder | None = None
        if inspector.session_dir:
            is_first = seat is None or seat.is_heir
            folder = Path(inspector.session_dir)
            self.recorder = Recorder(folder, inspector.keep_days, inspector.keep_mb, tidy_now=is_first)
        self._aligner = Aligner(engine)
        hooks = config.webhooks
        self._webhooks = Webhooks(hooks.urls, hooks.secret, hooks.timeout_s) if hooks.urls else None
        otel = config.otel
        self._tracer = Tracer(otel.endpoint, otel.service, package_version()) if otel.endpoint else None
        self._admission = Admission(config.server.max_load, fronts=config.server.workers)
        engine.on_load = self._loaded
        self._runners: set[SessionRunner] = set()
        self._num_opening = 0
        self.draining = False  # no more sessions are taken
        self._tasks: set[asyncio.Task[None]] = set()
        self.media = Media()
        self._http: aiohttp.ClientSession | None = None

    def _loaded(self, load: p.Load) -> None:
        """The engine told how busy it is."""
        own_s = time.process_time()
        spent_s = own_s if self.seat is None else self.seat.spent_s(own_s)
        self._admission.heard(load, spent_s, self.all_sessions, time.monotonic())
        for runner in list(self._runners):
            runner.told_load(self._admission.is_busy)

    @property
    def num_sessions(self) -> int:
        """This process' sessions."""
        return len(self._runners) + self._num_opening

    @property
    def all_sessions(self) -> int:
        """The server's: those of its other workers too."""
        return self.num_sessions if self.seat is None else self.seat.board.sessions

    @property
    def all_streams(self) -> int:
        """Open on the engine: this process' own where there is no other, else as the engine told last."""
        if self.seat is None or self.engine.load is None:
            return self.engine.num_streams()
        return self.engine.load.streams

    def _tell(self) -> None:
        """Show the other workers how many sessions there are here."""
        if self.seat is not None:
            self.seat.tell(self.num_sessions)

    def _tell_soon(self) -> None:
        """The same for one less, when what goes on with its place, such as the session that was being set up, has it."""
        if self.seat is not None:
            asyncio.get_running_loop().call_soon(self._tell)

    @property
    def chat_model(self) -> str:
        """The model that answers."""
        if self.config.chat.base_url:
            return self.config.chat.model or "upstream"
        return self.engine.models.get("chat", "")

    @property
    def model_names(self) -> list[str]:
        """The agents, then every model that is loaded, the chat model first."""
        names = [*self.agents.found, self.chat_model, *self.engine.models.values()]
        return list(dict.fromkeys(filter(None, names)))

    def chat_source(self, engine: Engine, agent: Agent | None = None) -> ChatSource:
        """A source of its own for one session, which has this engine: the agent's, or the server's."""
        chat = self.config.chat
        own = agent.chat if agent is not None and agent.chat is not None else ChatServer()
        if own.base_url:
            return UpstreamChat(own.base_url, own.key, own.model or chat.model)
        if chat.base_url:
            return UpstreamChat(chat.base_url, own.key or chat.api_key, own.model or chat.model)
        return EngineChat(engine)

    def load(self) -> dict[str, int]:
        """How busy the server is, for the inspector's engine lane."""
        jobs = self.engine.load.jobs if self.engine.load is not None else 0
        return {"sessions": self.all_sessions, "streams": self.all_streams, "jobs": jobs}

    def watch(self, transport: str, answered_by: str) -> Callable[[str], Watch]:
        """What a session's runner calls with its id, to be watched and, where that is configured, recorded."""

        def begin(session_id: str) -> Watch:
            sink = self.recorder.start(session_id, transport) if self.recorder is not None else None
            if self._webhooks is not None:
                self._webhooks.started(session_id, transport, answered_by, time.time())
            return self.inspections.open(session_id, transport, sink, answered_by=answered_by, on_end=self._ended)

        return begin

    def _ended(self, summary: Summary) -> None:
        """A session is over."""
        if self._webhooks is not None:
            self._webhooks.ended(summary, self.recorder is not None)
        if self._tracer is not None:
            self._tracer.ended(summary)

    def finish_recordings(self) -> None:
        """From now on the words of recorded callers get their times, those of calls that ended with the server first."""
        if (recorder := self.recorder) is None:
            return
        loop = asyncio.get_running_loop()

        def written(folder: Path) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: the next start will find it
                loop.call_soon_threadsafe(self._aligner.put, folder)

        recorder.written = written
        if self.seat is not None and not self.seat.is_heir:
            return
        for folder in recorder.unaligned():
            self._aligner.put(folder)

    def why_full(self) -> web.Response | None:
        """The refusal of a session that cannot be taken now, or None."""
        if self.draining:
            return refusal(503, "the server is shutting down", "draining", Retry_After="5")
        if not self.engine.ready:
            return refusal(503, "the engine is starting", "engine_unavailable", Retry_After="2")
        if self.all_sessions >= self.config.server.max_sessions:
            return _full()
        self._admission.expect(self.engine.call_s)
        if not self._admission.fits(self.all_sessions):
            return refusal(503, "the server has no time for one more call", "server_full", Retry_After="10")
        return None

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Count a session that is being set up. Raises Refused where another worker has just taken the last place."""
        if self.seat is not None and not self.seat.take(self.num_sessions + 1, self.config.server.max_sessions):
            raise Refused(_full())
        self._num_opening += 1
        try:
            yield
        finally:
            self._num_opening -= 1
            self._tell_soon()

    def http(self) -> aiohttp.ClientSession:
        """The connections to the chat server, shared by all requests."""
        if self._http is None or self._http.closed:
            timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=300)
            self._http = aiohttp.ClientSession(timeout=timeout)
        return self._http

    async def close(self) -> None:
        """Let go of those connections, of the decoder that waits, and of the agents' tools."""
        await self._aligner.close()
        if self._webhooks is not None:
            await self._webhooks.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        await self.agents.close()
        await self.media.close()
        if self._http is not None:
            await self._http.close()

    def runner(self, transport: Transport, start: Start, dialect: Dialect | None, kind: str) -> SessionRunner:
        """A session on this server's engine, chat and limits; `kind` is what the inspector calls its transport."""
        engine = self.engine.pinned()
        source = AgentChat(lambda agent: self.chat_source(engine, agent), start.agent)
        model = start.agent.name if start.agent is not None else self.chat_model
        return SessionRunner(
            engine=engine,
            source=source,
            transport=transport,
            settings=start.settings,
            dialect=dialect,
            model_used=model,
            limits=self.config.limits,
            inspections=self.watch(kind, model),
            hands=self.agents.hands(start, source),
            models=tuple(self.model_names),
        )

    @contextlib.contextmanager
    def session(self, runner: SessionRunner) -> Iterator[None]:
        """Count a session while it runs."""
        self._runners.add(runner)
        try:
            yield
        finally:
            self._runners.discard(runner)
            self._tell_soon()

    def start_call(self, call: LiveCall) -> None:
        """Run a WebRTC call beside the request that made it."""
        self._runners.add(call.runner)
        self.calls[call.id] = call
        task = asyncio.create_task(self._run_call(call), name=call.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_call(self, call: LiveCall) -> None:
        try:
            await call.transport.serve()
        except Exception:  # the supervisor of this session: its failure is its own
            log.exception("%s failed", call.id)
        finally:
            self.calls.pop(call.id, None)
            self._runners.discard(call.runner)
            self._tell_soon()

    async def drained(self, seconds: float, hurry: asyncio.Event) -> None:
        """Take no more sessions and wait for those that run, so long at most, or until there is a hurry."""
        self.draining = True
        until = time.monotonic() + seconds
        log.info("no more calls are taken; %d may go on for %g s", self.num_sessions, seconds)
        while self.num_sessions and time.monotonic() < until and not hurry.is_set():
            await asyncio.sleep(0.05)

    def drain(self) -> None:
        """End every session: the server is shutting down."""
        for runner in list(self._runners):
            runner.tell(e.DrainRequested(runner.now()))

    async def calls_ended(self) -> None:
        """Wait for WebRTC calls to have let go of everything, a few seconds at most."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=4)


SERVICES = web.AppKey("services", Services)
