"""WAV files and 16-bit PCM for the client: standard library and NumPy only."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import soxr

RATE = 24000
FRAME_MS = 20
I16 = npt.NDArray[np.int16]


def read_wav(path: Path, rate: int = RATE) -> I16:
    """Mono 16-bit samples at `rate`. Raises ValueError for anything that is not 16-bit PCM."""
    try:
        with wave.open(str(path)) as w:
            if w.getsampwidth() != 2:
                raise ValueError(f"{path}: need 16-bit PCM, found {8 * w.getsampwidth()} bits")
            x = np.frombuffer(w.readframes(w.getnframes()), "<i2").reshape(-1, w.getnchannels())
            source = w.getframerate()
    except (wave.Error, EOFError) as problem:
        raise ValueError(f"{path}: not a PCM WAV file ({problem})") from None
    mono = x.astype(np.float32).mean(axis=1)
    if source != rate:
        mono = soxr.resample(mono, source, rate)
    samples: I16 = np.clip(np.rint(mono), -32768, 32767).astype(np.int16)
    return samples


def write_wav(file: Path | IO[bytes], x: I16, rate: int = RATE) -> None:
    """Write mono 16-bit samples to a path or an open file."""
    with wave.open(str(file) if isinstance(file, Path) else file, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(rate)
        w.writeframes(x.astype("<i2").tobytes())


def frames(x: I16, ms: int = FRAME_MS, rate: int = RATE) -> list[I16]:
    """Whole frames; the last one is padded with silence."""
    n = rate * ms // 1000
    padded = np.concatenate([x, np.zeros(-len(x) % n, np.int16)])
    return list(padded.reshape(-1, n))


def rms(x: I16) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2))) if len(x) else 0.0


def voiced_span(parts: list[I16]) -> tuple[int, int]:
    """Indices of the first and last frame that count as speech: louder than 6% of the loudest, twice over any noise."""
    levels = [rms(p) for p in parts] or [0.0]
    limit = max(100.0, 0.06 * max(levels), 2 * float(np.quantile(levels, 0.1)))
    voiced = [n for n, level in enumerate(levels) if level > limit]
    return (voiced[0], voiced[-1]) if voiced else (0, max(len(parts) - 1, 0))


def first_audible(x: I16, rate: int = RATE, loud: float = 100.0) -> float | None:
    """Seconds to the first 10 ms that are louder than silence."""
    n = rate // 100
    for k in range(0, len(x), n):
        if rms(x[k : k + n]) > loud:
            return k / rate
    return None
