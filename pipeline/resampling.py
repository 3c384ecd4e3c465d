"""A resampler for streams that are heard as they come: what goes in comes out 3 ms later, and no block waits.

A windowed sinc, cut into phases. General resamplers work in blocks and hold back up to 37 ms of a call (at 8 kHz 115),
which every interruption would pay.
"""

from __future__ import annotations

from functools import cache
from math import gcd

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

HALF_MS = 3.0  # of sound on each side of a sample; so much is waited for
BETA = 8.0  # Kaiser's window: 80 dB
EDGE = 0.92  # of half the lower rate: the filter's middle


@cache
def _weights(up: int, down: int, half: int, cutoff: float) -> F32:
    """[2 * half + down - 1, up]: from the sound around `down` samples to the `up` samples in their place.

    The first of the `down` has index half - 1.
    """
    at = half - 1 + np.arange(up) * down / up  # where the outputs lie, in input samples
    away = at[None, :] - np.arange(2 * half + down - 1)[:, None]
    window = np.i0(BETA * np.sqrt(np.maximum(1 - (away / half) ** 2, 0))) / np.i0(BETA)
    weights = np.sinc(cutoff * away) * window * (abs(away) < half)
    return np.ascontiguousarray(weights / weights.sum(axis=0), dtype=np.float32)


class Resampler:
    """One mono stream from one rate (Hz) to another, float32, chunk after chunk without seams."""

    def __init__(self, source: int, target: int) -> None:
        common = gcd(source, target)
        self._up, self._down = target // common, source // common
        self._half = round(HALF_MS * source / 1000)
        self._weights = _weights(self._up, self._down, self._half, EDGE * min(1.0, target / source))
        self._held = np.zeros(self._half - 1, np.float32)  # input that is needed again
        self._num_in = self._num_out = 0

    def push(self, x: F32, last: bool = False) -> F32:
        """Samples in, those that are ready out. `last`: the rest too, so that as much time came out as went in."""
        self._num_in += len(x)
        end = [np.zeros(self._half + self._down, np.float32)] if last else []
        held = np.concatenate([self._held, x, *end])
        length = len(self._weights)
        num = max((len(held) - length) // self._down + 1, 0)
        step = held.strides[0]
        around = np.lib.stride_tricks.as_strided(held, (num, length), (self._down * step, step), writeable=False)
        out: F32 = (np.ascontiguousarray(around) @ self._weights).reshape(-1)
        self._held = held[num * self._down :]
        if last:
            out = out[: -(-self._num_in * self._up // self._down) - self._num_out]
        self._num_out += len(out)
        return out
