"""The decoder on a device (the kernels interpreted, arrays of the stand-in) gives what the CPU's gives."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels.gpu.interpret import Interpreter
from bargein.kernels.gpu.ops import Ops
from bargein.kernels.gpu.standin import StandIn
from bargein.kernels.reference import pack_rows, quantize_rows, rotary_table
from bargein.models import decoder
from bargein.models.decoder_gpu import PAGE, DeviceDecoder, DevicePool
from bargein.models.pages import OutOfPages

LLAMA = decoder.Config("llama", 96, 64, 2, 4, 2, 16, 80, 1e-5, 10000.0, 512, max_positions=512)
GEMMA = decoder.Config(
    "gemma3", 110, 48, 2, 3, 1, 16, 64, 1e-6, 1e6, 512, activation="gelu_tanh", qk_norm=True, post_norms=True,
    embedding_scale=48**0.5, window=7, global_every=2, max_positions=512, query_width=24.0,
)  # fmt: skip
CONFIGS = {"llama": LLAMA, "gemma": GEMMA}


def random_model(c: decoder.Config, seed: int = 0) -> decoder.Model:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int):  # type: ignore[no-untyped-def]
        return pack_rows(*quantize_rows(rng.standard_normal((rows, columns)).astype(np.float32) * columns**-0.5))

    def norm(size: int = c.width) -> np.ndarray:
        return (1 + 0.2 * rng.standard_normal(size)).astype(np.float32)

    def layer() -> decoder.Layer:
        heads, extra = c.heads * c.head_size, c.qk_norm
        return decoder.Layer(
            norm(), matrix(heads + 2 * c.kv_heads * c.head_size, c.width), norm(c.head_size) if extra else None,
            norm(c.head_size) if extra else None, matrix(c.width, heads), norm() if c.post_norms else None,
            norm(), matrix(2 * c.hidden, c.width), matrix(c.width, c.hidden), norm() if c.post_norms else None,
        )  # fmt: skip

    embedding = matrix(c.vocab, c.width)
    tables = rotary_table(512, c.head_size, c.rope_base), rotary_table(512, c.head_size, c.rope_base_local)
    return decoder.Model(c, decoder.Weights(embedding, embedding, norm(), tuple(layer() for _ in range(c.layers)), *tables))


class Both:
    """One model on the CPU and on the device."""

    def __init__(self, cfg: decoder.Config, pages: int = 40, kind: str = "fp16") -> None:
        self.cfg, self.w = random_model(cfg)
        self.xp = StandIn()
        ops = Ops(self.xp, Interpreter())
        self.pool = DevicePool(cfg, ops, pages, kind)
        self.device, self.dw = DeviceDecoder(ops, self.pool), ops.place(self.w)


@pytest.fixture
def both() -> Both:
    """Of one shape: the interpreter takes some 10 ms for every row of every step."""
    return Both(GEMMA)


def close(got: np.ndarray, want: np.ndarray, by: float = 0.01) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() < by * np.abs(want).max()


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_in_chunks_then_tokens(name: str) -> None:
    both = Both(CONFIGS[name])
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, both.cfg.vocab, 13)]
    host, there = decoder.new_kv(both.cfg), both.device.new_kv(both.cfg)
    close(both.device.prefill(both.dw, both.cfg, there, tokens, 9), decoder.prefill(both.w, both.cfg, host, tokens, 9))
    for token in (3,):
        close(both.device.forward_top(both.dw, both.cfg, there, [token]), decoder.forward(both.w, both.cfg, host, [token]))
    assert there.tokens == host.tokens and there.length == 14


def test_one_transfer_each_way_a_token(both: Both) -> None:
    kv = both.device.new_kv(both.cfg)
    both.device.forward_top(both.dw, both.cfg, kv, [1, 2, 3])
    before = both.xp.uploads, both.xp.downloads
    both.device.forward_top(both.dw, both.cfg, kv, [4])
    assert (both.xp.uploads, both.xp.downloads) == (before[0] + 1, before[1] + 1)
    both.device.extend(both.dw, both.cfg, kv, [5, 6])
    assert both.xp.downloads == before[1] + 1


def test_a_batch_of_different_lengths_is_each_alone(both: Both) -> None:
    kvs, hosts = [both.device.new_kv(both.cfg) for _ in range(3)], [decoder.new_kv(both.cfg) for _ in range(3)]
    for i, (kv, host) in enumerate(zip(kvs, hosts, strict=True)):
        tokens = list(range(5, 7 + 4 * i))
        both.device.extend(both.dw, both.cfg, kv, tokens)
        decoder.extend(both.w, both.cfg, host, tokens)
    got = both.device.forward_batch(both.dw, both.cfg, kvs, [1, 2, 3])
    close(got, decoder.forward_batch(both.w, both.cfg, hosts, [1, 2, 3]))
    spans = [[9, 8, 7], [6], [5, 4]]
    close(
        both.device.forward_spans(both.dw, both.cfg, list(zip(kvs, spans, strict=True))),
        decoder.forward_spans(both.w, both.cfg, list(zip(hosts, spans, strict=True))),
    )


def test_only_what_may_be_chosen_of_a_large_vocabulary_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(LLAMA)
    kvs = [both.device.new_kv(LLAMA) for _ in range(2)]
    spans = list(zip(kvs, [[1, 2], [3]], strict=True))
    whole = both.device.forward_spans(both.dw, LLAMA, spans)
    for room, near, few in ((40, 1.0, True), (3, 30.0, False)):  # with room for what is near; and without: all come
        monkeypatch.setattr("bargein.models.decoder_gpu.ROOM", room)
        monkeypatch.setattr("bargein.models.decoder_gpu.NEAR_NATS", near)
        for kv, (_, tokens) in zip(kvs, spans, strict=True):
            both.device.rewind(kv, 0)
            assert tokens
        top = both.device.forward_top_spans(both.dw, LLAMA, spans)
        kept = whole > whole.max(1, keepdims=True) - near
        assert (kept.sum() < kept.size) == few or not few
        np.testing.assert_allclose(top, np.where(kept, whole, -np.inf) if few else whole, atol=1e-4)


def test_two_rows_of_one_reading(both: Both) -> None:
    host, there = decoder.new_kv(both.cfg), both.device.new_kv(both.cfg)
    close(
        both.device.forward_two(both.dw, both.cfg, there, [4, 5, 6, 7, 8], 2),
        decoder.forward_two(both.w, both.cfg, host, [4, 5, 6, 7, 8], 2),
    )
    assert there.ahead is not None and host.ahead is not None
    close(there.ahead, host.ahead)


def test_pages_are_shared_copied_when_written_and_given_back(both: Both) -> None:
    device, free = both.device, both.pool.num_free
    first = device.new_kv(both.cfg)
    tokens = list(range(PAGE + 5))
    device.extend(both.dw, both.cfg, first, tokens)
    assert both.pool.num_free == free - 2
    second = device.copy_kv(first, PAGE + 3)
    assert both.pool.num_free == free - 2 and second.tokens == tokens[: PAGE + 3]
    mine = device.forward(both.dw, both.cfg, second, [40])
    assert both.pool.num_free == free - 3  # the half-full page became its own
    host = decoder.new_kv(both.cfg)
    close(mine, decoder.forward(both.w, both.cfg, host, [*tokens[: PAGE + 3], 40]))
    decoder.rewind(host, 0)
    close(device.forward(both.dw, both.cfg, first, [41]), decoder.forward(both.w, both.cfg, host, [*tokens, 41]))
    device.rewind(first, 3)
    assert both.pool.num_free == free - 2  # its first page is still shared, its second was its own by now
    del first, second
    assert both.pool.num_free == free


def test_a_full_pool_is_said_and_others_go_on() -> None:
    both = Both(LLAMA, pages=3)
    one, two = both.device.new_kv(LLAMA), both.device.new_kv(LLAMA)
    both.device.extend(both.dw, LLAMA, one, list(range(PAGE)))
    with pytest.raises(OutOfPages, match="all 3 pages"):
        both.device.extend(both.dw, LLAMA, two, list(range(2 * PAGE + 1)))
    assert two.length == 0
    both.device.rewind(two, 0)
    both.device.forward(both.dw, LLAMA, one, [1])


@pytest.mark.parametrize(("kind", "by"), [("fp32", 0.01), ("bf16", 0.03), ("e4m3", 0.12)])
def test_other_kinds_of_cache(kind: str, by: float) -> None:
    both = Both(GEMMA, kind=kind)
    tokens = list(range(10))
    host, there = decoder.new_kv(GEMMA), both.device.new_kv(GEMMA)
    close(both.device.forward(both.dw, GEMMA, there, tokens), decoder.forward(both.w, GEMMA, host, tokens), by)
    close(both.device.forward(both.dw, GEMMA, there, [3]), decoder.forward(both.w, GEMMA, host, [3]), by)


def test_a_part_that_all_keys_share_costs_e4m3_nothing() -> None:
    """Large key biases of slowly turning pairs: stored less their mean, the cache is as good as without them."""
    both = Both(LLAMA, kind="e4m3")
    bias = np.zeros((LLAMA.heads + 2 * LLAMA.kv_heads) * LLAMA.head_size, np.float32)
    keys = bias[LLAMA.heads * 16 : (LLAMA.heads + LLAMA.kv_heads) * 16].reshape(-1, 16)
    keys[:, [6, 7, 14, 15]] = 60.0
    host = both.w._replace(layers=tuple(layer._replace(qkv_bias=bias) for layer in both.w.layers))
    there = both.device.ops.place(host)
    tokens = list(range(9))
    want = decoder.forward(host, LLAMA, decoder.new_kv(LLAMA), tokens)
    errors = []
    for w in (there, both.device.with_key_references(there, LLAMA, list(range(40, 50)))):
        got = both.device.forward(w, LLAMA, both.device.new_kv(LLAMA), tokens)
        errors.append(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert errors[1] < 0.1 and errors[1] < errors[0] / 2, errors
