"""One Silero VAD step for many sessions at once, on one thread, with no allocation in the loop.

Layer by layer over up to `ROWS` sessions, so that a block of weights stays in the nearest cache while all rows go by.
The products are LLVM vectors through an intrinsic: an output is one chain of multiply-adds over the inputs in
their order, whichever rows share its tile, so a session's probability is bit-identical alone and in company.
Never parallel: the detector has a thread of its own beside the device's.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .cpu_dense import exp_f32
from .reference_ears import VadWeights

F32 = NDArray[np.float32]

WIDE = 16  # outputs of a tile: two vectors
_f = np.float32
_JIT = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": False}
_I64, _FLOAT = ir.IntType(64), ir.FloatType()
_V8 = ir.VectorType(_FLOAT, 8)


def _make_tile(rows: int) -> Any:
    """A function of addresses: `rows` rows times `WIDE` outputs.

    Arguments, all intp: first row, bytes between rows, how many inputs, weights [inputs, WIDE], biases [WIDE], what the
    outputs are at least (a float32), where they go, bytes between rows there.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(typing_context, x, x_stride, num, w, bias, low, out, out_stride):  # type: ignore[no-untyped-def]
        def codegen(context, b, signature, args):  # type: ignore[no-untyped-def]
            x, x_stride, num, w, bias, low, out, out_stride = args
            splat, undefined = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8), ir.Constant(_V8, ir.Undefined)

            def at(base: Any, offset: Any, kind: Any) -> Any:
                return b.inttoptr(b.add(base, offset), kind.as_pointer())

            def vector(base: Any, offset: int) -> Any:
                return b.load(at(base, ir.Constant(_I64, offset), _V8), align=4, typ=_V8)

            def everywhere(value: Any) -> Any:
                return b.shuffle_vector(b.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0)), undefined, splat)

            first = [vector(bias, 32 * g) for g in range(WIDE // 8)]
            sums = [[cgutils.alloca_once_value(b, value) for value in first] for _ in range(rows)]
            with cgutils.for_range(b, num, intp=_I64) as loop:
                w_at = b.add(w, b.mul(loop.index, ir.Constant(_I64, 4 * WIDE)))
                weights = [vector(w_at, 32 * g) for g in range(WIDE // 8)]
                for m in range(rows):
                    offset = b.add(b.mul(x_stride, ir.Constant(_I64, m)), b.mul(loop.index, ir.Constant(_I64, 4)))
                    value = everywhere(b.load(at(x, offset, _FLOAT), align=4, typ=_FLOAT))
                    for total, weight in zip(sums[m], weights, strict=True):
                        b.store(fused(b, value, weight, b.load(total)), total)
            least = everywhere(low)
            for m in range(rows):
                for g, total in enumerate(sums[m]):
                    value = b.load(total)
                    value = b.select(b.fcmp_ordered(">", value, least), value, least)
                    offset = b.add(b.mul(out_stride, ir.Constant(_I64, m)), ir.Constant(_I64, 32 * g))
                    b.store(value, at(out, offset, _V8), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5, types.float32, *[types.intp] * 2), codegen

    return tile


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Eight times a * b + c, in one instruction where the machine has it."""
    kind = ir.FunctionType(_V8, [_V8] * 3)
    return builder.call(builder.module.declare_intrinsic("llvm.fmuladd.v8f32", (), kind), [a, b, c])


_tile_1, _tile_2, _tile_4 = _make_tile(1), _make_tile(2), _make_tile(4)


@njit(**_JIT)
def _layer(x, x_stride, count, num, w, bias, low, out, out_stride):  # type: ignore[no-untyped-def]
    """`count` rows of `num` inputs through a layer w [blocks, num, WIDE]; x and out are addresses, strides bytes."""
    for block in range(w.shape[0]):
        w_at, b_at, to = w.ctypes.data + block * num * 4 * WIDE, bias.ctypes.data + block * 4 * WIDE, out + block * 4 * WIDE
        m = 0
        while m + 4 <= count:
            _tile_4(x + m * x_stride, x_stride, num, w_at, b_at, low, to + m * out_stride, out_stride)
            m += 4
        if m + 2 <= count:
            _tile_2(x + m * x_stride, x_stride, num, w_at, b_at, low, to + m * out_stride, out_stride)
            m += 2
        if m < count:
            _tile_1(x + m * x_stride, x_stride, num, w_at, b_at, low, to + m * out_stride, out_stride)


@njit(inline="always", fastmath=True)
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return _f(1.0) / (_f(1.0) + exp_f32(-x))


@njit(inline="always", fastmath=True)
def _tanh(x):  # type: ignore[no-untyped-def]
    return _f(2.0) * _sigmoid(_f(2.0) * x) - _f(1.0)


ROWS = 16  # sessions at once
BINS, BASIS = 129, 272  # of a spectrum; rows of the basis, and what fills its last tile
LOW = _f(-3.0e38)


@njit(**_JIT)
def _hear(wave, basis, none, w1, b1, w2, b2, w3, b3, w4, b4, wl, bl, both, spec, mag, y1, y2, y3, gates):  # type: ignore[no-untyped-def]
    """From sound to the gates of the recurrent layer; all arrays are the caller's (see `_Room`)."""
    n = wave.shape[0]
    for i in range(n):
        _layer(wave.ctypes.data + i * 2560, 512, 4, 256, basis, none, LOW, spec.ctypes.data + i * 16 * BASIS, 4 * BASIS)
    for i in range(n):
        for t in range(4):
            for j in range(BINS):
                re, im = spec[i, t, j], spec[i, t, BINS + j]
                mag[i, t + 1, j] = np.sqrt(re * re + im * im)
    zero = _f(0.0)
    for i in range(n):  # frame t reads the padded frames t .. t + 2, or with stride 2 from 2 t on
        _layer(mag.ctypes.data + i * 6 * 4 * BINS, 4 * BINS, 4, 3 * BINS, w1, b1, zero, y1.ctypes.data + i * 3072 + 512, 512)
    for t in range(2):
        _layer(y1.ctypes.data + t * 1024, 3072, n, 384, w2, b2, zero, y2.ctypes.data + t * 256 + 256, 1024)
    _layer(y2.ctypes.data, 1024, n, 192, w3, b3, zero, y3.ctypes.data, 256)
    _layer(y3.ctypes.data, 256, n, 64, w4, b4, zero, both.ctypes.data, 1024)
    _layer(both.ctypes.data, 1024, n, 256, wl, bl, LOW, gates.ctypes.data, 2048)


@njit(cache=True, nogil=True, fastmath=True)
def _remember(gates, c, wo, bo, prob, h_out, c_out):  # type: ignore[no-untyped-def]
    """The recurrent layer's cells, and the probability that they give."""
    for r in range(gates.shape[0]):
        g = gates[r]
        total = _f(0.0)
        for j in range(128):
            cell = _sigmoid(g[128 + j]) * c[r, j] + _sigmoid(g[j]) * _tanh(g[256 + j])
            hidden = _sigmoid(g[384 + j]) * _tanh(cell)
            c_out[r, j] = cell
            h_out[r, j] = hidden
            total += max(hidden, _f(0.0)) * wo[j]
        prob[r] = _sigmoid(total + bo[0])


class _Packed(NamedTuple):
    """Weights as the tiles read them: [blocks, inputs, WIDE], and biases padded alike."""

    basis: F32
    none: F32
    w1: F32
    b1: F32
    w2: F32
    b2: F32
    w3: F32
    b3: F32
    w4: F32
    b4: F32
    wl: F32
    bl: F32


def _pack(w: F32) -> F32:
    """[outputs, inputs] to [blocks, inputs, WIDE]; outputs that fill the last block are 0."""
    blocks = -(-w.shape[0] // WIDE)
    padded = np.zeros((blocks * WIDE, w.shape[1]), np.float32)
    padded[: w.shape[0]] = w
    return np.ascontiguousarray(padded.reshape(blocks, WIDE, -1).transpose(0, 2, 1))


_packed: dict[int, tuple[VadWeights, _Packed]] = {}  # by id, which the weights beside it keep from being used again


def _packed_of(w: VadWeights) -> _Packed:
    found = _packed.get(id(w))
    if found is None:
        packed = _Packed(
            _pack(w.basis), np.zeros(BASIS, np.float32),
            _pack(w.conv1_w.reshape(128, 387)), w.conv1_b, _pack(w.conv2_w.reshape(64, 384)), w.conv2_b,
            _pack(w.conv3_w.reshape(64, 192)), w.conv3_b,
            _pack(w.conv4_w[:, 1]), w.conv4_b,  # one frame is left: the outer taps see only padding
            _pack(w.lstm_w), w.lstm_b,
        )  # fmt: skip
        found = _packed[id(w)] = (w, packed)
    return found[1]


class _Room(threading.local):
    """A thread's arrays for `ROWS` sessions, with a frame of padding on each side where a layer looks beyond the ends."""

    def __init__(self) -> None:
        self.wave, self.spec = np.empty((ROWS, 640), np.float32), np.empty((ROWS, 4, BASIS), np.float32)
        self.mag, self.y1 = np.zeros((ROWS, 6, BINS), np.float32), np.zeros((ROWS, 6, 128), np.float32)
        self.y2, self.y3 = np.zeros((ROWS, 4, 64), np.float32), np.empty((ROWS, 64), np.float32)
        self.both = np.empty((ROWS, 256), np.float32)  # features, then h
        self.gates = np.empty((ROWS, 512), np.float32)


_room = _Room()


def vad_step(w: VadWeights, x: F32, h: F32, c: F32) -> tuple[F32, F32, F32]:
    """See `reference.vad_step`."""
    n, r, packed = x.shape[0], _room, _packed_of(w)
    prob = np.empty(n, np.float32)
    h_out, c_out = np.empty((n, 128), np.float32), np.empty((n, 128), np.float32)
    for first in range(0, n, ROWS):
        part = slice(first, first + ROWS)
        num = len(x[part])
        r.wave[:num, :576] = x[part]
        r.wave[:num, 576:] = x[part, 574:510:-1]  # the end, mirrored
        r.both[:num, 128:] = h[part]
        _hear(r.wave[:num], *packed, r.both, r.spec, r.mag, r.y1, r.y2, r.y3, r.gates)
        _remember(r.gates[:num], c[part], w.out_w, w.out_b, prob[part], h_out[part], c_out[part])
    return prob, h_out, c_out
