"""What of a prompt is computed: only what no cache of the lane holds yet. On the real chat model, in tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bargein.engine import protocol as p
from bargein.engine.lane import Stream
from bargein.engine.lanes.chat import ChatLane, _common
from bargein.models import decoder, store
from bargein.models.tokenizer import encode, load_codec

from .test_batching import run

SMALL = 12  # tokens that open and close a turn
QUESTIONS = (
    "What do bees make?", "Where do they live?", "Who keeps them?", "What is a hive?", "Is honey sweet?",
    "How far do bees fly?", "What is wax for?", "Do bees sleep?", "What colour is honey?", "Why do they dance?",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> tuple[decoder.Model, object]:
    folder = store.path("gemma-3-270m")
    return decoder.load(folder), load_codec(folder)


@pytest.fixture
def lane(model: tuple[decoder.Model, object]) -> Iterator[ChatLane]:
    yield ChatLane(model[0], model[1])  # type: ignore[arg-type]


class Caller:
    """A stream and what came back on it."""

    def __init__(self, lane: ChatLane, instructions: str) -> None:
        self.lane, self.instructions = lane, instructions
        self.said: list[str] = []
        self.ends: list[p.Generated] = []
        self.stream = Stream(1, "chat", {}, "live", self._take, credit=10_000)
        lane.open(self.stream)

    def _take(self, reply: p.Reply) -> None:
        assert isinstance(reply, p.Result)
        if isinstance(reply.body, p.Token):
            self.said.append(reply.body.text)
        elif isinstance(reply.body, p.Generated):
            self.ends.append(reply.body)

    def ask(self, history: list[p.ChatTurn]) -> tuple[str, int]:
        """The answer, and how many tokens of the prompt were computed for it."""
        self.said.clear()
        steps = self.lane.start(self.stream, 1, p.Generate(tuple(history), self.instructions, 24, 0.0, 1))
        assert steps is not None
        run(self.lane, [steps])
        end = self.ends[-1]
        return "".join(self.said), end.input_tokens - end.cached_tokens


def length(lane: ChatLane, text: str) -> int:
    return len(encode(lane._codec, text))


def test_the_tenth_turn_reads_only_what_is_new(lane: ChatLane) -> None:
    caller = Caller(lane, "Answer briefly.")
    history: list[p.ChatTurn] = []
    for n, question in enumerate(QUESTIONS):
        history.append(p.ChatTurn("user", question))
        answer, computed = caller.ask(history)
        history.append(p.ChatTurn("assistant", answer))
        if n:
            assert computed <= length(lane, question) + SMALL
    assert caller.ends[-1].input_tokens > 200, "of a prompt that has grown"


def test_after_a_barge_in_only_the_tail_is_read(lane: ChatLane) -> None:
    caller = Caller(lane, "Answer briefly.")
    history = [p.ChatTurn("user", "Tell me all about the bees of Europe and how they live.")]
    answer, _ = caller.ask(history)
    words = answer.split(" ")
    assert len(words) > 6
    heard = " ".join(words[:4]) + "-"
    history += [p.ChatTurn("assistant", heard), p.ChatTurn("user", "And what do they eat?")]
    _, computed = caller.ask(history)
    assert computed <= length(lane, "And what do they eat?") + SMALL + 2, "what was heard is still there"


def test_a_prompt_that_eight_sessions_share_is_computed_once(lane: ChatLane) -> None:
    long = " ".join(f"Rule {n}: be kind, be brief, and never speak of the weather on day {n}." for n in range(1, 26))
    assert length(lane, long) >= 500
    computed = [Caller(lane, long).ask([p.ChatTurn("user", question)])[1] for question in QUESTIONS[:8]]
    assert computed[0] >= 500
    assert all(tokens <= length(lane, q) + SMALL for q, tokens in zip(QUESTIONS[1:8], computed[1:], strict=True)), computed


def test_tokens_in_common() -> None:
    import random

    rng = random.Random(3)
    for _ in range(300):
        have = [rng.randrange(3) for _ in range(rng.randrange(12))]
        want = have[: rng.randrange(13)] + [rng.randrange(3) for _ in range(rng.randrange(5))]
        count = max(0, min(len(have), len(want) - 1))
        plain = next((i for i in range(count) if have[i] != want[i]), count)
        assert _common(have, want) == plain, (have, want)


class Counting:
    """The functions of `decoder`, and how many tokens they were given to read."""

    def __init__(self) -> None:
        self.num_read = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(decoder, name)
        if name not in ("extend", "forward", "forward_two", "forward_top"):
            return function

        def counted(w: Any, cfg: Any, kv: decoder.KV, ids: list[int], *rest: Any) -> Any:
            self.num_read += len(ids)
            return function(w, cfg, kv, ids, *rest)

        return counted


def test_words_are_judged_by_what_is_new_however_long_the_call_is(model: tuple[decoder.Model, object]) -> None:
    """Also when it is longer than what the judge looks at: its window does not move with every turn."""
    graph = Counting()
    lane = ChatLane(*model, graph=graph)  # type: ignore[arg-type]
    caller = Caller(lane, "Answer briefly.")
    history: list[p.ChatTurn] = []
    read = []
    for n in range(40):
        question = QUESTIONS[n % len(QUESTIONS)]
        before = graph.num_read
        if n >= 16:  # some 350 tokens
            steps = lane.start(caller.stream, 1, p.EndOfWords(question, tuple(history), 400, "Answer briefly."))
            assert steps is not None
            run(lane, [steps])
            read.append(graph.num_read - before)
        history += [p.ChatTurn("user", question), p.ChatTurn("assistant", f"That is number {n}.")]
    assert sum(count > 100 for count in read[1:]) <= 6, "a step for each 100 tokens that are said"
    assert sorted(read)[len(read) // 2] < 60, read
