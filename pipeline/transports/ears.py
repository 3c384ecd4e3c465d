"""What a WebRTC peer says: RTP packets from aiortc's receiver, through the jitter buffer, to 16 kHz samples.

aiortc's own path (fixed prefetch, no concealment, no redundancy) is left out: its receiver hands a packet to
`_handle_rtp_packet`, which is ours. Its reports to the sender still need its counters, so those are kept fed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
from aiortc.rtcrtpreceiver import RTCRtpReceiver, StreamStatistics
from aiortc.rtp import RtpPacket

from . import opus
from .jitter import Coded, Conceal, JitterBuffer, Piece, Recover, Silence


class RtpEars:
    """One stream. `deliver` is called with samples, whose number follows the clock whatever the network does."""

    def __init__(self, deliver: Callable[[opus.F32], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._decoder = opus.Decoder()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._ssrc: int | None = None
        self.buffer = JitterBuffer()

    def attach(self, receiver: RTCRtpReceiver) -> None:
        """Take over the receiver's packets; before it starts."""
        reports: dict[int, StreamStatistics] = receiver._RTCRtpReceiver__remote_streams  # type: ignore[attr-defined]

        async def take(packet: RtpPacket, arrival_time_ms: int) -> None:
            if packet.ssrc not in reports:
                reports[packet.ssrc] = StreamStatistics(opus.RTP_RATE)
            reports[packet.ssrc].add(packet)
            self.take(packet)

        receiver._handle_rtp_packet = take  # type: ignore[method-assign]

    def take(self, packet: RtpPacket) -> None:
        """One packet, now."""
        if self._closed:
            return
        duration = opus.packet_samples(packet.payload)
        if duration == 0:
            return
        now = self._loop.time() * 1000
        if packet.ssrc != self._ssrc:  # another source starts a stream of its own
            self._ssrc = packet.ssrc
            self.buffer = JitterBuffer()
        self.buffer.push(packet.sequence_number, packet.timestamp, packet.payload, duration, now)
        self._emit(now)

    def _emit(self, now: float) -> None:
        """Play out what is due, then wait for the next packet or its deadline."""
        samples = [self._decode(piece) for piece in self.buffer.pop(now)]
        if samples:
            self._deliver(samples[0] if len(samples) == 1 else np.concatenate(samples))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed and (due := self.buffer.deadline()) is not None:
            self._timer = self._loop.call_at(due / 1000, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        self._emit(self._loop.time() * 1000)

    def _decode(self, piece: Piece) -> opus.F32:
        want = piece.duration // 3
        try:
            match piece:
                case Coded(payload):
                    got = self._decoder.decode(payload)
                case Recover(following, duration):
                    got = self._decoder.recover(following, duration)
                case Conceal(duration):
                    got = self._decoder.conceal(duration)
                case Silence():
                    return np.zeros(want, np.float32)
        except opus.OpusError:  # a damaged packet is a lost one
            return np.zeros(want, np.float32)
        return got if len(got) == want else np.resize(got, want)

    def close(self) -> None:
        """Stop; the decoder is freed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._decoder.close()
