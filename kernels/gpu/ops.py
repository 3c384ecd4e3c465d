"""The ops of `reference` on a device: the same names and signatures, on arrays of CuPy (or of its stand-in).

Nothing here waits for the device but `to_host`. Arguments may lie on the host: they are copied over. Weights are copied
once, by `place`. A matrix of int8, fp16, bf16 or packed 4, 6, 8 bits is multiplied as it is stored.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import cpu
from ..reference_ears import VadWeights
from ..reference_int8 import Int8Matrix, activation_limit, pack_rows, quantize_rows
from ..reference_tts import ConvBlock, EncoderLayer, stack_of
from .numbers import Packed, Stacked

FEW, MID = 16, 96  # rows up to which the small tiles are used
DECODE_SPLIT = 256  # tokens of a cache that one program reads
_PLAIN, _RMS, _SILU, _GELU, _LAYER = "plain", "rms", "silu", "gelu", "layer"


class Half(NamedTuple):
    """A matrix [rows, columns] of 16 bits on the host: float16, or bf16 as uint16."""

    data: Any
    rows: int
    columns: int


class Matrix(NamedTuple):
    """A matrix on the device: data [rows, K], K a multiple of 16. kind: int8, fp16 or bf16; scale [rows] for int8."""

    data: Any
    scale: Any
    kind: str
    rows: int
    columns: int


def _up(n: int, by: int) -> int:
    return -(-n // by)


def _plain_rows(m: Int8Matrix) -> np.ndarray:
    groups, pairs = m.packed.shape[:2]
    return m.packed.transpose(0, 2, 1, 3).reshape(groups * 8, pairs * 2)[: m.rows, : m.columns]


def _padded(x: np.ndarray, whole: int = 16) -> np.ndarray:
    room = np.zeros((x.shape[0], _up(x.shape[1], whole) * whole), x.dtype)
    room[:, : x.shape[1]] = x
    return room


class Ops:
    """The ops of one device. xp: CuPy or its stand-in; launcher: `launch.Cubins` or `interpret.Interpreter`."""

    companion = cpu  # what is small and wanted on the host is computed there
    activation_limit, pack_rows, quantize_rows = map(staticmethod, (activation_limit, pack_rows, quantize_rows))
    VadWeights, ConvBlock, EncoderLayer = VadWeights, ConvBlock, EncoderLayer
    mel_filters = staticmethod(cpu.mel_filters)

    def __init__(self, xp: Any, launcher: Any, index: int = 0) -> None:
        self.xp, self.index, self._launch = xp, index, launcher.launch
        self.num_bytes = 0  # of what was placed
        self._kept: dict[Any, Any] = {}
        self._none = xp.zeros(16, np.float32)  # for arguments that a flag says are not there
        self._no_bytes = xp.zeros(16, np.uint8)
        self._lock = threading.Lock()

    # -- places ---------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Make this thread launch on this device."""
        if hasattr(self.xp, "cuda"):
            self.xp.cuda.Device(self.index).use()

    def to_device(self, x: Any, dtype: Any = None) -> Any:
        if isinstance(x, self.xp.ndarray):
            return x if dtype is None or x.dtype == dtype else x.astype(dtype)
        return self.xp.asarray(np.asarray(x, dtype))

    def to_host(self, x: Any) -> Any:
        return self.xp.asnumpy(x) if isinstance(x, self.xp.ndarray) else x

    def place(self, weights: Any) -> Any:
        match weights:
            case np.ndarray():
                self.num_bytes += weights.nbytes
                return self.xp.asarray(np.ascontiguousarray(weights))
            case Int8Matrix():
                data = self.place(_padded(_plain_rows(weights)))
                return Matrix(data, self.xp.asarray(weights.scale[: weights.rows]), "int8", weights.rows, weights.columns)
            case Half():
                kind = "bf16" if weights.data.dtype == np.uint16 else "fp16"
                return Matrix(self.place(_padded(weights.data)), self._none, kind, weights.rows, weights.columns)
            case Packed():
                arrays = (weights.levels, weights.top, weights.scale, weights.least)
                levels, top, scale, least = (self.place(a) for a in arrays)
                return weights._replace(levels=levels, top=top, scale=scale, least=least)
            case Mapping():
                return {k: self.place(v) for k, v in weights.items()}
            case tuple() if hasattr(weights, "_fields"):
                return type(weights)(*(self.place(v) for v in weights))
            case tuple() | list():
                return type(weights)(self.place(v) for v in weights)
        return weights

    def empty(self, shape: Any, dtype: Any = np.float32) -> Any:
        return self.xp.empty(shape, dtype)

    def zeros(self, shape: Any, dtype: Any = np.float32) -> Any:
        return self.xp.zeros(shape, dtype)

    def contiguous(self, x: Any) -> Any:
        return self.xp.ascontiguousarray(x)

    def _f32(self, x: Any) -> Any:
        """On the device, float32, contiguous and at a multiple of 16 bytes."""
        x = self.to_device(x, np.float32)
        x = x if x.flags.c_contiguous else self.xp.ascontiguousarray(x)
        return x if x.data.ptr % 16 == 0 else x.copy()

    # -- dense ----------------------------------------------------------------------------------------------------

    def _prepare(self, x: Any, columns: int, width: int, mode: str, norm: Any, bias: Any, eps: float) -> tuple[Any, Any]:
        x = self._f32(x)
        rows = x.shape[0]
        q, scale = self.xp.empty((rows, width), np.float16), self.xp.empty(rows, np.float32)
        norm, bias = self._none if norm is None else norm, self._none if bias is None else bias
        self._launch("prepare_rows", mode, (rows,), x, norm, bias, q, scale, columns, width, eps)
        return q, scale

    def multiply(
        self, x: Any, weight: Matrix | Packed, mode: str = _PLAIN, norm: Any = None, eps: float = 0.0, onto: Any = None,
        bias: Any = None, norm_bias: Any = None,
    ) -> Any:  # fmt: skip
        """[onto +] prepared(x) W^T [+ bias] -> [M, N]; mode: plain, rms, layer (with `norm`), silu or gelu (x gated)."""
        if isinstance(weight, Stacked):
            parts = [self.multiply(x, part, mode, norm, eps, None, None, norm_bias) for part in weight.parts]
            y = np.concatenate(parts, axis=1)
            y = y if bias is None else y + bias
            return y if onto is None else onto + y
        grouped = isinstance(weight, Packed)
        width = weight.scale.shape[1] * weight.group if grouped else weight.data.shape[1]
        q, scale = self._prepare(x, weight.columns, width, mode, norm, norm_bias, eps)
        rows = q.shape[0]
        y = self.xp.empty((rows, weight.rows), np.float32) if onto is None else onto
        flags = (rows, weight.rows, width, int(bias is not None), int(onto is not None))
        bias = self._none if bias is None else bias
        if grouped:
            size, bm = ("few", 16) if rows <= FEW else ("mid", 64)
            self._launch(
                "linear_grouped", f"{weight.bits}g{weight.group}_{size}", (_up(weight.rows, 32), _up(rows, bm)),
                q, scale, weight.levels, weight.top, weight.scale, weight.least, bias, y, *flags,
            )  # fmt: skip
            return y
        size, bm, bn = ("few", 16, 32) if rows <= FEW else ("mid", 64, 64) if rows <= MID else ("many", 128, 64)
        grid = (_up(weight.rows, bn), _up(rows, bm))
        self._launch("linear_rows", f"{weight.kind}_{size}", grid, q, scale, weight.data, weight.scale, bias, y, *flags)
        return y

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        if isinstance(w, (Matrix, Packed)):
            return self.multiply(x.reshape(-1, x.shape[-1]), w, bias=b).reshape(*x.shape[:-1], w.rows)
        y = self._products(x, self._f32(w), x.size // x.shape[-1], x.shape[-1]).reshape(*x.shape[:-1], w.shape[0])
        return y if b is None else y + b

    def product(self, x: Any, w: Any) -> Any:
        return self.linear(x, w.T)

    def _products(self, x: Any, basis: Any, rows: int, step: int) -> Any:
        y = self.xp.empty((rows, basis.shape[0]), np.float32)
        grid = (_up(rows, 16), _up(basis.shape[0], 32))
        self._launch("frame_products", "b32", grid, self._f32(x), basis, y, rows, step, basis.shape[1], basis.shape[0])
        return y

    def linear_int8(self, x: Any, weight: Matrix) -> Any:
        return self.multiply(x, weight)

    def norm_linear(self, x: Any, norm: Any, eps: float, weight: Matrix | Packed) -> Any:
        return self.multiply(x, weight, _RMS, norm, eps)

    def linear_residual(self, x: Any, y: Any, weight: Matrix | Packed, norm: Any, eps: float) -> Any:
        if norm is None:
            return self.multiply(y, weight, onto=x)
        return self.add_rms_norm(x, self.multiply(y, weight), norm, eps)

    def gated_linear_residual(self, x: Any, y: Any, activation: str, weight: Matrix | Packed, norm: Any, eps: float) -> Any:
        mode = self._activation(activation)
        if norm is None:
            return self.multiply(y, weight, mode, onto=x)
        return self.add_rms_norm(x, self.multiply(y, weight, mode), norm, eps)

    @staticmethod
    def _activation(name: str) -> str:
        if name not in ("silu", "gelu_tanh"):
            raise ValueError(f"activation must be silu or gelu_tanh, is {name!r}")
        return name.removesuffix("_tanh")

    def embedding_rows(self, weight: Matrix | Packed, ids: Any, factor: float = 1.0) -> Any:
        ids = self.to_device(ids, np.int64)
        out = self.xp.empty((ids.size, weight.columns), np.float32)
        grid = (ids.size, _up(weight.columns, 512))
        if isinstance(weight, Packed):
            width = weight.scale.shape[1] * weight.group
            arrays = (weight.levels, weight.top, weight.scale, weight.least)
            variant = f"{weight.bits}g{weight.group}"
            self._launch("embed_grouped", variant, grid, ids, *arrays, out, weight.columns, width, factor)
        else:
            width = weight.data.shape[1]
            self._launch("embed_rows", weight.kind, grid, ids, weight.data, weight.scale, out, weight.columns, width, factor)
        return out

    def _norm(self, x: Any, weight: Any, bias: Any, skip: Any, eps: float, variant: str) -> Any:
        shape = x.shape
        x = self._f32(x)
        out = self.xp.empty(shape, np.float32)
        flags = (shape[-1], eps, int(bias is not None), int(skip is not None))
        skip, bias = self._none if skip is None else self._f32(skip), self._none if bias is None else self._f32(bias)
        self._launch("norm_rows", variant, (x.size // shape[-1],), x, skip, self._f32(weight), bias, out, *flags)
        return out

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        return self._norm(x, weight, None, None, eps, "rms")

    def add_rms_norm(self, x: Any, y: Any, weight: Any, eps: float) -> Any:
        return self._norm(y, weight, None, x, eps, "rms")

    def layer_norm(self, x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
        return self._norm(x, gamma, beta, None, eps, "layer")

    row_norm = layer_norm

    def gated(self, x: Any, activation: str) -> Any:
        mode, x = self._activation(activation), self._f32(x)
        out = self.xp.empty((x.shape[0], x.shape[1] // 2), np.float32)
        self._launch("gated_rows", mode, (x.shape[0], _up(out.shape[1], 1024)), x, out, out.shape[1])
        return out

    def bias_gelu(self, x: Any, bias: Any) -> Any:
        x = self._f32(x)
        out = self.xp.empty(x.shape, np.float32)
        b = self._none if bias is None else self._f32(bias)
        self._launch("bias_gelu", "b1024", (_up(x.size, 1024),), x, b, out, x.size, x.shape[-1], int(bias is not None))
        return out

    def gelu(self, x: Any) -> Any:
        return self.bias_gelu(x, None)

    def scaled_residual(self, skip: Any, x: Any, bias: Any, scale: Any) -> Any:
        skip, x, bias, scale = (self._f32(a) for a in (skip, x, bias, scale))
        out = self.xp.empty(x.shape, np.float32)
        self._launch("scaled_residual", "b1024", (_up(x.size, 1024),), skip, x, bias, scale, out, x.size, x.shape[-1])
        return out

    def sigmoid(self, x: Any) -> Any:
        return np.float32(1.0) / (np.float32(1.0) + np.exp(-x))

    def _softmax(self, x: Any, variant: str) -> Any:
        x = self._f32(x)
        out = self.xp.empty(x.shape, np.float32)
        self._launch("softmax_rows", variant, (x.size // x.shape[-1],), x, out, x.shape[-1])
        return out

    def softmax(self, x: Any) -> Any:
        return self._softmax(x, "plain")

    def log_softmax(self, x: Any) -> Any:
        return self._softmax(x, "log")

    def _top(self, x: Any, k: int, log: int) -> tuple[Any, Any]:
        x = self._f32(x)
        values, ids = self.xp.empty((x.shape[0], k), np.float32), self.xp.empty((x.shape[0], k), np.int64)
        self._launch("top_rows", "b2048", (x.shape[0],), x, values, ids, x.shape[1], k, log)
        return values, ids

    def top_log_probs(self, logits: Any, k: int) -> tuple[Any, Any]:
        return self._top(logits, k, 1)

    def argmax_rows(self, x: Any) -> Any:
        return self._top(x, 1, 0)[1].reshape(-1)

    def candidates(self, logits: Any, reach: Any, room: int = 4096) -> tuple[Any, Any, Any]:
        """What lies within reach [M] of each row's largest -> (values, ids [M, room], count int32 [M]), any order.

        Up to half a million columns. Where the count exceeds `room`, what did not fit is missing.
        """
        logits, reach = self._f32(logits), self.to_device(reach, np.float32)
        rows, blocks = logits.shape[0], _up(logits.shape[1], 1024)
        if blocks > 512:
            raise ValueError(f"a vocabulary of {logits.shape[1]} is beyond what the kernel looks through")
        top, count = self.xp.empty((rows, blocks), np.float32), self.xp.zeros(rows, np.int32)
        values, ids = self.xp.empty((rows, room), np.float32), self.xp.empty((rows, room), np.int32)
        self._launch("vocab_maxima", "b1024", (rows, blocks), logits, top, logits.shape[1])
        arrays = (logits, top, reach, count, values, ids)
        self._launch("vocab_candidates", "b1024", (rows, blocks), *arrays, logits.shape[1], room)
        return values, ids, count

    def sample(self, logits: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, uniform: Any) -> Any:
        """One token a row: as `models/sampling.py` draws at these settings [M] with a uniform number [M] -> int64 [M]."""
        heat = np.asarray(temperature, np.float32)
        values, ids, count = self.candidates(logits, 21.0 * np.maximum(heat, 1.0))
        numbers = [self.to_device(a, t) for a, t in (
            (heat, np.float32), (top_k, np.int32), (top_p, np.float32), (min_p, np.float32), (uniform, np.float32),
        )]  # fmt: skip
        tokens = self.xp.empty(values.shape[0], np.int64)
        self._launch("sample_candidates", "b1024", (values.shape[0],), values, ids, count, *numbers, tokens, values.shape[1])
        return tokens

    # -- attention ------------------------------------------------------------------------------------------------

    def rotary_table(self, positions: int, head_size: int, base: float) -> Any:
        return self.to_device(cpu.rotary_table(positions, head_size, base))

    def rotary_paged(
        self, qkv: Any, heads: int, keys: Any, values: Any, table: Any, positions: Any, slots: Any, q_norm: Any, k_norm: Any,
        eps: float, reference: Any = None,
    ) -> Any:  # fmt: skip
        """Queries [M, heads, d] of a layer's product; its keys (less `reference`) and values go to their slots.

        keys, values: the layer's pools [slots, kv_heads, d]; positions, slots int64 [M], on the device.
        """
        kind, (_, groups, size), rows = self.pool_kind(keys), keys.shape, qkv.shape[0]
        q = self.xp.empty((rows, heads, size), np.float32)
        norms = (self._none, self._none) if q_norm is None else (q_norm, k_norm)
        self._launch(
            "rotary_paged", kind, (rows, heads + 2 * groups), self._f32(qkv), table, positions, slots, *norms,
            self._none if reference is None else reference, q, keys, values, heads, groups, size, eps,
            int(q_norm is not None), int(reference is not None),
        )  # fmt: skip
        return q

    @staticmethod
    def pool_kind(pool: Any) -> str:
        """The kernels' name of a pool's element type."""
        return {"float32": "fp32", "float16": "fp16", "uint16": "bf16", "uint8": "e4m3"}[pool.dtype.name]

    @staticmethod
    def _head(size: int) -> int:
        if size > 256 or size % 16:
            raise ValueError(f"a head size must be a multiple of 16 up to 256, is {size}")
        return 64 if size <= 64 else 128 if size <= 128 else 256

    def paged_decode(
        self, q: Any, keys: Any, values: Any, table: Any, lengths: Any, page: int, longest: int, window: int, scale: float
    ) -> Any:
        """One token a sequence over its pages: q [B, H, d], table int32 [B, P], lengths int32 [B] -> [B, H * d].

        longest: the largest length, or a bound on it (what the launch is made for).
        """
        rows, heads, size = q.shape
        groups = keys.shape[1]
        splits = _up(max(1, longest), DECODE_SPLIT)
        part, ml = self.xp.empty((rows, heads, splits, size), np.float32), self.xp.empty((rows, heads, splits, 2), np.float32)
        out = self.xp.empty((rows, heads * size), np.float32)
        variant = f"{self.pool_kind(keys)}_{self._head(size)}"
        self._launch(
            "paged_decode", variant, (rows, groups * _up(heads // groups, 16), splits), q, keys, values, table, lengths,
            part, ml, heads, groups, size, table.shape[1], page, window, DECODE_SPLIT, scale,
        )  # fmt: skip
        self._launch("paged_combine", "256", (rows * heads,), part, ml, out, splits, size)
        return out

    def paged_prefill(
        self, q: Any, keys: Any, values: Any, table: Any, starts: Any, lengths: Any, page: int, longest: int, window: int,
        scale: float,
    ) -> Any:  # fmt: skip
        """Chunks of new tokens over pages that hold them: q [M, H, d], chunk s rows starts[s] .. -> [M, H * d].

        longest: the largest chunk.
        """
        rows, heads, size = q.shape
        out = self.xp.empty((rows, heads * size), np.float32)
        kind = self.pool_kind(keys)
        grid = (_up(longest, 16 if kind == "fp32" else 64), heads, lengths.size)
        self._launch(
            "paged_prefill", f"{kind}_{self._head(size)}", grid, q, keys, values, table, starts, lengths, out, heads,
            keys.shape[1], size, table.shape[1], page, window, scale,
        )  # fmt: skip
        return out

    def attention(self, q: Any, k: Any, v: Any, num_heads: int, scale: float) -> Any:
        q, k, v = (self._f32(a) for a in (q, k, v))
        width, size = q.shape[1], q.shape[1] // num_heads
        return self._full(q, k, v, num_heads, size, k.shape[0], (width, size, width, size), scale)

    def attention_cross(self, q: Any, k: Any, v: Any, scale: float) -> Any:
        q, k, v = (self._f32(a) for a in (q, k, v))
        heads, tokens, size = k.shape
        return self._full(q, k, v, heads, size, tokens, (q.shape[1], size, size, tokens * size), scale)

    def _full(self, q: Any, k: Any, v: Any, heads: int, size: int, tokens: int, strides: tuple[int, ...], scale: float) -> Any:
        if size > 128:
            raise ValueError(f"an encoder's head size must be at most 128, is {size}")
        variant = 32 if size <= 32 else 64 if size <= 64 else 128
        out = self.xp.empty((q.shape[0], heads * size), np.float32)
        grid = (_up(q.shape[0], 64), heads)
        self._launch("full_attention", str(variant), grid, q, k, v, out, q.shape[0], tokens, size, *strides, scale)
        return out

    def encoder_attention(self, qkv: Any, heads: int) -> Any:
        width = qkv.shape[1] // 3
        q, k, v = (qkv[:, i * width : (i + 1) * width] for i in range(3))
        return self.attention(q, k, v, heads, float((width // heads) ** -0.5))

    def encoder_layer(self, x: Any, layer: EncoderLayer, heads: int) -> Any:
        y = self.linear_int8(self.row_norm(x, layer.norm1, layer.norm1_bias), layer.qkv) + layer.qkv_bias
        x = x + self.linear_int8(self.encoder_attention(y, heads), layer.out) + layer.out_bias
        y = self.linear_int8(self.row_norm(x, layer.norm2, layer.norm2_bias), layer.up)
        return x + self.linear_int8(self.bias_gelu(y, layer.up_bias), layer.down) + layer.down_bias

    def attention_cached(self, q: Any, k: Any, v: Any, rows: Any, lengths: Any, num_heads: int, scale: float) -> Any:
        batch, room, width = k.shape
        size = width // num_heads
        pools = [a.reshape(batch * room, num_heads, size) for a in (k, v)]
        table = self.to_device(np.asarray(rows, np.int32)[:, None])
        longest = int(np.max(lengths))
        q = self._f32(q).reshape(-1, num_heads, size)
        return self.paged_decode(q, *pools, table, self.to_device(lengths, np.int32), room, longest, 0, scale)

    # -- sound ----------------------------------------------------------------------------------------------------

    def windows(self, x: Any, k: int, stride: int = 1, padding: int = 0) -> Any:
        x = self.to_device(x, np.float32)
        count = (x.shape[0] + 2 * padding - k) // stride + 1
        padded = self.xp.zeros((x.shape[0] + 2 * padding, x.shape[1]), np.float32)
        padded[padding : padding + x.shape[0]] = x
        return np.concatenate([padded[i : i + (count - 1) * stride + 1 : stride] for i in range(k)], axis=1)

    def conv1d(self, x: Any, w: Any, b: Any, stride: int = 1, padding: int = 0, relu: bool = False) -> Any:
        """As the reference; x may have a batch in front: [B, T, C]."""
        x, w = self._f32(x), self._f32(w)
        (outputs, taps, channels), length = w.shape, x.shape[-2]
        if taps not in (1, 3, 7):
            return self.linear(self.windows(x, taps, stride, padding), w.reshape(outputs, -1), b)
        batch, count = x.size // (length * channels), (length + 2 * padding - taps) // stride + 1
        y = self.xp.empty((*x.shape[:-2], count, outputs), np.float32)
        sizes = (length, channels, outputs, count, stride, padding, int(b is not None), int(relu))
        grid = (_up(count, 16), _up(outputs, 32), batch)
        self._launch("conv1d_rows", f"k{taps}", grid, x, w, self._none if b is None else self._f32(b), y, *sizes)
        return y

    def spread_conv(self, taps: Any, place: Any, tones: Any, weight: Any, bias: Any) -> Any:
        """As the reference; `place` is on the host."""
        count, extra, width = weight.shape
        seen = np.lib.stride_tricks.sliding_window_view(place, count) * count + np.arange(count)
        y = self.product(self.windows(tones, count), self._f32(weight).reshape(count * extra, width))
        return y + bias + self._f32(taps).reshape(-1, width)[self.to_device(seen)].sum(axis=1)

    def depthwise_conv_norm(
        self, x: Any, weight: Any, bias: Any, gamma: Any, beta: Any, dilation: int = 1, eps: float = 1e-5
    ) -> Any:
        x, taps = self._f32(x), weight.shape[0]
        y = self.xp.empty((x.shape[0] - (taps - 1) * dilation, x.shape[1]), np.float32)
        self._launch("depthwise_norm", f"k{taps}", (y.shape[0],), x, weight, bias, gamma, beta, y, x.shape[1], dilation, eps)
        return y

    def conv_block(self, x: Any, block: ConvBlock, dilation: int = 1) -> Any:
        x, side = self._f32(x), block.depthwise.shape[0] // 2 * dilation
        y = self.depthwise_conv_norm(x, *block[:4], dilation)
        y = self.bias_gelu(self.linear_int8(y, block.up), block.up_bias)
        y = self.linear_int8(y, block.down)
        return self.scaled_residual(x[side : side + y.shape[0]], y, block.down_bias, block.scale)

    def conv_stack(self, x: Any, held: Any, counts: Any, blocks: Any, last: bool) -> Any:
        return stack_of(self.conv_block, self._f32(x), held, counts, blocks, last)

    def lstm_cell(self, x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> tuple[Any, Any]:
        bias = b_ih if b_hh is None else self.to_device(b_ih) + self.to_device(b_hh)
        x, h, c, w_ih, w_hh, bias = (self._f32(a) for a in (x, h, c, w_ih, w_hh, bias))
        new_h, new_c = self.xp.empty(h.shape, np.float32), self.xp.empty(c.shape, np.float32)
        grid = (_up(h.shape[0], 16), _up(h.shape[1], 16))
        sizes = (h.shape[0], x.shape[1], h.shape[1])
        self._launch("lstm_step", "s16", grid, x, h, c, w_ih, w_hh, bias, new_h, new_c, *sizes)
        return new_h, new_c

    def _keep(self, key: Any, make: Any) -> Any:
        """A constant on the device, made once."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self.to_device(make())
            return self._kept[key]

    def log_mel_frames(self, padded: Any, filters: Any, n_fft: int = 400, hop: int = 160) -> Any:
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
        basis = self._keep(("dft", n_fft), lambda: dft_basis(n_fft, window))
        filters = self._keep(("mel", filters.tobytes()), lambda: filters) if isinstance(filters, np.ndarray) else filters
        padded, (mels, bins) = self._f32(padded), filters.shape
        if mels > 128:
            raise ValueError(f"at most 128 mel bands, not {mels}")
        frames = (padded.size - n_fft) // hop + 1
        y = self.xp.empty((frames, mels), np.float32)
        self._launch("log_mel", "m128", (_up(frames, 16),), padded, basis, filters, y, frames, hop, n_fft, bins, mels, 1)
        return y

    def vad_step(self, w: VadWeights, x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
        x = self._f32(x)
        n = x.shape[0]
        mirrored = np.concatenate([x, x[:, -2:-66:-1]], axis=1).reshape(-1)  # [n * 640]
        # Five frames a row of which the last reaches into the next row, and is dropped.
        frames = self._products(np.concatenate([mirrored, self.xp.zeros(128, np.float32)]), w.basis, 5 * n, 128)
        frames = frames.reshape(n, 5, 258)[:, :4]
        y = np.sqrt(np.square(frames[:, :, :129]) + np.square(frames[:, :, 129:]))
        y = self.conv1d(y, w.conv1_w, w.conv1_b, 1, 1, relu=True)
        y = self.conv1d(y, w.conv2_w, w.conv2_b, 2, 1, relu=True)
        y = self.conv1d(y, w.conv3_w, w.conv3_b, 2, 1, relu=True)
        y = self.conv1d(y, w.conv4_w, w.conv4_b, 1, 1, relu=True)
        h, c = self.lstm_cell(y.reshape(n, 128), h, c, w.lstm_w[:, :128], w.lstm_w[:, 128:], w.lstm_b, None)
        loud = np.maximum(h, np.float32(0)) * w.out_w
        return self.sigmoid(loud.sum(axis=1) + w.out_b), h, c

    # -- the vocoder: spectra are float32 [T, bins, 2] here ----------------------------------------------------------

    def harmonic_source(
        self, f0: Any, hop: int = 300, sample_rate: int = 24000, floor: float = 40.0, top: float = 11000.0
    ) -> Any:
        f0 = self._f32(f0)
        turns, out = self.xp.empty(f0.size, np.float64), self.xp.empty(f0.size * hop, np.float32)
        if hop > 512:
            raise ValueError(f"a hop of at most 512 samples, not {hop}")
        self._launch("frame_turns", "b512", (f0.size,), f0, turns, f0.size, hop, float(sample_rate), floor)
        self._launch("harmonic_source", "h512", (f0.size,), f0, turns, out, f0.size, hop, float(sample_rate), floor, top)
        return out

    def stft_rows(self, padded: Any, window: np.ndarray, hop: int, first: int, last: int) -> Any:
        size = window.shape[0]
        bins = size // 2 + 1

        def basis() -> np.ndarray:
            parts = dft_basis(size, window).reshape(2, bins, size)
            return np.ascontiguousarray(parts.transpose(1, 0, 2).reshape(2 * bins, size))

        part = self._f32(self.to_device(padded)[first * hop : (last - 1) * hop + size])
        return self._products(part, self._keep(("stft", window.tobytes()), basis), last - first, hop).reshape(-1, bins, 2)

    def gaussian_rows(self, seed: int, first: int, rows: int, bins: int) -> Any:
        out = self.xp.empty((rows, bins, 2), np.float32)
        signed = (seed & 0xFFFFFFFF) - (1 << 32 if seed & 0x80000000 else 0)
        self._launch("gaussian_rows", "b512", (rows, _up(bins, 512)), out, signed, first, bins)
        return out

    def vocoder_spectrum(self, head: Any, source: Any, noise: Any, limit: float = 7.0) -> Any:
        out = self.xp.empty(source.shape, np.float32)
        rows, bins = source.shape[:2]
        self._launch("vocoder_mix", "b512", (rows, _up(bins, 512)), self._f32(head), source, noise, out, bins, limit)
        return out

    def overlap_add(self, spectrum: Any, window: np.ndarray, hop: int, tail: Any) -> tuple[Any, Any]:
        size = window.shape[0]
        rows, bins = spectrum.shape[:2]

        def basis() -> np.ndarray:
            parts = dft_basis(size, np.ones(size)).reshape(2, bins, size).astype(np.float64)
            weight = np.full(bins, 2.0 / size)
            weight[0] = weight[-1] = 1.0 / size
            both = parts.transpose(2, 1, 0) * weight[None, :, None] * window[:, None, None]
            return both.reshape(size, 2 * bins).astype(np.float32)

        frames = self._products(spectrum, self._keep(("istft", window.tobytes()), basis), rows, 2 * bins)
        out = self.xp.empty(rows * hop + size - hop, np.float32)
        tail = self._f32(tail)
        self._launch("overlap_frames", "b1024", (_up(out.size, 1024),), frames, tail, out, rows, size, hop, out.size)
        return out[: rows * hop], out[rows * hop :].copy()

    # -- state of sessions ------------------------------------------------------------------------------------------

    def gather_state(self, state: Any, slots: Any, reset: Any) -> Any:
        """Rows `slots` of state [S, C] -> [n, C], zeros where `reset`."""
        slots, reset = self.to_device(slots, np.int64), self.to_device(reset, np.int32)
        out = self.xp.empty((slots.size, state.shape[1]), np.float32)
        self._launch("gather_state", "b512", (slots.size, _up(state.shape[1], 512)), state, slots, reset, out, state.shape[1])
        return out

    def scatter_state(self, x: Any, slots: Any, run: Any, state: Any) -> None:
        """Rows of x [n, C] into rows `slots` of state [S, C], in place, where `run`."""
        slots, run = self.to_device(slots, np.int64), self.to_device(run, np.int32)
        grid = (slots.size, _up(state.shape[1], 512))
        self._launch("scatter_state", "b512", grid, self._f32(x), slots, run, state, state.shape[1])


def dft_basis(n: int, window: np.ndarray) -> np.ndarray:
    """Windowed cosines of bins 0 to n / 2, then minus the sines: float32 [2 (n // 2 + 1), n]."""
    angle = 2 * np.pi * (np.outer(np.arange(n // 2 + 1), np.arange(n)) % n) / n
    return np.concatenate([np.cos(angle) * window, -np.sin(angle) * window]).astype(np.float32)
