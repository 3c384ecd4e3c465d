"""Configuration: one TOML file, then environment variables, then flags; the later wins. Validated as a whole at start.

A key `[section] name` is BARGEIN_SECTION_NAME in the environment and `--set section.name=value` (or a flag of its own)
on the command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from bargein.realtime.settings import Limits, Settings, SettingsError, apply, parse

from .webhooks import key_of

MAX_WORKERS = 64


class ConfigError(Exception):
    """A configuration that cannot be used; the message names the key."""


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()  # for /v1/inspect and recordings, once any key is set
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()  # names that browsers may reach the server by, beside its own
    max_sessions: int = 16
    max_load: float = 0.75  # a call that would take cores or engine beyond this share is refused; 0: none is for that
    drain_s: float = 30.0  # how long calls may go on when the server is told to end (SIGTERM)
    agents: tuple[str, ...] = ()  # files, .toml or .py; the first agent answers where no model is named
    tls: Literal["", "auto"] = ""  # auto: a self-signed certificate, made once and kept
    tls_cert: str = ""
    tls_key: str = ""

    workers: int = 1  # processes that serve, before one engine, on one port

    @property
    def is_tls(self) -> bool:
        return bool(self.tls or self.tls_cert)

    @property
    def address(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.host}:{self.port}"


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["process", "inproc"] = "process"
    threads: int = 0
    device: str = "auto"  # auto, cpu, cuda, cuda:N; "cuda:0,cuda:1" for an engine on each
    gpu_memory: str = "80%"  # of the GPU's, or a size such as 18GiB: weights, caches and workspace
    cache_memory: str = "25%"  # of the machine's, or a size: what the chat model's caches of all calls may take on the CPU


class Models(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the catalogue; empty: the default."""

    stt: str = ""
    chat: str = ""


class Chat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An OpenAI-compatible server to take replies from, instead of the local model."""

    base_url: str = ""
    api_key: str = ""
    model: str = ""


class Webrtc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How browsers reach the server's media. Ports: first and last UDP port, 0 for any."""

    public_address: str = ""
    port_min: int = 0
    port_max: int = 0
    stun: str = ""
    turn: str = ""
    turn_username: str = ""
    turn_credential: str = ""


class Telephony(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Telephone calls through a provider's media stream. `tokens`: keys that open only this door; with none, the server's
    API keys do. `agent`: who answers, unless the stream says."""

    tokens: tuple[str, ...] = ()
    agent: str = ""
    lead_ms: int = 160  # audio sent ahead: the provider's network is not ours


class Inspector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recording is off where `session_dir` is empty."""

    session_dir: str = ""
    relay_cap: int = 1024
    keep_days: float = 30.0
    keep_mb: int = 2000


class Webhooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is told of a call's start and end. `secret`: whsec_ and base64; without one, messages are not signed."""

    urls: tuple[str, ...] = ()
    secret: str = ""
    timeout_s: float = 10.0


class Otel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces of calls, over OTLP/HTTP: `http://collector:4318` (off where empty). Needs `pip install bargein[otel]`."""

    endpoint: str = ""
    service: str = "bargein"


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of HTTP requests; those of a key hold for each key by itself. 0: none."""

    max_body_mb: int = 32
    max_upload_mb: int = 1024
    max_audio_s: float = 6 * 3600.0
    request_timeout_s: float = 6 * 3600.0
    requests_per_minute: int = 0
    concurrent_requests: int = 64
    drain_s: float = 30.0  # how long running requests may take to end when the server is told to
    stored_responses: int = 1000


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    server: Server = Server()
    engine: Engine = Engine()
    models: Models = Models()
    chat: Chat = Chat()
    webrtc: Webrtc = Webrtc()
    telephony: Telephony = Telephony()
    inspector: Inspector = Inspector()
    webhooks: Webhooks = Webhooks()
    otel: Otel = Otel()
    http: Http = Http()
    log: Log = Log()
    limits: Limits = Limits()
    session: dict[str, Any] = {}  # defaults of every session, in the shape of a session.update

    def session_settings(self) -> Settings:
        """The settings that a new session starts with. Raises ConfigError."""
        try:
            return apply(Settings(), parse(self.session))
        except SettingsError as problem:
            raise ConfigError(f"[session] {problem.param.removeprefix('session.')}: {problem.message}") from None


SECTIONS = (
    "server", "engine", "models", "chat", "http", "webrtc", "telephony", "inspector", "webhooks", "otel", "log", "limits",
)  # fmt: skip


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Read, merge and validate. `flags`: "section.name" to text. Raises ConfigError."""
    merged: dict[str, Any] = {}
    if file is not None:
        try:
            merged = tomllib.loads(file.read_text())
        except OSError as problem:
            raise ConfigError(f"{file}: {problem.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise ConfigError(f"{file}: not valid TOML: {problem}") from None
    for name, value in environ.items():
        if name.startswith("BARGEIN_") and name != "BARGEIN_HOME":
            section, _, key = name.removeprefix("BARGEIN_").lower().partition("_")
            _put(merged, section, key, value, name)
    for path, value in flags.items():
        section, _, key = path.partition(".")
        _put(merged, section, key, value, f"--set {path}")
    try:
        config = msgspec.convert(merged, Config, strict=False)
    except msgspec.ValidationError as problem:
        raise ConfigError(_readable(str(problem))) from None
    if not 0 <= config.server.port <= 65535:
        raise ConfigError(f"server.port: {config.server.port} is not a port (0 to 65535)")
    if not 1 <= config.server.workers <= MAX_WORKERS:
        raise ConfigError(f"server.workers: {config.server.workers} is not from 1 to {MAX_WORKERS}")
    if config.server.workers > 1 and config.engine.mode == "inproc":
        raise ConfigError("server.workers: more than 1 need an engine of their own process (engine.mode = process)")
    if bool(config.server.tls_cert) != bool(config.server.tls_key):
        raise ConfigError("server.tls_cert, server.tls_key: give both or neither")
    if not 0 <= config.webrtc.port_min <= config.webrtc.port_max <= 65535:
        raise ConfigError("webrtc.port_min, webrtc.port_max: not a range of ports")
    for key, url in [*(("webhooks.urls", u) for u in config.webhooks.urls), ("otel.endpoint", config.otel.endpoint)]:
        if url and not url.startswith(("http://", "https://")):
            raise ConfigError(f"{key}: {url!r} is not an http address")
    try:
        key_of(config.webhooks.secret)
    except ValueError as problem:
        raise ConfigError(f"webhooks.secret: {problem}") from None
    config.session_settings()
    return config


def _put(merged: dict[str, Any], section: str, key: str, text: str, where: str) -> None:
    """Set one key from text; lists are written with commas."""
    if section == "session":
        node = merged.setdefault("session", {})
        *groups, leaf = key.split(".")
        for group in groups:
            node = node.setdefault(group, {})
        try:
            node[leaf] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            node[leaf] = text
        return
    if section not in SECTIONS:
        raise ConfigError(f"{where}: there is no section {section!r} (known: {', '.join(SECTIONS)}, session)")
    fields = {f.name: f for f in msgspec.structs.fields(getattr(Config(), section).__class__)}
    if key not in fields:
        raise ConfigError(f"{where}: there is no key {section}.{key} (known: {', '.join(fields)})")
    listed = isinstance(fields[key].default, tuple)
    merged.setdefault(section, {})[key] = [x for x in text.split(",") if x] if listed else text


def _readable(problem: str) -> str:
    """msgspec's message with the path in front: "server.port: Expected `int`, got `str`"."""
    what, _, path = problem.partition(" - at `$")
    return f"{path.rstrip('`').lstrip('.')}: {what}" if path else what
