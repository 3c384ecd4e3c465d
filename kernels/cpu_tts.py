"""Fast speech-synthesis ops for the CPU: same names and results as `reference_tts.py`, Numba loops that vectorise.

The transcendental functions are polynomials over float32 (about 1e-7), written so that LLVM turns each loop into
vector code; libm calls would keep them scalar.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from .cpu_attention import attention
from .cpu_fft import rows_of, spectra_of

F32 = NDArray[np.float32]
C64 = NDArray[np.complex64]

f32 = np.float32
_JIT = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy"}  # a division that raises stays scalar


@nb.njit(inline="always", **_JIT)
def exp_f32(x):  # type: ignore[no-untyped-def]
    """e^x for |x| < 87: 2^n by exponent bits times a degree-6 polynomial on [-ln2/2, ln2/2] (Cephes coefficients)."""
    x = min(max(x, f32(-87.0)), f32(88.0))
    n = np.floor(x * f32(1.44269504) + f32(0.5))
    r = x - n * f32(0.693359375) + n * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@nb.njit(inline="always", **_JIT)
def sin_turns(u):  # type: ignore[no-untyped-def]
    """sin(2 pi u) for u in turns; folds to a quarter turn, then an odd Taylor polynomial to x^11."""
    u = u - np.floor(u + f32(0.5))
    folded = f32(0.25) - abs(abs(u) - f32(0.25))
    x = folded * f32(6.283185307179586)
    s = x * x
    p = f32(-2.5052108e-8)
    p = p * s + f32(2.7557319e-6)
    p = p * s + f32(-1.98412698e-4)
    p = p * s + f32(8.33333333e-3)
    p = p * s + f32(-1.66666667e-1)
    y = x + x * s * p
    return y if u >= f32(0.0) else -y


@nb.njit(inline="always", **_JIT)
def log_f32(x):  # type: ignore[no-untyped-def]
    """ln x for x > 0, normal: exponent bits plus an atanh series on [sqrt(1/2), sqrt(2)]."""
    bits = f32(x).view(np.int32)
    n = np.int32((bits - np.int32(0x3F3504F3)) >> np.int32(23))
    m = np.int32(bits - (n << np.int32(23))).view(np.float32)
    z = (m - f32(1.0)) / (m + f32(1.0))
    s = z * z
    p = f32(0.2222222) * s + f32(0.2857143)
    p = p * s + f32(0.4)
    p = p * s + f32(0.6666667)
    return f32(n) * f32(0.69314718) + z * (f32(2.0) + s * p)


@nb.njit(inline="always", **_JIT)
def gelu_f32(x):  # type: ignore[no-untyped-def]
    """x Phi(x) by the 7.1.28 erf formula of Abramowitz and Stegun (absolute error of erf 3e-7): no exponential."""
    z = min(abs(x) * f32(0.70710678), f32(4.5))
    p = f32(4.30638e-5)
    p = p * z + f32(2.765672e-4)
    p = p * z + f32(1.520143e-4)
    p = p * z + f32(9.2705272e-3)
    p = p * z + f32(4.22820123e-2)
    p = p * z + f32(7.05230784e-2)
    p = p * z + f32(1.0)
    p = p * p
    p = p * p
    p = p * p
    half = f32(0.5) / (p * p)  # Phi(-|x|)
    return x * (f32(1.0) - half) if x >= f32(0.0) else x * half


@nb.njit(**_JIT)
def _normalize_row(row, gamma, beta, eps):  # type: ignore[no-untyped-def]
    width = row.shape[0]
    total = f32(0.0)
    for c in range(width):
        total += row[c]
    mean = total / f32(width)
    square = f32(0.0)
    for c in range(width):
        d = row[c] - mean
        square += d * d
    scale = f32(1.0) / np.sqrt(square / f32(width) + f32(eps))
    for c in range(width):
        row[c] = (row[c] - mean) * scale * gamma[c] + beta[c]


@nb.njit(**_JIT)
def depthwise_rows(x, weight, bias, gamma, beta, dilation, eps, out):  # type: ignore[no-untyped-def]
    """`depthwise_conv_norm` for as many rows as `out` has."""
    taps, width = weight.shape
    for t in range(out.shape[0]):
        row = out[t]
        if taps == 7:
            for c in range(width):
                row[c] = (
                    bias[c]
                    + x[t, c] * weight[0, c]
                    + x[t + dilation, c] * weight[1, c]
                    + x[t + 2 * dilation, c] * weight[2, c]
                    + x[t + 3 * dilation, c] * weight[3, c]
                    + x[t + 4 * dilation, c] * weight[4, c]
                    + x[t + 5 * dilation, c] * weight[5, c]
                    + x[t + 6 * dilation, c] * weight[6, c]
                )
        else:
            for c in range(width):
                row[c] = bias[c]
            for k in range(taps):
                for c in range(width):
                    row[c] += x[t + k * dilation, c] * weight[k, c]
        _normalize_row(row, gamma, beta, eps)


def depthwise_conv_norm(
    x: F32, weight: F32, bias: F32, gamma: F32, beta: F32, dilation: int = 1, eps: float = 1e-5
) -> F32:
    """Depthwise convolution over time without padding, then layer norm over channels; see the reference."""
    out = np.empty((x.shape[0] - (weight.shape[0] - 1) * dilation, x.shape[1]), np.float32)
    depthwise_rows(x, weight, bias, gamma, beta, dilation, eps, out)
    return out


@nb.njit(**_JIT)
def norm_rows(x, gamma, beta, eps, out):  # type: ignore[no-untyped-def]
    """`row_norm` into `out`."""
    for t in range(x.shape[0]):
        row, given = out[t], x[t]
        for c in range(row.shape[0]):
            row[c] = given[c]
        _normalize_row(row, gamma, beta, eps)


def row_norm(x: F32, gamma: F32, beta: F32, eps: float = 1e-5) -> F32:
    """Layer norm of each row; see the reference."""
    out = np.empty_like(x)
    norm_rows(x, gamma, beta, eps, out)
    return out


@nb.njit(**_JIT)
def _bias_gelu(x, bias):  # type: ignore[no-untyped-def]
    for t in range(x.shape[0]):
        row = x[t]
        for c in range(row.shape[0]):
            row[c] = gelu_f32(row[c] + bias[c])


def bias_gelu(x: F32, bias: F32) -> F32:
    """gelu(x + bias) in place of x; see the reference."""
    _bias_gelu(x, bias)
    return x


@nb.njit(**_JIT)
def _scaled_residual(skip, x, bias, scale):  # type: ignore[no-untyped-def]
    for t in range(x.shape[0]):
        row, base = x[t], skip[t]
        for c in range(row.shape[0]):
            row[c] = base[c] + scale[c] * (row[c] + bias[c])


def scaled_residual(skip: F32, x: F32, bias: F32, scale: F32) -> F32:
    """skip + scale (x + bias) in place of x; see the reference."""
    _scaled_residual(skip, x, bias, scale)
    return x


@nb.njit(**_JIT)
def _spread_conv(taps, place, tones, weight, bias, out):  # type: ignore[no-untyped-def]
    for t in range(out.shape[0]):
        row = out[t]
        for c in range(row.shape[0]):
            row[c] = bias[c]
        for k in range(weight.shape[0]):
            part, one, other = taps[place[t + k], k], tones[t + k, 0], tones[t + k, 1]
            for c in range(row.shape[0]):
                row[c] += part[c] + one * weight[k, 0, c] + other * weight[k, 1, c]


def spread_conv(taps: F32, place: NDArray[np.int64], tones: F32, weight: F32, bias: F32) -> F32:
    """A convolution over rows most of which are repeated; see the reference. There must be two tones."""
    out = np.empty((len(place) - weight.shape[0] + 1, taps.shape[2]), np.float32)
    _spread_conv(taps, place, tones, weight, bias, out)
    return out


def encoder_attention(qkv: F32, heads: int) -> F32:
    """Full self-attention of one short sequence; see the reference."""
    width = qkv.shape[1] // 3
    q, k, v = (qkv[:, part * width : (part + 1) * width] for part in range(3))
    return attention(q, k, v, heads, (width // heads) ** -0.5)


@nb.njit(**_JIT)
def _harmonic_source(f0, hop, sample_rate, floor, top, out):  # type: ignore[no-untyped-def]
    frames = f0.shape[0]
    inverse_rate = 1.0 / sample_rate
    half = hop // 2
    step = f32(1.0) / f32(hop)
    phases = np.empty(hop, np.float64)
    turns = np.empty(hop, np.float32)
    pitch = np.empty(hop, np.float32)
    phase = 0.0
    for k in range(frames):
        here = f0[k]
        before = f0[k - 1] if k > 0 else here
        after = f0[k + 1] if k + 1 < frames else here
        if here <= floor and before <= floor and after <= floor:
            for j in range(hop):
                out[k * hop + j] = f32(0.0)
            phase = (phase + hop * floor * inverse_rate) % 1.0
            continue
        for j in range(half):
            u = (f32(j) + f32(0.5)) * step + f32(0.5)
            pitch[j] = before * (f32(1.0) - u) + here * u
        for j in range(half, hop):
            u = (f32(j) + f32(0.5)) * step - f32(0.5)
            pitch[j] = here * (f32(1.0) - u) + after * u
        for j in range(hop):
            phase += max(pitch[j], f32(floor)) * inverse_rate
            phases[j] = phase
        phase -= np.floor(phase)
        for j in range(hop):
            turns[j] = f32(phases[j] - np.floor(phases[j]))
        for j in range(hop):
            count = np.floor(f32(top) / max(pitch[j], f32(floor))) + f32(0.5)
            below = f32(2.0) * sin_turns(turns[j] * f32(0.5))
            near = abs(below) <= f32(2e-3)
            value = sin_turns(count * turns[j]) / (f32(1.0) if near else below)
            value = (count if near else value) - f32(0.5)
            out[k * hop + j] = value if pitch[j] > f32(floor) else f32(0.0)


def harmonic_source(
    f0: F32, hop: int = 300, sample_rate: int = 24000, floor: float = 40.0, top: float = 11000.0
) -> F32:
    """Band-limited pulse train following a pitch curve; see the reference."""
    out = np.empty(f0.shape[0] * hop, np.float32)
    _harmonic_source(np.ascontiguousarray(f0, np.float32), hop, sample_rate, floor, top, out)
    return out


def stft_rows(padded: F32, window: F32, hop: int, first: int, last: int) -> C64:
    """Spectra of frames first..last-1 of an already padded signal; see the reference."""
    return spectra_of(padded[first * hop :], hop, window, last - first)


@nb.njit(inline="always", **_JIT)
def _mix(x):  # type: ignore[no-untyped-def]
    x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


@nb.njit(**_JIT)
def _gaussian_rows(seed, first, out):  # type: ignore[no-untyped-def]
    for t in range(out.shape[0]):
        base = np.uint32(np.uint32(np.uint32(first + t) * np.uint32(0x9E3779B9)) ^ np.uint32(seed))
        for b in range(out.shape[1]):
            counter = np.uint32(base + np.uint32(np.uint32(b) * np.uint32(0x85EBCA6B)))
            uniform = (f32(_mix(counter) >> np.uint32(8)) + f32(0.5)) * f32(2.0**-24)
            angle = f32(_mix(np.uint32(counter ^ np.uint32(0x68E31DA4))) >> np.uint32(8)) * f32(2.0**-24)
            radius = np.sqrt(f32(-2.0) * log_f32(uniform))
            out[t, b] = np.complex64(complex(radius * sin_turns(angle + f32(0.25)), radius * sin_turns(angle)))


def gaussian_rows(seed: int, first: int, rows: int, bins: int) -> C64:
    """Counter-based complex standard normal numbers; see the reference."""
    out = np.empty((rows, bins), np.complex64)
    _gaussian_rows(np.uint32(seed & 0xFFFFFFFF), first, out)
    return out


@nb.njit(**_JIT)
def _vocoder_spectrum(head, source, noise, limit, out):  # type: ignore[no-untyped-def]
    bins = source.shape[1] // 2
    for t in range(head.shape[0]):
        row = head[t]
        lh, theta, ln, lr, phi = (
            row[:bins], row[bins : 2 * bins], row[2 * bins : 3 * bins], row[3 * bins : 4 * bins], row[4 * bins : 5 * bins],
        )
        s, z, o = source[t], noise[t], out[t]
        for b in range(bins):
            harmonic = exp_f32(min(lh[b], limit))
            squashed = f32(1.0) - f32(2.0) / (exp_f32(f32(2.0) * min(max(theta[b], f32(-20.0)), f32(20.0))) + f32(1.0))
            turn = f32(0.5) * squashed
            real = harmonic * sin_turns(turn + f32(0.25))
            imag = harmonic * sin_turns(turn)
            rough = exp_f32(min(ln[b], limit))
            free = exp_f32(min(lr[b], limit))
            angle = phi[b] * f32(0.15915494309189535)
            o[2 * b] = (
                real * s[2 * b] - imag * s[2 * b + 1] + rough * z[2 * b] + free * sin_turns(angle + f32(0.25))
            )
            o[2 * b + 1] = real * s[2 * b + 1] + imag * s[2 * b] + rough * z[2 * b + 1] + free * sin_turns(angle)


def vocoder_spectrum(head: F32, source: C64, noise: C64, limit: float = 7.0) -> C64:
    """Spectrum of the five-part vocoder; see the reference. Rows of `head` may have room between them."""
    out = np.empty(source.shape, np.complex64)
    rooms = np.lib.stride_tricks.as_strided(head, (head.shape[0], head.strides[0] // 4))  # contiguous, as the loop wants it
    _vocoder_spectrum(
        rooms, np.ascontiguousarray(source).view(np.float32), noise.view(np.float32), np.float32(limit),
        out.view(np.float32),
    )
    return out


@nb.njit(**_JIT)
def _overlap_add(frames, window, hop, out):  # type: ignore[no-untyped-def]
    for f in range(frames.shape[0]):
        row = frames[f]
        place = out[f * hop : f * hop + window.shape[0]]
        for i in range(window.shape[0]):
            place[i] += row[i] * window[i]


def overlap_add(spectrum: C64, window: F32, hop: int, tail: F32) -> tuple[F32, F32]:
    """Inverse STFT of consecutive frames, continued from chunk to chunk; see the reference."""
    size = window.shape[0]
    finished = spectrum.shape[0] * hop
    out = np.zeros(finished + size - hop, np.float32)
    out[: size - hop] = tail
    _overlap_add(rows_of(spectrum, size), window, hop, out)
    return out[:finished], out[finished:].copy()
