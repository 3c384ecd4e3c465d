"""The decoder-only language model: one graph for the Llama, Qwen 2 and 3, Mistral and Gemma 3 shapes.

A layer is attention and a gated feed-forward net, each behind an RMS norm (Gemma 3 puts another norm after each, and
norms queries and keys). Rotary positions, grouped-query attention, some layers seeing only a sliding window, embedding
tied to the head. Checkpoints: SmolLM2-135M-Instruct and Gemma 3 270M, from GGUF.

One call takes rows of several sequences (`forward_spans`): prefill chunks and single decode tokens alike. A decode
row's result is bit for bit the same whatever else is in the call: the int8 products are exact integers, and attention
sums each sequence's tokens in their order, wherever its pages are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from bargein.kernels import cpu
from bargein.kernels.host import Arena
from bargein.kernels.reference import Caches, Int8Matrix, Places, Sketch

from .errors import WeightsError
from .pages import KV, HostPool, copy_kv, reserve, rewind  # noqa: F401

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Config:
    """Hyperparameters; everything the two shapes differ in is a field."""

    kind: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    norm_eps: float
    rope_base: float
    context: int
    activation: str = "silu"
    qk_norm: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    rope_base_local: float = 10000.0
    window: int = 0
    global_every: int = 0
    tied: bool = True
    max_positions: int = 8192
    qkv_bias: bool = False  # Qwen 2
    query_width: float = 0.0  # what scores are divided by the root of; 0: the head size
    rope_scaling: tuple[float, ...] = ()  # of `rotary_frequencies`, for layers that see everything

    @property
    def attention_scale(self) -> float:
        return float((self.query_width or self.head_size) ** -0.5)

    def is_local(self, layer: int) -> bool:
        """Whether a layer sees only the sliding window: all but every `global_every`-th."""
        return self.window > 0 and (self.global_every == 0 or (layer + 1) % self.global_every != 0)


class Layer(NamedTuple):
    """Weights of one layer; the norms a shape lacks are None."""

    attn_norm: F32
    qkv: Int8Matrix
    q_norm: F32 | None
    k_norm: F32 | None
    attn_output: Int8Matrix
    post_attention_norm: F32 | None
    ffn_norm: F32
    gate_up: Int8Matrix
    ffn_down: Int8Matrix
    post_ffw_norm: F32 | None
    qkv_bias: F32 | None = None
    key_reference: F32 | None = None  # [kv_heads, head_size]: what keys are stored less, where the cache is e4m3


class Weights(NamedTuple):
    """All weights: the embedding (which is also the head when tied), the last norm, layers, rotary tables."""

    embedding: Int8Matrix
    head: Int8Matrix
    output_norm: F32
    layers: tuple[Layer, ...]
    rope_global: F32
    rope_local: F32
    sketch: Sketch | None = None  # of the head, for `forward_top`


class Model(NamedTuple):
    """A loaded language model."""

    config: Config
    weights: Weights


# Tokens of a page. In pages of 64 and more attention is as fast as over one piece (kernels/README.md); a sequence's last page
# is half empty on average, and copied where it parts from another's.
PAGE = 64


def new_pool(cfg: Config, page: int = PAGE) -> HostPool:
    """Pages for sequences of a model, `page` tokens each; takes no memory until they are used."""
    return HostPool((cfg.layers, 2, cfg.kv_heads, page, cfg.head_size))


def new_kv(cfg: Config, pool: HostPool | None = None) -> KV:
    """An empty sequence, in pages of a pool that others share, or of its own."""
    return KV(new_pool(cfg) if pool is None else pool)


def forward_spans(w: Weights, cfg: Config, spans: Sequence[tuple[KV, Sequence[int]]], ops: Any = cpu) -> F32:
    """Run the next tokens of several sequences together -> logits float32 [len(spans), vocab] after each one's last.

    Each span is (cache, one or more new tokens); the caches are extended. ValueError for an empty span, a token out of
    the vocabulary or a sequence beyond `max_positions`.
    """
    logits: F32 = ops.norm_linear(_hidden(w, cfg, spans, ops), w.output_norm, cfg.norm_eps, w.head)
    return logits


def _hidden(
    w: Weights, cfg: Config, spans: Sequence[tuple[KV, Sequence[int]]], ops: Any, row: int | None = None
) -> F32:
    """`forward_spans` up to the last layer: [len(spans), width], the stream after each span's last token.

    With a `row` (of a single span): [2, width], after that token and after the last.
    """
    counts = [len(tokens) for _, tokens in spans]
    ids = np.array([token for _, tokens in spans for token in tokens], np.int64)
    if min(counts) == 0 or ids.min() < 0 or ids.max() >= cfg.vocab:
        raise ValueError("each span needs at least one token of the vocabulary")
    for (kv, _), count in zip(spans, counts, strict=True):
        if kv.length + count > cfg.max_positions:
            raise ValueError(f"the sequence would be longer than {cfg.max_positions} tokens")
    for (kv, _), count in zip(spans, counts, strict=True):
        reserve(kv, count)
    caches = _caches([kv for kv, _ in spans], counts)
    starts = caches.places.rows
    positions = np.concatenate([kv.length + np.arange(n) for (kv, _), n in zip(spans, counts, strict=True)])
    x = ops.embedding_rows(w.embedding, ids)  # [M, width]
    if cfg.embedding_scale != 1.0:
        x *= np.float32(cfg.embedding_scale)
    for i, layer in enumerate(w.layers):
        x = _layer(layer, i, cfg, x, caches, positions, w, ops)
    for (kv, tokens), count in zip(spans, counts, strict=True):
        kv.length += count
        kv.tokens.extend(tokens)
        kv.ahead = None
    if row is not None:
        return x[[row, len(x) - 1]]
    last: F32 = x[starts[1:] - 1]
    return last


def _caches(kvs: Sequence[KV], counts: Sequence[int]) -> Caches:
    """Where `counts` new tokens of each sequence go, in pages that are reserved. ValueError where those differ in size."""
    page = kvs[0].pool.page
    if any(kv.pool.page != page for kv in kvs):
        raise ValueError("the sequences of a call need pages of one size")
    addresses = [kv.pool.addresses[n] for kv in kvs for n in kv.pages]
    bounds = np.cumsum([0, *(len(kv.pages) for kv in kvs)])
    places = Places(np.array(addresses), bounds, np.cumsum([0, *counts]), np.array([kv.length for kv in kvs]))
    return Caches([[kv.pool.blocks[n] for n in kv.pages] for kv in kvs], places, page)


def _layer(
    layer: Layer, index: int, cfg: Config, x: F32, caches: Caches, positions: NDArray[np.int64], w: Weights, ops: Any
) -> F32:
    local = cfg.is_local(index)
    table = w.rope_local if local else w.rope_global
    qkv = ops.norm_linear(x, layer.attn_norm, cfg.norm_eps, layer.qkv)  # [M, (heads + 2 kv_heads) * head_size]
    if layer.qkv_bias is not None:
        qkv = qkv + layer.qkv_bias
    q, k, v = ops.rotate_qkv(
        qkv, cfg.heads, cfg.kv_heads, table, positions, layer.q_norm, layer.k_norm, cfg.norm_eps
    )  # [M, heads, head_size], [M, kv_heads, head_size] twice
    y = ops.attend_pages(q, k, v, caches, index, cfg.attention_scale, cfg.window if local else 0)  # [M, heads * head_size]
    x = ops.linear_residual(x, y, layer.attn_output, layer.post_attention_norm, cfg.norm_eps)
    y = ops.norm_linear(x, layer.ffn_norm, cfg.norm_eps, layer.gate_up)  # [M, 2 hidden]
    x = ops.gated_linear_residual(x, y, cfg.activation, layer.ffn_down, layer.post_ffw_norm, cfg.norm_eps)
    return x


def forward(w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], ops: Any = cpu) -> F32:
    """Append tokens to one sequence -> logits float32 [vocab] after the last. For long prompts see `prefill`."""
    result: F32 = forward_spans(w, cfg, [(kv, tokens)], ops)[0]
    return result


def forward_top(w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], count: int = 256, ops: Any = cpu) -> F32:
    """`forward` for choosing a token: exact logits of at least the `count` likeliest tokens, -inf for the others.

    Which those are, a 4-bit sketch of the head says; reading it takes half as long as the head (kernels/cpu_sketch.py).
    """
    result: F32 = forward_top_spans(w, cfg, [(kv, tokens)], count, ops)[0]
    return result


def forward_top_spans(
    w: Weights, cfg: Config, spans: Sequence[tuple[KV, Sequence[int]]], count: int = 256, ops: Any = cpu
) -> F32:
    """`forward_top` for several sequences together -> [len(spans), vocab]; a row is the same alone and in company."""
    return _top(w, cfg, _hidden(w, cfg, spans, ops), count, ops)


def forward_two(w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], row: int, ops: Any = cpu) -> F32:
    """Append tokens -> logits float32 [vocab] after `tokens[row]`; those after the last wait in `kv.ahead`."""
    hidden = _hidden(w, cfg, [(kv, tokens)], ops, row)
    logits: F32 = ops.norm_linear(hidden[:1], w.output_norm, cfg.norm_eps, w.head)[0]
    kv.ahead = _top(w, cfg, hidden[1:], 256, ops)[0]
    return logits


def _top(w: Weights, cfg: Config, hidden: F32, count: int, ops: Any) -> F32:
    if w.sketch is None:
        full: F32 = ops.norm_linear(hidden, w.output_norm, cfg.norm_eps, w.head)
        return full
    result: F32 = ops.head_top(ops.rms_norm(hidden, w.output_norm, cfg.norm_eps), w.head, w.sketch, count)
    return result


def extend(w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], ops: Any = cpu) -> None:
    """Append tokens to one sequence without computing logits: for all but the last chunk of a prompt."""
    _hidden(w, cfg, [(kv, tokens)], ops)


def forward_batch(w: Weights, cfg: Config, kvs: Sequence[KV], tokens: Sequence[int], ops: Any = cpu) -> F32:
    """One token for each of several sequences -> logits float32 [len(kvs), vocab]."""
    return forward_spans(w, cfg, [(kv, [token]) for kv, token in zip(kvs, tokens, strict=True)], ops)


def prefill(w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], chunk: int = 64, ops: Any = cpu) -> F32:
    """Append a prompt chunk by chunk -> logits float32 [vocab] after its last token. ValueError when it is empty."""
    last = max(0, len(tokens) - 1) // chunk * chunk
    for at in range(0, last, chunk):
        extend(w, cfg, kv, tokens[at : at + chunk], ops)
    return forward(w, cfg, kv, tokens[last:], ops)


# -- loading ---------------------------------------------------------------------------------------------------------


def expected_shapes(cfg: Config) -> dict[str, tuple[int, int] | tuple[int]]:
    """Name -> [rows, columns] of every matrix, [width] of every norm, as `convert_gguf` names them."""
    q_width, kv_width = cfg.heads * cfg.head_size, cfg.kv_heads * cfg.head_size
    shapes: dict[str, tuple[int, int] | tuple[int]] = {
        "token_embd.weight": (cfg.vocab, cfg.width),
        "output_norm.weight": (cfg.width,),
    }
    if not cfg.tied:
        shapes["output.weight"] = (cfg.vocab, cfg.width)
    for i in range(cfg.layers):
        p = f"blk.{i}."
        shapes |= {
            p + "attn_norm.weight": (cfg.width,),
            p + "attn_qkv.weight": (q_width + 2 * kv_width, cfg.width),
            p + "attn_output.weight": (cfg.width, q_width),
            p + "ffn_norm.weight": (cfg.width,),
            p + "ffn_gate_up.weight": (2 * cfg.hidden, cfg.width),
            p + "ffn_down.weight": (cfg.width, cfg.hidden),
        }
        if cfg.qk_norm:
            shapes |= {p + "attn_q_norm.weight": (cfg.head_size,), p + "attn_k_norm.weight": (cfg.head_size,)}
        if cfg.post_norms:
            shapes |= {p + "post_attention_norm.weight": (cfg.width,), p + "post_ffw_norm.weight": (cfg.width,)}
    return shapes


def load_config(path: Path) -> Config:
    """The Config a converted folder's config.json holds; WeightsError when it is not one."""
    try:
        return Config(**json.loads(path.read_text(encoding="utf-8"))["decoder"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(path, f"not a language model's config ({error}); run `bargein models pull`") from error


def load(directory: Path, ops: Any = cpu) -> Model:
    """The model of a folder that `convert_gguf` filled, in memory; WeightsError when a file is damaged or foreign."""
    cfg = load_config(directory / "config.json")
    path = directory / "model.safetensors"
    shapes = expected_shapes(cfg)
    ready: dict[str, Any] = {}
    try:
        with safe_open(str(path), framework="numpy") as stored:
            names = set(stored.keys())
            arena = Arena(sum(_packed_bytes(shape) for shape in shapes.values()))
            for name, shape in shapes.items():
                ready[name] = _read(stored, names, name, shape, path, arena)
    except FileNotFoundError:
        raise WeightsError(path, "not there; run `bargein models pull`") from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(path, f"not readable ({error}); remove it and run `bargein models pull`") from error
    if names:
        raise WeightsError(path, f"unknown tensor {sorted(names)[0]}; run `bargein models pull` again")
    layers = tuple(
        Layer(
            *(
                ready.get(f"blk.{i}.{name}.weight")
                for name in (
                    "attn_norm", "attn_qkv", "attn_q_norm", "attn_k_norm", "attn_output", "post_attention_norm",
                    "ffn_norm", "ffn_gate_up", "ffn_down", "post_ffw_norm",
                )
            )
        )
        for i in range(cfg.layers)
    )  # fmt: skip
    embedding = ready["token_embd.weight"]
    weights = Weights(
        embedding,
        embedding if cfg.tied else ready["output.weight"],
        ready["output_norm.weight"],
        layers,
        ops.rotary_table(cfg.max_positions, cfg.head_size, cfg.rope_base),
        ops.rotary_table(cfg.max_positions, cfg.head_size, cfg.rope_base_local),
    )
    if weights.head.columns % 4 == 0:
        weights = weights._replace(sketch=ops.sketch_of(weights.head))
    return Model(cfg, weights)


def _packed_shape(shape: tuple[int, int]) -> tuple[int, int, int, int]:
    return (-(-shape[0] // 8), -(-shape[1] // 2), 8, 2)


def _packed_bytes(shape: tuple[int, int] | tuple[int]) -> int:
    return 0 if len(shape) == 1 else Arena.room(math.prod(_packed_shape(shape)))


def _read(
    stored: Any, names: set[str], name: str, shape: tuple[int, int] | tuple[int], path: Path, arena: Arena
) -> Any:
    def take(key: str, dtype: Any, wanted: tuple[int, ...]) -> Any:
        if key not in names:
            raise WeightsError(path, f"tensor {key} is missing; run `bargein models pull` again")
        names.discard(key)
        array = stored.get_tensor(key)
        if array.dtype != dtype or array.shape != wanted:
            raise WeightsError(
                path,
                f"tensor {key} should be {np.dtype(dtype)} {wanted}, is {array.dtype} {array.shape}; "
                "run `bargein models pull` again",
            )
        return array

    if len(shape) == 1:
        return take(name, np.float32, shape)
    packed = arena.keep(take(name, np.int8, _packed_shape(shape)))
    return Int8Matrix(packed, take(name + ".scale", np.float32, (packed.shape[0] * 8,)), *shape)
