"""Triton kernels of the linear layers: rows of activations against int8, fp16, bf16 and packed 4, 6 and 8 bit weights.

A layer is two kernels: `prepare_rows` norms or gates the rows and writes them as fp16 with their largest magnitude at 1
(a scale a row keeps what fp16 could not hold), `linear_rows` or `linear_grouped` multiplies them on the tensor cores,
fp32 sums. All arithmetic is fp16 or fp32; bf16 exists at loads only. K is padded with zeros to a multiple of 16 (of 32
for packed weights), M and N are any.
"""

import triton
import triton.language as tl

PLAIN, RMS, SILU, GELU, LAYER = (tl.constexpr(i) for i in range(5))
INT8, FP16, BF16 = (tl.constexpr(i) for i in range(3))


@triton.jit
def _gate(gate, up, MODE: tl.constexpr):
    if MODE == 2:
        return gate * tl.sigmoid(gate) * up
    z = 1.5957691216 * (gate + 0.044715 * gate * gate * gate)  # (1 + tanh(z / 2)) / 2 = 1 / (1 + e^-z)
    return gate * tl.sigmoid(z) * up


@triton.jit
def _value(x_ptr, norm_ptr, bias_ptr, cols, C, mean, inverse, MODE: tl.constexpr):
    """Columns of one prepared row, fp32; zero from C on."""
    inside = cols < C
    v = tl.load(x_ptr + cols, mask=inside, other=0.0)
    if MODE == 1:
        v = v * inverse * tl.load(norm_ptr + cols, mask=inside, other=0.0)
    elif MODE == 4:
        v = (v - mean) * inverse * tl.load(norm_ptr + cols, mask=inside, other=0.0)
        v = tl.where(inside, v + tl.load(bias_ptr + cols, mask=inside, other=0.0), 0.0)
    elif MODE >= 2:
        v = _gate(v, tl.load(x_ptr + C + cols, mask=inside, other=0.0), MODE)
    return v


@triton.jit
def _moments(x_ptr, C, eps, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """(mean or 0, 1 / sqrt(mean square distance from it + eps)) of one row."""
    offs = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    mean = 0.0
    if CENTRED:
        for at in range(0, C, BLOCK):
            total += tl.load(x_ptr + at + offs, mask=at + offs < C, other=0.0)
        mean = tl.sum(total, 0) / C
        total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, C, BLOCK):
        v = tl.load(x_ptr + at + offs, mask=at + offs < C, other=0.0)
        v = tl.where(at + offs < C, v - mean, 0.0)
        total += v * v
    return mean, 1.0 / tl.sqrt(tl.sum(total, 0) / C + eps)


@triton.jit
def prepare_rows(x_ptr, norm_ptr, bias_ptr, q_ptr, scale_ptr, C, K, eps, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """x fp32 [M, C] ([M, 2 C] gated) -> q fp16 [M, K], scale fp32 [M]: row = q * scale, |q| <= 1, zero from C on."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    width = C
    if MODE == 2 or MODE == 3:
        width = 2 * C
    x_ptr += row * width
    mean = 0.0
    inverse = 1.0
    if MODE == 1:
        mean, inverse = _moments(x_ptr, C, eps, False, BLOCK)
    elif MODE == 4:
        mean, inverse = _moments(x_ptr, C, eps, True, BLOCK)
    tops = tl.zeros([BLOCK], tl.float32)
    for at in range(0, C, BLOCK):
        tops = tl.maximum(tops, tl.abs(_value(x_ptr, norm_ptr, bias_ptr, at + offs, C, mean, inverse, MODE)))
    top = tl.max(tops, 0)
    shrink = tl.where(top > 0.0, 1.0 / tl.where(top > 0.0, top, 1.0), 0.0)
    for at in range(0, K, BLOCK):
        v = _value(x_ptr, norm_ptr, bias_ptr, at + offs, C, mean, inverse, MODE) * shrink
        tl.store(q_ptr + row * K + at + offs, v.to(tl.float16), mask=at + offs < K)
    tl.store(scale_ptr + row, top)


@triton.jit
def norm_rows(
    x_ptr, skip_ptr, weight_ptr, bias_ptr, out_ptr, C, eps, has_bias, has_skip, CENTRED: tl.constexpr, BLOCK: tl.constexpr
):
    """out = [skip +] norm(x) * weight [+ bias]; all fp32 [M, C]; RMS norm, or layer norm where CENTRED."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mean, inverse = _moments(x_ptr + row * C, C, eps, CENTRED, BLOCK)
    for at in range(0, C, BLOCK):
        cols = at + offs
        inside = cols < C
        v = (tl.load(x_ptr + row * C + cols, mask=inside, other=0.0) - mean) * inverse
        v = v * tl.load(weight_ptr + cols, mask=inside, other=0.0)
        v += tl.load(bias_ptr + cols, mask=cols < C * has_bias, other=0.0)
        v += tl.load(skip_ptr + row * C + cols, mask=cols < C * has_skip, other=0.0)
        tl.store(out_ptr + row * C + cols, v, mask=inside)


@triton.jit
def gated_rows(x_ptr, out_ptr, C, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """x fp32 [M, 2 C], gate and up side by side -> act(gate) * up, fp32 [M, C]."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x_ptr + row * 2 * C + cols, mask=cols < C, other=0.0)
    up = tl.load(x_ptr + row * 2 * C + C + cols, mask=cols < C, other=0.0)
    tl.store(out_ptr + row * C + cols, _gate(gate, up, MODE), mask=cols < C)


@triton.jit
def linear_rows(
    q_ptr, qs_ptr, w_ptr, ws_ptr, bias_ptr, y_ptr, M, N, K, has_bias, add,
    KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y [M, N] (fp32) = [y +] q w^T * qs[m] [* ws[n] for int8] [+ bias[n]]; q fp16 [M, K], w [N, K]."""
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_in, n_in = m < M, n < N
    q_row = q_ptr + m[:, None].to(tl.int64) * K
    w_row = w_ptr + n[None, :].to(tl.int64) * K
    acc = tl.zeros([BM, BN], tl.float32)
    for at in range(0, K, BK):
        k = at + tl.arange(0, BK)
        a = tl.load(q_row + k[None, :], mask=m_in[:, None] & (k < K)[None, :], other=0.0)
        w = tl.load(w_row + k[:, None], mask=n_in[None, :] & (k < K)[:, None], other=0)
        if KIND == 2:
            w = w.to(tl.float32)
        acc = tl.dot(a, w.to(tl.float16), acc)
    acc = acc * tl.load(qs_ptr + m, mask=m_in, other=0.0)[:, None]
    if KIND == 0:
        acc = acc * tl.load(ws_ptr + n, mask=n_in, other=0.0)[None, :]
    acc += tl.load(bias_ptr + n, mask=n < N * has_bias, other=0.0)[None, :]
    to = y_ptr + m[:, None].to(tl.int64) * N + n[None, :]
    inside = m_in[:, None] & n_in[None, :]
    acc += tl.load(to, mask=inside & (m < M * add)[:, None], other=0.0)
    tl.store(to, acc, mask=inside)


@triton.jit
def _levels(w_ptr, top_ptr, n, j, N, K, HALF: tl.constexpr, BITS: tl.constexpr):
    """Stored integers [J, BN] of columns (j // 16) 32 + j % 16, plus 16 for HALF 1; j counts bytes of the nibbles."""
    inside = (n < N)[None, :] & (2 * j < K)[:, None]
    b = tl.load(w_ptr + n[None, :].to(tl.int64) * (K // 2) + j[:, None], mask=inside, other=0).to(tl.int32)
    level = (b >> (4 * HALF)) & 15
    if BITS == 6:
        place = (j // 16) * 8 + j % 8
        t = tl.load(top_ptr + n[None, :].to(tl.int64) * (K // 4) + place[:, None], mask=inside, other=0).to(tl.int32)
        shift = 2 * ((j % 16) // 8) + 4 * HALF
        level += ((t >> shift[:, None]) & 3) << 4
    return level


@triton.jit
def _half(q_row, w_ptr, top_ptr, s_ptr, z_ptr, m_in, n, j, N, K, HALF: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr):
    """(activations [BM, J], weights [J, BN]), fp16, of one half of the columns of a step."""
    cols = (j // 16) * 32 + j % 16 + 16 * HALF
    inside = (n < N)[None, :] & (cols < K)[:, None]
    at = n[None, :].to(tl.int64) * (K // GROUP) + (cols // GROUP)[:, None]
    scale = tl.load(s_ptr + at, mask=inside, other=0.0).to(tl.float32)
    least = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
    w = _levels(w_ptr, top_ptr, n, j, N, K, HALF, BITS).to(tl.float32) * scale - least
    a = tl.load(q_row + cols[None, :], mask=m_in[:, None] & (cols < K)[None, :], other=0.0)
    return a, w.to(tl.float16)


@triton.jit
def linear_grouped(
    q_ptr, qs_ptr, w_ptr, top_ptr, s_ptr, z_ptr, bias_ptr, y_ptr, M, N, K, has_bias, add,
    BITS: tl.constexpr, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """`linear_rows` for weights of 4, 6 or 8 bits in groups of columns: w[n, k] = s * level - z, s and z fp16.

    4 bits: w uint8 [N, K / 2], byte j of 32 columns holds column j and, above, column j + 16. 6 bits: their two top bits
    lie in `top` uint8 [N, K / 4], byte i of 32 columns holds those of i, i + 8, i + 16, i + 24. 8 bits: w int8 [N, K].
    """
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_in, n_in = m < M, n < N
    q_row = q_ptr + m[:, None].to(tl.int64) * K
    acc = tl.zeros([BM, BN], tl.float32)
    for at in range(0, K, BK):
        if BITS == 8:
            k = at + tl.arange(0, BK)
            inside = n_in[None, :] & (k < K)[:, None]
            a = tl.load(q_row + k[None, :], mask=m_in[:, None] & (k < K)[None, :], other=0.0)
            level = tl.load(w_ptr + n[None, :].to(tl.int64) * K + k[:, None], mask=inside, other=0).to(tl.float32)
            place = n[None, :].to(tl.int64) * (K // GROUP) + (k // GROUP)[:, None]
            scale = tl.load(s_ptr + place, mask=inside, other=0.0).to(tl.float32)
            acc = tl.dot(a, (level * scale).to(tl.float16), acc)
        else:
            j = at // 2 + tl.arange(0, BK // 2)
            a, w = _half(q_row, w_ptr, top_ptr, s_ptr, z_ptr, m_in, n, j, N, K, 0, BITS, GROUP)
            acc = tl.dot(a, w, acc)
            a, w = _half(q_row, w_ptr, top_ptr, s_ptr, z_ptr, m_in, n, j, N, K, 1, BITS, GROUP)
            acc = tl.dot(a, w, acc)
    acc = acc * tl.load(qs_ptr + m, mask=m_in, other=0.0)[:, None]
    acc += tl.load(bias_ptr + n, mask=n < N * has_bias, other=0.0)[None, :]
    to = y_ptr + m[:, None].to(tl.int64) * N + n[None, :]
    inside = m_in[:, None] & n_in[None, :]
    acc += tl.load(to, mask=inside & (m < M * add)[:, None], other=0.0)
    tl.store(to, acc, mask=inside)


@triton.jit
def embed_rows(ids_ptr, w_ptr, ws_ptr, out_ptr, C, K, factor, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Rows `ids` (int64 [M]) of w [N, K] times `factor` -> fp32 [M, C]; int8 rows are scaled by ws [N]."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    id = tl.load(ids_ptr + row)
    v = tl.load(w_ptr + id * K + cols, mask=cols < C, other=0).to(tl.float32)
    if KIND == 0:
        v = v * tl.load(ws_ptr + id)
    tl.store(out_ptr + row * C + cols, v * factor, mask=cols < C)


@triton.jit
def embed_grouped(
    ids_ptr, w_ptr, top_ptr, s_ptr, z_ptr, out_ptr, C, K, factor, BITS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`embed_rows` of a packed matrix (see `linear_grouped`)."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    id = tl.load(ids_ptr + row)
    inside = cols < C
    if BITS == 8:
        level = tl.load(w_ptr + id * K + cols, mask=inside, other=0).to(tl.float32)
    else:
        half = (cols % 32) // 16
        j = (cols // 32) * 16 + cols % 16
        b = tl.load(w_ptr + id * (K // 2) + j, mask=inside, other=0).to(tl.int32)
        levels = (b >> (4 * half)) & 15
        if BITS == 6:
            t = tl.load(top_ptr + id * (K // 4) + (cols // 32) * 8 + cols % 8, mask=inside, other=0).to(tl.int32)
            levels += ((t >> (2 * ((cols % 32) // 8))) & 3) << 4
        level = levels.to(tl.float32)
    at = id * (K // GROUP) + cols // GROUP
    v = level * tl.load(s_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if BITS != 8:
        v -= tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * C + cols, v * factor, mask=inside)
