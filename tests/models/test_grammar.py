"""What a generation is held to: every text that fits may come, nothing else; strings and objects end."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.models import grammar, store
from bargein.models.tokenizer import decode, load_codec


@pytest.fixture(scope="module")
def vocabulary() -> grammar.Vocabulary:
    codec = load_codec(store.path("smollm2-135m"))
    return grammar.Vocabulary(codec, codec.tokenizer.get_vocab_size())


def follow(vocabulary: grammar.Vocabulary, rules: str, seed: int) -> str:
    """A random text that the grammar allows."""
    guide, random, ids = grammar.Guide(vocabulary, rules), np.random.default_rng(seed), list[int]()
    while not guide.is_over and len(ids) < 2000:
        logits = guide.rule_out(random.normal(size=vocabulary.size).astype(np.float32))
        token = int(logits.argmax())
        if token in vocabulary.codec.eos:
            break
        guide.take(token)
        ids.append(token)
    return decode(vocabulary.codec, ids)


def test_the_bytes_of_tokens_join_to_their_text(vocabulary: grammar.Vocabulary) -> None:
    for text in ("Hello there, 12 cats!", "naïve 🙂 日本語\n\ttab"):
        assert b"".join(vocabulary.tokens[i] for i in vocabulary(text)) == text.encode()


def test_random_texts_fit_the_schema(vocabulary: grammar.Vocabulary) -> None:
    import json

    schema = {
        "type": "object",
        "properties": {
            "room": {"type": "string"}, "on": {"type": "boolean"}, "when": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["room", "on"],
    }  # fmt: skip
    for seed in range(5):
        value = json.loads(follow(vocabulary, grammar.of_schema(schema), seed))
        assert {"room", "on"} <= set(value) <= {"room", "on", "when"}
        assert isinstance(value["on"], bool) and len(value["room"]) <= 200 and len(value.get("when", [])) <= 8


def test_choices(vocabulary: grammar.Vocabulary) -> None:
    options = [" (uses the tool a.b with ", " (says"]
    assert {follow(vocabulary, grammar.of_choices(options), seed) for seed in range(8)} <= set(options)


def test_what_cannot_be_held_to_is_refused_by_name(vocabulary: grammar.Vocabulary) -> None:
    with pytest.raises(grammar.GrammarError, match=r"schema: .*not"):
        grammar.Guide(vocabulary, grammar.of_schema({"not": {"type": "string"}}))


def test_limits_are_put_only_where_there_are_none() -> None:
    assert grammar.bounded({"type": "string", "maxLength": 7})["maxLength"] == 7
    assert grammar.bounded({"type": "string", "enum": ["a"]}) == {"type": "string", "enum": ["a"]}
    assert grammar.bounded({"type": "string", "minLength": 500})["maxLength"] == 500
    assert grammar.bounded({"properties": {}, "additionalProperties": True})["additionalProperties"] is True
