"""The decoder of `decoder.py` with its cache in pages on a device; the functions of that module, as methods of one object.

A sequence's keys and values lie in pages of a pool that all sequences share, so that one grows without moving and two
share what they have in common. Nothing waits for the device but the logits, fetched once a step. The numbers of a step
(positions, slots, block tables, lengths) are laid out in one array and go over in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decoder import Config, Layer, Weights
from .pages import KV, Pool, copy_kv, reserve, rewind

F32 = NDArray[np.float32]

PAGE = 16  # tokens
NEAR_NATS = 60.0  # `forward_top` fetches the tokens this close to the best
ROOM = 4096  # and at most so many; where more are as close, all are fetched
POOL_TYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "e4m3": np.uint8}


class DevicePool(Pool):
    """Keys and values of every layer [pages * PAGE, kv_heads, head_size], all allocated at once.

    kind: how they are stored, a key of POOL_TYPES.
    """

    def __init__(self, cfg: Config, ops: Any, num_pages: int, kind: str = "fp16") -> None:
        super().__init__(PAGE, self.bytes_of_page(cfg, kind), num_pages)
        shape = (num_pages * PAGE, cfg.kv_heads, cfg.head_size)
        self.keys = [ops.zeros(shape, POOL_TYPES[kind]) for _ in range(cfg.layers)]
        self.values = [ops.zeros(shape, POOL_TYPES[kind]) for _ in range(cfg.layers)]

    @staticmethod
    def bytes_of_page(cfg: Config, kind: str = "fp16") -> int:
        """What a page takes, in all layers."""
        return 2 * cfg.layers * PAGE * cfg.kv_heads * cfg.head_size * np.dtype(POOL_TYPES[kind]).itemsize

    def copy(self, source: int, target: int, count: int) -> None:
        a, b = (slice(page * PAGE, page * PAGE + count) for page in (source, target))
        for part in (*self.keys, *self.values):
            part[b] = part[a]


@dataclass(frozen=True, slots=True)
class _Step:
    """The numbers of one call, on the device."""

    ids: Any  # int64 [M]
    positions: Any  # int64 [M]
    slots: Any  # int64 [M]
    table: Any  # int32 [S, P]
    starts: Any  # int32 [S + 1]
    lengths: Any  # int32 [S]
    last: Any  # int64 [S or more]: rows whose logits are wanted
    counts: tuple[int, ...]
    longest: int


class DeviceDecoder:
    """`decoder`'s functions on one device. `ops`: a `gpu.ops.Ops`; pool: shared by all sequences."""

    def __init__(self, ops: Any, pool: DevicePool) -> None:
        self.ops, self.pool = ops, pool

    # -- caches -----------------------------------------------------------------------------------------------------

    copy_kv, rewind = staticmethod(copy_kv), staticmethod(rewind)

    def new_pool(self, cfg: Config) -> DevicePool:
        """The pool of all sequences."""
        return self.pool

    def new_kv(self, cfg: Config, pool: DevicePool | None = None) -> KV:
        return KV(self.pool)

    # -- the graph --------------------------------------------------------------------------------------------------

    def _plan(self, cfg: Config, spans: Sequence[tuple[KV, Sequence[int]]], row: int | None) -> _Step:
        counts = [len(tokens) for _, tokens in spans]
        ids = np.array([token for _, tokens in spans for token in tokens], np.int64)
        if min(counts) == 0 or ids.min() < 0 or ids.max() >= cfg.vocab:
            raise ValueError("each span needs at least one token of the vocabulary")
        for (kv, _), count in zip(spans, counts, strict=True):
            if kv.length + count > cfg.max_positions:
                raise ValueError(f"the sequence would be longer than {cfg.max_positions} tokens")
        for (kv, _), count in zip(spans, counts, strict=True):
            reserve(kv, count)
        starts = np.cumsum([0, *counts])
        positions = np.concatenate([kv.length + np.arange(n) for (kv, _), n in zip(spans, counts, strict=True)])
        pages = [np.array(kv.pages) for kv, _ in spans]
        slots = np.concatenate([p[at // PAGE] * PAGE + at % PAGE for p, at in zip(
            pages, np.split(positions, starts[1:-1]), strict=True)])  # fmt: skip
        table = np.zeros((len(spans), max(map(len, pages))), np.int32)
        for i, p in enumerate(pages):
            table[i, : len(p)] = p
        lengths = [kv.length + n for (kv, _), n in zip(spans, counts, strict=True)]
        last = starts[1:] - 1 if row is None else [row, starts[-1] - 1]
        wide = [np.asarray(a, np.int64) for a in (ids, positions, slots, last)]
        narrow = [np.asarray(a, np.int32) for a in (table, starts, lengths)]
        sent = self._send([*wide, *narrow])
        return _Step(*sent[:3], *sent[4:], sent[3], tuple(counts), max(lengths))

    def _send(self, arrays: list[NDArray[Any]]) -> list[Any]:
        """Several arrays of integers to the device, in one copy; each at a multiple of 16 bytes."""
        places, size = [], 0
        for a in arrays:
            places.append(size)
            size += -(-a.nbytes // 16) * 16
        staging = np.zeros(size, np.uint8)
        for a, at in zip(arrays, places, strict=True):
            staging[at : at + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
        there = self.ops.to_device(staging)
        return [there[at : at + a.nbytes].view(a.dtype).reshape(a.shape) for a, at in zip(arrays, places, strict=True)]

    def _hidden(self, w: Weights, cfg: Config, spans: Sequence[tuple[KV, Sequence[int]]], row: int | None = None) -> Any:
        """The stream after each span's last token [S, width], or after `row` and the last of a single span."""
        step = self._plan(cfg, spans, row)
        x = self.ops.embedding_rows(w.embedding, step.ids, cfg.embedding_scale)
        for index, layer in enumerate(w.layers):
            x = self._layer(layer, index, cfg, x, step, w)
        for (kv, tokens), count in zip(spans, step.counts, strict=True):
            kv.length += count
            kv.tokens.extend(tokens)
            kv.ahead = None
        return x if x.shape[0] == step.last.size and row is None else x[step.last]

    def _layer(self, layer: Layer, index: int, cfg: Config, x: Any, step: _Step, w: Weights) -> Any:
        ops, local = self.ops, cfg.is_local(index)
        keys, values = self.pool.keys[index], self.pool.values[index]
        qkv = ops.norm_linear(x, layer.attn_norm, cfg.norm_eps, layer.qkv)
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        q = ops.rotary_paged(
            qkv, cfg.heads, keys, values, w.rope_local if local else w.rope_global, step.positions, step.slots,
            layer.q_norm, layer.k_norm, cfg.norm_eps, layer.key_reference,
        )  # fmt: skip
        window = cfg.window if local else 0
        if max(step.counts) == 1:
            y = ops.paged_decode(q, keys, values, step.table, step.lengths, PAGE, step.longest, window, cfg.attention_scale)
        else:
            arrays = (q, keys, values, step.table, step.starts, step.lengths)
            y = ops.paged_prefill(*arrays, PAGE, max(step.counts), window, cfg.attention_scale)
        x = ops.linear_residual(x, y, layer.attn_output, layer.post_attention_norm, cfg.norm_eps)
        y = ops.norm_linear(x, layer.ffn_norm, cfg.norm_eps, layer.gate_up)
        return ops.gated_linear_residual(x, y, cfg.activation, layer.ffn_down, layer.post_ffw_norm, cfg.norm_eps)

    def _head(self, w: Weights, cfg: Config, hidden: Any) -> Any:
        return self.ops.norm_linear(hidden, w.output_norm, cfg.norm_eps, w.head)

    def with_key_references(self, w: Weights, cfg: Config, tokens: Sequence[int]) -> Weights:
        """Weights whose layers know the mean of a text's keys, for an e4m3 cache to store keys less that.

        Keys of one layer share a large part (a bias, a few strong channels) that would take e4m3's four significant bits.
        """
        plain = w._replace(layers=tuple(layer._replace(key_reference=None) for layer in w.layers))
        pages = -(-len(tokens) // PAGE)
        probe = DeviceDecoder(self.ops, DevicePool(cfg, self.ops, pages, "fp32"))
        kv = probe.new_kv(cfg)
        probe.extend(plain, cfg, kv, tokens)
        slots = self.ops.to_device(np.concatenate([page * PAGE + np.arange(PAGE) for page in kv.pages])[: len(tokens)])
        means = [self.ops.contiguous(keys[slots].mean(axis=0)) for keys in probe.pool.keys]
        return plain._replace(
            layers=tuple(layer._replace(key_reference=mean) for layer, mean in zip(plain.layers, means, strict=True))
        )

    # -- as in `decoder` ----------------------------------------------------------------------------------------------

    def forward_spans(self, w: Weights, cfg: Config, spans: Sequence[tuple[KV, Sequence[int]]], ops: Any = None) -> F32:
        result: F32 = self.ops.to_host(self._head(w, cfg, self._hidden(w, cfg, spans)))
        return result

    def forward(self, w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], ops: Any = None) -> F32:
        result: F32 = self.forward_spans(w, cfg, [(kv, tokens)])[0]
        return result

    def forward_batch(
        self, w: Weights, cfg: Config, kvs: Sequence[KV], tokens: Sequence[int], ops: Any = None
    ) -> F32:
        return self.forward_spans(w, cfg, [(kv, [token]) for kv, token in zip(kvs, tokens, strict=True)])

    def forward_top(
        self, w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], count: int = 256, ops: Any = None
    ) -> F32:
        """Logits of every token that could be chosen, -inf for those NEAR_NATS or more below the best."""
        result: F32 = self.forward_top_spans(w, cfg, [(kv, tokens)])[0]
        return result

    def forward_top_spans(
        self, w: Weights, cfg: Config, spans: Sequence[tuple[KV, Sequence[int]]], count: int = 256, ops: Any = None
    ) -> F32:
        logits = self._head(w, cfg, self._hidden(w, cfg, spans))
        if cfg.vocab <= 2 * ROOM:
            result: F32 = self.ops.to_host(logits)
            return result
        values, ids, found = self.ops.candidates(logits, np.full(len(spans), NEAR_NATS, np.float32), ROOM)
        # Numbers, ids and values in one copy.
        fetched = self.ops.to_host(np.concatenate([found[:, None], ids, values.view(np.int32)], axis=1))
        if fetched[:, 0].max() > ROOM:
            result = self.ops.to_host(logits)
            return result
        out = np.full((len(spans), cfg.vocab), -np.inf, np.float32)
        for row, got in zip(out, fetched, strict=True):
            n = int(got[0])
            row[got[1 : 1 + n]] = got[1 + ROOM : 1 + ROOM + n].view(np.float32)
        return out

    def forward_two(
        self, w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], row: int, ops: Any = None
    ) -> F32:
        hidden = self._hidden(w, cfg, [(kv, tokens)], row)
        logits: F32 = self.ops.to_host(self._head(w, cfg, hidden))
        kv.ahead = logits[1]
        return logits[0]

    def extend(self, w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], ops: Any = None) -> None:
        self._hidden(w, cfg, [(kv, tokens)])

    def prefill(
        self, w: Weights, cfg: Config, kv: KV, tokens: Sequence[int], chunk: int = 64, ops: Any = None
    ) -> F32:
        last = max(0, len(tokens) - 1) // chunk * chunk
        for at in range(0, last, chunk):
            self.extend(w, cfg, kv, tokens[at : at + chunk])
        return self.forward(w, cfg, kv, tokens[last:])
