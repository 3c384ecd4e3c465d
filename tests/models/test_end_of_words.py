"""The judge of words: finished sentences score above their beginnings, and one reading serves judge and reply."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.models import chat_prompts, decoder, end_of_words, store
from bargein.models.chat_prompts import Message
from bargein.models.tokenizer import load_codec

WHOLE = [
    "What is the capital of France?", "I would like to book a table for two.", "Can you hear me?",
    "My sister works as a nurse.", "How long should I boil the potatoes?", "Remind me to water the plants on Sunday.",
]  # fmt: skip
CUT = ["What is the", "I would like to", "Can you", "My sister works as a.", "How long should I boil the?", "Remind me to"]


@pytest.fixture(scope="module", params=["gemma-3-270m", "smollm2-135m"])
def judge(request: pytest.FixtureRequest) -> end_of_words.Judge:
    folder = store.path(request.param)
    model = decoder.load(folder)
    kind: chat_prompts.Kind = "chatml" if model.config.kind == "llama" else "transcript"
    return end_of_words.judge(model, load_codec(folder), kind)


def score(j: end_of_words.Judge, text: str, history: list[Message] | None = None) -> float:
    ids, num_words = end_of_words.prompt(j, text, history or [], 128)
    kv = decoder.new_kv(j.model.config)
    return end_of_words.probability(j, decoder.prefill(j.model.weights, j.model.config, kv, ids[:num_words]))


def test_every_whole_sentence_scores_above_every_cut_one(judge: end_of_words.Judge) -> None:
    whole, cut = [score(judge, t) for t in WHOLE], [score(judge, t) for t in CUT]
    assert min(whole) > max(cut), (whole, cut)


def test_the_recognizers_closing_mark_does_not_count(judge: end_of_words.Judge) -> None:
    assert score(judge, "What is the.") == score(judge, "What is the") == score(judge, " What is the? ")


def test_an_answer_is_finished_in_the_light_of_its_question(judge: end_of_words.Judge) -> None:
    asked = [Message("user", "I want to book a flight."), Message("assistant", "Which city are you flying to?")]
    assert score(judge, "Boston", asked) > score(judge, "Boston", [])


def test_history_is_bounded(judge: end_of_words.Judge) -> None:
    history = [Message("user", "word " * 50), Message("assistant", "word " * 50)] * 5
    ids, _ = end_of_words.prompt(judge, "Hello", history, 128)
    empty, _ = end_of_words.prompt(judge, "Hello", [], 128)
    assert len(ids) <= len(empty) + 128


def test_one_reading_serves_the_judge_and_the_reply(judge: end_of_words.Judge) -> None:
    w, cfg = judge.model.weights, judge.model.config
    text = WHOLE[0]
    ids, num_words = end_of_words.prompt(judge, text, [], 128)
    assert ids == chat_prompts.render(judge.codec, judge.kind, [Message("user", text)])
    both = decoder.new_kv(cfg)
    decoder.prefill(w, cfg, both, ids[: num_words - 3])
    logits = decoder.forward_two(w, cfg, both, ids[num_words - 3 :], 2)
    plain = decoder.new_kv(cfg)
    np.testing.assert_array_equal(logits, decoder.prefill(w, cfg, plain, ids[:num_words]))
    decoder.rewind(plain, num_words)
    ahead = decoder.forward_top(w, cfg, plain, ids[num_words:])
    assert both.ahead is not None
    np.testing.assert_array_equal(both.ahead, ahead)
    decoder.rewind(both, num_words)
    assert both.ahead is None


def test_the_sketch_keeps_the_best_tokens(judge: end_of_words.Judge) -> None:
    w, cfg = judge.model.weights, judge.model.config
    kv = decoder.new_kv(cfg)
    ids, _ = end_of_words.prompt(judge, WHOLE[1], [], 128)
    full = decoder.prefill(w, cfg, kv, ids)
    for _ in range(20):
        token, length = int(full.argmax()), kv.length
        full = decoder.forward(w, cfg, kv, [token])
        decoder.rewind(kv, length)
        top = decoder.forward_top(w, cfg, kv, [token])
        assert int(top.argmax()) == int(full.argmax())
        kept = np.isfinite(top)
        np.testing.assert_array_equal(top[kept], full[kept])
        assert kept[np.argsort(-full)[:10]].all()
