"""The end-of-turn question: its heads, its kinds, and what happens when a head fails (SPEC section 6)."""

from __future__ import annotations

import math

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime.eou import fuse, text_score
from bargein.realtime.settings import SettingsError, parse

from .play import Play


def stopped(kind: str, words: str | None = "What time is it?", **eou: object) -> Play:
    p = Play(eou={"kind": kind, **eou})
    p.speech(960)
    p.silence(352)
    if words is not None:
        p.words(words)
    return p


def delay(p: Play) -> int | None:
    """Milliseconds from the last voiced sample to the commit that is armed; None: the question is open."""
    vad = p.state.vad
    if "commit" not in p.timers or not hasattr(vad, "last_voiced_at"):
        return None
    return round(p.timers["commit"][0] - vad.last_voiced_at)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("", 0.0, 0.0),
        ("What time is it?", 0.8, 1.0),
        ("I live in Paris.", 0.6, 0.9),
        ("I live in", 0.0, 0.2),
        ("I live in.", 0.0, 0.2),
        ("Where are you from?", 0.3, 0.9),
        ("Well,", 0.0, 0.2),
        ("I think...", 0.0, 0.2),
        ("My number is five five", 0.3, 0.5),
        ("...", 0.0, 0.2),
    ],
)
def test_heuristic_scores(text: str, low: float, high: float) -> None:
    assert low <= text_score(text) <= high


def test_vad_kind_asks_nobody_and_commits_at_the_stop() -> None:
    p = stopped("vad", None)
    assert [x for x in p.effects if isinstance(x, f.AskEou | f.AskEouText)] == []
    assert len(p.of(a.Committed)) == 1


def test_heuristic_kind_needs_no_engine() -> None:
    p = stopped("heuristic", "I would like to")
    assert [x for x in p.effects if isinstance(x, f.AskEou | f.AskEouText)] == []
    assert delay(p) == 4000


@pytest.mark.parametrize("kind", ["text", "integrated"])
def test_text_kinds_ask_the_words_with_the_turns_before(kind: str) -> None:
    p = Play(eou={"kind": kind, "context_turns": 2})
    p.speech(960)
    p.silence(500)
    p.words("Hello.")
    p.verdict(1.0, "words")
    p.reply("Hi there. What can I do?")
    p.play(1200)
    p.drained(1200)
    p.speech(960)
    ahead = [x for x in p.effects if isinstance(x, f.PrepareEouText)][-1]
    assert ahead.context.history[-1].content == "Hi there. What can I do?"
    p.silence(352)
    p.words("Book a table.")
    asked = [x for x in p.effects if isinstance(x, f.AskEouText)][-1]
    assert asked.text == "Book a table."
    assert [m.role for m in asked.context.history] == ["user", "assistant"]
    assert asked.context.own_prompt is (kind == "integrated")
    p.verdict(0.2, "words")
    assert delay(p) == 4000


def test_fusion_waits_for_both_heads_whichever_comes_first() -> None:
    for first, second in (("audio", "words"), ("words", "audio")):
        p = stopped("fusion", fusion_rule="mean")
        p.verdict(1.0, first)  # type: ignore[arg-type]
        assert delay(p) is None and p.of(a.Committed) == []
        p.verdict(0.6, second)  # type: ignore[arg-type]
        note = [x for x in p.effects if isinstance(x, f.Inspect) and x.kind == "verdict"][-1]
        assert note.payload["p"] == pytest.approx(0.8)


def test_words_that_leave_no_doubt_do_not_wait_for_the_sound() -> None:
    p = stopped("fusion", fusion_rule="gated")
    p.verdict(0.99, "words")
    note = [x for x in p.effects if isinstance(x, f.Inspect) and x.kind == "verdict"][-1]
    assert note.payload["delay_ms"] < 450
    p = stopped("fusion", fusion_rule="gated")
    p.verdict(0.01, "words")
    assert delay(p) == 4000
    p = stopped("fusion", fusion_rule="gated")
    p.verdict(0.4, "words")  # here the sound decides
    assert delay(p) is None


def test_fusion_with_a_failed_head_takes_the_others() -> None:
    p = stopped("fusion", fusion_rule="max")
    p.verdict(None, "audio")
    p.verdict(0.1, "words")
    assert delay(p) == 4000
    p = stopped("fusion", "I would like to", fusion_rule="max")
    p.verdict(None, "words")  # the rules speak for the words
    p.verdict(0.2, "audio")
    assert delay(p) == 4000


def test_no_head_answers_in_time_and_the_rules_decide() -> None:
    p = stopped("fusion", "I would like to")
    p.advance(251)
    assert delay(p) == 4000
    p = stopped("fusion", "What time is it?")
    p.advance(251)
    assert (delay(p) or 0) < 1500


def test_a_silent_stop_transcript_never_counts_as_finished() -> None:
    p = stopped("text", "")
    assert delay(p) == 4000


def test_a_failed_transcription_leaves_the_sound() -> None:
    p = stopped("fusion", None)
    flush = [x for x in p.effects if isinstance(x, f.FlushStt)][-1]
    p.fail_words(flush)
    p.verdict(0.9, "audio")
    assert delay(p) is not None or p.of(a.Committed)


def test_late_and_doubled_answers_are_dropped() -> None:
    p = stopped("fusion", fusion_rule="mean")
    p.verdict(0.2, "audio")
    p.verdict(1.0, "audio")  # answered already
    p.verdict(0.2, "words")
    assert delay(p) == 4000


def test_the_sound_is_asked_ahead_of_the_stop() -> None:
    p = Play(eou={"kind": "fusion"})
    p.speech(960)
    p.silence(96)
    ahead = [x for x in p.effects if isinstance(x, f.PrepareEou)]
    assert len(ahead) == 1
    p.silence(256)
    asked = [x for x in p.effects if isinstance(x, f.AskEou)]
    assert [x.voiced_ms for x in asked] == [ahead[0].voiced_ms]


def test_stack_silence_counts_from_the_stop() -> None:
    p = stopped("heuristic", "I would like to", stack_silence=True)
    assert delay(p) == 4000 + 352


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [("kind", "tarot", "eou_kind_unsupported"), ("fusion_rule", "product", "eou_fusion_rule_unsupported")],
)
def test_unknown_kinds_and_rules_have_codes_of_their_own(key: str, value: str, code: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse({"eou": {key: value}})
    assert (refused.value.code, refused.value.param) == (code, f"session.eou.{key}")


@pytest.mark.parametrize("rule", ["noisy_or", "max", "mean", "weighted", "gated"])
def test_fusion_rules_rise_with_both_heads_and_stay_probabilities(rule: str) -> None:
    grid = [0.0, 0.01, 0.2, 0.5, 0.8, 0.99, 1.0]
    for x in grid:
        row = [fuse(rule, x, y, 0.5) for y in grid]
        assert all(0.0 <= v <= 1.0 and math.isfinite(v) for v in row)
        assert row == sorted(row)
        assert [fuse(rule, y, x, 0.5) for y in grid] == sorted(fuse(rule, y, x, 0.5) for y in grid)
    assert fuse(rule, 0.99, 0.99, 0.5) > 0.9
    assert fuse(rule, 0.01, 0.01, 0.5) < 0.1


def test_fusion_rules_by_their_formulas() -> None:
    assert fuse("noisy_or", 0.5, 0.5, 0.5) == pytest.approx(0.75)
    assert fuse("max", 0.3, 0.6, 0.5) == 0.6
    assert fuse("weighted", 0.2, 0.8, 0.75) == pytest.approx(0.65)
    with pytest.raises(ValueError, match="tarot"):
        fuse("tarot", 0.5, 0.5, 0.5)
