"""24 kHz float32 speech to the bytes of a file format, piece by piece: WAV by hand, the others by FFmpeg (PyAV)."""

from __future__ import annotations

import struct
from typing import Any

import av
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

RATE = 24000
# format: (container, codec, sample rate, bit rate, container options)
_CODECS: dict[str, tuple[str, str, int, int, dict[str, str]]] = {
    "mp3": ("mp3", "libmp3lame", 24000, 64_000, {"write_xing": "0", "id3v2_version": "0"}),
    "opus": ("ogg", "libopus", 48000, 32_000, {"page_duration": "100000"}),
    "aac": ("adts", "aac", 24000, 64_000, {}),
    "flac": ("flac", "flac", 24000, 0, {}),
}
FORMATS = (*_CODECS, "wav", "pcm")


def pcm16(x: F32) -> bytes:
    """Little-endian 16-bit samples."""
    return bytes(np.rint(np.clip(x, -1.0, 1.0) * 32767.0).astype("<i2").tobytes())


def wav(x: F32, rate: int = RATE) -> bytes:
    """A whole mono 16-bit WAV file; its header tells the true length."""
    data = pcm16(x)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16,
                       b"data", len(data))  # fmt: skip
    return head + data


class _Sink:
    """What FFmpeg writes to: keeps the bytes until they are taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        joined = b"".join(self._parts)
        self._parts.clear()
        return joined


class Encoder:
    """One file, streamed. ValueError for a format that is not one of FORMATS. Works on whatever thread calls it."""

    def __init__(self, fmt: str) -> None:
        if fmt not in FORMATS:
            raise ValueError(f"format {fmt!r} is none of {', '.join(FORMATS)}")
        self._fmt = fmt
        self._whole: list[F32] = []  # wav: its header needs the length
        self._samples = 0
        self._sink = _Sink()
        self._container: Any = None
        self._stream: Any = None
        if fmt in _CODECS:
            container, codec, rate, bits, options = _CODECS[fmt]
            self._container = av.open(self._sink, mode="w", format=container, options={"flush_packets": "1", **options})
            self._stream = self._container.add_stream(codec, rate=rate, layout="mono")
            if bits:
                self._stream.bit_rate = bits

    def feed(self, x: F32) -> bytes:
        """More speech; the bytes that are ready."""
        if self._fmt == "pcm":
            return pcm16(x)
        if self._fmt == "wav":
            self._whole.append(x)
            return b""
        if len(x):
            samples = np.frombuffer(pcm16(x), "<i2").reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            frame.sample_rate = RATE
            frame.pts = None
            self._samples += len(x)
            self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        """The rest of the file."""
        if self._fmt == "pcm":
            return b""
        if self._fmt == "wav":
            return wav(np.concatenate([np.zeros(0, np.float32), *self._whole]))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()
