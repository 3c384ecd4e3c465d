"""GE2E: who speaks, as a vector (Wan et al. 2018; Resemblyzer's checkpoint). Three LSTM layers over mel frames.

A stretch of speech is heard in windows of 1.6 s that overlap by half; its vector is the mean of theirs, of unit length.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bargein.kernels import cpu

from .weights_io import read_tensors

F32 = NDArray[np.float32]

SAMPLE_RATE = 16000
MELS, HIDDEN, LAYERS = 40, 256, 3
N_FFT, HOP = 400, 160
FRAMES = 160  # of a window
STEP = 80
LOUDNESS = 10 ** (-30 / 20)  # quieter speech is raised to this root mean square


class Model(NamedTuple):
    """The weights, under the checkpoint's names."""

    w: dict[str, F32]
    filters: F32  # [MELS, N_FFT / 2 + 1]


def expected_shapes() -> dict[str, tuple[int, ...]]:
    """Name to shape."""
    out: dict[str, tuple[int, ...]] = {"linear.weight": (HIDDEN, HIDDEN), "linear.bias": (HIDDEN,)}
    for i in range(LAYERS):
        out[f"lstm.weight_ih_l{i}"] = (4 * HIDDEN, MELS if i == 0 else HIDDEN)
        out[f"lstm.weight_hh_l{i}"] = (4 * HIDDEN, HIDDEN)
        out[f"lstm.bias_ih_l{i}"] = out[f"lstm.bias_hh_l{i}"] = (4 * HIDDEN,)
    return out


def load(folder: Path) -> Model:
    """Read a converted folder. Raises WeightsError."""
    return Model(read_tensors(folder, expected_shapes()), cpu.mel_filters(SAMPLE_RATE, N_FFT, MELS))


def mel(m: Model, audio: F32) -> F32:
    """Mel power [T, 40] of float32 audio [n] at 16 kHz, frames centred every 10 ms."""
    level = float(np.sqrt(np.mean(np.square(audio)))) if len(audio) else 0.0
    if 0 < level < LOUDNESS:
        audio = audio * np.float32(LOUDNESS / level)
    padded = np.pad(audio, N_FFT // 2, mode="reflect" if len(audio) > N_FFT // 2 else "constant")
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)
    power = np.square(np.abs(np.fft.rfft(frames * hann))).astype(np.float32)
    return power @ m.filters.T


def windows(frames: F32) -> F32:
    """Mel frames [T, 40] to windows [n, 160, 40], half overlapping, the last one padded with silence."""
    count = max(1, 1 + -(-max(0, len(frames) - FRAMES) // STEP))
    padded = np.zeros(((count - 1) * STEP + FRAMES, MELS), np.float32)
    padded[: len(frames)] = frames[: len(padded)]
    return np.stack([padded[i * STEP : i * STEP + FRAMES] for i in range(count)])


def embed(m: Model, x: F32, ops: ModuleType = cpu) -> F32:
    """Vectors [n, 256] of unit length of windows [n, 160, 40]."""
    n = x.shape[0]
    sequence = ops.to_device(np.ascontiguousarray(x.transpose(1, 0, 2)))  # [T, n, 40]
    for i in range(LAYERS):
        bias = m.w[f"lstm.bias_ih_l{i}"] + m.w[f"lstm.bias_hh_l{i}"]
        # What the inputs give is one product for all frames; only what the state gives goes frame by frame.
        given = ops.linear(sequence.reshape(len(sequence) * n, -1), m.w[f"lstm.weight_ih_l{i}"], bias)
        given = given.reshape(len(sequence), n, 4 * HIDDEN)
        h = c = ops.zeros((n, HIDDEN))
        sequence = ops.empty((len(given), n, HIDDEN))
        for t, gates in enumerate(given):
            gates = gates + ops.linear(h, m.w[f"lstm.weight_hh_l{i}"])
            forget, put = _sigmoid(gates[:, HIDDEN : 2 * HIDDEN]), _sigmoid(gates[:, :HIDDEN])
            c = forget * c + put * np.tanh(gates[:, 2 * HIDDEN : 3 * HIDDEN])
            h = _sigmoid(gates[:, 3 * HIDDEN :]) * np.tanh(c)
            sequence[t] = h
    raw = np.maximum(ops.to_host(ops.linear(sequence[-1], m.w["linear.weight"], m.w["linear.bias"])), 0)
    return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-9)


def _sigmoid(x: F32) -> F32:
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1.0))  # no overflow at either end


def voice(m: Model, audio: F32, ops: ModuleType = cpu) -> F32:
    """The vector [256] of one stretch of speech, float32 [n] at 16 kHz."""
    mean = embed(m, windows(mel(m, audio)), ops).mean(0)
    return mean / np.float32(max(float(np.linalg.norm(mean)), 1e-9))
