"""Triton kernels over rows: activations with bias, softmax, the best of a vocabulary, sampling, state of sessions."""

import triton
import triton.language as tl


@triton.jit
def bias_gelu(x_ptr, b_ptr, y_ptr, size, C, has_bias, BLOCK: tl.constexpr):
    """y = gelu(x [+ bias]), exact by the error function; fp32, x flat of rows of C."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    v = tl.load(x_ptr + i, mask=inside, other=0.0)
    v += tl.load(b_ptr + i % C, mask=i < size * has_bias, other=0.0)
    tl.store(y_ptr + i, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)), mask=inside)


@triton.jit
def scaled_residual(skip_ptr, x_ptr, b_ptr, s_ptr, y_ptr, size, C, BLOCK: tl.constexpr):
    """y = skip + scale (x + bias); fp32, flat of rows of C."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    v = tl.load(x_ptr + i, mask=inside, other=0.0) + tl.load(b_ptr + i % C, mask=inside, other=0.0)
    v = tl.load(skip_ptr + i, mask=inside, other=0.0) + tl.load(s_ptr + i % C, mask=inside, other=0.0) * v
    tl.store(y_ptr + i, v, mask=inside)


@triton.jit
def softmax_rows(x_ptr, y_ptr, C, LOG: tl.constexpr, BLOCK: tl.constexpr):
    """Softmax of each row fp32 [M, C], or its logarithm; -inf stays impossible."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    tops = tl.full([BLOCK], float("-inf"), tl.float32)
    for at in range(0, C, BLOCK):
        tops = tl.maximum(tops, tl.load(x_ptr + row * C + at + offs, mask=at + offs < C, other=float("-inf")))
    top = tl.max(tops, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, C, BLOCK):
        total += tl.exp(tl.load(x_ptr + row * C + at + offs, mask=at + offs < C, other=float("-inf")) - top)
    sum = tl.sum(total, 0)
    for at in range(0, C, BLOCK):
        v = tl.load(x_ptr + row * C + at + offs, mask=at + offs < C, other=float("-inf")) - top
        if LOG:
            v = v - tl.log(sum)
        else:
            v = tl.exp(v) / sum
        tl.store(y_ptr + row * C + at + offs, v, mask=at + offs < C)


@triton.jit
def top_rows(x_ptr, value_ptr, id_ptr, C, k, log, BLOCK: tl.constexpr):
    """The k best of each row fp32 [M, C], falling, equals by lower index -> values fp32 [M, k], ids int64 [M, k].

    With `log` the values are logarithms of the softmax.
    """
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    best = float("inf")
    best_at = -1
    shift = 0.0
    for n in range(0, k):
        value = float("-inf")
        place = C
        for at in range(0, C, BLOCK):
            i = at + offs
            v = tl.load(x_ptr + row * C + i, mask=i < C, other=float("-inf"))
            after = (i < C) & ((v < best) | ((v == best) & (i > best_at)))
            v = tl.where(after, v, float("-inf"))
            top = tl.max(v, 0)
            first = tl.min(tl.where(after & (v == top), i, C), 0)
            better = (top > value) | ((top == value) & (first < place))
            place = tl.where(better, first, place)
            value = tl.where(better, top, value)
        if (n == 0) & (log != 0):
            total = tl.zeros([BLOCK], tl.float32)
            for at in range(0, C, BLOCK):
                total += tl.exp(tl.load(x_ptr + row * C + at + offs, mask=at + offs < C, other=float("-inf")) - value)
            shift = value + tl.log(tl.sum(total, 0))
        tl.store(value_ptr + row * k + n, value - shift)
        tl.store(id_ptr + row * k + n, place.to(tl.int64))
        best = value
        best_at = place


@triton.jit
def vocab_maxima(x_ptr, max_ptr, C, BLOCK: tl.constexpr):
    """The largest of each BLOCK of a row: x fp32 [M, C] -> fp32 [M, blocks]."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = block * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + row * C + i, mask=i < C, other=float("-inf"))
    tl.store(max_ptr + row * tl.num_programs(1) + block, tl.max(v, 0))


@triton.jit
def vocab_candidates(
    x_ptr, max_ptr, reach_ptr, count_ptr, value_ptr, id_ptr, C, room, BLOCK: tl.constexpr, MAXIMA: tl.constexpr
):
    """All entries of a row within reach[m] of its largest, in any order -> values, ids [M, room], count int32 [M].

    Those beyond `room` are dropped; the count tells. MAXIMA: a power of two, the number of blocks or above.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    blocks = tl.num_programs(1)
    j = tl.arange(0, MAXIMA)
    top = tl.max(tl.load(max_ptr + row * blocks + j, mask=j < blocks, other=float("-inf")), 0)
    least = top - tl.load(reach_ptr + row)
    if tl.load(max_ptr + row * blocks + block) > least:
        i = block * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row * C + i, mask=i < C, other=float("-inf"))
        keep = v > least
        ones = keep.to(tl.int32)
        start = tl.atomic_add(count_ptr + row, tl.sum(ones, 0))
        to = start + tl.cumsum(ones, 0) - 1
        tl.store(value_ptr + row * room + to, v, mask=keep & (to < room))
        tl.store(id_ptr + row * room + to, i, mask=keep & (to < room))


@triton.jit
def _order(v):
    """fp32 as integers in the same order."""
    bits = v.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _mass(value_ptr, n, top, heat, least, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """(number or chances of the candidates whose order is at least `least`)."""
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, n, BLOCK):
        i = at + tl.arange(0, BLOCK)
        v = tl.load(value_ptr + i, mask=i < n, other=float("-inf"))
        keep = (i < n) & (_order(v) >= least)
        if COUNT:
            total += keep.to(tl.float32)
        else:
            total += tl.where(keep, tl.exp((v - top) / heat), 0.0)
    return tl.sum(total, 0)


@triton.jit
def _edge(value_ptr, n, top, heat, wanted, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest order at and above which the mass exceeds `wanted`: bit by bit, so exact."""
    low = tl.full([], -2147483647, tl.int64)  # below -inf: everything
    high = tl.full([], 2147483647, tl.int64)
    for _ in range(0, 32):
        middle = (low + high + 1) >> 1
        enough = _mass(value_ptr, n, top, heat, middle.to(tl.int32), COUNT, BLOCK) > wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low.to(tl.int32)


@triton.jit
def sample_candidates(
    value_ptr, id_ptr, count_ptr, heat_ptr, topk_ptr, topp_ptr, minp_ptr, uniform_ptr, token_ptr, room, BLOCK: tl.constexpr
):
    """One token a row: top-k, top-p, min-p at a temperature, then one uniform number -> token int64 [M].

    Candidates as `vocab_candidates` leaves them. The chances are laid end to end from the likeliest down, and the token
    is where uniform * their sum falls. Equal values at an edge stay in together; among equals the lowest id is taken.
    heat (temperature), topp, minp, uniform fp32 [M]; topk int32 [M], 0: all.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.minimum(tl.load(count_ptr + row), room)
    value_ptr += row * room
    id_ptr += row * room
    heat = tl.load(heat_ptr + row)
    offs = tl.arange(0, BLOCK)
    tops = tl.full([BLOCK], float("-inf"), tl.float32)
    for at in range(0, n, BLOCK):
        tops = tl.maximum(tops, tl.load(value_ptr + at + offs, mask=at + offs < n, other=float("-inf")))
    top = tl.max(tops, 0)
    least = tl.full([], -2147483647, tl.int32)
    k = tl.load(topk_ptr + row)
    if (k > 0) & (k < n):
        least = _edge(value_ptr, n, top, heat, k.to(tl.float32) - 0.5, True, BLOCK)
    total = _mass(value_ptr, n, top, heat, least, False, BLOCK)
    p = tl.load(topp_ptr + row)
    if p < 1.0:
        # kept: what less than p of the mass lies strictly above; the edge is where the mass from it up reaches p
        edge = _edge(value_ptr, n, top, heat, tl.minimum(p, 0.999999) * total * 0.999999, False, BLOCK)
        least = tl.maximum(least, edge)
    floor = tl.load(minp_ptr + row)
    if floor > 0.0:
        least = tl.maximum(least, _order(top + heat * tl.log(floor)))
    total = _mass(value_ptr, n, top, heat, least, False, BLOCK)
    chosen = _edge(value_ptr, n, top, heat, tl.minimum(tl.load(uniform_ptr + row), 0.999999) * total, False, BLOCK)
    chosen = tl.maximum(chosen, least)
    id = tl.full([], 2147483647, tl.int32)
    for at in range(0, n, BLOCK):
        i = at + offs
        v = tl.load(value_ptr + i, mask=i < n, other=float("-inf"))
        found = tl.load(id_ptr + i, mask=i < n, other=2147483647)
        id = tl.minimum(id, tl.min(tl.where((i < n) & (_order(v) == chosen), found, 2147483647), 0))
    tl.store(token_ptr + row, id.to(tl.int64))


@triton.jit
def gather_state(state_ptr, slot_ptr, reset_ptr, out_ptr, C, BLOCK: tl.constexpr):
    """Rows slot[i] of state fp32 [slots, C] -> out fp32 [n, C]; zeros where reset[i] (int32)."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slot_ptr + i)
    fresh = tl.load(reset_ptr + i) != 0
    v = tl.load(state_ptr + slot * C + c, mask=(c < C) & (not fresh), other=0.0)
    tl.store(out_ptr + i * C + c, v, mask=c < C)


@triton.jit
def scatter_state(x_ptr, slot_ptr, run_ptr, state_ptr, C, BLOCK: tl.constexpr):
    """Rows of x fp32 [n, C] into rows slot[i] (int64) of state fp32 [slots, C], only where run[i] (int32)."""
    i = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i * C + c, mask=c < C, other=0.0)
    tl.store(state_ptr + tl.load(slot_ptr + i) * C + c, v, mask=c < C * tl.load(run_ptr + i))
