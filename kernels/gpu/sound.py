"""Triton kernels of sound: convolutions, recurrent steps, spectra as matrix products, the vocoder.

Everything here is fp32 (sums of phases fp64): spectra span many decades, which fp16 and TF32 do not hold.
"""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def conv1d_rows(
    x_ptr, w_ptr, b_ptr, y_ptr, T, C, O, TO, stride, padding, has_bias, relu,
    TAPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """x fp32 [B, T, C], w [O, TAPS, C] -> y fp32 [B, TO, O], zero padding on both ends, max(0, .) where relu."""
    batch = tl.program_id(2)
    t = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for tap in tl.static_range(TAPS):
        at = t * stride + tap - padding
        row_in = (t < TO) & (at >= 0) & (at < T)
        for c0 in range(0, C, BC):
            c = c0 + tl.arange(0, BC)
            from_x = x_ptr + (batch * T + at)[:, None].to(tl.int64) * C + c[None, :]
            a = tl.load(from_x, mask=row_in[:, None] & (c < C)[None, :], other=0.0)
            from_w = w_ptr + (o[None, :] * TAPS + tap) * C + c[:, None]
            w = tl.load(from_w, mask=(o < O)[None, :] & (c < C)[:, None], other=0.0)
            acc = tl.dot(a, w, acc, input_precision="ieee")
    acc += tl.load(b_ptr + o, mask=o < O * has_bias, other=0.0)[None, :]
    acc = tl.where(relu != 0, tl.maximum(acc, 0.0), acc)
    to = y_ptr + (batch * TO + t)[:, None].to(tl.int64) * O + o[None, :]
    tl.store(to, acc, mask=(t < TO)[:, None] & (o < O)[None, :])


@triton.jit
def depthwise_norm(x_ptr, w_ptr, b_ptr, gamma_ptr, beta_ptr, y_ptr, C, dilation, eps, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """x fp32 [T + (TAPS - 1) dilation, C], w [TAPS, C] -> layer norm over C of the depthwise convolution, fp32 [T, C]."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    inside = c < C
    acc = tl.load(b_ptr + c, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS):
        x = tl.load(x_ptr + (t + tap * dilation) * C + c, mask=inside, other=0.0)
        acc += x * tl.load(w_ptr + tap * C + c, mask=inside, other=0.0)
    mean = tl.sum(acc, 0) / C
    off = tl.where(inside, acc - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(off * off, 0) / C + eps)
    gamma = tl.load(gamma_ptr + c, mask=inside, other=0.0)
    beta = tl.load(beta_ptr + c, mask=inside, other=0.0)
    tl.store(y_ptr + t * C + c, off * inverse * gamma + beta, mask=inside)


@triton.jit
def _gate_sum(
    x_ptr, h_ptr, wi_ptr, wh_ptr, b_ptr, s, j, n, I, H,
    GATE: tl.constexpr, BS: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows, units = s < n, j < H
    acc = tl.zeros([BS, BH], tl.float32)
    for at in range(0, I, BK):
        k = at + tl.arange(0, BK)
        a = tl.load(x_ptr + s[:, None] * I + k[None, :], mask=rows[:, None] & (k < I)[None, :], other=0.0)
        w = tl.load(wi_ptr + (GATE * H + j)[None, :] * I + k[:, None], mask=units[None, :] & (k < I)[:, None], other=0.0)
        acc = tl.dot(a, w, acc, input_precision="ieee")
    for at in range(0, H, BK):
        k = at + tl.arange(0, BK)
        a = tl.load(h_ptr + s[:, None] * H + k[None, :], mask=rows[:, None] & (k < H)[None, :], other=0.0)
        w = tl.load(wh_ptr + (GATE * H + j)[None, :] * H + k[:, None], mask=units[None, :] & (k < H)[:, None], other=0.0)
        acc = tl.dot(a, w, acc, input_precision="ieee")
    return acc + tl.load(b_ptr + GATE * H + j, mask=units, other=0.0)[None, :]


@triton.jit
def lstm_step(
    x_ptr, h_ptr, c_ptr, wi_ptr, wh_ptr, b_ptr, h_out_ptr, c_out_ptr, n, I, H,
    BS: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One LSTM step of n sessions; x [n, I], h, c [n, H], wi [4 H, I], wh [4 H, H], b [4 H] -> new h, c; all fp32."""
    s = tl.program_id(0) * BS + tl.arange(0, BS)
    j = tl.program_id(1) * BH + tl.arange(0, BH)
    i_gate = tl.sigmoid(_gate_sum(x_ptr, h_ptr, wi_ptr, wh_ptr, b_ptr, s, j, n, I, H, 0, BS, BH, BK))
    f_gate = tl.sigmoid(_gate_sum(x_ptr, h_ptr, wi_ptr, wh_ptr, b_ptr, s, j, n, I, H, 1, BS, BH, BK))
    g_gate = _tanh(_gate_sum(x_ptr, h_ptr, wi_ptr, wh_ptr, b_ptr, s, j, n, I, H, 2, BS, BH, BK))
    o_gate = tl.sigmoid(_gate_sum(x_ptr, h_ptr, wi_ptr, wh_ptr, b_ptr, s, j, n, I, H, 3, BS, BH, BK))
    at = s[:, None] * H + j[None, :]
    inside = (s < n)[:, None] & (j < H)[None, :]
    c = f_gate * tl.load(c_ptr + at, mask=inside, other=0.0) + i_gate * g_gate
    tl.store(c_out_ptr + at, c, mask=inside)
    tl.store(h_out_ptr + at, o_gate * _tanh(c), mask=inside)


@triton.jit
def log_mel(
    x_ptr, basis_ptr, filter_ptr, y_ptr, T, hop, N, F, MELS, log,
    BM: tl.constexpr, BK: tl.constexpr, BF: tl.constexpr, BMEL: tl.constexpr,
):  # fmt: skip
    """x fp32 samples -> y fp32 [T, MELS]: log10 (where log) of mel power, at least 1e-10, of frames of N every `hop`.

    basis fp32 [2 F, N]: windowed cosines, then sines; filter fp32 [MELS, F].
    """
    t = tl.program_id(0) * BM + tl.arange(0, BM)
    mel = tl.arange(0, BMEL)
    total = tl.zeros([BM, BMEL], tl.float32)
    for f0 in range(0, F, BF):
        f = f0 + tl.arange(0, BF)
        re = tl.zeros([BM, BF], tl.float32)
        im = tl.zeros([BM, BF], tl.float32)
        for k0 in range(0, N, BK):
            k = k0 + tl.arange(0, BK)
            a = tl.load(x_ptr + t[:, None] * hop + k[None, :], mask=(t < T)[:, None] & (k < N)[None, :], other=0.0)
            inside = (f < F)[None, :] & (k < N)[:, None]
            cos = tl.load(basis_ptr + f[None, :] * N + k[:, None], mask=inside, other=0.0)
            sin = tl.load(basis_ptr + (F + f)[None, :] * N + k[:, None], mask=inside, other=0.0)
            re = tl.dot(a, cos, re, input_precision="ieee")
            im = tl.dot(a, sin, im, input_precision="ieee")
        w = tl.load(filter_ptr + mel[None, :] * F + f[:, None], mask=(mel < MELS)[None, :] & (f < F)[:, None], other=0.0)
        total = tl.dot(re * re + im * im, w, total, input_precision="ieee")
    y = tl.where(log != 0, tl.log(tl.maximum(total, 1e-10)) * 0.4342944819032518, total)
    tl.store(y_ptr + t[:, None] * MELS + mel[None, :], y, mask=(t < T)[:, None] & (mel < MELS)[None, :])


@triton.jit
def frame_products(
    x_ptr, basis_ptr, y_ptr, T, step, N, F, BM: tl.constexpr, BK: tl.constexpr, BF: tl.constexpr
):
    """y fp32 [T, F]: frame t, x[t step .. t step + N], times basis fp32 [F, N]. A DFT and its inverse are this."""
    t = tl.program_id(0) * BM + tl.arange(0, BM)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    acc = tl.zeros([BM, BF], tl.float32)
    for k0 in range(0, N, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x_ptr + t[:, None].to(tl.int64) * step + k[None, :], mask=(t < T)[:, None] & (k < N)[None, :], other=0.0)
        w = tl.load(basis_ptr + f[None, :] * N + k[:, None], mask=(f < F)[None, :] & (k < N)[:, None], other=0.0)
        acc = tl.dot(a, w, acc, input_precision="ieee")
    to = y_ptr + t[:, None].to(tl.int64) * F + f[None, :]
    tl.store(to, acc, mask=(t < T)[:, None] & (f < F)[None, :])


@triton.jit
def overlap_frames(frame_ptr, tail_ptr, out_ptr, T, N, hop, length, BLOCK: tl.constexpr):
    """out[s] = tail[s] (s < N - hop) + sum over frames t of frame[t, s - t hop]; frame fp32 [T, N], out fp32 [length]."""
    s = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.load(tail_ptr + s, mask=s < tl.minimum(N - hop, length), other=0.0)
    for back in range(0, N // hop):
        t = s // hop - back
        at = s - t * hop
        inside = (s < length) & (t >= 0) & (t < T) & (at < N)
        acc += tl.load(frame_ptr + t.to(tl.int64) * N + at, mask=inside, other=0.0)
    tl.store(out_ptr + s, acc, mask=s < length)


@triton.jit
def _pitch(f0_ptr, s, F, hop):
    """Pitch at samples s, fp64: linear between frame centres, constant beyond the outer ones."""
    at = (s.to(tl.float64) + 0.5) / hop - 0.5
    at = tl.minimum(tl.maximum(at, 0.0), F - 1.0)
    low = at.to(tl.int32)
    high = tl.minimum(low + 1, F - 1)
    a, b = tl.load(f0_ptr + low).to(tl.float64), tl.load(f0_ptr + high).to(tl.float64)
    return a + (b - a) * (at - low.to(tl.float64))


@triton.jit
def frame_turns(f0_ptr, turn_ptr, F, hop, rate, floor, BLOCK: tl.constexpr):
    """Turns of the phase within each frame, fp64 [F]: the sum of the pitch (at least `floor`) over its samples / rate."""
    frame = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float64)
    for at in range(0, hop, BLOCK):
        s = at + tl.arange(0, BLOCK)
        pitch = _pitch(f0_ptr, frame * hop + s, F, hop)
        total += tl.where(s < hop, tl.maximum(pitch, floor), 0.0)
    tl.store(turn_ptr + frame, tl.sum(total, 0) / rate)


@triton.jit
def harmonic_source(f0_ptr, turn_ptr, out_ptr, F, hop, rate, floor, top, HOP: tl.constexpr, BLOCK: tl.constexpr):
    """One frame of the band-limited pulse train (`reference.harmonic_source`); HOP: a power of two, hop or above."""
    frame = tl.program_id(0)
    before = tl.zeros([BLOCK], tl.float64)
    for at in range(0, frame, BLOCK):
        f = at + tl.arange(0, BLOCK)
        before += tl.load(turn_ptr + f, mask=f < frame, other=0.0)
    s = tl.arange(0, HOP)
    pitch = _pitch(f0_ptr, frame * hop + s, F, hop)
    held = tl.where(s < hop, tl.maximum(pitch, floor), 0.0)
    turns = tl.cumsum(held, 0) / rate + tl.sum(before, 0)
    turns = turns - turns.to(tl.int32)
    held = tl.maximum(pitch, floor)
    harmonics = (top / held).to(tl.int32)
    many = (harmonics + 0.5) * turns
    many = (many - many.to(tl.int32)).to(tl.float32)
    turns = turns.to(tl.float32)
    denominator = 2.0 * tl.sin(3.141592653589793 * turns)
    near = tl.abs(denominator) <= 2e-3
    plus = (harmonics + 0.5).to(tl.float32)
    value = tl.where(near, plus, tl.sin(6.283185307179586 * many) / tl.where(near, 1.0, denominator)) - 0.5
    value = tl.where(pitch > floor, value, 0.0)
    tl.store(out_ptr + frame * hop + s, value, mask=s < hop)


@triton.jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def gaussian_rows(out_ptr, seed, first, bins, BLOCK: tl.constexpr):
    """Complex normal numbers fp32 [rows, bins, 2] of (seed, row, bin): see `reference.gaussian_rows`."""
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    hashed = (row + first).to(tl.uint32) * 0x9E3779B9
    counter = (hashed ^ (c * 0 + seed).to(tl.uint32)) + c.to(tl.uint32) * 0x85EBCA6B
    uniform = ((_mix(counter) >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08
    angle = (_mix(counter ^ 0x68E31DA4) >> 8).to(tl.float32) * (3.745070282923929e-07)
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    to = out_ptr + (row.to(tl.int64) * bins + c) * 2
    tl.store(to, radius * tl.cos(angle), mask=c < bins)
    tl.store(to + 1, radius * tl.sin(angle), mask=c < bins)


@triton.jit
def vocoder_mix(head_ptr, source_ptr, noise_ptr, out_ptr, B, limit, BLOCK: tl.constexpr):
    """The five parts of the head fp32 [T, 5 B] on source and noise fp32 [T, B, 2] -> fp32 [T, B, 2]."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < B
    at = head_ptr + row * 5 * B + c
    lh = tl.exp(tl.minimum(tl.load(at, mask=inside, other=0.0), limit))
    theta = 3.141592653589793 * _tanh(tl.load(at + B, mask=inside, other=0.0))
    ln = tl.exp(tl.minimum(tl.load(at + 2 * B, mask=inside, other=0.0), limit))
    lr = tl.exp(tl.minimum(tl.load(at + 3 * B, mask=inside, other=0.0), limit))
    phi = tl.load(at + 4 * B, mask=inside, other=0.0)
    z = (row * B + c) * 2
    sr, si = tl.load(source_ptr + z, mask=inside, other=0.0), tl.load(source_ptr + z + 1, mask=inside, other=0.0)
    nr, ni = tl.load(noise_ptr + z, mask=inside, other=0.0), tl.load(noise_ptr + z + 1, mask=inside, other=0.0)
    cos, sin = lh * tl.cos(theta), lh * tl.sin(theta)
    tl.store(out_ptr + z, cos * sr - sin * si + ln * nr + lr * tl.cos(phi), mask=inside)
    tl.store(out_ptr + z + 1, cos * si + sin * sr + ln * ni + lr * tl.sin(phi), mask=inside)
