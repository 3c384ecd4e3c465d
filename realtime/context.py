"""What of a long conversation still fits into the chat model's context: old turns go first (`session.truncation`).

A tool call and its result stay or go together, and what the system said stays. Lengths are estimates: the reducer knows
no tokenizer, and the model's own limit is a little further out.
"""

from __future__ import annotations

import math

from .conversation import FunctionCall, FunctionOutput, Item, Message
from .settings import JsonObject

PER_ITEM = 6  # tokens of role and borders
RESERVE = 512  # for the answer
RETENTION = 0.8  # of `auto`


def tokens(text: str) -> int:
    """About how many tokens a text is: four letters to one, a sign of Chinese or Japanese writing is one."""
    wide = sum(1 for c in text if c >= "⺀")
    return wide + -(-(len(text) - wide) // 4)


def _size(item: Item) -> int:
    match item:
        case Message():
            return PER_ITEM + tokens(item.text())
        case FunctionCall(name=name, arguments=arguments):
            return PER_ITEM + tokens(name) + tokens(arguments)
        case FunctionOutput(output=output):
            return PER_ITEM + tokens(output)


def fit(items: tuple[Item, ...], how: str | JsonObject, room: int) -> tuple[Item, ...]:
    """The items that chat is given where there is room for about `room` tokens; all of them where `how` is disabled.

    Whole turns are dropped, oldest first, by steps counted from the beginning of the conversation: a retention ratio says how
    large (0.8: a fifth of the room). So for some turns none is dropped, and the prompt goes on from where it ended. The
    last turn stays, whatever its length.
    """
    total = sum(map(_size, items))
    if how == "disabled" or total <= room:
        return items
    step = room * (1.0 - (how["retention_ratio"] if isinstance(how, dict) else RETENTION))
    target = total - (math.ceil((total - room) / step) * step if step >= 1 else total - room)
    turns = _turns(items)
    dropped: set[int] = set()
    for turn in turns[:-1]:
        if total <= target:
            break
        gone = _with_partners(items, turn) - dropped
        if gone & set(turns[-1]):
            continue
        total -= sum(_size(items[n]) for n in gone)
        dropped |= gone
    return tuple(item for n, item in enumerate(items) if n not in dropped)


def _turns(items: tuple[Item, ...]) -> list[list[int]]:
    """Indices by turn: what a user said and all that followed. System messages belong to none."""
    turns: list[list[int]] = [[]]
    for n, item in enumerate(items):
        if isinstance(item, Message) and item.role == "system":
            continue
        if isinstance(item, Message) and item.role == "user" and turns[-1]:
            turns.append([])
        turns[-1].append(n)
    return turns


def _with_partners(items: tuple[Item, ...], turn: list[int]) -> set[int]:
    """A turn, and the calls and results elsewhere that belong to its own."""
    ids = {i.call_id for i in (items[n] for n in turn) if isinstance(i, FunctionCall | FunctionOutput)}
    partners = {n for n, i in enumerate(items) if isinstance(i, FunctionCall | FunctionOutput) and i.call_id in ids}
    return set(turn) | partners
