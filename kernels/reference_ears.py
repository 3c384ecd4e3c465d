"""What the listening models' ops mean, in plain NumPy: clear, not fast. Re-exported by `reference`.

Owns the definitions used by Silero VAD, Whisper and smart-turn. Knows no model, no checkpoint, no file.
All arrays are float32 and C-contiguous unless said otherwise; T is time, time is the first axis of a sequence.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_ERF = np.frompyfunc(math.erf, 1, 1)


# --- dense -----------------------------------------------------------------------------------------------------------


def linear(x: F32, w: F32, b: F32 | None = None) -> F32:
    """`x @ w.T + b`; x [..., K], w [N, K], b [N] or None; returns [..., N]."""
    y = np.matmul(x, w.T)
    return y if b is None else y + b


def layer_norm(x: F32, gamma: F32, beta: F32, eps: float = 1e-5) -> F32:
    """Normalise the last axis to mean 0 and variance 1 (biased), then scale and shift (Ba et al. 2016)."""
    mean = x.mean(-1, keepdims=True)
    var = np.square(x - mean).mean(-1, keepdims=True)
    return ((x - mean) / np.sqrt(var + np.float32(eps)) * gamma + beta).astype(np.float32)


def gelu(x: F32) -> F32:
    """The exact GELU, `x * Phi(x)`, by the error function (Hendrycks & Gimpel 2016), elementwise."""
    return (0.5 * x * (1.0 + _ERF(x / math.sqrt(2.0)).astype(np.float64))).astype(np.float32)


def softmax(x: F32) -> F32:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


def log_softmax(x: F32) -> F32:
    """Logarithm of the softmax over the last axis; -inf entries stay -inf."""
    top = x.max(-1, keepdims=True)
    return (x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))).astype(np.float32)


def windows(x: F32, k: int, stride: int = 1, padding: int = 0) -> F32:
    """What a 1-D convolution of width k sees at each place: x [T, C], zero padding on both ends.

    Returns [(T + 2 padding - k) // stride + 1, k * C], so that the convolution is a linear layer over its rows.
    """
    padded = np.pad(x, ((padding, padding), (0, 0)))
    num = (padded.shape[0] - k) // stride + 1
    return np.stack([padded[t * stride : t * stride + k].reshape(k * x.shape[1]) for t in range(num)])


def conv1d(x: F32, w: F32, b: F32 | None, stride: int = 1, padding: int = 0) -> F32:
    """1-D convolution, time first: x [T, C], w [O, k, C] (not torch's [O, C, k]), b [O] or None.

    Zero padding on both ends. Returns [(T + 2 padding - k) // stride + 1, O].
    """
    return linear(windows(x, w.shape[1], stride, padding), w.reshape(w.shape[0], -1), b)


def attention(q: F32, k: F32, v: F32, num_heads: int, scale: float) -> F32:
    """Full (unmasked) multi-head attention: q [Tq, D], k and v [Tk, D], heads side by side in D; returns [Tq, D].

    Scores are `scale * q . k` (Vaswani et al. 2017, where scale is head_dim ** -0.5).
    """
    head_dim = q.shape[1] // num_heads
    out = np.empty_like(q)
    for h in range(num_heads):
        cols = slice(h * head_dim, (h + 1) * head_dim)
        out[:, cols] = softmax(np.float32(scale) * (q[:, cols] @ k[:, cols].T)) @ v[:, cols]
    return out


def attention_cross(q: F32, k: F32, v: F32, scale: float) -> F32:
    """Rows of queries over one shared set of keys: q [M, D], k and v [H, T, d] with D = H d; returns [M, D]."""
    num_heads, _, head_dim = k.shape
    out = np.empty_like(q)
    for h in range(num_heads):
        cols = slice(h * head_dim, (h + 1) * head_dim)
        out[:, cols] = softmax(np.float32(scale) * (q[:, cols] @ k[h].T)) @ v[h]
    return out


def attention_cached(
    q: F32, k: F32, v: F32, rows: NDArray[np.int64], lengths: NDArray[np.int64], num_heads: int, scale: float
) -> F32:
    """Each query row over the first `lengths[i]` positions of cache row `rows[i]`.

    q [M, D]; k, v [B, S, D] (caches, already holding the new positions); rows, lengths int64 [M]; returns [M, D].
    Several queries of one cache row with growing lengths is causal attention over a block of new tokens.
    """
    out = np.empty_like(q)
    for i in range(q.shape[0]):
        n = int(lengths[i])
        out[i] = attention(q[i : i + 1], k[rows[i], :n], v[rows[i], :n], num_heads, scale)[0]
    return out


def lstm_cell(x: F32, h: F32, c: F32, w_ih: F32, w_hh: F32, b_ih: F32, b_hh: F32) -> tuple[F32, F32]:
    """One LSTM step, gates in the order input, forget, cell, output (torch's LSTMCell).

    x [n, I], h and c [n, H], w_ih [4H, I], w_hh [4H, H], biases [4H]; returns the new (h, c).
    """
    gates = linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh)
    i, f, g, o = np.split(gates, 4, axis=1)
    c_new = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c_new), c_new


def sigmoid(x: F32) -> F32:
    """Logistic function, elementwise."""
    return (1.0 / (1.0 + np.exp(-x))).astype(np.float32)


# --- sound -----------------------------------------------------------------------------------------------------------


def mel_filters(sample_rate: int = 16000, n_fft: int = 400, n_mels: int = 80) -> F32:
    """Triangular mel filters [n_mels, n_fft // 2 + 1] of unit area on Slaney's scale.

    The scale is linear (200/3 Hz a mel) up to 1 kHz and logarithmic above, a factor of 6.4 in frequency every 27 mels
    (Slaney, Auditory Toolbox, 1998). Each triangle is scaled by 2 / (its width in Hz).
    """
    knee_hz, hz_per_mel, mels_per_e = 1000.0, 200.0 / 3.0, 27.0 / math.log(6.4)
    top = knee_hz / hz_per_mel + mels_per_e * math.log(sample_rate / 2 / knee_hz)
    mels = np.linspace(0.0, top, n_mels + 2)
    knee = knee_hz / hz_per_mel
    edges = np.where(mels < knee, mels * hz_per_mel, knee_hz * np.exp((np.maximum(mels, knee) - knee) / mels_per_e))
    bins = np.arange(n_fft // 2 + 1) * (sample_rate / n_fft)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.maximum(0.0, np.minimum((bins - low) / (mid - low), (high - bins) / (high - mid)))
    return (triangles * (2.0 / (high - low))).astype(np.float32)


def log_mel_frames(padded: F32, filters: F32, n_fft: int = 400, hop: int = 160) -> F32:
    """log10 of mel power, floored at 1e-10, of every whole frame in `padded`.

    padded [n] samples, the first frame beginning at sample 0 (the caller has padded n_fft // 2 in front if it wants
    centred frames); periodic Hann window. filters [n_mels, n_fft // 2 + 1].
    Returns [T, n_mels], T = (n - n_fft) // hop + 1.
    """
    num = (padded.shape[0] - n_fft) // hop + 1
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)).astype(np.float32)
    frames = np.stack([padded[t * hop : t * hop + n_fft] for t in range(num)]) * window
    power = np.square(np.abs(np.fft.rfft(frames, axis=1))).astype(np.float32)
    return np.log10(np.maximum(power @ filters.T, np.float32(1e-10))).astype(np.float32)


# --- voice activity --------------------------------------------------------------------------------------------------


class VadWeights(NamedTuple):
    """Silero VAD's tensors (16 kHz, v5/v6 shape), convolutions time-first ([O, k, C])."""

    basis: F32  # [258, 256] windowed DFT: 129 cosine rows, then 129 sine rows
    conv1_w: F32  # [128, 3, 129]
    conv1_b: F32
    conv2_w: F32  # [64, 3, 128]
    conv2_b: F32
    conv3_w: F32  # [64, 3, 64]
    conv3_b: F32
    conv4_w: F32  # [128, 3, 64]
    conv4_b: F32
    lstm_w: F32  # [512, 256]: input weights, then hidden weights, side by side
    lstm_b: F32  # [512]: the sum of both biases
    out_w: F32  # [128]
    out_b: F32  # [1]


def vad_step(w: VadWeights, x: F32, h: F32, c: F32) -> tuple[F32, F32, F32]:
    """Speech probability of one 576-sample window per row, and the next LSTM state.

    x [n, 576] (64 samples of context, 512 new ones), h and c [n, 128]. Returns (prob [n], h [n, 128], c [n, 128]).
    Rows are independent: a row's result doesn't depend on which others share the batch.
    """
    n = x.shape[0]
    features = np.empty((n, 128), np.float32)
    for row in range(n):
        padded = np.pad(x[row], (0, 64), mode="reflect")[:, None]  # [640, 1]
        spectrum = conv1d(padded, w.basis[:, :, None], None, stride=128)  # [4, 258]
        y = np.sqrt(np.square(spectrum[:, :129]) + np.square(spectrum[:, 129:]))  # [4, 129]
        y = np.maximum(conv1d(y, w.conv1_w, w.conv1_b, 1, 1), 0)  # [4, 128]
        y = np.maximum(conv1d(y, w.conv2_w, w.conv2_b, 2, 1), 0)  # [2, 64]
        y = np.maximum(conv1d(y, w.conv3_w, w.conv3_b, 2, 1), 0)  # [1, 64]
        features[row] = np.maximum(conv1d(y, w.conv4_w, w.conv4_b, 1, 1), 0)[0]  # [128]
    zero = np.zeros_like(w.lstm_b)
    h, c = lstm_cell(features, h, c, w.lstm_w[:, :128], w.lstm_w[:, 128:], w.lstm_b, zero)
    return sigmoid(np.maximum(h, 0) @ w.out_w + w.out_b), h, c


# --- choosing tokens -------------------------------------------------------------------------------------------------


def top_log_probs(logits: F32, k: int) -> tuple[F32, NDArray[np.int64]]:
    """The k most likely entries of each row after softmax: (log-probabilities [M, k], indices int64 [M, k]).

    Falling probability, ties by lower index. logits [M, V]; entries of -inf are impossible and may only be returned
    when fewer than k others exist.
    """
    log_probs = log_softmax(logits)
    order = np.argsort(-log_probs, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(log_probs, order, 1), order.astype(np.int64)
