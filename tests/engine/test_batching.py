"""Continuous batching on the real chat model: a reply is the same alone and in company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bargein.engine import protocol as p
from bargein.engine.lane import Steps, Stream, Together
from bargein.engine.lanes.chat import ChatLane
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
