"""What the chat lane's caches hold: a page once, whoever reads it. On the real chat model, in pages."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from bargein.engine import protocol as p
from bargein.engine.lanes.chat import ChatLane
from bargein.kernels import cpu_pages
from bargein.models import decoder

from .test_batching import run
from .test_prefix import QUESTIONS, Caller, length, model  # noqa: F401

LONG = " ".join(f"Rule {n}: be kind, be brief, and never speak of the weather on day {n}." for n in range(1, 26))


def lane_of(model: tuple[decoder.Model, object], page: int = decoder.PAGE, room: int = 0) -> ChatLane:  # noqa: F811
    """Its caches in small pages, to count them."""
    lane = ChatLane(*model, room=room)  # type: ignore[arg-type]
    lane._pool = decoder.new_pool(model[0].config, page)
    lane._opening = lane._new_kv()
    return lane


def cache(caller: Caller) -> decoder.KV:
    kv: decoder.KV = caller.stream.state
    return kv


def judge(caller: Caller, words: str, history: list[p.ChatTurn]) -> None:
    steps = caller.lane.start(caller.stream, 1, p.EndOfWords(words, tuple(history), 2000, caller.instructions))
    assert steps is not None
    run(caller.lane, [steps])


def check(lane: ChatLane) -> None:
    caches = [lane._opening, *(stream.state for stream in lane._open)]
    assert lane._pool.users() == Counter(page for kv in caches for page in kv.pages)


def test_a_prompt_that_eight_sessions_share_is_held_once(model: tuple[decoder.Model, object]) -> None:  # noqa: F811
    lane = lane_of(model)
    callers = [Caller(lane, LONG) for _ in range(8)]
    computed = [caller.ask([p.ChatTurn("user", q)])[1] for caller, q in zip(callers, QUESTIONS[:8], strict=True)]
    assert computed[0] >= 500 and max(computed[1:]) < 30
    users = lane._pool.users()
    shared = [page for page, count in users.items() if count == 8]
    assert len(shared) >= 500 // decoder.PAGE
    assert len(users) <= len(shared) + 8 * 2, "each has its own only from where the questions begin"
    check(lane)
    for caller in callers:
        lane.close(caller.stream)
    callers.clear()
    assert lane._pool.num_used == 0


def test_judge_and_reply_share_the_conversation(model: tuple[decoder.Model, object]) -> None:  # noqa: F811
    lane = lane_of(model, 16)
    replies, judges = Caller(lane, LONG), Caller(lane, LONG)
    history: list[p.ChatTurn] = []
    for question in QUESTIONS[:4]:
        judge(judges, question, history)
        history.append(p.ChatTurn("user", question))
        answer, computed = replies.ask(history)
        assert computed <= 2, "it was read when the words were judged"
        history.append(p.ChatTurn("assistant", answer))
    both, one = set(cache(judges).pages) & set(cache(replies).pages), cache(replies)
    assert cache(judges).length > 550
    assert len(both) >= cache(judges).length // 16 - 1, "all but where they part"
    assert lane._pool.num_used <= len(one.pages) + 2
    check(lane)


def test_after_a_barge_in_the_pages_of_what_was_not_heard_come_back(model: tuple[decoder.Model, object]) -> None:  # noqa: F811
    lane = lane_of(model, 8)
    caller = Caller(lane, "Answer briefly.")
    history = [p.ChatTurn("user", "Tell me all about the bees of Europe and how they live.")]
    answer, _ = caller.ask(history)
    before = lane._pool.num_used
    words = answer.split(" ")
    history += [p.ChatTurn("assistant", " ".join(words[:4]) + "-"), p.ChatTurn("user", "Why?")]
    steps = lane.start(caller.stream, 1, p.Generate(tuple(history), caller.instructions, 0, 0.0, 1))
    assert steps is not None
    run(lane, [steps])
    assert lane._pool.num_used < before == len(set(cache(caller).pages)) + before - lane._pool.num_used
    _, computed = caller.ask(history)
    assert computed == 1, "the tail was read above"
    check(lane)


def test_caches_beyond_the_budget_go_and_are_read_again(model: tuple[decoder.Model, object]) -> None:  # noqa: F811
    """The one used longest ago, never one at work; nobody hears a difference."""
    long = "Answer briefly. " + "Bees live in hives and make honey. " * 30
    size = decoder.new_pool(model[0].config).page_bytes
    told: list[list[str]] = []
    room = 0
    for _ in range(2):
        lane = lane_of(model, room=room)
        callers = [Caller(lane, f"{n}. {long}") for n in range(3)]
        said = [caller.ask([p.ChatTurn("user", QUESTIONS[0])]) for caller in (*callers, callers[0])]
        told.append([text for text, _ in said])
        assert len({id(s) for s in lane._open}) == 3 and not any(lane._working.values())
        check(lane)
        if room == 0:
            assert said[3][1] < 12, "its own cache still holds the prompt"
            room = 2 * size * len(cache(callers[0]).pages)  # of the three
        else:
            assert said[3][1] > 256, "its cache had gone, and no other had its beginning"
            assert lane._pool.bytes_used <= room
            assert [bool(cache(c).length) for c in callers] == [True, False, True]
    assert told[0] == told[1]


def test_what_others_share_is_counted_once(model: tuple[decoder.Model, object]) -> None:  # noqa: F811
    """Eight sessions of 10 pages each go into the room of 26, since they share their beginning."""
    size = decoder.new_pool(model[0].config).page_bytes
    lane = lane_of(model, room=26 * size)
    callers = [Caller(lane, LONG) for _ in range(8)]
    for caller in callers:
        caller.ask([p.ChatTurn("user", "Hello.")])
    assert sum(len(cache(caller).pages) for caller in callers) >= 64
    assert all(cache(caller).length > 500 for caller in callers)


@pytest.mark.parametrize("seed", [0, 1])
def test_random_calls_leave_nothing_behind(model: tuple[decoder.Model, object], seed: int) -> None:  # noqa: F811
    """Sessions come and go, judge, reply and are interrupted, in a room too small for all; each says what it would alone."""
    rng = random.Random(seed)
    size = decoder.new_pool(model[0].config, 16).page_bytes
    lane, fresh = lane_of(model, 16, room=30 * size), lane_of(model)
    prompts = ["Answer briefly.", "You are a beekeeper. Answer in one sentence.", LONG[:200]]
    calls: list[tuple[Caller, Caller, list[p.ChatTurn]]] = []
    for n in range(14):
        if len(calls) < 3 or rng.random() < 0.2:
            prompt = rng.choice(prompts)
            calls.append((Caller(lane, prompt), Caller(lane, prompt), []))
        replies, judges, history = rng.choice(calls)
        question = rng.choice(QUESTIONS)
        if rng.random() < 0.7:
            judge(judges, question, history)
        history.append(p.ChatTurn("user", question))
        answer, _ = replies.ask(history)
        if n % 5 == 4:
            alone = Caller(fresh, replies.instructions)
            assert alone.ask(history)[0] == answer
        heard = answer.split(" ")
        history.append(p.ChatTurn("assistant", " ".join(heard[: rng.randrange(1, len(heard) + 1)])))
        check(lane)
        if len(calls) > 3:
            for caller in calls.pop(0)[:2]:
                lane.close(caller.stream)
        check(lane)
    for replies, judges, _ in calls:
        for caller in (replies, judges):
            lane.close(caller.stream)
    del calls, replies, judges, caller
    assert lane._pool.num_used == 0


def test_logits_do_not_depend_on_where_pages_lie_or_on_company(model: tuple[decoder.Model, object]) -> None:  # noqa: F811
    cfg, w = model[0]
    ids = [int(i) for i in np.random.default_rng(4).integers(10, 20000, 700)]
    pool = decoder.new_pool(cfg, 32)
    plain, first, second = decoder.new_kv(cfg), decoder.new_kv(cfg, pool), decoder.new_kv(cfg, pool)
    decoder.prefill(w, cfg, plain, ids, 64)
    for at in range(0, 700, 20):  # their pages lie between each other's
        decoder.forward_spans(w, cfg, [(first, ids[at : at + 20]), (second, ids[at : at + 7])])
    alone = decoder.forward(w, cfg, plain, [5])
    together = decoder.forward_spans(w, cfg, [(second, [1, 2]), (first, [5]), (decoder.copy_kv(second, 40), [9])])
    np.testing.assert_array_equal(together[1], alone)


def test_once_warm_nothing_of_attention_is_compiled_any_more(model: tuple[decoder.Model, object]) -> None:  # noqa: F811
    lane = lane_of(model)
    lane.warm()
    cfg, w = model[0]
    kvs = [lane._new_kv() for _ in range(3)]
    for tokens in ([1], [1, 2], [1] * 40, [1]):
        decoder.forward(w, cfg, kvs[0], tokens)
        decoder.forward_top_spans(w, cfg, [(kv, tokens) for kv in kvs])
    assert len(cpu_pages._attend.signatures) == 1, "one form, for a row and for many, with threads and without"
