"""The stt lane: which of an utterance's requests are one piece of work."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from bargein.engine import protocol as p
from bargein.engine.lane import Stream
from bargein.engine.lanes.stt import SttLane, _Session
from bargein.models.whisper_stream import Transcript


class Sound:
    """An utterance whose transcript takes four steps and tells how much of it was heard; silent between two points.

    `is_long`: the last two steps are the long way.
    """

    def __init__(self, quiet_from: int) -> None:
        self.quiet_from, self.begun, self.is_long, self.steps = quiet_from, list[int](), False, 0

    def only_silence(self, start: int, end: int) -> bool:
        return self.quiet_from <= start <= end

    def final_steps(self, num_samples: int) -> Generator[bool | None, None, Transcript]:
        self.begun.append(num_samples)
        for n in range(4):
            self.steps += 1
            yield self.is_long and n == 1
        return Transcript(str(num_samples), -0.2, 0.0, 0, "en", ())


def lane(quiet_from: int = 1000) -> tuple[SttLane, Stream, Sound, list[tuple[int, str]]]:
    answers: list[tuple[int, str]] = []

    def deliver(reply: Any) -> None:
        answers.append((reply.tag, reply.body.text))

    stream = Stream(1, "stt", {}, "live", deliver)
    sound = Sound(quiet_from)
    stream.state = _Session(sound)  # type: ignore[arg-type]
    return SttLane(None, None), stream, sound, answers  # type: ignore[arg-type]


def run(steps: Any, most: int = 99) -> None:
    for _ in range(most):
        if next(steps, "over") == "over":
            return


def test_a_final_gets_what_was_begun_before_the_silence() -> None:
    stt, stream, sound, answers = lane()
    work = stt.start(stream, -2, p.Transcribe(1100, 1000, "prepare"))
    run(work, 2)
    assert stt.start(stream, -3, p.Transcribe(1200, 1150, "prepare")) is None
    assert stt.start(stream, 7, p.Transcribe(1400, 1150, "final")) is None
    run(work)
    assert answers == [(-2, "1100"), (-3, "1100"), (7, "1100")] and sound.begun == [1100]


@pytest.mark.parametrize("end", [1300, 1050])
def test_words_that_came_after_are_heard_anew_and_what_was_begun_gives_way(end: int) -> None:
    stt, stream, sound, answers = lane(quiet_from=1200)
    first = stt.start(stream, -2, p.Transcribe(1100, 1000, "prepare"))
    run(first, 2)
    second = stt.start(stream, 7, p.Transcribe(end, end - 40, "final"))
    run(first)
    run(second)
    assert answers == [(7, str(end))] and sound.begun == [1100, end]


def test_a_final_is_never_given_up() -> None:
    stt, stream, _, answers = lane(quiet_from=5000)
    first = stt.start(stream, 7, p.Transcribe(1100, 1000, "final"))
    run(first, 2)
    second = stt.start(stream, 8, p.Transcribe(2000, 1900, "final"))
    run(first)
    run(second)
    assert answers == [(7, "1100"), (8, "2000")]


def test_asking_ahead_twice_for_the_same_keeps_what_is_being_worked_on() -> None:
    stt, stream, sound, answers = lane()
    work = stt.start(stream, -2, p.Transcribe(1000, 1000, "prepare"))
    run(work, 2)
    assert stt.start(stream, -3, p.Transcribe(1032, 1000, "prepare")) is None
    run(work)
    assert answers == [(-2, "1000"), (-3, "1000")] and sound.begun == [1000]
    assert stt.start(stream, 7, p.Transcribe(1400, 1000, "final")) is None and answers[-1] == (7, "1000")


def test_what_is_only_looked_at_ahead_does_not_go_the_long_way() -> None:
    stt, stream, sound, answers = lane()
    sound.is_long = True
    run(stt.start(stream, -2, p.Transcribe(1100, 1000, "prepare")))
    assert answers == [] and sound.steps == 2
    run(stt.start(stream, 7, p.Transcribe(1400, 1000, "final")))
    assert answers == [(7, "1400")] and sound.steps == 6


def test_what_somebody_waits_for_goes_the_long_way() -> None:
    stt, stream, sound, answers = lane()
    sound.is_long = True
    work = stt.start(stream, -2, p.Transcribe(1100, 1000, "prepare"))
    run(work, 1)
    assert stt.start(stream, 7, p.Transcribe(1400, 1000, "final")) is None
    run(work)
    assert answers == [(-2, "1100"), (7, "1100")] and sound.steps == 4
