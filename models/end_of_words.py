"""Has a speaker finished, by the words? A causal language model's probability that nothing follows them.

The words stand bare, without the mark a recognizer put at their end (it puts one wherever the sound ends), as the
caller's line of a conversation; the score is the probability of whatever closes a sentence or a line there. What makes
it cheap: the conversation's head stays in the cache, so a question costs the words' own tokens and one head.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import decoder
from .chat_prompts import Kind, Message, fitting, render
from .tokenizer import TextCodec, decode, encode

_CLOSING = re.compile(r"\s*[.?!\n]")
_TRAILING = re.compile(r"[\s.?!,;:…\-\"']+$")


class Judge(NamedTuple):
    """A language model's readiness to judge: what it continues, and which tokens close a sentence."""

    model: decoder.Model
    codec: TextCodec
    kind: Kind
    closing: NDArray[np.bool_]  # [vocab]


def judge(model: decoder.Model, codec: TextCodec, kind: Kind) -> Judge:
    """Look up which tokens of the vocabulary begin with what closes a sentence, or end a message."""
    closing = np.zeros(model.config.vocab, np.bool_)
    for token in range(model.config.vocab):
        if _CLOSING.match(decode(codec, [token])):
            closing[token] = True
    closing[[token for token in codec.eos if token < model.config.vocab]] = True
    return Judge(model, codec, kind, closing)


def prompt(
    j: Judge, text: str, history: Sequence[Message], max_history: int, instructions: str = ""
) -> tuple[list[int], int]:
    """Token ids, and how many of them end with the caller's words; of the turns before, the last that fit `max_history`.

    The ids go on to the end of the prompt that asks for the reply to these words, if that begins with the bare words'
    tokens; so reading them serves both. Without words: the conversation so far.
    """
    turns = fitting(j.codec, j.kind, history, max_history)
    ids = render(j.codec, j.kind, turns, instructions)
    bare = _TRAILING.sub("", " ".join(text.split()))
    if j.kind == "chatml":
        start = j.codec.special["<|im_start|>"]
        ids = ids[: len(ids) - ids[::-1].index(start) - 1]  # without the assistant's opening
        words = [*ids, start, *encode(j.codec, "user"), *encode(j.codec, "\n"), *encode(j.codec, bare)]
    else:
        ids = ids[: len(ids) - len(encode(j.codec, "Assistant:"))]
        words = [*ids, *encode(j.codec, f"Caller: {bare}")]
    if not bare:
        return ids, len(ids)
    whole = render(j.codec, j.kind, [*turns, Message("user", text)], instructions)
    return (whole, len(words)) if whole[: len(words)] == words else (words, len(words))


def probability(j: Judge, logits: NDArray[np.float32]) -> float:
    """The chance that a closing token comes next, of logits [vocab]."""
    e = np.exp(logits - logits.max())
    return float(e[j.closing].sum() / e.sum())
