"""Dense ops of encoders and decoders on a CPU: BLAS does the products, Numba the memory-bound rest.

Same names and meanings as `reference_ears`. Where a function takes `out`, it may be the input itself.
The parallel loops assume that one thread (the engine's device thread) calls them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .cpu_fft import spectra_of
from .cpu_max import largest

F32 = NDArray[np.float32]

_f = np.float32


# --- scalar maths that LLVM can vectorise (libm's exp and erf cannot be) ----------------------------------------------


@njit(inline="always", fastmath=True)
def exp_f32(x: Any) -> Any:
    """e**x to 3e-7 relative, for |x| <= 87 (clamped): range reduction by ln 2, then Cephes' expf polynomial."""
    x = min(max(x, _f(-87.0)), _f(88.0))
    n = np.floor(x * _f(1.44269504) + _f(0.5))
    r = x - n * _f(0.693359375) + n * _f(2.12194440e-4)
    p = _f(1.9875691500e-4)
    p = p * r + _f(1.3981999507e-3)
    p = p * r + _f(8.3334519073e-3)
    p = p * r + _f(4.1665795894e-2)
    p = p * r + _f(1.6666665459e-1)
    p = p * r + _f(5.0000001201e-1)
    y = p * r * r + r + _f(1.0)
    return y * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(inline="always", fastmath=True)
def gelu_f32(x: Any) -> Any:
    """x * Phi(x) to about 3e-7: erf by Abramowitz & Stegun 7.1.26 (absolute error 1.5e-7)."""
    a = abs(x) * _f(0.70710678)
    t = _f(1.0) / (_f(1.0) + _f(0.3275911) * a)
    p = _f(1.061405429)
    p = p * t - _f(1.453152027)
    p = p * t + _f(1.421413741)
    p = p * t - _f(0.284496736)
    p = p * t + _f(0.254829592)
    tail = _f(0.5) * p * t * exp_f32(-a * a)  # Phi(-|x|)
    return x * (_f(1.0) - tail) if x > _f(0.0) else x * tail


# --- elementwise and row-wise ----------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, fastmath=True, parallel=True)
def _gelu_par(x, bias, out):  # type: ignore[no-untyped-def]
    m, n = x.shape
    for i in prange(m):
        for j in range(n):
            out[i, j] = gelu_f32(x[i, j] + bias[j])


@njit(cache=True, nogil=True, fastmath=True)
def _gelu_one(x, bias, out):  # type: ignore[no-untyped-def]
    m, n = x.shape
    for i in range(m):
        for j in range(n):
            out[i, j] = gelu_f32(x[i, j] + bias[j])


_PARALLEL_AT = 16384  # elements; below this the threads' wake-up costs more than it saves


def bias_gelu(x: F32, bias: F32, out: F32 | None = None) -> F32:
    """gelu(x + bias) for x [M, N], bias [N]; into `out` (may be x) or a new array."""
    out = np.empty_like(x) if out is None else out
    (_gelu_par if x.size >= _PARALLEL_AT else _gelu_one)(x, bias, out)
    return out


def gelu(x: F32) -> F32:
    """See `reference.gelu`."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    return bias_gelu(rows, np.zeros(rows.shape[1], np.float32)).reshape(x.shape)


@njit(inline="always", fastmath=True)
def _norm_row(x, gamma, beta, eps, out):  # type: ignore[no-untyped-def]
    n = x.shape[0]
    total = _f(0.0)
    for j in range(n):
        total += x[j]
    mean = total / _f(n)
    var = _f(0.0)
    for j in range(n):
        d = x[j] - mean
        var += d * d
    inv = _f(1.0) / np.sqrt(var / _f(n) + eps)
    for j in range(n):
        out[j] = (x[j] - mean) * inv * gamma[j] + beta[j]


@njit(cache=True, nogil=True, fastmath=True, parallel=True)
def _layer_norm_par(x, gamma, beta, eps, out):  # type: ignore[no-untyped-def]
    for i in prange(x.shape[0]):
        _norm_row(x[i], gamma, beta, eps, out[i])


@njit(cache=True, nogil=True, fastmath=True)
def _layer_norm_one(x, gamma, beta, eps, out):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        _norm_row(x[i], gamma, beta, eps, out[i])


def layer_norm(x: F32, gamma: F32, beta: F32, eps: float = 1e-5) -> F32:
    """See `reference.layer_norm`."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    (_layer_norm_par if rows.size >= _PARALLEL_AT else _layer_norm_one)(rows, gamma, beta, _f(eps), out)
    return out.reshape(x.shape)


@njit(inline="always", fastmath=True)
def _softmax_row(x, scale):  # type: ignore[no-untyped-def]
    n = x.shape[0]
    top = largest(x) * scale
    total = _f(0.0)
    for j in range(n):
        e = exp_f32(x[j] * scale - top)
        x[j] = e
        total += e
    inv = _f(1.0) / total
    for j in range(n):
        x[j] *= inv


@njit(cache=True, nogil=True, fastmath=True, parallel=True)
def _softmax_par(x, scale):  # type: ignore[no-untyped-def]
    for i in prange(x.shape[0]):
        _softmax_row(x[i], scale)


@njit(cache=True, nogil=True, fastmath=True)
def _softmax_one(x, scale):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        _softmax_row(x[i], scale)


def softmax_inplace(x: F32, scale: float = 1.0) -> F32:
    """softmax(scale * x) over the last axis of C-contiguous x, in place; scale must be positive. Returns x."""
    rows = x.reshape(-1, x.shape[-1])
    (_softmax_par if rows.size >= _PARALLEL_AT else _softmax_one)(rows, _f(scale))
    return x


def softmax(x: F32) -> F32:
    """See `reference.softmax`."""
    return softmax_inplace(np.array(x, dtype=np.float32, order="C"))


@njit(cache=True, nogil=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"})
def _log_softmax(x, out):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        row = x[i]
        top = largest(row)
        total = _f(0.0)
        for j in range(row.shape[0]):
            total += exp_f32(row[j] - top)
        shift = top + np.log(total)
        for j in range(row.shape[0]):
            out[i, j] = row[j] - shift


def log_softmax(x: F32) -> F32:
    """See `reference.log_softmax`."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    _log_softmax(rows, out)
    return out.reshape(x.shape)


def sigmoid(x: F32) -> F32:
    """See `reference.sigmoid`."""
    return (np.float32(1) / (np.float32(1) + np.exp(-x))).astype(np.float32)


# --- products --------------------------------------------------------------------------------------------------------


def linear(x: F32, w: F32, b: F32 | None = None) -> F32:
    """See `reference.linear`."""
    y = np.matmul(x, w.T)
    if b is not None:
        y += b
    return y


def windows(x: F32, k: int, stride: int = 1, padding: int = 0) -> F32:
    """See `reference.windows`."""
    channels = x.shape[1]
    padded = np.zeros((x.shape[0] + 2 * padding, channels), np.float32)
    padded[padding : padding + x.shape[0]] = x
    num = (padded.shape[0] - k) // stride + 1
    step = padded.strides[0]
    view = np.lib.stride_tricks.as_strided(padded, (num, k * channels), (stride * step, padded.strides[1]))
    return np.ascontiguousarray(view)


def conv1d(x: F32, w: F32, b: F32 | None, stride: int = 1, padding: int = 0) -> F32:
    """See `reference.conv1d`."""
    return linear(windows(x, w.shape[1], stride, padding), w.reshape(w.shape[0], -1), b)


# --- attention -------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, fastmath=True)
def _cached_head(q, k, v, length, scale, scores, out):  # type: ignore[no-untyped-def]
    d = q.shape[0]
    for t in range(length):
        dot = _f(0.0)
        for j in range(d):
            dot += q[j] * k[t, j]
        scores[t] = dot
    _softmax_row(scores[:length], scale)
    for j in range(d):
        out[j] = _f(0.0)
    for t in range(length):
        p = scores[t]
        for j in range(d):
            out[j] += p * v[t, j]


@njit(cache=True, nogil=True, fastmath=True)
def _attention_cached(q, k, v, rows, lengths, num_heads, scale, out):  # type: ignore[no-untyped-def]
    d = q.shape[1] // num_heads
    scores = np.empty(k.shape[1], np.float32)
    for i in range(q.shape[0]):
        for h in range(num_heads):
            lo = h * d
            hi = lo + d
            keys, values = k[rows[i]][:, lo:hi], v[rows[i]][:, lo:hi]
            _cached_head(q[i, lo:hi], keys, values, lengths[i], scale, scores, out[i, lo:hi])


def attention_cached(
    q: F32, k: F32, v: F32, rows: NDArray[np.int64], lengths: NDArray[np.int64], num_heads: int, scale: float
) -> F32:
    """See `reference.attention_cached`."""
    out = np.empty_like(q)
    _attention_cached(q, k, v, rows, lengths, num_heads, _f(scale), out)
    return out


@njit(cache=True, nogil=True, fastmath=True, parallel=True)
def _attention_cross(q, k, v, scale, out):  # type: ignore[no-untyped-def]
    num_heads, length, d = k.shape
    for task in prange(q.shape[0] * num_heads):
        h = task % num_heads
        i = task // num_heads
        lo = h * d
        scores = np.empty(length, np.float32)
        _cached_head(q[i, lo : lo + d], k[h], v[h], length, scale, scores, out[i, lo : lo + d])


def attention_cross(q: F32, k: F32, v: F32, scale: float) -> F32:
    """See `reference.attention_cross`."""
    num_heads, _, d = k.shape
    out = np.empty_like(q)
    if q.shape[0] <= 8:
        _attention_cross(q, k, v, _f(scale), out)
        return out
    heads = np.ascontiguousarray(q.reshape(-1, num_heads, d).transpose(1, 0, 2))  # [H, M, d]
    scores = softmax_inplace(np.matmul(heads, k.transpose(0, 2, 1)), scale)  # [H, M, T]
    return np.ascontiguousarray(np.matmul(scores, v).transpose(1, 0, 2)).reshape(q.shape)


# --- recurrence and sound --------------------------------------------------------------------------------------------


def lstm_cell(x: F32, h: F32, c: F32, w_ih: F32, w_hh: F32, b_ih: F32, b_hh: F32) -> tuple[F32, F32]:
    """See `reference.lstm_cell`."""
    gates = linear(x, w_ih, b_ih)
    gates += linear(h, w_hh, b_hh)
    n = h.shape[1]
    c_new = sigmoid(gates[:, n : 2 * n]) * c + sigmoid(gates[:, :n]) * np.tanh(gates[:, 2 * n : 3 * n])
    return sigmoid(gates[:, 3 * n :]) * np.tanh(c_new), c_new


@njit(cache=True, nogil=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"})
def _mel(spectrum, filters, out):  # type: ignore[no-untyped-def]
    bins = filters.shape[1]
    first, last = np.empty(filters.shape[0], np.int64), np.empty(filters.shape[0], np.int64)
    for m in range(filters.shape[0]):  # a filter is a triangle over a few bins
        first[m], last[m] = bins, 0
        for j in range(bins):
            if filters[m, j] != _f(0.0):
                first[m], last[m] = min(first[m], j), j + 1
    power = np.empty(bins, np.float32)
    for t in range(spectrum.shape[0]):
        for j in range(bins):
            re, im = spectrum[t, j].real, spectrum[t, j].imag
            power[j] = re * re + im * im
        for m in range(filters.shape[0]):
            total = _f(0.0)
            for j in range(first[m], last[m]):
                total += power[j] * filters[m, j]
            out[t, m] = np.log10(max(total, _f(1e-10)))


def log_mel_frames(padded: F32, filters: F32, n_fft: int = 400, hop: int = 160) -> F32:
    """See `reference.log_mel_frames`."""
    num = (padded.shape[0] - n_fft) // hop + 1
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)).astype(np.float32)
    out = np.empty((num, filters.shape[0]), np.float32)
    _mel(spectra_of(np.asarray(padded, np.float32), hop, window, num), filters, out)
    return out
