"""What an answer may be held to (an expression, a grammar, choices), and the ways of choosing tokens that OpenAI has not."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from .conftest import Served
from .test_chat import CAPITAL, MODEL, SCHEMA, create

HELD: list[tuple[dict[str, Any], str]] = [
    ({"regex": "[A-Z][a-z]{3,9}, [0-9]{4}"}, r"[A-Z][a-z]{3,9}, [0-9]{4}"),
    ({"choice": ["Rome (Italy)", "Paris (France)", "I do not know"]}, ""),
    ({"grammar": 'start: city " and " city "!"\ncity: "Paris" | "Rome" | "Oslo"'}, r"(Paris|Rome|Oslo) and (Paris|Rome|Oslo)!"),
    ({"json": SCHEMA}, r"\{.*\}"),
]


@pytest.mark.parametrize(("held", "fits_it"), HELD, ids=lambda x: next(iter(x)) if isinstance(x, dict) else "")
def test_an_answer_is_held_to_an_expression_a_grammar_or_choices(
    client: openai.OpenAI, held: dict[str, Any], fits_it: str
) -> None:
    for ask, more in (({"temperature": 0}, {}), ({"temperature": 1.5, "seed": 3}, {"top_k": 40})):
        text = create(client, extra_body={"structured_outputs": held} | more, **ask).choices[0].message.content or ""
        assert text in held["choice"] if "choice" in held else re.fullmatch(fits_it, text), text
        assert "json" not in held or set(json.loads(text)) == {"city", "large"}
    done = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=60, temperature=0, extra_body={"structured_outputs": held}
    )
    assert done.choices[0].text in held["choice"] if "choice" in held else re.fullmatch(fits_it, done.choices[0].text)


@pytest.mark.parametrize(("body", "named"), [
    ({"structured_outputs": {"regex": "(["}}, "regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["x" * 15_000, "y" * 15_000]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "start: nothing"}}, "grammar"),
    ({"structured_outputs": {"regex": "x" * 30_000}}, "structured_outputs.regex"),
    ({"structured_outputs": {"lark": "x"}}, "structured_outputs.lark"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ({"min_p": 1.5}, "min_p"), ({"top_k": -2}, "top_k"), ({"repetition_penalty": 0}, "repetition_penalty"),
])  # fmt: skip
def test_what_cannot_be_held_to_is_refused_by_name(client: openai.OpenAI, body: dict[str, Any], named: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, extra_body=body)
    assert refused.value.param == named, refused.value.message


def test_an_expression_that_grows_without_end_ends_in_a_refusal_or_an_answer(client: openai.OpenAI) -> None:
    """Its states double with each letter; the library gives up at some point, and says so."""
    try:
        create(client, extra_body={"structured_outputs": {"regex": "(.*a.{40}){1,20}b"}}, max_tokens=200, timeout=60)
    except openai.BadRequestError as refused:
        assert refused.param == "regex"
    assert "Paris" in (create(client, temperature=0).choices[0].message.content or ""), "and the next is served"


def test_one_token_to_choose_from_is_the_likeliest(client: openai.OpenAI, server: Served) -> None:
    best = create(client, temperature=0).choices[0].message.content
    for only in ({"top_k": 1}, {"min_p": 1}):
        assert create(client, temperature=1.5, seed=5, extra_body=only).choices[0].message.content == best
    hot = {"temperature": 1, "top_k": 1}
    said = server.anthropic().messages.create(model=MODEL, max_tokens=30, messages=CAPITAL, extra_body=hot)  # type: ignore[arg-type]
    assert "Paris" in said.content[0].text  # type: ignore[union-attr]
