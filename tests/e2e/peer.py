"""A WebRTC client of the tests: aiortc's own, with its stock receive path or with our jitter buffer."""

from __future__ import annotations

import asyncio
import fractions
import json
import time
from collections.abc import Callable
from typing import Any, Self

import aiohttp
import av
import numpy as np
import soxr
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from bargein.client.audio import I16, RATE, frames, voiced_span
from bargein.client.session import Seen
from bargein.pipeline.transports import opus
from bargein.pipeline.transports.ears import RtpEars

TICKS = 960


class MicTrack(MediaStreamTrack):
    """20 ms packets on an absolute schedule, made by our encoder: silence, or what `play` was given."""

    kind = "audio"

    def __init__(self, bitrate: int = 32000) -> None:
        super().__init__()
        self._encoder = opus.Encoder(bitrate=bitrate)
        self._pending: list[I16] = []
        self._sent_at: list[float] | None = None
        self._done = asyncio.Event()
        self._start: float | None = None
        self._n = 0
        self.paused = False

    async def recv(self) -> av.Packet:
        while True:
            now = time.monotonic()
            if self._start is None:
                self._start = now
            due = self._start + self._n * 0.02
            if due > now:
                await asyncio.sleep(due - now)
            if not self.paused:
                break
            self._n += 1
        frame = self._pending.pop(0) if self._pending else np.zeros(480, np.int16)
        packet = av.Packet(self._encoder.encode(frame.tobytes()))
        packet.pts, packet.time_base = self._n * TICKS, fractions.Fraction(1, 48000)
        self._n += 1
        if self._sent_at is not None:
            self._sent_at.append(time.monotonic())
            if not self._pending:
                self._sent_at = None
                self._done.set()
        return packet

    async def play(self, x: I16) -> tuple[float, float]:
        """When the first and last voiced frames were sent (seconds, monotonic)."""
        parts = frames(x)
        first, last = voiced_span(parts)
        sent: list[float] = []
        self._done.clear()
        self._pending, self._sent_at = parts, sent
        await self._done.wait()
        return sent[first], sent[last]


class Peer:
    """One call. `heard`: (arrival, 24 kHz samples) of everything that came over the track."""

    def __init__(self, base: str, *, stock: bool = False, headers: dict[str, str] | None = None) -> None:
        self.base, self.stock, self.headers = base, stock, headers or {}
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.mic = MicTrack()
        self.seen: list[Seen] = []
        self.heard: list[tuple[float, I16]] = []
        self.packets: list[tuple[float, int]] = []  # arrival and size of RTP packets
        self.location = ""
        self.closed = asyncio.Event()
        self.open = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._up = soxr.ResampleStream(16000, RATE, 1, dtype="int16")
        self.ears = RtpEars(self._take)

    async def connect(self, query: str = "", session: dict[str, Any] | None = None) -> Self:
        self.channel = self.pc.createDataChannel("oai-events")
        self.channel.on("message", self._message)
        self.channel.on("open", self.open.set)
        self.channel.on("close", self.closed.set)
        self.pc.addTrack(self.mic)
        self.pc.on("track", self._on_track)
        self.pc.on("connectionstatechange", self._state)
        if not self.stock:
            self.ears.attach(self.pc.getTransceivers()[0].receiver)
        await self.pc.setLocalDescription(await self.pc.createOffer())
        async with aiohttp.ClientSession() as http:
            if session is None:
                head = {"Content-Type": "application/sdp"} | self.headers
                post = http.post(f"{self.base}/v1/realtime/calls{query}", data=self.pc.localDescription.sdp, headers=head)
            else:
                form = aiohttp.FormData()
                form.add_field("sdp", self.pc.localDescription.sdp, content_type="application/sdp")
                form.add_field("session", json.dumps(session), content_type="application/json")
                post = http.post(f"{self.base}/v1/realtime/calls{query}", data=form, headers=self.headers)
            async with post as reply:
                text = await reply.text()
                assert reply.status == 201, text
                self.location = reply.headers["Location"]
        await self.pc.setRemoteDescription(RTCSessionDescription(text, "answer"))
        await asyncio.wait_for(self.open.wait(), 10)
        return self

    def _on_track(self, track: MediaStreamTrack) -> None:
        if self.stock:
            self._tasks.append(asyncio.create_task(self._pump(track)))

    async def _pump(self, track: MediaStreamTrack) -> None:
        down = soxr.ResampleStream(48000, RATE, 1, dtype="int16")
        try:
            while True:
                frame = await track.recv()
                x = frame.to_ndarray().reshape(-1, 2)[:, 0]
                self.heard.append((time.monotonic(), down.resample_chunk(np.ascontiguousarray(x))))
        except MediaStreamError:
            return

    def _take(self, x: opus.F32) -> None:
        pcm = np.rint(np.clip(x, -1, 1) * 32767).astype(np.int16)
        self.heard.append((time.monotonic(), self._up.resample_chunk(pcm)))

    def _message(self, text: str) -> None:
        self.seen.append(Seen(time.monotonic(), json.loads(text)))
        self._changed.set()

    def _state(self) -> None:
        if self.pc.connectionState in ("closed", "failed"):
            self.closed.set()
            self._changed.set()

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind} | fields))

    async def update(self, **session: Any) -> None:
        mark = len(self.seen)
        self.send("session.update", session={"type": "realtime"} | session)
        answer = await self.wait(lambda s: s.type in ("session.updated", "error"), mark, 10)
        assert answer is not None and answer.type == "session.updated", answer

    async def wait(self, match: str | Callable[[Seen], bool], since: int = 0, timeout: float = 30) -> Seen | None:
        test = (lambda s: s.type == match) if isinstance(match, str) else match
        deadline = time.monotonic() + timeout
        while True:
            for s in self.seen[since:]:
                if test(s):
                    return s
            left = deadline - time.monotonic()
            if left <= 0 or self.closed.is_set():
                return None
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return None

    def of(self, kind: str, since: int = 0) -> list[Seen]:
        return [s for s in self.seen[since:] if s.type == kind]

    def audible_after(self, at: float, level: int = 300) -> float | None:
        """When the first sample louder than `level` arrived, after `at`."""
        return next((t for t, x in self.heard if t >= at and len(x) and int(np.abs(x.astype(int)).max()) > level), None)

    def last_audible(self, level: int = 300) -> float:
        return max(t for t, x in self.heard if len(x) and int(np.abs(x.astype(int)).max()) > level)

    def audio_since(self, at: float) -> I16:
        return np.concatenate([np.zeros(0, np.int16), *[x for t, x in self.heard if t >= at]])

    async def close(self) -> None:
        self.ears.close()
        self.mic.stop()
        await self.pc.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
