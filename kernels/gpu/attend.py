"""Triton kernels of attention: rotary positions with a paged write, decode over pages, prefill over pages, encoders.

A layer's pool of keys (and one of values) is [slots, kv_heads, d]; a sequence's tokens lie in pages of PAGE slots that
its row of the block table names: token t is in slot table[t // PAGE] * PAGE + t % PAGE. Stored as fp32, fp16, bf16 or
e4m3 (a byte made and read with integer operations, so that it is the same on chips without the type). e4m3 keys are
stored less a per-layer reference: a part that all keys share moves all scores of a query by the same amount, which the
softmax does not see, but would take e4m3's few bits.
"""

import triton
import triton.language as tl

FP32, FP16, BF16, E4M3 = (tl.constexpr(i) for i in range(4))


@triton.jit
def to_e4m3(v):
    """fp32 -> the nearest e4m3 (ties to even), as a byte; beyond 448 stays 448."""
    a = tl.minimum(tl.abs(v), 448.0)
    bits = a.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960  # seven bits of exponent and fraction, rebiased
    small = (a + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # steps of 2^-9: the unit of 2^14 in fp32
    code = tl.where(a < 0.015625, small, normal)
    sign = (v.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)


@triton.jit
def from_e4m3(byte):
    """e4m3 bytes -> fp16, exactly: its exponent moved up, then times 2^8, the difference of the biases."""
    u = byte.to(tl.int32)
    bits = ((u & 0x80) << 8) | ((u & 0x7F) << 7)
    return bits.to(tl.int16).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def _put(ptr, v, mask, KIND: tl.constexpr):
    if KIND == 3:
        tl.store(ptr, to_e4m3(v), mask=mask)
    elif KIND == 2:
        bits = v.to(tl.int32, bitcast=True)  # rounded here: the interpreter's own conversion cuts off
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(ptr, bits.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=mask)
    elif KIND == 1:
        tl.store(ptr, v.to(tl.float16), mask=mask)
    else:
        tl.store(ptr, v, mask=mask)


@triton.jit
def _get(ptr, mask, KIND: tl.constexpr):
    """A tile of a pool: fp16, or fp32 from an fp32 pool."""
    if KIND == 3:
        v = from_e4m3(tl.load(ptr, mask=mask, other=0))
    elif KIND == 2:
        v = tl.load(ptr, mask=mask, other=0.0).to(tl.float32).to(tl.float16)
    else:
        v = tl.load(ptr, mask=mask, other=0.0)
    return v


@triton.jit
def rotary_paged(
    x_ptr, table_ptr, position_ptr, slot_ptr, qn_ptr, kn_ptr, ref_ptr, q_ptr, k_ptr, v_ptr, H, G, d, eps, has_norm, has_ref,
    KIND: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One head of one token of x fp32 [M, (H + 2 G) d]: norm, rotate, and put it where it belongs.

    Queries -> q fp32 [M, H, d]; keys (less ref [G, d]) and values -> slot[m] of the pools. table fp32 [P, d]: cosines,
    then sines. positions, slots int64 [M]. A slot below zero is not written.
    """
    m = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    c = tl.arange(0, HALF)
    half = d // 2
    inside = c < half
    row = x_ptr + m * (H + 2 * G) * d + head * d
    a = tl.load(row + c, mask=inside, other=0.0)
    b = tl.load(row + half + c, mask=inside, other=0.0)
    slot = tl.load(slot_ptr + m)
    put = c < tl.where(slot >= 0, half, 0)
    if head < H + G:
        normed = c < half * has_norm
        inverse = 1.0 / tl.sqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / d + eps)
        inverse = inverse * has_norm + (1 - has_norm)  # 1 without a norm
        if head < H:
            a = a * inverse * tl.load(qn_ptr + c, mask=normed, other=1.0)
            b = b * inverse * tl.load(qn_ptr + half + c, mask=normed, other=1.0)
        else:
            a = a * inverse * tl.load(kn_ptr + c, mask=normed, other=1.0)
            b = b * inverse * tl.load(kn_ptr + half + c, mask=normed, other=1.0)
        at = table_ptr + tl.load(position_ptr + m) * d
        cos = tl.load(at + c, mask=inside, other=0.0)
        sin = tl.load(at + half + c, mask=inside, other=0.0)
        turned = a * cos - b * sin
        b = b * cos + a * sin
        a = turned
        if head < H:
            q_at = q_ptr + (m * H + head) * d
            tl.store(q_at + c, a, mask=inside)
            tl.store(q_at + half + c, b, mask=inside)
        else:
            g = head - H
            less = c < half * has_ref
            a -= tl.load(ref_ptr + g * d + c, mask=less, other=0.0)
            b -= tl.load(ref_ptr + g * d + half + c, mask=less, other=0.0)
            k_at = k_ptr + (slot * G + g) * d
            _put(k_at + c, a, put, KIND)
            _put(k_at + half + c, b, put, KIND)
    else:
        v_at = v_ptr + (slot * G + head - H - G) * d
        _put(v_at + c, a, put, KIND)
        _put(v_at + half + c, b, put, KIND)


@triton.jit
def _scores(q, k, KIND: tl.constexpr):
    if KIND == 0:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    else:
        scores = tl.dot(q.to(tl.float16), tl.trans(k))
    return scores


@triton.jit
def _more(acc, m, l, scores, v, KIND: tl.constexpr):
    """The online softmax: (weighted sum, largest score, sum of weights) with a tile of scores and values more."""
    new = tl.maximum(m, tl.max(scores, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    p = tl.exp(scores - safe[:, None])
    keep = tl.exp(m - safe)
    l = l * keep + tl.sum(p, 1)
    if KIND == 0:
        acc = acc * keep[:, None] + tl.dot(p, v, input_precision="ieee")
    else:
        acc = acc * keep[:, None] + tl.dot(p.to(tl.float16), v)
    return acc, new, l


@triton.jit
def paged_decode(
    q_ptr, k_ptr, v_ptr, table_ptr, len_ptr, part_ptr, ml_ptr, H, G, d, P, page, window, chunk, scale,
    KIND: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One new token a sequence over its pages: sequence b, up to R of the query heads that share keys, one split.

    q fp32 [B, H, d]; table int32 [B, P]; len int32 [B], the new token included; window 0: all earlier tokens. Split s
    takes tokens s * chunk .. of those. -> part fp32 [B, H, S, d] (not divided), ml fp32 [B, H, S, 2] (largest, sum).
    """
    b = tl.program_id(0)
    group = H // G
    parts = (group + R - 1) // R
    g = tl.program_id(1) // parts
    r = (tl.program_id(1) % parts) * R + tl.arange(0, R)
    s, splits = tl.program_id(2), tl.num_programs(2)
    head = g * group + r
    r_in = r < group
    c = tl.arange(0, D)
    q_at = q_ptr + (b * H + head)[:, None].to(tl.int64) * d + c[None, :]
    q = tl.load(q_at, mask=r_in[:, None] & (c < d)[None, :], other=0.0) * scale
    length = tl.load(len_ptr + b)
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    first = tl.maximum(s * chunk, low // BN * BN)
    last = tl.minimum((s + 1) * chunk, length)
    acc = tl.zeros([R, D], tl.float32)
    m = tl.full([R], float("-inf"), tl.float32)
    l = tl.zeros([R], tl.float32)
    for at in range(first, last, BN):
        t = at + tl.arange(0, BN)
        live = (t >= low) & (t < last)
        slot = tl.load(table_ptr + b * P + t // page, mask=live, other=0).to(tl.int64) * page + t % page
        kv = (slot * G + g)[:, None] * d + c[None, :]
        inside = live[:, None] & (c < d)[None, :]
        scores = _scores(q, _get(k_ptr + kv, inside, KIND), KIND)
        scores = tl.where(live[None, :], scores, float("-inf"))
        acc, m, l = _more(acc, m, l, scores, _get(v_ptr + kv, inside, KIND), KIND)
    to = (b * H + head).to(tl.int64) * splits + s
    tl.store(part_ptr + to[:, None] * d + c[None, :], acc, mask=r_in[:, None] & (c < d)[None, :])
    tl.store(ml_ptr + to * 2, m, mask=r_in)
    tl.store(ml_ptr + to * 2 + 1, l, mask=r_in)


@triton.jit
def paged_combine(part_ptr, ml_ptr, out_ptr, S, d, D: tl.constexpr):
    """The splits of one head of one sequence put together -> out fp32 [B * H, d]."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, D)
    acc = tl.zeros([D], tl.float32)
    top = float("-inf")
    total = 0.0
    for s in range(0, S):
        at = row * S + s
        m = tl.load(ml_ptr + at * 2)
        new = tl.maximum(top, m)
        safe = tl.where(new == float("-inf"), 0.0, new)
        keep, more = tl.exp(top - safe), tl.exp(m - safe)
        acc = acc * keep + tl.load(part_ptr + at * d + c, mask=c < d, other=0.0) * more
        total = total * keep + tl.load(ml_ptr + at * 2 + 1) * more
        top = new
    tl.store(out_ptr + row * d + c, acc / total, mask=c < d)


@triton.jit
def paged_prefill(
    q_ptr, k_ptr, v_ptr, table_ptr, start_ptr, len_ptr, out_ptr, H, G, d, P, page, window, scale,
    KIND: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Causal attention of chunks of new tokens over pages that hold them already.

    q fp32 [M, H, d]; chunk s is rows start[s] .. start[s + 1] (int32 [S + 1]), the last tokens of the len[s] (int32 [S])
    of sequence s; table int32 [S, P]. window 0 sees every earlier token, else the last `window`. -> out fp32 [M, H, d].
    """
    s, head = tl.program_id(2), tl.program_id(1)
    start, length = tl.load(start_ptr + s), tl.load(len_ptr + s)
    count = tl.load(start_ptr + s + 1) - start
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    if tl.program_id(0) * BM < count:
        g = head // (H // G)
        c = tl.arange(0, D)
        q_in = (i < count)[:, None] & (c < d)[None, :]
        row = ((start + i) * H + head)[:, None].to(tl.int64) * d + c[None, :]
        q = tl.load(q_ptr + row, mask=q_in, other=0.0) * scale
        position = length - count + i
        first = length - count + tl.program_id(0) * BM
        low = tl.where(window > 0, tl.maximum(first - window + 1, 0), 0) // BN * BN
        last = tl.minimum(first + BM, length)
        acc = tl.zeros([BM, D], tl.float32)
        m = tl.full([BM], float("-inf"), tl.float32)
        l = tl.zeros([BM], tl.float32)
        for at in range(low, last, BN):
            t = at + tl.arange(0, BN)
            slot = tl.load(table_ptr + s * P + t // page, mask=t < length, other=0).to(tl.int64) * page + t % page
            kv = (slot * G + g)[:, None] * d + c[None, :]
            inside = (t < last)[:, None] & (c < d)[None, :]
            scores = _scores(q, _get(k_ptr + kv, inside, KIND), KIND)
            seen = (t[None, :] <= position[:, None]) & ((window == 0) | (t[None, :] > position[:, None] - window))
            scores = tl.where(seen & (t < length)[None, :], scores, float("-inf"))
            acc, m, l = _more(acc, m, l, scores, _get(v_ptr + kv, inside, KIND), KIND)
        tl.store(out_ptr + row, acc / l[:, None], mask=q_in)


@triton.jit
def full_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, TQ, TK, d, q_row, q_head, k_row, k_head, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Unmasked attention of an encoder: element (t, h, c) of q is at t * q_row + h * q_head + c, k and v likewise.

    -> out fp32 [TQ, H, d].
    """
    head = tl.program_id(1)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.arange(0, D)
    q_in = (i < TQ)[:, None] & (c < d)[None, :]
    q = tl.load(q_ptr + i[:, None].to(tl.int64) * q_row + head * q_head + c[None, :], mask=q_in, other=0.0) * scale
    acc = tl.zeros([BM, D], tl.float32)
    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)
    for at in range(0, TK, BN):
        t = at + tl.arange(0, BN)
        kv = t[:, None].to(tl.int64) * k_row + head * k_head + c[None, :]
        inside = (t < TK)[:, None] & (c < d)[None, :]
        k = tl.load(k_ptr + kv, mask=inside, other=0.0).to(tl.float16)
        v = tl.load(v_ptr + kv, mask=inside, other=0.0).to(tl.float16)
        scores = tl.where((t < TK)[None, :], _scores(q, k, 1), float("-inf"))
        acc, m, l = _more(acc, m, l, scores, v, 1)
    to = out_ptr + (i[:, None].to(tl.int64) * tl.num_programs(1) + head) * d + c[None, :]
    tl.store(to, acc / l[:, None], mask=q_in)
