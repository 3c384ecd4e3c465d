"""Fast language-model ops for the CPU: same names and results as `reference_lm.py`."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from .cpu_tts import exp_f32
from .reference_lm import rotary_table

__all__ = ["add_rms_norm", "argmax_rows", "attend", "gated", "rms_norm", "rotary_table", "rotate_heads"]

F32 = NDArray[np.float32]
f32 = np.float32
_JIT = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy"}


@nb.njit(**_JIT)
def _inverse_rms(row, eps):  # type: ignore[no-untyped-def]
    total = f32(0.0)
    for c in range(row.shape[0]):
        total += row[c] * row[c]
    return f32(1.0) / np.sqrt(total / f32(row.shape[0]) + f32(eps))


@nb.njit(**_JIT)
def _rms_norm(x, weight, eps, out):  # type: ignore[no-untyped-def]
    for m in range(x.shape[0]):
        row, to = x[m], out[m]
        scale = _inverse_rms(row, eps)
        for c in range(row.shape[0]):
            to[c] = row[c] * scale * weight[c]


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """RMS norm of each row; see the reference."""
    out = np.empty(x.shape, np.float32)
    _rms_norm(x, weight, eps, out)
    return out


@nb.njit(**_JIT)
def _add_rms_norm(x, y, weight, eps):  # type: ignore[no-untyped-def]
    for m in range(x.shape[0]):
        row, to = y[m], x[m]
        scale = _inverse_rms(row, eps)
        for c in range(row.shape[0]):
            to[c] += row[c] * scale * weight[c]


def add_rms_norm(x: F32, y: F32, weight: F32, eps: float) -> F32:
    """x + rms_norm(y), in place of x; see the reference."""
    _add_rms_norm(x, y, weight, eps)
    return x


@nb.njit(**_JIT)
def _rotate_heads(x, column, table, positions, norm, has_norm, eps, out):  # type: ignore[no-untyped-def]
    rows, heads, size = out.shape
    half = size // 2
    for m in range(rows):
        cosines, sines = table[positions[m], :half], table[positions[m], half:]
        for h in range(heads):
            row, to = x[m, column + h * size : column + (h + 1) * size], out[m, h]
            if has_norm:
                scale = _inverse_rms(row, eps)
                for i in range(size):
                    to[i] = row[i] * scale * norm[i]
            else:
                for i in range(size):
                    to[i] = row[i]
            first, second = to[:half], to[half:]
            for i in range(half):
                a, b = first[i], second[i]
                first[i] = a * cosines[i] - b * sines[i]
                second[i] = b * cosines[i] + a * sines[i]


_NO_NORM = np.zeros(0, np.float32)


def rotate_heads(
    x: F32, column: int, heads: int, table: F32, positions: NDArray[np.int64], norm: F32 | None, eps: float
) -> F32:
    """Optional head norm and rotary embedding; see the reference."""
    out = np.empty((x.shape[0], heads, table.shape[1]), np.float32)
    _rotate_heads(x, column, table, positions, _NO_NORM if norm is None else norm, norm is not None, eps, out)
    return out


# Attention in tiles of four query rows (token, head) that share a head of keys: each key and value is read once for the
# four. A row's sums go in an order that depends on the row alone (no `reassoc` in `_add_values`, and a weight of zero
# adds nothing), so a token's result does not depend on the chunk it came in. NumPy's BLAS would be faster on an idle
# machine, but its threads and Numba's spin against each other: on busy cores that cost ten times the product itself.
@nb.njit(**_JIT)
def _dots(q0, q1, q2, q3, keys, first, last, scale, scores):  # type: ignore[no-untyped-def]
    """scores[r, j] = scale * q_r . keys[j] for j in first..last-1."""
    size = q0.shape[0]
    for j in range(first, last):
        key = keys[j]
        a, b, c, d = f32(0.0), f32(0.0), f32(0.0), f32(0.0)
        for i in range(size):
            a += q0[i] * key[i]
            b += q1[i] * key[i]
            c += q2[i] * key[i]
            d += q3[i] * key[i]
        scores[0, j - first] = a * scale
        scores[1, j - first] = b * scale
        scores[2, j - first] = c * scale
        scores[3, j - first] = d * scale


@nb.njit(**_JIT)
def _softmax_between(row, low, high):  # type: ignore[no-untyped-def]
    """Softmax of row[low:high] in place, zero elsewhere."""
    part = row[low:high]
    top = f32(-3.0e38)
    for j in range(part.shape[0]):
        top = max(top, part[j])
    for j in range(part.shape[0]):
        part[j] = exp_f32(part[j] - top)
    total = f32(0.0)
    for j in range(part.shape[0]):
        total += part[j]
    inverse = f32(1.0) / total
    for j in range(part.shape[0]):
        part[j] *= inverse
    row[:low] = f32(0.0)
    row[high:] = f32(0.0)


@nb.njit(fastmath={"contract", "nnan", "ninf", "nsz"}, cache=True, nogil=True, error_model="numpy")
def _add_values(wa, wb, values, first, out_a, out_b):  # type: ignore[no-untyped-def]
    """out_r = sum over j of w_r[j] values[first + j], in order, for two rows."""
    count, size = wa.shape[0], out_a.shape[0]
    for i in range(size):
        out_a[i] = f32(0.0)
        out_b[i] = f32(0.0)
    j = 0
    while j + 4 <= count:
        v0, v1, v2, v3 = values[first + j], values[first + j + 1], values[first + j + 2], values[first + j + 3]
        a0, a1, a2, a3 = wa[j], wa[j + 1], wa[j + 2], wa[j + 3]
        b0, b1, b2, b3 = wb[j], wb[j + 1], wb[j + 2], wb[j + 3]
        for i in range(size):
            a, b = out_a[i], out_b[i]
            a, b = a + a0 * v0[i], b + b0 * v0[i]
            a, b = a + a1 * v1[i], b + b1 * v1[i]
            a, b = a + a2 * v2[i], b + b2 * v2[i]
            out_a[i], out_b[i] = a + a3 * v3[i], b + b3 * v3[i]
        j += 4
    while j < count:
        value, a0, b0 = values[first + j], wa[j], wb[j]
        for i in range(size):
            out_a[i] += a0 * value[i]
            out_b[i] += b0 * value[i]
        j += 1


@nb.njit(**_JIT)
def _attend_tile(q, keys, values, start, scale, window, head, at, out):  # type: ignore[no-untyped-def]
    """Rows at..at+3 of the heads that read keys[head]; row r is token r // group, head r % group of the group."""
    tokens, heads, size = q.shape
    group = heads // keys.shape[0]
    rows = min(4, tokens * group - at)
    early, late = at // group, (at + rows - 1) // group  # tokens
    first = max(0, start + early + 1 - window) if window > 0 else 0
    scores = np.empty((4, start + late + 1 - first), np.float32)
    spare = np.empty((4, size), np.float32)
    token = np.empty(4, np.int64)
    column = np.empty(4, np.int64)
    for r in range(4):  # missing rows repeat the last one
        row = at + min(r, rows - 1)
        token[r], column[r] = row // group, head * group + row % group
    _dots(
        q[token[0], column[0]], q[token[1], column[1]], q[token[2], column[2]], q[token[3], column[3]],
        keys[head], first, start + late + 1, scale, scores,
    )  # fmt: skip
    for r in range(4):
        last = start + token[r] + 1
        low = max(0, last - window) if window > 0 else 0
        _softmax_between(scores[r], low - first, last - first)
    for r in range(0, rows, 2):
        _add_values(scores[r], scores[r + 1], values[head], first, spare[r], spare[r + 1])
    for r in range(rows):
        out[token[r], column[r]] = spare[r]


@nb.njit(**_JIT)
def _attend_serial(q, keys, values, start, scale, window, out):  # type: ignore[no-untyped-def]
    rows = q.shape[0] * (q.shape[1] // keys.shape[0])
    for head in range(keys.shape[0]):
        for at in range(0, rows, 4):
            _attend_tile(q, keys, values, start, scale, window, head, at, out)


@nb.njit(parallel=True, **_JIT)
def _attend_parallel(q, keys, values, start, scale, window, out):  # type: ignore[no-untyped-def]
    rows = q.shape[0] * (q.shape[1] // keys.shape[0])
    tiles = (rows + 3) // 4
    parts = keys.shape[0] * tiles
    half = (parts + 1) // 2
    for n in nb.prange(parts):  # early and late tokens in turn, so that both threads get as many keys
        part = n // 2 if n % 2 == 0 else half + n // 2
        _attend_tile(q, keys, values, start, scale, window, part // tiles, part % tiles * 4, out)


def attend(q: F32, keys: F32, values: F32, start: int, scale: float, window: int) -> F32:
    """Causal attention over a cache; see the reference. A token's result is the same however the tokens are chunked."""
    rows, heads, size = q.shape
    out = np.empty((rows, heads, size), np.float32)
    work = rows * heads * size * (min(start + rows, window + rows) if window else start + rows)
    run = _attend_serial if work < 500_000 else _attend_parallel
    run(q, keys, values, start, f32(scale), window, out)
    return out.reshape(rows, heads * size)


@nb.njit(**_JIT)
def _gated(x, gelu, out):  # type: ignore[no-untyped-def]
    width = out.shape[1]
    for m in range(x.shape[0]):
        gate, up, to = x[m, :width], x[m, width:], out[m]
        if gelu:
            for i in range(width):
                g = gate[i]
                z = f32(1.5957691216) * (g + f32(0.044715) * g * g * g)  # (1 + tanh(z / 2)) / 2 = 1 / (1 + e^-z)
                to[i] = g / (f32(1.0) + exp_f32(-z)) * up[i]
        else:
            for i in range(width):
                to[i] = gate[i] / (f32(1.0) + exp_f32(-gate[i])) * up[i]


def gated(x: F32, activation: str) -> F32:
    """activation(gate) * up; see the reference."""
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, is {activation!r}")
    out = np.empty((x.shape[0], x.shape[1] // 2), np.float32)
    _gated(x, activation == "gelu_tanh", out)
    return out


def argmax_rows(x: F32) -> NDArray[np.int64]:
    """Index of the largest value of each row (NumPy's argmax is vector code); see the reference."""
    result: NDArray[np.int64] = np.argmax(x, axis=1)
    return result
