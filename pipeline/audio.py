"""Audio at the edges: wire formats to 16 kHz float32 and 24 kHz float32 to wire formats, without seams.

Each direction of each stream has one stateful resampler, so that chunk borders leave no trace.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from webrtc_noise_gain import AudioProcessor

from .resampling import Resampler

F32 = npt.NDArray[np.float32]

IN_RATE = 16000  # inside, towards the ears
OUT_RATE = 24000  # inside, from the mouth
SUPPRESSION = {"near_field": 2, "far_field": 3}  # WebRTC's levels, 0 to 4; 2 has the lowest word error at 5 dB
RATES = {"pcm16": 24000, "pcm16_16k": 16000, "g711_ulaw": 8000, "g711_alaw": 8000}


def _ulaw_table() -> npt.NDArray[np.int16]:
    """ITU-T G.711 mu-law: byte to 16-bit sample."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    exponent, mantissa = (code >> 4) & 7, code & 15
    magnitude = (((mantissa << 3) + 0x84) << exponent) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _alaw_table() -> npt.NDArray[np.int16]:
    """ITU-T G.711 A-law: byte to 16-bit sample."""
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent, mantissa = (code >> 4) & 7, code & 15
    low = (mantissa << 4) + 8
    high = ((mantissa << 4) + 0x108) << np.maximum(exponent - 1, 0)
    magnitude = np.where(exponent == 0, low, high)
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


def _inverse(table: npt.NDArray[np.int16]) -> npt.NDArray[np.uint8]:
    """For every 16-bit sample (index: sample + 32768) the byte whose value is nearest."""
    order = np.argsort(table, kind="stable")
    values = table[order].astype(np.int32)
    middle = (values[:-1] + values[1:]) // 2
    return order[np.searchsorted(middle, np.arange(-32768, 32768), side="left")].astype(np.uint8)


_DECODE = {"g711_ulaw": _ulaw_table(), "g711_alaw": _alaw_table()}
_ENCODE = {name: _inverse(table) for name, table in _DECODE.items()}


class Decoder:
    """Bytes of one input stream to 16 kHz mono float32 in [-1, 1]."""

    def __init__(self, fmt: str) -> None:
        self.fmt = fmt
        rate = RATES[fmt]
        self._resampler = Resampler(rate, IN_RATE) if rate != IN_RATE else None

    def decode(self, data: bytes) -> F32:
        """Whole samples in, whatever the resampler has ready out."""
        table = _DECODE.get(self.fmt)
        pcm = np.frombuffer(data, "<i2") if table is None else table[np.frombuffer(data, np.uint8)]
        x = pcm.astype(np.float32) / 32768.0
        if self._resampler is None:
            return x
        return self._resampler.push(x)


class NoiseReducer:
    """WebRTC's noise suppression over one input stream at 16 kHz, in blocks of 10 ms; what is no whole block waits."""

    BLOCK = IN_RATE // 100

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._processor = AudioProcessor(0, SUPPRESSION[kind])
        self._rest = np.zeros(0, np.float32)

    def process(self, x: F32) -> F32:
        """Mono float32 in [-1, 1] in and out."""
        x = np.concatenate([self._rest, x])
        whole = len(x) - len(x) % self.BLOCK
        self._rest = x[whole:]
        pcm = np.rint(np.clip(x[:whole], -1.0, 1.0) * 32767.0).astype("<i2")
        blocks = [self._processor.Process10ms(b.tobytes()).audio for b in pcm.reshape(-1, self.BLOCK)]
        return np.frombuffer(b"".join(blocks), "<i2").astype(np.float32) / 32768.0


class Encoder:
    """24 kHz mono float32 of one reply to the bytes of an output format."""

    def __init__(self, fmt: str) -> None:
        self.fmt = fmt
        rate = RATES[fmt]
        self._resampler = Resampler(OUT_RATE, rate) if rate != OUT_RATE else None

    def encode(self, x: F32, last: bool = False) -> bytes:
        """`last` flushes what the resampler still holds."""
        if self._resampler is not None:
            x = self._resampler.push(x, last=last)
        pcm = np.rint(np.clip(x, -1.0, 1.0) * 32767.0).astype("<i2")
        if self.fmt in _ENCODE:
            pcm = _ENCODE[self.fmt][pcm.astype(np.int32) + 32768]
        return bytes(pcm.tobytes())


class InputStore:
    """The recent past of one input stream at 16 kHz, addressed by absolute sample position.

    Holds what was not dropped; `keep_s` is how much is kept in any case, for the classifier and a lost engine.
    """

    def __init__(self, keep_s: float = 10.0) -> None:
        self._keep = int(keep_s * IN_RATE)
        self._buffer = np.zeros(4 * self._keep, np.float32)
        self.start = 0  # position of the first sample still held
        self.end = 0
        self._floor = 0  # what is before this is not needed

    def append(self, x: F32) -> None:
        held = self.end - self.start
        if held + len(x) > len(self._buffer):
            first = min(self.start + held, max(self.start, min(self._floor, self.end - self._keep)))
            kept = self._buffer[first - self.start : held].copy()
            if len(kept) + len(x) > len(self._buffer):
                self._buffer = np.zeros(2 * (len(kept) + len(x)), np.float32)
            self._buffer[: len(kept)] = kept
            self.start, held = first, len(kept)
        self._buffer[held : held + len(x)] = x
        self.end += len(x)

    def drop(self, before: int) -> None:
        """Samples before this position may go (they go when room is needed)."""
        self._floor = max(self._floor, before)

    def read(self, start: int, end: int) -> F32:
        """Samples [start, end), as far as they are still held."""
        a, b = max(start, self.start) - self.start, max(min(end, self.end) - self.start, 0)
        return self._buffer[a:b].copy()
