"""The scorer of word error: what counts as the same word, and how errors are counted."""

from __future__ import annotations

import pytest

from bargein.models.bench_words import normal_words, word_errors


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("Mr. Smith's 2 dogs!", "mister smith's two dogs"),
        ("the 3rd floor, the 20th; 21st", "the third floor the twentieth twenty first"),
        ("1,250 people paid $5", "one thousand two hundred fifty people paid five dollars"),
        ("ill-disposed — 3.14", "ill disposed three point one four"),
        ("[Music] (laughs) OK", "okay"),
        ("My favourite colour", "my favorite color"),
        ("", ""),
    ],
)
def test_spellings_of_the_same_words_are_equal(written: str, words: str) -> None:
    assert " ".join(normal_words(written)) == words


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [("a b c", "a b c", 0), ("a b c", "a x c", 1), ("a b c", "a c", 1), ("a b", "a b c d", 2), ("a b", "", 2)],
)
def test_errors_are_replaced_missing_and_added_words(said: str, heard: str, errors: int) -> None:
    assert word_errors(said.split(), heard.split()) == errors
