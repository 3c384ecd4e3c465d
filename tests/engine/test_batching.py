"""Continuous batching on the real chat model: a reply is the same alone and in company."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from bargein.engine import protocol as p
from bargein.engine.lane import Steps, Stream, Together
from bargein.engine.lanes.chat import ChatLane
from bargein.engine.learned import StepCost
from bargein.models import decoder, store
from bargein.models.tokenizer import load_codec

QUESTIONS = ("What is the capital of France?", "What do bees make?", "How many legs has a spider?", "Who are you?")


@pytest.fixture(scope="module", params=["gemma-3-270m", "smollm2-135m"])
def lane(request: pytest.FixtureRequest) -> Iterator[ChatLane]:
    folder = store.path(request.param)
    yield ChatLane(decoder.load(folder), load_codec(folder))


def asked(lane: ChatLane, question: str, temperature: float) -> tuple[Steps, list[str]]:
    """A generation that has begun, and the pieces of its text."""
    said: list[str] = []

    def deliver(reply: p.Reply) -> None:
        if isinstance(reply, p.Result) and isinstance(reply.body, p.Token):
            said.append(reply.body.text)

    stream = Stream(1, "chat", {}, "live", deliver)
    lane.open(stream)
    body = p.Generate((p.ChatTurn("user", question),), "Answer briefly.", 12, temperature, 7)
    steps = lane.start(stream, 1, body)
    assert steps is not None
    return steps, said


def run(lane: ChatLane, jobs: list[Steps]) -> int:
    """Run generations to their ends, every token for all that still go on -> the largest batch."""
    wants: dict[int, Together] = {}
    largest = 0

    def step(n: int, value: object) -> None:
        try:
            while (wanted := jobs[n].send(value)) is None:
                value = None
            wants[n] = wanted
        except StopIteration:
            pass

    for n in range(len(jobs)):
        step(n, None)
    while wants:
        now, wants = wants, {}
        largest = max(largest, len(now))
        kind = next(iter(now.values())).kind
        for n, logits in zip(now, lane.together(kind, [w.item for w in now.values()]), strict=True):
            step(n, logits)
    return largest


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_in_company_are_the_replies_alone(lane: ChatLane, temperature: float) -> None:
    alone = []
    for question in QUESTIONS:
        steps, said = asked(lane, question, temperature)
        run(lane, [steps])
        alone.append("".join(said))
    jobs = [asked(lane, question, temperature) for question in QUESTIONS]
    assert run(lane, [steps for steps, _ in jobs]) == len(QUESTIONS)
    assert ["".join(said) for _, said in jobs] == alone
    assert len(set(alone)) == len(QUESTIONS) and all(alone)


def reading(lane: ChatLane, stream: Stream, text: str) -> list[int]:
    """Read a prompt to its end -> how long its cache was after each step."""
    lane.open(stream)
    steps = lane.start(stream, 1, p.Generate((p.ChatTurn("user", text),), "Answer briefly.", 0))
    assert steps is not None
    lengths = []
    for _ in steps:
        lengths.append(stream.state.length)
    return [*lengths, stream.state.length]


def test_a_long_prompt_is_read_in_small_steps_beside_another_call_and_comes_to_the_same(lane: ChatLane) -> None:
    text = " ".join(f"The {n} bees fly over the hill." for n in range(30))
    for size, seconds in ((4, 0.009), (8, 0.014), (32, 0.046)):  # what the lane has learned; 9 tokens take 16 ms
        lane._reading.took(size, seconds)
    alone = Stream(2, "chat", {}, "live", lambda reply: None)
    whole = reading(lane, alone, text)
    assert max(b - a for a, b in pairwise(whole)) == 32
    kept, logits = alone.state.tokens[:], decoder.forward(lane._model.weights, lane._model.config, alone.state, [9])
    lane.close(alone)
    for cls, other in (("live", "live"), ("bulk", "live"), ("interactive", "live")):
        job, _ = asked(lane, "What do bees make?", 0.0)
        if cls == "live":
            next(job)  # a reply is being written; for the others a call that is there is enough
        lane._reading = StepCost()
        for size, seconds in ((4, 0.009), (8, 0.014), (32, 0.046)):
            lane._reading.took(size, seconds)
        stream = Stream(3, "chat", {}, cls, lambda reply: None)  # type: ignore[arg-type]
        parts = reading(lane, stream, text)
        first = parts[1] - parts[0]
        assert 4 <= first <= 12, (cls, other, parts)
        assert stream.state.tokens == kept
        again = decoder.forward(lane._model.weights, lane._model.config, stream.state, [9])
        assert (again == logits).all(), "to the bit"
        lane.close(stream)
        for left in list(lane._open):
            lane.close(left)
