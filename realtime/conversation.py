"""The conversation: an ordered, immutable list of items, and what of it chat may see.

An assistant item keeps two texts: what was written for it and what was heard. Chat, `retrieved` and `response.done` use
the heard one as soon as a cut was decided (invariant I11).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from .ids import ItemId

Role = Literal["user", "assistant", "system"]
Status = Literal["in_progress", "completed", "incomplete"]
PartKind = Literal["input_text", "input_audio", "output_text", "output_audio"]
Modality = Literal["text", "audio"]


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a message. `text` is None for user audio that has no transcript (yet)."""

    kind: PartKind
    text: str | None = None

    def wire(self) -> dict[str, Any]:
        """GA shape; absent text is left out, but for a transcript that is still to come: OpenAI's browser client loses an
        item whose `input_audio` has no such key."""
        key = "transcript" if self.kind.endswith("audio") else "text"
        if self.kind == "input_audio":
            return {"type": self.kind, key: self.text}
        return {"type": self.kind} if self.text is None else {"type": self.kind, key: self.text}


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """`text` is the original piece, white space included; times (ms) are within its response's audio."""

    text: str
    start_ms: int
    end_ms: int


def words_heard(words: tuple[SpokenWord, ...], until_ms: int) -> str:
    """The text of what had been heard by `until_ms`: whole words, and a word more than half heard, with a dash."""
    out = ""
    for word in words:
        if word.end_ms <= until_ms:
            out += word.text
        elif word.start_ms + word.end_ms < 2 * until_ms:
            return out + word.text.rstrip() + "-"
        else:
            break
    return out.rstrip()


@dataclass(frozen=True, slots=True)
class Message:
    """`words` and `audio_ms` are an assistant item's words with their times and the length of audio that was played."""

    id: ItemId
    role: Role
    content: tuple[Part, ...]
    status: Status = "completed"
    words: tuple[SpokenWord, ...] = ()
    audio_ms: int = 0

    def text(self) -> str:
        """All of the message's words, joined."""
        return " ".join(p.text for p in self.content if p.text)

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [p.wire() for p in self.content],
        }


@dataclass(frozen=True, slots=True)
class FunctionCall:
    id: ItemId
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "function_call",
            "status": self.status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    id: ItemId
    call_id: str
    output: str
    status: Status = "completed"

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.item",
            "type": "function_call_output",
            "status": self.status,
            "call_id": self.call_id,
            "output": self.output,
        }


Item = Message | FunctionCall | FunctionOutput


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """What chat is given: OpenAI's chat roles, plain text, tool calls as (call_id, name, arguments)."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Items in order."""

    items: tuple[Item, ...] = ()

    def get(self, item_id: str) -> Item | None:
        return next((i for i in self.items if i.id == item_id), None)

    def before(self, item_id: str) -> ItemId | None:
        """The id of the item's real predecessor, None at the head."""
        previous: ItemId | None = None
        for item in self.items:
            if item.id == item_id:
                return previous
            previous = item.id
        return None

    def insert(self, item: Item, after: str | None = None) -> Conversation:
        """Append, or insert after `after` ("root": at the head). Raises KeyError where `after` is unknown."""
        if after is None:
            at = len(self.items)
        elif after == "root":
            at = 0
        else:
            at = next((n + 1 for n, i in enumerate(self.items) if i.id == after), -1)
            if at < 0:
                raise KeyError(after)
        return Conversation((*self.items[:at], item, *self.items[at:]))

    def put(self, item: Item) -> Conversation:
        """Replace the item of the same id."""
        return Conversation(tuple(item if i.id == item.id else i for i in self.items))

    def remove(self, item_id: str) -> Conversation:
        return Conversation(tuple(i for i in self.items if i.id != item_id))

    def chat_messages(self) -> tuple[ChatMessage, ...]:
        """What chat sees: no empty messages, tool calls merged into one assistant message where they are adjacent."""
        return to_chat(self.items)


PENDING = "(no result yet)"
LATE = "_late"


def to_chat(items: tuple[Item, ...]) -> tuple[ChatMessage, ...]:
    """Items as chat messages. A user item without words (gated, failed, not transcribed) is left out.

    Chat servers want every call answered right after it, before anything else is said. What the assistant said while a
    tool was at work stands before the call; where somebody spoke meanwhile the call has no result yet, and it is told
    once more, with its result, where that came.
    """
    chat = _Chat()
    for item in items:
        match item:
            case Message(role=role):
                if text := item.text().strip():
                    chat.message(role, text)
            case FunctionCall(status=status):
                if status == "completed":  # else it is still being written
                    chat.call(item)
            case FunctionOutput():
                chat.output(item)
    chat.close()
    return tuple(chat.out)


class _Chat:
    """The messages so far. `open`: calls of the last assistant message, with their results as far as they have come."""

    def __init__(self) -> None:
        self.out: list[ChatMessage] = []
        self.open: dict[str, str | None] = {}
        self.pending: dict[str, FunctionCall] = {}  # told without a result
        self.calls: dict[str, FunctionCall] = {}

    def message(self, role: Role, text: str) -> None:
        if role == "assistant" and self.open:
            with_calls = self.out[-1]
            self.out[-1] = replace(with_calls, content=f"{with_calls.content} {text}".strip())
            return
        self.close()
        self.out.append(ChatMessage(role, text))

    def call(self, item: FunctionCall) -> None:
        told = (item.call_id, item.name, item.arguments)
        if self.out and self.out[-1].role == "assistant":
            self.out[-1] = replace(self.out[-1], tool_calls=(*self.out[-1].tool_calls, told))
        else:
            self.out.append(ChatMessage("assistant", "", (told,)))
        self.open[item.call_id] = None
        self.calls[item.call_id] = item

    def output(self, item: FunctionOutput) -> None:
        if item.call_id in self.open:
            self.open[item.call_id] = item.output
            if all(result is not None for result in self.open.values()):
                self.close()
            return
        self.close()
        call_id = item.call_id
        if (call := self.pending.pop(call_id, None)) is not None:
            call_id += LATE
            self.out.append(ChatMessage("assistant", "", ((call_id, call.name, call.arguments),)))
        self.out.append(ChatMessage("tool", item.output, (), call_id))

    def close(self) -> None:
        """The results of the open calls."""
        for call_id, result in self.open.items():
            if result is None:
                self.pending[call_id] = self.calls[call_id]
            self.out.append(ChatMessage("tool", PENDING if result is None else result, (), call_id))
        self.open = {}
