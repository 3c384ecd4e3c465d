"""A WebRTC connection for the fuzzer: events over the data channel, sound of any kind over the track."""

from __future__ import annotations

import asyncio
import fractions
import queue
import random
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import av
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamTrack

from .hostile import RATE, sound, speech

FRAME = RATE // 50
CONNECT_S = 30.0
MAX_MESSAGE = 200_000  # of a data channel


class Noise(MediaStreamTrack):
    """20 ms frames on an absolute schedule: mostly silence, now and then something else."""

    kind = "audio"

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng, self._n, self._left = rng, 0, b""
        self._start = time.monotonic()

    async def recv(self) -> av.AudioFrame:
        await asyncio.sleep(max(0.0, self._start + self._n * 0.02 - time.monotonic()))
        if not self._left and self._rng.random() < 0.01:
            self._left = self._rng.choice((speech(self._rng.randrange(4)), sound(self._rng)))
        pcm, self._left = self._left[: 2 * FRAME].ljust(2 * FRAME, b"\0"), self._left[2 * FRAME :]
        frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, "<i2").reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._n * FRAME, fractions.Fraction(1, RATE)
        self._n += 1
        return frame


class RtcWire:
    """One call; a thread of its own runs it. `call_id` is what a sideband names. Raises OSError where none comes about."""

    def __init__(self, url: str, key: str, rng: random.Random) -> None:
        self._events: queue.Queue[str | None] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._over = False
        self.call_id = ""
        try:
            self._do(self._connect(url, key, rng))
        except BaseException:
            self.close()
            raise

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CONNECT_S)

    async def _connect(self, url: str, key: str, rng: random.Random) -> None:
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._channel = self._pc.createDataChannel("oai-events")
        opened = asyncio.Event()
        self._channel.on("open", opened.set)
        self._channel.on("message", self._events.put)
        self._channel.on("close", lambda: self._events.put(None))
        self._pc.addTrack(Noise(rng))
        await self._pc.setLocalDescription(await self._pc.createOffer())
        offer = self._pc.localDescription.sdp.encode()
        answer = await asyncio.to_thread(self._post, url, key, offer)
        await self._pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await asyncio.wait_for(opened.wait(), CONNECT_S / 2)

    def _post(self, url: str, key: str, offer: bytes) -> str:
        parts = urlsplit(url)
        scheme = "https" if parts.scheme == "wss" else "http"
        where = f"{scheme}://{parts.netloc}/v1/realtime/calls"
        asked = urllib.request.Request(where, offer, {"Content-Type": "application/sdp"})
        if key:
            asked.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(asked, timeout=CONNECT_S / 2) as reply:
            self.call_id = reply.headers["Location"].rsplit("/", 1)[-1]
            return str(reply.read().decode())

    def send(self, data: str | bytes) -> None:
        """Goes nowhere once the call is over, as on any data channel."""
        self._loop.call_soon_threadsafe(self._send, data)

    def _send(self, data: str | bytes) -> None:
        if self._channel.readyState == "open" and len(data) < MAX_MESSAGE:
            self._channel.send(data)

    def receive(self, timeout: float) -> str | None:
        """The next event; None: none came in time, or the call is over (`is_over`)."""
        if self._over:
            return None
        try:
            text = self._events.get(timeout=timeout) if timeout > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        self._over = text is None
        return text

    @property
    def is_over(self) -> bool:
        return self._over

    def close(self) -> None:
        if hasattr(self, "_pc"):
            self._do(self._pc.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
