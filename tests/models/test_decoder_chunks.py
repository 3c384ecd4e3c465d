"""The decoder's results do not depend on how its tokens are put together: chunks of a prompt, rows of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels import reference
from bargein.models import decoder

CFG = decoder.Config(
    kind="gemma3", vocab=96, width=64, layers=3, heads=4, kv_heads=2, head_size=32, hidden=96, norm_eps=1e-6,
    rope_base=1e6, context=256, activation="gelu_tanh", qk_norm=True, post_norms=True, embedding_scale=8.0,
    window=8, global_every=3, max_positions=128,
)  # fmt: skip
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, CFG.vocab, 45)]


@pytest.fixture(scope="module")
def weights() -> decoder.Weights:
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) * 0.2

    def matrix(rows: int, columns: int) -> reference.Int8Matrix:
        return reference.pack_rows(*reference.quantize_rows(normal(rows, columns)))

    q_width, kv_width = CFG.heads * CFG.head_size, CFG.kv_heads * CFG.head_size
    layers = tuple(
        decoder.Layer(
            1 + normal(CFG.width), matrix(q_width + 2 * kv_width, CFG.width), 1 + normal(CFG.head_size),
            1 + normal(CFG.head_size), matrix(CFG.width, q_width), 1 + normal(CFG.width), 1 + normal(CFG.width),
            matrix(2 * CFG.hidden, CFG.width), matrix(CFG.width, CFG.hidden), 1 + normal(CFG.width),
        )
        for _ in range(CFG.layers)
    )  # fmt: skip
    embedding = matrix(CFG.vocab, CFG.width)
    tables = [reference.rotary_table(CFG.max_positions, CFG.head_size, b) for b in (CFG.rope_base, CFG.rope_base_local)]
    return decoder.Weights(embedding, embedding, 1 + normal(CFG.width), layers, tables[0], tables[1])


@pytest.mark.parametrize("chunk", [2, 7, 32, 64])
def test_a_prompt_in_any_chunks_gives_the_same_logits_and_cache(weights: decoder.Weights, chunk: int) -> None:
    one, other = (decoder.new_kv(CFG, decoder.new_pool(CFG, 16)) for _ in range(2))
    expected = decoder.prefill(weights, CFG, one, TOKENS, 1)
    np.testing.assert_array_equal(decoder.prefill(weights, CFG, other, TOKENS, chunk), expected)
    assert other.length == one.length
    for n, (mine, theirs) in enumerate(zip(other.pages, one.pages, strict=True)):
        filled = min(16, one.length - 16 * n)
        np.testing.assert_array_equal(
            other.pool.blocks[mine][:, :, :, :filled], one.pool.blocks[theirs][:, :, :, :filled]
        )
    assert other.tokens == TOKENS


def test_rows_of_a_batch_are_the_rows_alone(weights: decoder.Weights) -> None:
    lengths = (3, 20, 41)
    kvs = [decoder.new_kv(CFG) for _ in lengths]
    for kv, length in zip(kvs, lengths, strict=True):
        decoder.prefill(weights, CFG, kv, TOKENS[:length])
    together = decoder.forward_batch(weights, CFG, kvs, [1, 2, 3])
    for n, (kv, length) in enumerate(zip(kvs, lengths, strict=True)):
        decoder.rewind(kv, length)
        np.testing.assert_array_equal(decoder.forward(weights, CFG, kv, [n + 1]), together[n])


def test_the_fast_ops_agree_with_the_definitions(weights: decoder.Weights) -> None:
    fast = decoder.prefill(weights, CFG, decoder.new_kv(CFG), TOKENS)
    slow = decoder.prefill(weights, CFG, decoder.new_kv(CFG), TOKENS, ops=reference)
    np.testing.assert_allclose(fast, slow, rtol=0, atol=2e-3 * float(np.abs(slow).max()))


def test_an_empty_prompt_is_refused(weights: decoder.Weights) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        decoder.prefill(weights, CFG, decoder.new_kv(CFG), [])
