"""End-of-turn questions on an engine whose answers come in any order: each of the machine's gets exactly one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bargein.engine import protocol as p
from bargein.engine.client import EngineUnavailable
from bargein.pipeline.audio import InputStore
from bargein.pipeline.nodes.finished import Finished
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.ids import ItemId

CONTEXT = f.EouContext((), 128, (), "", True)


class Stream:
    """One stream: what was fed and is still wanted."""

    closed = False

    def __init__(self, on_result: Callable[[int, Any], None], on_failed: Callable[[int | None, str], None]) -> None:
        self.on_result, self.on_failed = on_result, on_failed
        self.open: dict[int, p.Body] = {}
        self.num_fed = 0

    def feed(self, tag: int, body: p.Body, due_ms: float = 0.0) -> None:
        self.open[tag] = body
        self.num_fed += 1

    def cancel(self, tag: int | None = None) -> None:
        self.open.clear()

    def close(self) -> None:
        self.closed = True

    def answer(self, score: float) -> None:
        """Answer whatever is still wanted."""
        for tag in list(self.open):
            del self.open[tag]
            self.on_result(tag, p.TurnScore(score, 1.0))


class Engine:
    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.gone = False

    def open(self, lane: str, params: object, *, on_result: Any, on_failed: Any, on_lost: Any) -> Stream:
        if self.gone:
            raise EngineUnavailable("gone")
        self.streams[lane] = Stream(on_result, on_failed)
        return self.streams[lane]


class Case:
    def __init__(self) -> None:
        self.engine, self.told = Engine(), list[e.EouVerdict]()
        store = InputStore()
        store.append(np.zeros(32000, np.float32))
        self.finished = Finished(
            self.engine,
            store,
            self.told.append,
            lambda: 0.0,
            lambda: None,
            chat_is_local=True,  # type: ignore[arg-type]
        )
        self.finished.prepare_context(f.PrepareEouText(CONTEXT))
        self.ahead: list[float | None] = []

    def prepare(self, text: str) -> None:
        self.finished.prepare_words(text, self.ahead.append)

    @property
    def words(self) -> Stream:
        return self.engine.streams["chat"]

    def verdicts(self) -> list[tuple[int, float | None, str]]:
        return [(v.ask, v.p, v.head) for v in self.told]


def asks(ask: int, text: str) -> f.AskEouText:
    return f.AskEouText(ItemId("item"), ask, text, CONTEXT)


# What happens to the words of one stop, in every order that keeps an answer after some question.
STEPS: dict[str, Callable[[Case], None]] = {
    "prepared": lambda c: c.prepare("What time is it?"),
    "asked": lambda c: c.finished.ask_words(asks(7, "What time is it?")),
    "answered": lambda c: c.words.answer(0.9),
}


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS)), ids="-".join)
def test_the_words_are_judged_once_in_whatever_order_they_come(order: tuple[str, ...]) -> None:
    c = Case()
    c.words.answer(0.0)  # the context has been read
    fed = c.words.num_fed
    for step in order:
        STEPS[step](c)
    c.words.answer(0.9)  # what is still open
    assert c.verdicts() == [(7, 0.9, "words")]
    assert c.words.num_fed == fed + 1


def test_other_words_than_prepared_are_asked_anew() -> None:
    c = Case()
    c.prepare("What time")
    c.words.answer(0.1)
    c.finished.ask_words(asks(7, "What time is it?"))
    c.words.answer(0.9)
    assert c.verdicts() == [(7, 0.9, "words")]


def test_an_older_questions_answer_is_nobodys() -> None:
    c = Case()
    c.finished.ask_words(asks(7, "What"))
    late = dict(c.words.open)
    c.finished.ask_words(asks(8, "What time is it?"))
    for tag in late:
        c.words.on_result(tag, p.TurnScore(0.2, 1.0))
    c.words.answer(0.9)
    assert c.verdicts() == [(8, 0.9, "words")]


def test_the_sound_that_was_prepared_is_adopted_where_no_voice_came_since() -> None:
    for voiced, fed in ((1900, 1), (1950, 2)):
        c = Case()
        c.finished.prepare_sound(f.PrepareEou(ItemId("item"), 1932, 1900, 8000))
        c.finished.ask_sound(f.AskEou(ItemId("item"), 7, 2000, voiced, 8000))
        sound = c.engine.streams["turn"]
        assert sound.num_fed == fed
        sound.answer(0.8)
        assert c.verdicts() == [(7, 0.8, "audio")]


def test_the_prepared_sound_ends_in_the_silence_that_is_to_come() -> None:
    c = Case()
    c.finished.prepare_sound(f.PrepareEou(ItemId("item"), 1932, 1900, 8000))
    (body,) = c.engine.streams["turn"].open.values()
    assert isinstance(body, p.AskTurn)
    assert len(np.frombuffer(body.pcm, np.float32)) == 1932 * 16 + 168 * 16  # as much as there is, and silence up to 200 ms


def test_without_an_engine_every_question_is_answered_by_none() -> None:
    c = Case()
    c.words.closed = True
    c.engine.gone = True
    c.finished.ask_words(asks(7, "What time is it?"))
    c.finished.ask_sound(f.AskEou(ItemId("item"), 8, 2000, 1900, 8000))
    assert c.verdicts() == [(7, None, "words"), (8, None, "audio")]


def test_a_failure_is_an_answer_and_a_settled_turn_wants_none() -> None:
    c = Case()
    c.finished.ask_words(asks(7, "What time is it?"))
    c.words.on_failed(7, "broken")
    assert c.verdicts() == [(7, None, "words")]
    c.finished.ask_words(asks(8, "And now?"))
    c.finished.settle()
    c.words.on_result(8, p.TurnScore(0.9, 1.0))
    assert c.verdicts() == [(7, None, "words")]


def test_who_asks_about_words_ahead_gets_their_score() -> None:
    c = Case()
    c.prepare("What time")
    c.words.answer(0.2)
    c.prepare("What time is it?")
    assert c.ahead == [0.2], "the answer is still to come"
    c.words.answer(0.9)
    c.prepare("What time is it?")  # the same words, after a little more silence
    assert c.ahead == [0.2, 0.9, 0.9] and c.verdicts() == []


def test_words_that_give_way_to_others_are_not_answered() -> None:
    c = Case()
    c.prepare("What time")
    c.prepare("What time is it?")
    c.words.answer(0.9)
    assert c.ahead == [0.9]


@pytest.mark.parametrize("problem", ["gone", "failed", "no model"])
def test_words_that_nobody_can_judge_are_told_without_a_score(problem: str) -> None:
    c = Case()
    c.words.answer(0.0)
    if problem == "gone":
        c.words.close()
        c.engine.gone = True
    elif problem == "no model":
        c.finished._context = None
    c.prepare("What time is it?")
    if problem == "failed":
        c.words.on_failed(next(iter(c.words.open)), "broken")
    assert c.ahead == [None]
