"""One fused Silero VAD step for many sessions at once, on one thread, with no allocation in the loop.

Sessions go through in groups of four, always: the last group is padded with silence. Every product is then the same
2 x 4 block of dot products whatever the batch, so a session's probability is bit-identical alone and in company.
Never parallel: the detector has a thread of its own beside the device thread.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cpu_dense import exp_f32
from .reference_ears import VadWeights

F32 = NDArray[np.float32]

_f = np.float32


@njit(inline="always", fastmath=True)
def _block(a, a0, a1, a2, a3, w, k, bias, relu, out, stride, at):  # type: ignore[no-untyped-def]
    """out[at + r * stride + o] = bias[o] + w[o, :k] . a[a_r : a_r + k] for four rows r; w's row count is even."""
    for o in range(0, w.shape[0], 2):
        s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = _f(0.0)
        for j in range(k):
            u, v = w[o, j], w[o + 1, j]
            x0, x1, x2, x3 = a[a0 + j], a[a1 + j], a[a2 + j], a[a3 + j]
            s00 += u * x0
            s01 += u * x1
            s02 += u * x2
            s03 += u * x3
            s10 += v * x0
            s11 += v * x1
            s12 += v * x2
            s13 += v * x3
        b0, b1 = bias[o], bias[o + 1]
        low = _f(0.0) if relu else _f(-3e38)
        out[at + o] = max(s00 + b0, low)
        out[at + stride + o] = max(s01 + b0, low)
        out[at + 2 * stride + o] = max(s02 + b0, low)
        out[at + 3 * stride + o] = max(s03 + b0, low)
        out[at + o + 1] = max(s10 + b1, low)
        out[at + stride + o + 1] = max(s11 + b1, low)
        out[at + 2 * stride + o + 1] = max(s12 + b1, low)
        out[at + 3 * stride + o + 1] = max(s13 + b1, low)


@njit(inline="always", fastmath=True)
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return _f(1.0) / (_f(1.0) + exp_f32(-x))


@njit(inline="always", fastmath=True)
def _tanh(x):  # type: ignore[no-untyped-def]
    return _f(2.0) * _sigmoid(_f(2.0) * x) - _f(1.0)


@njit(cache=True, nogil=True, fastmath=True)
def _vad_step(x, h, c, basis, w1, b1, w2, b2, w3, b3, w4, b4, wl, bl, wo, bo, prob, h_out, c_out):  # type: ignore[no-untyped-def]
    n = x.shape[0]
    no_bias = np.zeros(258, np.float32)
    wave = np.empty(640, np.float32)
    spec = np.empty(4 * 258, np.float32)
    mag = np.zeros(6 * 129, np.float32)  # frames 1..4; 0 and 5 are the convolution's zero padding
    y1 = np.zeros((4, 6 * 128), np.float32)  # likewise padded
    flat1 = y1.reshape(-1)
    y2 = np.zeros((4, 4 * 64), np.float32)  # [pad, 0, 1, pad]
    flat2 = y2.reshape(-1)
    tmp = np.empty(4 * 64, np.float32)
    y3 = np.zeros(4 * 64, np.float32)
    both = np.zeros(4 * 256, np.float32)  # per session: features, then h
    y4 = np.empty(4 * 128, np.float32)
    gates = np.empty(4 * 512, np.float32)
    mid4 = w4[:, 64:128]  # one frame is left: the outer taps see only padding
    for base in range(0, n, 4):
        num = min(4, n - base)
        for r in range(4):
            if r >= num:
                y1[r] = _f(0.0)
                continue
            wave[:576] = x[base + r]
            for j in range(64):
                wave[576 + j] = wave[574 - j]
            _block(wave, 0, 128, 256, 384, basis, 256, no_bias, False, spec, 258, 0)
            for t in range(4):
                for j in range(129):
                    re = spec[t * 258 + j]
                    im = spec[t * 258 + 129 + j]
                    mag[(t + 1) * 129 + j] = np.sqrt(re * re + im * im)
            _block(mag, 0, 129, 258, 387, w1, 387, b1, True, y1[r], 128, 128)
        for t in range(2):  # stride 2: frame t reads padded frames 2t .. 2t + 2
            a = t * 256
            _block(flat1, a, 768 + a, 1536 + a, 2304 + a, w2, 384, b2, True, tmp, 64, 0)
            for r in range(4):
                y2[r, (t + 1) * 64 : (t + 2) * 64] = tmp[r * 64 : r * 64 + 64]
        _block(flat2, 0, 256, 512, 768, w3, 192, b3, True, y3, 64, 0)
        _block(y3, 0, 64, 128, 192, mid4, 64, b4, True, y4, 128, 0)
        for r in range(4):
            both[r * 256 : r * 256 + 128] = y4[r * 128 : r * 128 + 128]
            if r < num:
                both[r * 256 + 128 : r * 256 + 256] = h[base + r]
        _block(both, 0, 256, 512, 768, wl, 256, bl, False, gates, 512, 0)
        for r in range(num):
            g = r * 512
            total = _f(0.0)
            for j in range(128):
                cell = _sigmoid(gates[g + 128 + j]) * c[base + r, j]
                cell += _sigmoid(gates[g + j]) * _tanh(gates[g + 256 + j])
                hidden = _sigmoid(gates[g + 384 + j]) * _tanh(cell)
                c_out[base + r, j] = cell
                h_out[base + r, j] = hidden
                total += max(hidden, _f(0.0)) * wo[j]
            prob[base + r] = _sigmoid(total + bo[0])


def vad_step(w: VadWeights, x: F32, h: F32, c: F32) -> tuple[F32, F32, F32]:
    """See `reference.vad_step`."""
    n = x.shape[0]
    prob = np.empty(n, np.float32)
    h_out, c_out = np.empty((n, 128), np.float32), np.empty((n, 128), np.float32)
    _vad_step(
        x, h, c, w.basis,
        w.conv1_w.reshape(128, 387), w.conv1_b, w.conv2_w.reshape(64, 384), w.conv2_b,
        w.conv3_w.reshape(64, 192), w.conv3_b, w.conv4_w.reshape(128, 192), w.conv4_b,
        w.lstm_w, w.lstm_b, w.out_w, w.out_b, prob, h_out, c_out,
    )  # fmt: skip
    return prob, h_out, c_out
