"""Phrases from streamed text: what is said, where it is cut, and that the original survives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bargein.pipeline.speakable import Phrase, Speaker, say


def stream(text: str, size: int = 1) -> list[Phrase]:
    speaker, out = Speaker(), []
    for n in range(0, len(text), size):
        out += speaker.feed(text[n : n + size])
    return out + speaker.finish()


def spoken(text: str) -> list[str]:
    return [p.spoken for p in stream(text) if p.spoken]


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        (
            "Dr. Lee paid 98.6 at 9:30 a.m. on example.com, v1.0.0.",
            ["Dr. Lee paid 98.6 at 9:30 a.m. on example.com,", "v1.0.0."],
        ),
        ("It opens at 9 a.m. We close at 5.", ["It opens at 9 a.m.", "We close at 5."]),
        ("Yes. It costs $5.50, or less.", ["Yes.", "It costs $5.50, or less."]),
        ("The answer is 2,100,000 people.", ["The answer is 2,100,000 people."]),
        ("1. First thing.\n2. Second thing.", ["1. First thing.", "2. Second thing."]),
        ("No!  Really?! Yes…", ["No!", "Really?!", "Yes…"]),
        ("He met J. R. Smith in the U.S. army.", ["He met J. R. Smith in the U.S. army."]),
        ("## Plan\n\n**Bold** and *thin*.", ["Plan", "Bold and thin."]),
        ("Run `ls -la` now.", ["Run ls -la now."]),
        ("Look:\n```python\nprint(1)\n```\nDone.", ["Look:", "Done."]),
        ("See https://a.b and www.example.com/x.", ["See a dot b and example dot com slash x."]),
        ("It is 5 < 10 <3 and 10x10 😀.", ["It is 5 less than 10 and 10 by 10 ."]),
        ("| a | b |\n|---|---|\n| 1 | 2 |", ["a b", "1 2"]),
        ("[my site](https://x.y) is up.", ["my site is up."]),
        ("- one\n- two\n", ["one", "two"]),
    ],
)
def test_what_is_said(text: str, phrases: list[str]) -> None:
    assert spoken(text) == phrases


def test_the_first_phrase_leaves_at_the_first_clause() -> None:
    speaker = Speaker()
    assert speaker.feed("The capital of France is Paris, which") != []


def test_a_phrase_leaves_only_when_its_border_is_certain() -> None:
    speaker = Speaker()
    assert speaker.feed("It costs 98.") == []
    assert speaker.feed("6 today.") == []
    assert [p.spoken for p in speaker.feed(" ")] == ["It costs 98.6 today."]


def test_text_without_any_border_is_cut_in_the_end() -> None:
    text = "word " * 200
    assert max(len(p.original) for p in stream(text)) <= 240


@given(st.text(alphabet=st.sampled_from("ab .,!?\n*`#|[]()<>:/-1😀é"), max_size=300), st.integers(1, 40))
def test_the_originals_join_to_the_text(text: str, size: int) -> None:
    assert "".join(p.original for p in stream(text, size)) == text


@given(st.text(max_size=40).filter(lambda t: not t.isspace()))
def test_say_never_fails(word: str) -> None:
    say(word.strip(), True)
