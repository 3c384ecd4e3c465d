"""Prompts of the chat models, and when a reply is over.

`chatml` is SmolLM2's own template. `transcript` makes a base model talk: a phone call between a caller and a
short-spoken assistant, a few turns of it as an example, one line a turn. In both, the prompt of a later turn starts
with every token of an earlier one's, so a cache is reused. Each message is tokenized by itself for that reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .sampling import Sampling
from .tokenizer import TextCodec, encode

Kind = Literal["chatml", "transcript"]


class Message(NamedTuple):
    """role: system, developer, user, assistant or tool."""

    role: str
    content: str


class Style(NamedTuple):
    """How a model is prompted and sampled by default; `max_tokens` bounds a spoken reply."""

    kind: Kind
    stops: tuple[str, ...]
    sampling: Sampling
    max_tokens: int


STYLES: dict[str, Style] = {
    "smollm2": Style(
        "chatml",
        ("<|im_end|>", "<|im_start|>"),
        Sampling(temperature=0.2, top_p=0.9, min_p=0.05, repetition_penalty=1.1),
        120,
    ),
    "gemma3": Style(
        "transcript",
        ("\n", "Caller:", "Assistant:"),
        Sampling(temperature=0.3, top_k=40, top_p=0.9, min_p=0.05, frequency_penalty=0.3),
        80,
    ),
}

DEFAULT_INSTRUCTIONS = "You are a helpful voice assistant. Answer in one or two short spoken sentences."

_CALL_INTRODUCTION = (
    "This is the transcript of a phone call. A caller asks questions, and a friendly, knowledgeable assistant answers "
    "each one correctly in one or two short sentences."
)
_CALL_EXAMPLES = (
    ("Hi there.", "Hello! What can I do for you?"),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("I'm feeling a bit nervous about my exam tomorrow.",
     "That's natural. A good night's sleep will help you do well."),
    ("Can you turn on my lights?", "I'm sorry, I can't do that from here, but I'm happy to answer questions."),
    ("What should I wear in the snow?", "Wear a warm coat, waterproof boots, a hat and gloves."),
)


def render(codec: TextCodec, kind: Kind, messages: Sequence[Message], instructions: str = "") -> list[int]:
    """Token ids of a prompt that asks for the next assistant message. ValueError for a role it does not know."""
    roles = {message.role for message in messages} - {"system", "developer", "user", "assistant", "tool"}
    if roles:
        raise ValueError(f"unknown role {sorted(roles)[0]!r}")
    return (_chatml if kind == "chatml" else _transcript)(codec, messages, instructions)


def fitting(codec: TextCodec, kind: Kind, messages: Sequence[Message], room: int) -> list[Message]:
    """The last of the messages, those that `room` tokens hold beside the prompt's head.

    The oldest go by quarters of the room, counted from the first one: so the prompt begins alike for many turns, and what a
    cache holds of it is not computed anew with each.
    """
    empty = len(render(codec, kind, []))
    sizes = [len(render(codec, kind, [message])) - empty for message in messages]
    over, block = sum(sizes) - room, max(1, room // 4)
    goal, gone, first = -(-over // block) * block, 0, 0
    while over > 0 and first < len(sizes) and gone < goal:
        gone, first = gone + sizes[first], first + 1
    return list(messages[first:])


def _chatml(codec: TextCodec, messages: Sequence[Message], instructions: str) -> list[int]:
    start, end = codec.special["<|im_start|>"], codec.special["<|im_end|>"]
    newline = encode(codec, "\n")
    ids: list[int] = []
    turns = [Message("system", instructions or DEFAULT_INSTRUCTIONS), *messages]
    for role, content in turns:
        name = {"developer": "system", "tool": "user"}.get(role, role)
        text = f"The tool returned: {content}" if role == "tool" else content
        ids += [start, *encode(codec, name), *newline, *encode(codec, text), end, *newline]
    return [*ids, start, *encode(codec, "assistant"), *newline]


def _transcript(codec: TextCodec, messages: Sequence[Message], instructions: str) -> list[int]:
    head = _CALL_INTRODUCTION
    if instructions:
        head += f" The assistant's instructions: {_one_line(instructions)}"
    text = head + "\n\n" + "".join(f"Caller: {asked}\nAssistant: {said}\n" for asked, said in _CALL_EXAMPLES)
    ids = [] if codec.bos is None else [codec.bos]
    ids += encode(codec, text)
    for role, content in messages:
        line = _one_line(content)
        if role == "user":
            ids += encode(codec, f"Caller: {line}\n")
        elif role == "assistant":
            # The reply follows the prompt's "Assistant:", as the model itself would go on.
            ids += encode(codec, "Assistant:") + encode(codec, f" {line}") + encode(codec, "\n")
        elif role == "tool":
            ids += encode(codec, f"(The assistant looks it up and finds: {line})\n")
        else:
            ids += encode(codec, f"(Note to the assistant: {line})\n")
    return ids + encode(codec, "Assistant:")


def _one_line(text: str) -> str:
    return " ".join(text.split())


# -- the end of a reply ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is safe to pass on, and why the reply is over, if it is: "stop" (a stop string) or "repetition"."""

    text: str
    finish: Literal["stop", "repetition"] | None = None


class ReplyWatcher:
    """Watches a streamed reply for stop strings and for going round in circles.

    Text that could be the beginning of a stop string is held back; the stop string itself is never passed on. A reply
    repeats itself when its last words, two to twelve of them, have come three times in a row, or when a whole sentence
    of four words or more comes again word for word; the repeat itself is cut.
    """

    def __init__(self, stops: Sequence[str], watch_repetition: bool = True) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self.watch_repetition = watch_repetition
        self.held = ""
        self.said = ""

    def push(self, text: str) -> Piece:
        """The next text of the reply -> what may be passed on now."""
        self.held += text
        found = [at for at in (self.held.find(stop) for stop in self.stops) if at >= 0]
        if found:
            return self._give(self.held[: min(found)], "stop")
        keep = max((_overlap(self.held, stop) for stop in self.stops), default=0)
        give = self.held[: len(self.held) - keep]
        self.held = self.held[len(self.held) - keep :]
        if self.watch_repetition and repeats(self.said + give):
            return self._give("", "repetition")
        self.said += give
        return Piece(give)

    def finish(self) -> str:
        """What was held back, when the reply ended without a stop string."""
        rest, self.held = self.held, ""
        self.said += rest
        return rest

    def _give(self, text: str, finish: Literal["stop", "repetition"]) -> Piece:
        self.said += text
        self.held = ""
        return Piece(text, finish)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


_WORD = re.compile(r"[\w']+")
_SENTENCE = re.compile(r"[^.!?]+[.!?]")


def repeats(text: str) -> bool:
    """Whether a text ends in a loop: see ReplyWatcher."""
    words = _WORD.findall(text.lower())[-36:]
    for size in range(2, 13):
        last = words[-size:]
        if len(words) >= 3 * size and words[-2 * size : -size] == last and words[-3 * size : -2 * size] == last:
            return True
    if len(words) >= 5 and len(set(words[-5:])) == 1:
        return True
    sentences = [" ".join(_WORD.findall(sentence.lower())) for sentence in _SENTENCE.findall(text)]
    return bool(sentences) and len(sentences[-1].split()) >= 4 and sentences[-1] in sentences[:-1]
