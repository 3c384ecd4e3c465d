"""The black-box fuzzer: hostile clients against a server over its real transports (SPEC section 15.3).

A scenario is one client, or two at once, that do what `hostile` draws from a seed, and then want to know: does the
session still answer, does every response end, do the rules hold for the trace, did it end for a reason that it may have.
`run` also asks the server's health and, where it has Prometheus metrics, whether sessions are left over.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from . import rules
from .hostile import ADDRESSES, Move, as_text, move
from .live import address
from .rtc import RtcWire

MOVES = (3, 25)  # of a scenario, at least and at most
ANSWER_S = 40.0  # within which a session answers again, whatever it was sent
CLOSE_S = 15.0
LEFT_S = 20.0
FAIR_CODES = {1000, 1001, 1008, 1009}  # closes that a hostile client may be given
WRITE_BEHIND = 100  # events sent without reading, at most, where the client is to look


class Wire(Protocol):
    """One connection, whatever carries it."""

    def send(self, data: str | bytes) -> None: ...
    def receive(self, timeout: float) -> str | None:
        """The next event; None: none came in time. Raises Gone."""
    def close(self) -> None: ...


class Gone(Exception):
    """The server has closed; `code` is its close code, None where the transport has none."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


@dataclass(slots=True)
class SocketWire:
    """Over WebSocket."""

    ws: Connection

    def send(self, data: str | bytes) -> None:
        try:
            self.ws.send(data)
        except ConnectionClosed as end:
            raise Gone(end.rcvd.code if end.rcvd else None) from None

    def receive(self, timeout: float) -> str | None:
        try:
            return str(self.ws.recv(timeout))
        except TimeoutError:
            return None
        except ConnectionClosed as end:
            raise Gone(end.rcvd.code if end.rcvd else None) from None

    def close(self) -> None:
        self.ws.close()


def _is_told(key: str, value: Any) -> bool:
    """Whether a trace keeps this of a damaged event: a type is a word, and an id that nobody would repeat is none."""
    return key not in ("type", "event_id") or (isinstance(value, str) and len(value) <= 512)


@dataclass(slots=True)
class Client:
    """One hostile client. `log` is the trace as `rules.check` takes it."""

    wire: Wire
    rng: random.Random
    log: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    transcribes: bool = False  # a transcription session refuses without a word, by contract
    alone: bool = True  # nobody else speaks in this session
    sound: bool = True  # replies' audio comes with the events, not over a track
    joined: bool = False  # it came into a session that was running
    sent: int = 0

    def do(self, m: Move) -> None:
        for n, body in enumerate(m.events):
            if not isinstance(body, dict):
                self.log.append({"sent": True})
                self.wire.send(as_text(body))
                continue
            if "event_id" not in body and self.rng.random() < 0.8:
                self.sent += 1
                body = {**body, "event_id": f"client_{self.sent}"}
            self.log.append({"sent": True} | {k: v for k, v in body.items() if _is_told(k, v)})
            self.wire.send(as_text(body))
            if n % WRITE_BEHIND == 0:
                self.read(0)
        if m.raw is not None:
            self.log.append({"sent": True})
            self.wire.send(m.raw)
        self.read(m.wait_s)

    def read(self, seconds: float) -> None:
        """Take what has come and what comes in that time."""
        until = time.monotonic() + seconds
        while (text := self.wire.receive(max(0.0, until - time.monotonic()))) is not None:
            self.take(text)

    def take(self, text: str) -> dict[str, Any]:
        ev: dict[str, Any] = json.loads(text)
        self.log.append(ev)
        if ev.get("type") == "error" and ev["error"].get("type") == "server_error":
            self.problems.append(f"a server error: {ev['error']}")
        if ev.get("type") == "response.done" and ev["response"]["status"] == "failed":
            self.problems.append(f"a response failed: {ev['response']['status_details']}")
        return ev

    def answers(self) -> None:
        """The session has to answer a harmless event, and to end what it runs."""
        until = time.monotonic() + ANSWER_S
        mark = f"last_{self.rng.randrange(10**9)}"
        update = {"type": "session.update", "event_id": mark, "session": {"instructions": mark}}
        self.log.append({"sent": True} | update)
        self.wire.send(as_text(update))
        asked, answered = 0.0, False
        while not answered or self.running():
            if time.monotonic() > until:
                left = f"responses {sorted(self.running())} do not end" if answered else "it does not answer any more"
                self.problems.append(f"after {ANSWER_S:g} s {left}")
                return
            if answered and time.monotonic() > asked + 2:
                asked = time.monotonic()
                for response_id in sorted(self.running()):
                    cancel = {"type": "response.cancel", "event_id": f"{mark}_{asked}", "response_id": response_id}
                    self.log.append({"sent": True} | cancel)
                    self.wire.send(as_text(cancel))
            text = self.wire.receive(0.5)
            if text is not None:
                kind = self.take(text)["type"]
                answered = answered or mark in text or (self.transcribes and kind.endswith("session.updated"))

    def running(self) -> set[str]:
        """Responses that were announced and have not ended."""
        def ids(kind: str) -> set[str]:
            return {ev["response"]["id"] for ev in self.log if ev.get("type") == kind}

        return ids("response.created") - ids("response.done")

    def play(self, moves: int) -> None:
        """Do so many things, look whether the session lives, and go: with a goodbye, or without."""
        ended: int | None = None
        answered = False
        try:
            for _ in range(moves):
                self.do(move(self.rng))
            if self.rng.random() < 0.8:
                self.answers()
                answered = not self.problems
            if self.rng.random() < 0.5:
                self.wire.send(as_text({"type": "session.close"}))
                until = time.monotonic() + CLOSE_S
                while time.monotonic() < until:
                    self.read(0.5)
                self.problems.append(f"session.close does not close within {CLOSE_S:g} s")
        except Gone as end:
            ended = end.code
            if ended is not None and ended not in FAIR_CODES:
                self.problems.append(f"the server closed with {ended}")
        finally:
            self.wire.close()
        whole = answered and self.alone and not self.transcribes
        trace = self.log if whole else [ev for ev in self.log if "sent" not in ev]
        if "conversation.item.created" not in {ev.get("type") for ev in trace}:  # beta's names are not the rules'
            found = rules.check(trace, ended=self.alone and ended == 1000, complete=whole, sound=self.sound, joined=self.joined)
            self.problems += [f"{v.rule} at {v.at}: {v.what}" for v in found]


def scenario(url: str, seed: str, key: str = "") -> list[str]:
    """One scenario over WebSocket -> what is wrong. Raises OSError where there is no server."""
    rng = random.Random(seed)
    clients = 2 if rng.random() < 0.2 else 1
    found: list[str] = []

    def one(own: random.Random) -> None:
        found.extend(_socket_client(url, own, key))

    threads = [threading.Thread(target=one, args=(random.Random(rng.random()),)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@dataclass(slots=True)
class ChannelWire:
    """Over a call's data channel."""

    call: RtcWire

    def send(self, data: str | bytes) -> None:
        self.call.send(data)

    def receive(self, timeout: float) -> str | None:
        text = self.call.receive(timeout)
        if text is None and self.call.is_over:
            raise Gone(None)
        return text

    def close(self) -> None:
        self.call.close()


def call_scenario(url: str, seed: str, key: str = "") -> list[str]:
    """One scenario over WebRTC, every second with a rival: a sideband that does what it likes to the same session."""
    rng = random.Random(seed)
    try:
        call = RtcWire(address(url), key, rng)
    except urllib.error.HTTPError as refused:
        return [f"the offer was refused with {refused.code}"]
    client = Client(ChannelWire(call), random.Random(rng.random()), alone=rng.random() < 0.5, sound=False)
    found: list[str] = []
    rival = threading.Thread(
        target=lambda: found.extend(_socket_client(url, random.Random(seed + "r"), key, f"?call_id={call.call_id}"))
    )
    if not client.alone:
        rival.start()
    _play(client)
    if not client.alone:
        rival.join()
    return client.problems + found


def _play(client: Client) -> None:
    try:
        client.play(client.rng.randint(*MOVES))
    except (WebSocketException, KeyError, TypeError, ValueError) as problem:
        client.problems.append(f"{type(problem).__name__}: {problem}")


def _socket_client(url: str, rng: random.Random, key: str, sideband: str = "") -> list[str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    where = address(url) + (sideband or rng.choice(ADDRESSES))
    try:
        ws = connect(where, additional_headers=headers, max_size=2**24, max_queue=None, compression=None, close_timeout=2)
    except InvalidStatus as refused:
        status = refused.response.status_code
        return [f"the upgrade was refused with {status}"] if status >= 500 else []
    except OSError as problem:
        return [f"no connection: {problem}"]
    client = Client(SocketWire(ws), rng, transcribes="transcription" in where, alone=not sideband, sound=not sideband)
    client.joined = bool(sideband)
    _play(client)
    return client.problems


# --- the server beside it ------------------------------------------------------------------------------------------


def _get(url: str, path: str, key: str) -> tuple[int, str]:
    parts = urlsplit(address(url))
    scheme = "https" if parts.scheme == "wss" else "http"
    asked = urllib.request.Request(f"{scheme}://{parts.netloc}{path}")
    if key:
        asked.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(asked, timeout=15) as reply:
            return reply.status, reply.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as refused:
        return refused.code, ""


def left_over(url: str, key: str = "") -> list[str]:
    """What is wrong with the server itself: not well, or sessions that nobody holds any more, after a while."""
    status, _ = _get(url, "/health/ready", key)
    problems = [f"/health/ready answers {status}"] if status >= 500 else []
    until, left = time.monotonic() + LEFT_S, ""
    while time.monotonic() < until:
        status, text = _get(url, "/metrics", key)
        found = re.search(r"^bargein_realtime_sessions (\S+)$", text, re.M) if status == 200 else None
        if found is None or float(found[1]) == 0:
            return problems
        left = found[1]
        time.sleep(0.2)
    return [*problems, f"{left} sessions are left over after {LEFT_S:g} s"]


def run(
    url: str, scenarios: int, seed: int, key: str = "", first: int = 0, *, webrtc: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """Each scenario's name (what reproduces it) and what is wrong; the server is looked after every tenth.

    Raises OSError where it cannot be reached or is not ready.
    """
    if _get(url, "/health/ready", key)[0] == 503:
        raise ConnectionError(f"{url} is not ready yet")
    for n in range(first, scenarios):
        problems = (call_scenario if webrtc else scenario)(url, f"{seed}:{n}", key)
        if n % 10 == 9 or n == scenarios - 1:
            with contextlib.suppress(ConnectionError):
                problems += left_over(url, key)
        yield f"{'--webrtc ' if webrtc else ''}--seed {seed} --first {n} --scenarios {n + 1}", problems
