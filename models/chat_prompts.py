"""How each chat model is asked: a conversation to prompt tokens, and when an answer is over.

A prompt of turn N begins with the prompt of turn N-1 and its answer, so that an attention cache is reused.

ChatML for SmolLM2-Instruct. Gemma 3 270M is a base model: it continues the transcript of a phone call, which begins
with three exchanges that show it how long an answer is; a line break ends the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .sampling import Settings
from .tokenizer import TextCodec, encode

CALL_INTRODUCTION = (
    "A phone call. The caller asks, and a friendly assistant who knows a lot gives a short, correct answer in one "
    "sentence.\n"
)
CALL_EXAMPLES = (
    "\nCaller: Hello?\nAssistant: Hello, this is your assistant. How can I help you?\n"
    "Caller: What is the largest ocean on Earth?\nAssistant: The largest ocean on Earth is the Pacific Ocean.\n"
    "Caller: How many hours are there in a day?\nAssistant: There are twenty-four hours in a day.\n"
    "Caller: Can you give me a tip for better sleep?\nAssistant: Try to go to bed at the same time every night.\n"
)
CHATML_SYSTEM = "You are a helpful voice assistant. Answer in one short sentence."


def render(kind: str, codec: TextCodec, messages: Sequence[Mapping[str, str]], instructions: str) -> list[int]:
    """Prompt tokens for messages of {role, content}; roles system, user, assistant, tool.

    kind: the model's `Config.kind`. Text that spells a control token is read as text.
    """
    if "chatml" in codec.special or "<|im_start|>" in codec.special:
        return _chatml(codec, messages, instructions)
    return _phone_call(codec, messages, instructions)


def _chatml(codec: TextCodec, messages: Sequence[Mapping[str, str]], instructions: str) -> list[int]:
    start, end = codec.special["<|im_start|>"], codec.special["<|im_end|>"]
    newline = encode(codec, "\n")
    turns = [("system", instructions or CHATML_SYSTEM)]
    turns += [("user" if m["role"] == "tool" else m["role"], m["content"]) for m in messages]
    ids: list[int] = []
    for role, text in turns:
        ids += [start, *encode(codec, f"{role}\n{text.strip()}"), end, *newline]
    return [*ids, start, *encode(codec, "assistant\n")]


def _phone_call(codec: TextCodec, messages: Sequence[Mapping[str, str]], instructions: str) -> list[int]:
    names = {"user": "Caller", "assistant": "Assistant", "system": "Note", "tool": "Result"}
    told = f"The assistant was told: {_line(instructions)}\n" if instructions.strip() else ""
    ids = encode(codec, CALL_INTRODUCTION + told + CALL_EXAMPLES)
    for m in messages:  # line by line: a line's tokens do not depend on its neighbours
        ids += encode(codec, f"{names[m['role']]}: {_line(m['content'])}\n")
    ids += encode(codec, "Assistant:")
    return ids if codec.bos is None else [codec.bos, *ids]


def _line(text: str) -> str:
    return " ".join(text.split())


def sampling(kind: str) -> Settings:
    """What suits the model: greedy answers are the most correct; a light penalty keeps them from going round."""
    return Settings(temperature=0.0, repetition_penalty=1.1 if kind == "llama" else 1.05)


class Stop:
    """Watches an answer as it is written; `feed` returns what of it may be shown, and whether it is over."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._by_line = "<|im_start|>" not in codec.special
        self._tokens: list[int] = []

    def feed(self, token: int, text: str) -> tuple[str, bool]:
        """The next token and the text that it completed."""
        if token in self._codec.eos:
            return "", True
        self._tokens.append(token)
        if self._by_line and "\n" in text:
            return text.split("\n")[0], True
        return text, _goes_round(self._tokens)


def _goes_round(tokens: Sequence[int]) -> bool:
    """Whether the last tokens are one stretch of at least 4, three times over."""
    n = len(tokens)
    return any(
        tokens[n - size :] == tokens[n - 2 * size : n - size] == tokens[n - 3 * size : n - 2 * size]
        for size in range(4, n // 3 + 1)
    )
