"""Definitions of the speech-synthesis ops in plain NumPy: clear, float32 out, not fast.

`cpu_tts.py` has the same names.

Frames are rows everywhere (`[T, C]`, C-contiguous), so that a chunk of time is a slice and a matrix product needs no
transpose. Conventions of the vocoder: sample rate 24 kHz, hop 300, periodic Hann window of 1200, 601 bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .reference_int8 import linear_int8

F32 = NDArray[np.float32]
C64 = NDArray[np.complex64]


class ConvBlock(NamedTuple):
    """Weights of a ConvNeXt block (Liu et al. 2022) of C channels and H hidden ones: depthwise [K, C], up [H, C] and
    down [C, H] as `Int8Matrix`, up_bias [H], the others [C]."""

    depthwise: F32
    depthwise_bias: F32
    norm: F32
    norm_bias: F32
    up: Any
    up_bias: F32
    down: Any
    down_bias: F32
    scale: F32


def conv_block(x: F32, block: ConvBlock, dilation: int = 1) -> F32:
    """A whole block without padding: x [T + (K - 1) dilation, C] -> [T, C]."""
    side = block.depthwise.shape[0] // 2 * dilation
    y = depthwise_conv_norm(x, *block[:4], dilation)
    y = bias_gelu(linear_int8(y, block.up), block.up_bias)
    return scaled_residual(x[side : side + y.shape[0]], linear_int8(y, block.down), block.down_bias, block.scale)


def conv_stack(x: F32, held: F32, counts: NDArray[np.int64], blocks: Sequence[ConvBlock], last: bool) -> F32:
    """Blocks one after the other over a signal that comes piece by piece: the next rows [T, C] -> the rows that are done.

    held [blocks, K - 1, C], of which each block has counts[n]: the rows that it needs again with the next piece; both
    are changed. In the beginning that is its zero padding, (K - 1) / 2 rows; with `last` the same is put at the end.
    """
    return stack_of(conv_block, x, held, counts, blocks, last)


def stack_of(
    one: Any, x: F32, held: F32, counts: NDArray[np.int64], blocks: Sequence[ConvBlock], last: bool
) -> F32:
    """`conv_stack` with such a `conv_block`, wherever the arrays are."""
    reach = held.shape[1]
    for n, block in enumerate(blocks):
        x = np.concatenate([held[n, : counts[n]], x])
        if last:
            x = np.concatenate([x, np.zeros_like(held[n, : reach // 2])])
        elif x.shape[0] <= reach:
            held[n, : x.shape[0]], counts[n] = x, x.shape[0]
            return x[:0]
        held[n], counts[n] = x[x.shape[0] - reach :], reach
        x = one(x, block)
    return x


def spread_conv(
    taps: F32, place: NDArray[np.int64], tones: F32, weight: F32, bias: F32
) -> F32:
    """A convolution over rows most of which are repeated: what each row gives at each tap was computed once.

    taps [L, K, C]: the products of L rows with the weights of each of the K taps; place [T + K - 1]: which of them a frame
    repeats; tones [T + K - 1, E]: inputs that are not repeated, with their weight [K, E, C]; bias [C] -> [T, C].
    """
    count = weight.shape[0]
    rows = len(place) - count + 1
    y = np.zeros((rows, taps.shape[2]), np.float64) + bias
    for k in range(count):
        y += taps[place[k : k + rows], k] + tones[k : k + rows].astype(np.float64) @ weight[k]
    return y.astype(np.float32)


class EncoderLayer(NamedTuple):
    """Weights of a pre-norm transformer layer of C channels and H hidden ones: qkv [3 C, C], out [C, C], up [H, C] and
    down [C, H] as `Int8Matrix`, each with a bias; norms [C]."""

    norm1: F32
    norm1_bias: F32
    qkv: Any
    qkv_bias: F32
    out: Any
    out_bias: F32
    norm2: F32
    norm2_bias: F32
    up: Any
    up_bias: F32
    down: Any
    down_bias: F32


def encoder_layer(x: F32, layer: EncoderLayer, heads: int) -> F32:
    """One layer over a short sequence, every position seeing all: x [T, C] -> [T, C]."""
    y = linear_int8(row_norm(x, layer.norm1, layer.norm1_bias), layer.qkv) + layer.qkv_bias
    x = x + linear_int8(encoder_attention(y, heads), layer.out) + layer.out_bias
    y = bias_gelu(linear_int8(row_norm(x, layer.norm2, layer.norm2_bias), layer.up), layer.up_bias)
    result: F32 = x + linear_int8(y, layer.down) + layer.down_bias
    return result


def depthwise_conv_norm(
    x: F32, weight: F32, bias: F32, gamma: F32, beta: F32, dilation: int = 1, eps: float = 1e-5
) -> F32:
    """Depthwise convolution over time without padding, then layer norm over channels.

    x [T + (K - 1) dilation, C], weight [K, C] (tap first), bias, gamma, beta [C] -> [T, C].
    The first half of a ConvNeXt block (Liu et al. 2022).
    """
    taps = weight.shape[0]
    rows = x.shape[0] - (taps - 1) * dilation
    y = np.zeros((rows, x.shape[1]), np.float64)
    for k in range(taps):
        y += x[k * dilation : k * dilation + rows].astype(np.float64) * weight[k]
    y += bias
    mean = y.mean(axis=1, keepdims=True)
    variance = y.var(axis=1, keepdims=True)
    return ((y - mean) / np.sqrt(variance + eps) * gamma + beta).astype(np.float32)


def row_norm(x: F32, gamma: F32, beta: F32, eps: float = 1e-5) -> F32:
    """Layer norm of each row of x [T, C] -> [T, C]."""
    y = x.astype(np.float64)
    mean = y.mean(axis=1, keepdims=True)
    variance = y.var(axis=1, keepdims=True)
    return ((y - mean) / np.sqrt(variance + eps) * gamma + beta).astype(np.float32)


def bias_gelu(x: F32, bias: F32) -> F32:
    """gelu(x + bias), the exact form x Phi(x); x [T, C], bias [C] -> [T, C]. The result may reuse x's memory."""
    y = x.astype(np.float64) + bias
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return (0.5 * y * (1.0 + erf(y / math.sqrt(2.0)))).astype(np.float32)


def scaled_residual(skip: F32, x: F32, bias: F32, scale: F32) -> F32:
    """skip + scale (x + bias); skip, x [T, C], bias, scale [C] -> [T, C]. The result may reuse x's memory."""
    result: F32 = (skip + scale * (x + bias)).astype(np.float32)
    return result


def encoder_attention(qkv: F32, heads: int) -> F32:
    """Full self-attention of one short sequence: qkv [T, 3 C] (q, k, v) -> [T, C]; scores / sqrt(C / heads)."""
    rows, width = qkv.shape[0], qkv.shape[1] // 3
    size = width // heads
    out = np.empty((rows, width), np.float32)
    for h in range(heads):
        q, k, v = (qkv[:, part * width + h * size : part * width + (h + 1) * size] for part in range(3))
        scores = (q @ k.T) / math.sqrt(size)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, h * size : (h + 1) * size] = (weights / weights.sum(axis=1, keepdims=True)) @ v
    return out


def harmonic_source(
    f0: F32, hop: int = 300, sample_rate: int = 24000, floor: float = 40.0, top: float = 11000.0
) -> F32:
    """Band-limited pulse train following a pitch curve: every harmonic below `top` Hz at amplitude one.

    f0 [F] Hz, one value a frame, interpolated linearly between frame centres -> float32 [F * hop].
    The sum of H cosines is the Dirichlet kernel sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2, t the running phase.
    Where the pitch is at most `floor` Hz the sample is 0 (and the phase runs on at `floor`).
    """
    frames = f0.shape[0]
    centres = (np.arange(frames) + 0.5) * hop - 0.5
    pitch = np.interp(np.arange(frames * hop), centres, f0.astype(np.float64))
    voiced = pitch > floor
    held = np.maximum(pitch, floor)
    turns = np.cumsum(held) / sample_rate % 1.0
    harmonics = np.floor(top / held)
    denominator = 2.0 * np.sin(np.pi * turns)
    near = np.abs(denominator) <= 2e-3
    ratio = np.sin(2.0 * np.pi * ((harmonics + 0.5) * turns)) / np.where(near, 1.0, denominator)
    value = np.where(near, harmonics + 0.5, ratio) - 0.5
    return np.where(voiced, value, 0.0).astype(np.float32)


def stft_rows(padded: F32, window: F32, hop: int, first: int, last: int) -> C64:
    """Spectra of frames first..last-1 of a padded signal: row f is rfft(window * padded[f hop : f hop + N])."""
    size = window.shape[0]
    frames = np.stack([padded[f * hop : f * hop + size] * window for f in range(first, last)])
    return np.fft.rfft(frames, axis=1).astype(np.complex64)


def gaussian_rows(seed: int, first: int, rows: int, bins: int) -> C64:
    """Complex standard normal numbers (unit variance in each part) that depend only on (seed, row, bin).

    Counter-based: two 32-bit hashes of the counter give a radius and an angle (Box and Muller 1958), so any chunk of
    rows can be made alone. -> complex64 [rows, bins], rows numbered from `first`.
    """
    with np.errstate(over="ignore"):
        row = np.arange(first, first + rows, dtype=np.uint32)[:, None] * np.uint32(0x9E3779B9)
        column = np.arange(bins, dtype=np.uint32)[None, :] * np.uint32(0x85EBCA6B)
        counter = (row ^ np.uint32(seed & 0xFFFFFFFF)) + column
        radius_bits = _mix(counter)
        angle_bits = _mix(counter ^ np.uint32(0x68E31DA4))
    uniform = ((radius_bits >> np.uint32(8)).astype(np.float64) + 0.5) * 2.0**-24
    angle = (angle_bits >> np.uint32(8)).astype(np.float64) * 2.0**-24
    return (np.sqrt(-2.0 * np.log(uniform)) * np.exp(2j * np.pi * angle)).astype(np.complex64)


def _mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A 32-bit finalizer (xor-shift, multiply) of good avalanche; constants found by C. Wellons' search."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def vocoder_spectrum(head: F32, source: C64, noise: C64, limit: float = 7.0) -> C64:
    """Spectrum of the five-part vocoder.

    head [T, 5 B] holds, side by side, log gain and phase/pi (before tanh) of the harmonic branch, log gain of the
    noise, log gain and phase of the free branch; source, noise [T, B] -> [T, B]:
    e^lh e^(i pi tanh theta) source + e^ln noise + e^lr e^(i phi), each log gain clipped above at `limit`.
    """
    lh, theta, ln, lr, phi = np.split(head.astype(np.float64), 5, axis=1)
    filtered = np.exp(np.minimum(lh, limit)) * np.exp(1j * np.pi * np.tanh(theta)) * source
    free = np.exp(np.minimum(lr, limit)) * np.exp(1j * phi)
    return (filtered + np.exp(np.minimum(ln, limit)) * noise + free).astype(np.complex64)


def overlap_add(spectrum: C64, window: F32, hop: int, tail: F32) -> tuple[F32, F32]:
    """Inverse STFT of consecutive frames, continued from chunk to chunk; not normalised.

    spectrum [T, N/2 + 1], window [N] with N a multiple of hop, tail [N - hop] (the unfinished samples of the previous
    chunk, zeros at first) -> (finished float32 [T * hop], new tail [N - hop]). Divide by the window's summed square.
    """
    size = window.shape[0]
    rows = spectrum.shape[0]
    out = np.zeros(rows * hop + size - hop, np.float32)
    out[: size - hop] = tail
    for f, frame in enumerate(np.fft.irfft(spectrum, size, axis=1)):
        out[f * hop : f * hop + size] += (frame * window).astype(np.float32)
    return out[: rows * hop], out[rows * hop :].copy()
