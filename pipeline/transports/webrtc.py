"""A session over WebRTC: Opus both ways, events on the data channel `oai-events`.

aiortc carries ICE, DTLS, SRTP, SCTP and the sender. Received packets are taken where its receiver hands them over and go
through our own jitter buffer and decoder (`ears.py`); sent audio is encoded here and asked for when it is to be played, so
that a frame that was not due yet cannot be on its way when the user speaks over the reply.
"""

from __future__ import annotations

import asyncio
import fractions
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import av
from aioice import ice
from aiortc import RTCConfiguration, RTCDataChannel, RTCIceServer, RTCPeerConnection, RTCRtpSender, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

from bargein.realtime import events as e

from ..runner import SessionRunner
from . import opus
from .ears import RtpEars
from .framing import Unwrapper, wrap
from .ports import gather_within
from .rates import Rates
from .sdp import BadOffer, check_offer, finish_answer

log = logging.getLogger("bargein.webrtc")

CONNECT_S = 20.0
MAX_UNSENT = 1 << 20  # bytes of events that wait for a client that does not read
FLUSH_S = 1.0
FLOOD_TOLD_S = 1.0
FRAME_S = 0.02
MAX_BEHIND = 5  # so many packets too late are still sent, at twice the pace
# How soon a peer that vanished without a goodbye is given up: three unanswered checks, about 12 s. An outage of a few
# seconds must not end a call.
ice.CONSENT_INTERVAL, ice.CONSENT_FAILURES = 4, 3
_TIME_BASE = fractions.Fraction(1, opus.RTP_RATE)
_TICKS = opus.RTP_RATE // 50


@dataclass(frozen=True, slots=True)
class IceSettings:
    """How peers reach us. `ports`: the UDP range to listen on, (0, 0) for any."""

    public_address: str = ""
    ports: tuple[int, int] = (0, 0)
    stun: str = ""
    turn: str = ""
    turn_username: str = ""
    turn_credential: str = ""

    def servers(self) -> list[RTCIceServer]:
        """For aiortc; an empty list, not None, or it would ask a public server."""
        out = [RTCIceServer(self.stun)] if self.stun else []
        if self.turn:
            out.append(RTCIceServer(self.turn, self.turn_username or None, self.turn_credential or None))
        return out


class Voice(MediaStreamTrack):
    """The outgoing track: a clock that sends one packet every 20 ms for the whole call.

    At each tick `on_tick` is asked for a frame of the reply, which `say` takes; where none comes, silence goes out. So
    a reply's frames leave evenly, and none is on its way before its time.
    """

    kind = "audio"

    def __init__(self, on_tick: Callable[[float], None]) -> None:
        super().__init__()
        self._encoder = opus.Encoder()
        self._packets: asyncio.Queue[av.Packet[Any] | None] = asyncio.Queue()
        self._clock = asyncio.get_running_loop()
        self._on_tick = on_tick
        self._origin: float | None = None  # when packet 0 left
        self._frames = 0
        self._frame = b""
        self._timer: asyncio.TimerHandle | None = None

    def say(self, pcm: bytes) -> None:
        """The frame of this tick: 24 kHz 16-bit samples, at most 20 ms."""
        self._frame = pcm

    def _tick(self) -> None:
        now = self._clock.time()
        assert self._origin is not None
        behind = int((now - self._origin) / FRAME_S) - self._frames
        if behind > MAX_BEHIND:  # the loop stood still: leave a gap rather than hurry for long
            self._frames += behind
        self._frame = b""
        self._on_tick(now)
        packet: av.Packet[Any] = av.Packet(self._encoder.encode(self._frame))
        packet.pts, packet.time_base = self._frames * _TICKS, _TIME_BASE
        self._frames += 1
        self._packets.put_nowait(packet)
        due = max(self._origin + self._frames * FRAME_S, now + FRAME_S / 2)
        self._timer = self._clock.call_at(due, self._tick)

    async def recv(self) -> av.Packet[Any]:
        """The next packet for aiortc's sender, which stamps and sends it at once."""
        if self._origin is None:  # the sender has started: the transport is up
            self._origin = self._clock.time()
            self._tick()
        packet = await self._packets.get()
        if packet is None:
            raise MediaStreamError
        return packet

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.readyState == "live":
            self._packets.put_nowait(None)
            self._encoder.close()
        super().stop()


class WebRtcTransport:
    """One call's peer connection. `answer` an offer, bind `runner`, then `serve`."""

    carries_audio = True
    own_clock = True

    def __init__(self, settings: IceSettings, *, fragment: bool = False) -> None:
        self._settings, self._fragment = settings, fragment
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=settings.servers()))
        self._voice = Voice(self._tick)
        self._ears = RtpEars(self._heard)
        self._channel: RTCDataChannel | None = None
        self._waiting: list[str] = []  # events from before the channel was open
        self._num_wrapped = 0
        self._unwrapper = Unwrapper()
        self._loop = asyncio.get_running_loop()
        self._rates: Rates | None = None
        self._flood_told = 0.0
        self._connected = asyncio.Event()
        self._over = asyncio.Event()
        self._closing = False
        self.listeners: set[Callable[[str | None], None]] = set()  # sidebands; None: the call is over
        self.runner: SessionRunner | None = None
        self._pc.on("datachannel", self._on_channel)
        self._pc.on("connectionstatechange", self._on_state)

    # --- signalling ---

    async def answer(self, offer: str) -> str:
        """Our session description for the client's. Raises BadOffer."""
        check_offer(offer)
        try:
            await self._pc.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            opus_only = [c for c in RTCRtpSender.getCapabilities("audio").codecs if c.mimeType.lower() == "audio/opus"]
            for transceiver in self._pc.getTransceivers():
                if transceiver.kind != "audio":
                    transceiver.direction = "inactive"
            first = next(t for t in self._pc.getTransceivers() if t.kind == "audio")
            first.setCodecPreferences(opus_only)
            first._codecs = [c for c in first._codecs if c.mimeType.lower() == "audio/opus"]
            self._pc.addTrack(self._voice)
            self._ears.attach(first.receiver)
            gather_within(self._pc, self._settings.ports)
            await self._pc.setLocalDescription(await self._pc.createAnswer())
        except BadOffer:
            raise
        except Exception as problem:  # aiortc raises what its parts raise; whatever it is, the offer caused it
            log.info("offer refused", exc_info=True)
            raise BadOffer(f"the offer cannot be answered: {problem or type(problem).__name__}") from None
        return finish_answer(self._pc.localDescription.sdp, self._settings.public_address)

    # --- the session's side ---

    def send(self, text: str) -> None:
        for listener in list(self.listeners):
            listener(text)
        if self._channel is None or self._channel.readyState != "open":
            self._waiting.append(text)
            return
        self._write(text)

    def _write(self, text: str) -> None:
        assert self._channel is not None
        pieces = [text]
        if self._fragment:
            self._num_wrapped += 1
            pieces = wrap(text, self._num_wrapped)
        try:
            for piece in pieces:
                self._channel.send(piece)
        except ValueError as problem:  # larger than the client's channel takes
            log.warning("an event was not sent: %s", problem)
        except Exception:  # the channel closed under us; its end is noticed elsewhere
            return
        if self._channel.bufferedAmount > MAX_UNSENT and not self._closing and self.runner is not None:
            self.runner.tell(e.NodeFailed(self.runner.now(), "client_too_slow", "the client does not read its events"))

    def lag_ms(self) -> float:
        return 0.0

    def send_audio(self, pcm: bytes) -> None:
        """A frame of the reply: 24 kHz 16-bit samples."""
        self._voice.say(pcm)

    def close(self, code: int, reason: str) -> None:
        self._closing = True
        self._over.set()

    # --- the peer's side ---

    def _tick(self, now: float) -> None:
        if self.runner is not None and not self._closing:
            self.runner.playout.tick(now)

    def _heard(self, x: opus.F32) -> None:
        if self.runner is not None and not self._closing:
            self.runner.append_samples(x)

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if self._channel is not None and self._channel.label == "oai-events":
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", self._gone)
        waiting, self._waiting = self._waiting, []
        for text in waiting:
            self._write(text)

    def _on_message(self, raw: Any) -> None:
        runner = self.runner
        if runner is None or self._closing:
            return
        now = self._loop.time()
        self._rates = self._rates or Rates(runner.limits, now)
        if self._rates.take(now, len(raw)) > 0:  # a channel cannot be read later: what is over the rate is lost, and said
            if now - self._flood_told > FLOOD_TOLD_S:
                self._flood_told = now
                told = "more events or bytes than this server takes; some were dropped"
                runner.tell(e.ClientFault(runner.now(), "rate_limit_exceeded", told))
            return
        message = self._unwrapper.feed(raw)
        if message is not None:
            runner.receive(message)

    def _on_state(self) -> None:
        state = self._pc.connectionState
        if state == "connected":
            self._connected.set()
        elif state in ("failed", "closed"):
            self._gone()

    def _gone(self) -> None:
        """The peer has left, by a goodbye or by silence."""
        self._connected.set()
        if self.runner is not None and not self._closing:
            self.runner.tell(e.TransportClosed(self.runner.now()))

    async def serve(self) -> None:
        """Run the session until either side ends it; everything is freed when this returns."""
        runner = self.runner
        assert runner is not None
        watch = asyncio.create_task(self._watch(runner), name="rtc-connect")
        try:
            await runner.run()
            await self._flush()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await self.free()

    async def _watch(self, runner: SessionRunner) -> None:
        try:
            await asyncio.wait_for(self._connected.wait(), CONNECT_S)
        except TimeoutError:
            log.info("no connection within %.0f s (ICE: %s)", CONNECT_S, self._pc.iceConnectionState)
            runner.tell(e.TransportClosed(runner.now()))

    async def _flush(self) -> None:
        """Let the last events out."""
        deadline = asyncio.get_running_loop().time() + FLUSH_S
        while (
            self._channel is not None
            and self._channel.readyState == "open"
            and self._pc.connectionState == "connected"
            and (self._channel.bufferedAmount or self._channel.transport._outbound_queue)
            and asyncio.get_running_loop().time() < deadline
        ):
            await asyncio.sleep(FRAME_S)

    async def free(self) -> None:
        """Let go of sockets, codecs and tasks."""
        self._closing = True
        self._ears.close()
        self._voice.stop()
        for listener in list(self.listeners):
            listener(None)
        self.listeners.clear()
        await self._pc.close()
        self._channel = None
