"""What the routes share: configuration, the engine's client, the chat source, the live sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web

from bargein.engine.client import EngineClient
from bargein.pipeline.media import Media
from bargein.pipeline.nodes.chat import ChatSource, EngineChat, UpstreamChat
from bargein.pipeline.runner import SessionRunner
from bargein.realtime import events as e
from bargein.realtime.settings import Settings

from .config import Config


class Services:
    """One per front process."""

    def __init__(self, config: Config, engine: EngineClient) -> None:
        self.config, self.engine = config, engine
        self.settings: Settings = config.session_settings()
        self._runners: set[SessionRunner] = set()
        self.media = Media()
        self._http: aiohttp.ClientSession | None = None

    @property
    def num_sessions(self) -> int:
        return len(self._runners)

    @property
    def chat_model(self) -> str:
        """The model that answers."""
        if self.config.chat.base_url:
            return self.config.chat.model or "upstream"
        return self.engine.models.get("chat", "")

    @property
    def model_names(self) -> list[str]:
        """Every model that is loaded, the chat model first."""
        return list(dict.fromkeys(filter(None, [self.chat_model, *self.engine.models.values()])))

    def chat_source(self) -> ChatSource:
        """A source of its own for one session."""
        chat = self.config.chat
        if chat.base_url:
            return UpstreamChat(chat.base_url, chat.api_key, chat.model)
        return EngineChat(self.engine)

    def http(self) -> aiohttp.ClientSession:
        """The connections to the chat server, shared by all requests."""
        if self._http is None or self._http.closed:
            timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=300)
            self._http = aiohttp.ClientSession(timeout=timeout)
        return self._http

    async def close(self) -> None:
        """Let go of those connections, and of the decoder that waits."""
        await self.media.close()
        if self._http is not None:
            await self._http.close()

    @contextmanager
    def session(self, runner: SessionRunner) -> Iterator[None]:
        """Count a session while it runs."""
        self._runners.add(runner)
        try:
            yield
        finally:
            self._runners.discard(runner)

    def drain(self) -> None:
        """End every session: the server is shutting down."""
        for runner in list(self._runners):
            runner.tell(e.DrainRequested(runner.now()))


SERVICES = web.AppKey("services", Services)
