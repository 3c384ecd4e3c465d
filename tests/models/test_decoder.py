"""The chat models against llama.cpp (golden/chat-*.npz) and against the reference ops; cache and batch behaviour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bargein.kernels import reference
from bargein.models import decoder
from bargein.models.errors import WeightsError
from bargein.models.store import path
from bargein.models.tokenizer import encode, load_codec

NAMES = ("smollm2-135m", "gemma-3-270m")
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module", params=NAMES)
def named(request: pytest.FixtureRequest) -> tuple[str, decoder.Model]:
    return request.param, decoder.load(path(request.param))


def test_agrees_with_llama_cpp(named: tuple[str, decoder.Model]) -> None:
    name, (cfg, w) = named
    golden = np.load(GOLDEN / f"chat-{name}.npz")
    kv, same, drift = decoder.new_kv(cfg), [], []
    for token, best, expected in zip(golden["ids"], golden["best"], golden["logprobs"], strict=True):
        logits = decoder.forward(w, cfg, kv, [int(token)]).astype(np.float64)
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        same.append(logprobs.argmax() == best[0])
        chances = np.exp(expected.astype(np.float64))
        drift.append((chances * (expected - logprobs[best])).sum() / chances.sum())
    assert np.mean(same) > 0.88
    assert abs(np.mean(drift)) < 0.05  # nats: divergence over the 20 likeliest tokens


def test_tokenizes_as_llama_cpp_does(named: tuple[str, decoder.Model]) -> None:
    codec = load_codec(path(named[0]))
    for text, ids in json.loads(str(np.load(GOLDEN / f"chat-{named[0]}.npz")["tokenized"])):
        assert encode(codec, text) == ids, text


def test_the_same_tokens_as_the_reference_ops(named: tuple[str, decoder.Model]) -> None:
    name, (cfg, w) = named
    if name != NAMES[0]:
        pytest.skip("the plain 262144-row product takes minutes")
    for start in ([1, 9690], [504, 3575], [1780, 314, 260]):
        fast, plain = decoder.new_kv(cfg), decoder.new_kv(cfg)
        tokens = list(start)
        a, b = decoder.forward(w, cfg, fast, tokens), decoder.forward(w, cfg, plain, tokens, reference)
        for _ in range(3):
            np.testing.assert_allclose(a, b, atol=0.05)
            assert a.argmax() == b.argmax()
            token = int(a.argmax())
            a, b = decoder.forward(w, cfg, fast, [token]), decoder.forward(w, cfg, plain, [token], reference)


def test_a_row_does_not_depend_on_its_batch(named: tuple[str, decoder.Model]) -> None:
    cfg, w = named[1]
    kvs, alone = [decoder.new_kv(cfg) for _ in range(5)], []
    for i, kv in enumerate(kvs):
        decoder.prefill(w, cfg, kv, list(range(100, 107 + 9 * i)))
        alone.append(decoder.forward(w, cfg, kv, [500 + i]))
        decoder.rewind(kv, kv.length - 1)
    together = decoder.forward_batch(w, cfg, kvs, [500 + i for i in range(5)])
    for i in range(5):
        np.testing.assert_array_equal(together[i], alone[i])


def test_prefill_rewind_and_growth(named: tuple[str, decoder.Model]) -> None:
    cfg, w = named[1]
    tokens = [int(t) for t in np.random.default_rng(0).integers(100, 5000, 90)]
    kv, small = decoder.new_kv(cfg), decoder.new_kv(cfg, decoder.new_pool(cfg, 8))
    whole = decoder.prefill(w, cfg, kv, tokens)
    np.testing.assert_array_equal(decoder.prefill(w, cfg, small, tokens), whole)
    assert len(small.pages) == 12 and small.length == 90 and small.tokens == tokens
    decoder.rewind(small, 40)
    assert len(small.pages) == small.pool.num_used == 5
    np.testing.assert_allclose(decoder.prefill(w, cfg, small, tokens[40:], chunk=7), whole, atol=0.2)
    with pytest.raises(ValueError, match="rewind"):
        decoder.rewind(small, 91)
    with pytest.raises(ValueError, match="pages of one size"):
        decoder.forward_batch(w, cfg, [kv, small], [1, 2])


def test_a_cache_is_continued_from_another(named: tuple[str, decoder.Model]) -> None:
    """To the bit what it would be had it read all of that itself; only the page where they part is copied."""
    _, (cfg, w) = named
    ids = [int(i) for i in np.random.default_rng(1).integers(10, 2000, 400)]
    pool = decoder.new_pool(cfg)
    long, short, fresh = (decoder.new_kv(cfg, pool) for _ in range(3))
    decoder.forward(w, cfg, long, ids)
    decoder.forward(w, cfg, short, ids[:90])
    decoder.forward(w, cfg, fresh, ids[:390])
    before = pool.num_used
    short = decoder.copy_kv(long, 390)
    assert short.tokens == ids[:390] and short.length == 390
    assert short.pages == long.pages and pool.num_used == before - 2, "its own went"
    a, b = (decoder.forward(w, cfg, kv, [5, 6, 7]) for kv in (short, fresh))
    np.testing.assert_array_equal(a, b)
    assert short.pages[:-1] == long.pages[:-1] and short.pages[-1] != long.pages[-1]
    np.testing.assert_array_equal(decoder.forward(w, cfg, long, [9]), _after(w, cfg, [*ids, 9], 400))


def _after(w: decoder.Weights, cfg: decoder.Config, ids: list[int], first: int) -> np.ndarray:
    """Logits after tokens that are read alone, in two parts."""
    kv = decoder.new_kv(cfg)
    decoder.extend(w, cfg, kv, ids[:first])
    return decoder.forward(w, cfg, kv, ids[first:])


def test_bad_tokens_are_refused(named: tuple[str, decoder.Model]) -> None:
    cfg, w = named[1]
    kv = decoder.new_kv(cfg)
    for tokens in ([], [cfg.vocab], [-1]):
        with pytest.raises(ValueError, match="vocabulary"):
            decoder.forward(w, cfg, kv, tokens)
    assert kv.length == 0


def test_a_cut_file_is_one_line_that_names_it(tmp_path: Path, named: tuple[str, decoder.Model]) -> None:
    folder = path(named[0])
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with (folder / "model.safetensors").open("rb") as whole:
        (tmp_path / "model.safetensors").write_bytes(whole.read(100_000))
    with pytest.raises(WeightsError, match=r"model\.safetensors: .*bargein models pull"):
        decoder.load(tmp_path)
