"""A stereo WAV that both sides of a call are written into, each at its own place and pace."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

I16 = npt.NDArray[np.int16]

LEFT, RIGHT = 0, 1
HEAD = 44
FRAME = 4  # bytes: two sides of 16 bits
TOLD_EVERY = 5  # seconds of audio, after which the header is brought up to date: a killed process leaves a playable file


def _header(rate: int, num: int) -> bytes:
    size = min(FRAME * num, 0xFFFFFFFF - 36)
    form = struct.pack("<IHHIIHH", 16, 1, 2, rate, FRAME * rate, FRAME, 16)
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size)


class StereoFile:
    """16 bits. Positions are in samples; what nobody wrote is silence."""

    def __init__(self, path: Path, rate: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
        self._rate, self._num, self._told = rate, 0, 0
        os.pwrite(self._fd, _header(rate, 0), 0)

    def put(self, side: int, start: int, x: I16) -> None:
        """Samples of one side from `start` on."""
        if len(x) == 0:
            return
        raw = os.pread(self._fd, FRAME * len(x), HEAD + FRAME * start)
        both = np.frombuffer(raw.ljust(FRAME * len(x), b"\0"), "<i2").reshape(-1, 2).copy()
        both[:, side] = x
        os.pwrite(self._fd, both.tobytes(), HEAD + FRAME * start)
        self._num = max(self._num, start + len(x))
        if self._num - self._told > TOLD_EVERY * self._rate:
            self._tell()

    def silence(self, side: int, start: int, end: int) -> None:
        """Take back what one side has from `start` to `end`."""
        end = min(end, self._num)
        if end > start:
            self.put(side, start, np.zeros(end - start, np.int16))

    def _tell(self) -> None:
        os.pwrite(self._fd, _header(self._rate, self._num), 0)
        self._told = self._num

    def close(self) -> None:
        self._tell()
        os.close(self._fd)


def read_side(path: Path, side: int, start_ms: float = 0.0, end_ms: float | None = None) -> tuple[I16, int]:
    """One side's samples between two moments, and the rate. Raises ValueError for another kind of file, OSError."""
    with path.open("rb") as file:
        head = file.read(HEAD)
        if len(head) < HEAD or head[:4] != b"RIFF" or head[20:24] != b"\x01\x00\x02\x00":
            raise ValueError(f"{path.name} is no stereo recording")
        rate = int(struct.unpack_from("<I", head, 24)[0])
        first = max(0, round(start_ms * rate / 1000))
        file.seek(HEAD + FRAME * first)
        raw = file.read() if end_ms is None else file.read(FRAME * max(0, round(end_ms * rate / 1000) - first))
    both = np.frombuffer(raw[: len(raw) // FRAME * FRAME], "<i2").reshape(-1, 2)
    return np.ascontiguousarray(both[:, side]), rate
