"""Has the user finished? Asks the engine's classifier of sound and its language model, ahead of time where it can.

A question is worth asking before the stop: at the first silent window about the sound, as soon as the words are ready
about them. The machine asks at the stop, and an answer that still applies is there at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bargein.engine import protocol as p
from bargein.engine.client import EngineStream, EngineUnavailable
from bargein.engine.fleet import Engine
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import ChatMessage
from bargein.realtime.ids import ItemId

from ..audio import IN_RATE, InputStore

log = logging.getLogger("bargein.finished")

PER_MS = IN_RATE // 1000
OWN_PROMPT_TOKENS = 6000
# The words' question goes before a reply that is begun at the same moment: reading its prompt is reading the reply's.
WORDS_DUE_MS = -60
USUAL_SILENCE_MS = 200  # what the classifier is used to hear after speech: what is still to come is put there
Head = Literal["audio", "words"]


@dataclass(slots=True)
class Asked:
    """The newest question of a head: what about, and what became of it. Asked ahead of the stop, its tag is below 0."""

    about: int | str  # the last voiced ms, or the words
    tag: int
    ask: int | None = None  # the machine's question; None until it has come
    answered: bool = False
    p: float | None = None
    on_answer: Callable[[float | None], None] | None = None  # who asked ahead, and wants to know


def _turns(messages: tuple[ChatMessage, ...]) -> tuple[p.ChatTurn, ...]:
    return tuple(p.ChatTurn(m.role, m.content) for m in messages)


class Finished:
    """One session's questions; answers go to the machine through `tell`."""

    def __init__(
        self,
        engine: Engine,
        store: InputStore,
        tell: Callable[[e.Input], None],
        now: Callable[[], float],
        on_lost: Callable[[], None],
        *,
        chat_is_local: bool,
    ) -> None:
        self._chat_is_local = chat_is_local
        self._engine, self._store, self._tell, self._now, self._on_lost = engine, store, tell, now, on_lost
        self._streams: dict[Head, EngineStream] = {}
        self._newest: dict[Head, Asked] = {}
        self._num_ahead = 0
        self._context: f.EouContext | None = None

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def settle(self) -> None:
        """The turn is over: what has not been answered is not wanted any more."""
        for stream in self._streams.values():
            stream.cancel()
        self._newest.clear()

    # --- the sound ---

    def prepare_sound(self, effect: f.PrepareEou) -> None:
        tag = self._ahead("audio", effect.voiced_ms)
        coming = max(0, USUAL_SILENCE_MS - (effect.end_ms - effect.voiced_ms))
        if not self._ask_sound(tag, effect.end_ms, effect.window_ms, coming):
            del self._newest["audio"]

    def ask_sound(self, effect: f.AskEou) -> None:
        if self._adopt("audio", effect.voiced_ms, effect.ask):
            return
        self._newest["audio"] = Asked(effect.voiced_ms, effect.ask, effect.ask)
        if not self._ask_sound(effect.ask, effect.end_ms, effect.window_ms):
            self._answer("audio", effect.ask, None)

    def _ask_sound(self, tag: int, end_ms: int, window_ms: int, silence_ms: int = 0) -> bool:
        end = end_ms * PER_MS
        audio = self._store.read(end - (window_ms - silence_ms) * PER_MS, end)
        audio = np.concatenate([audio, np.zeros(silence_ms * PER_MS, np.float32)])
        return self._ask("audio", tag, p.AskTurn(audio.astype(np.float32).tobytes()))

    # --- the words ---

    def prepare_context(self, effect: f.PrepareEouText) -> None:
        """The turns before are known when the user begins to speak: let the model read them while they do."""
        self._context = effect.context
        self._ask("words", self._ahead("words", ""), self._question("", effect.context), 0)

    def prepare_words(self, text: str, on_answer: Callable[[float | None], None]) -> None:
        """The words up to a short silence: if the stop says the same, its question is answered. `on_answer` gets the score
        (None: there is no model to ask).

        Where the machine has asked about them already, that question stands: another would take its place.
        """
        newest, about = self._newest.get("words"), text.strip()
        if self._context is None:
            on_answer(None)
        elif about and (newest is None or newest.about != about):
            tag = self._ahead("words", about)
            self._newest["words"].on_answer = on_answer
            if not self._ask("words", tag, self._question(about, self._context)):
                on_answer(None)
        elif newest is not None and about and newest.ask is None:
            if newest.answered:
                on_answer(newest.p)
            else:
                newest.on_answer = on_answer

    def ask_words(self, effect: f.AskEouText) -> None:
        if self._adopt("words", effect.text, effect.ask):
            return
        self._newest["words"] = Asked(effect.text, effect.ask, effect.ask)
        if not self._ask("words", effect.ask, self._question(effect.text, effect.context)):
            self._answer("words", effect.ask, None)

    def _question(self, text: str, c: f.EouContext) -> p.EndOfWords:
        """By chat's own prompt where it may be and chat is local: reading it serves the reply too."""
        if c.own_prompt and self._chat_is_local:
            return p.EndOfWords(text, _turns(c.messages), OWN_PROMPT_TOKENS, c.instructions)
        return p.EndOfWords(text, _turns(c.history), c.max_tokens)

    # --- both ---

    def _ahead(self, head: Head, about: int | str) -> int:
        self._num_ahead -= 1
        self._newest[head] = Asked(about, self._num_ahead)
        return self._num_ahead

    def _adopt(self, head: Head, about: int | str, ask: int) -> bool:
        """Whether the question was asked ahead; its answer then goes out, now or when it comes."""
        ahead = self._newest.get(head)
        if ahead is None or ahead.about != about or ahead.tag >= 0:
            return False
        ahead.ask = ask
        if ahead.answered:
            self._tell(e.EouVerdict(self._now(), ItemId(""), ask, ahead.p, head))
        return True

    def _ask(self, head: Head, tag: int, body: p.Body, due_ms: float | None = None) -> bool:
        """Put a question to the engine in place of any other of its kind; False where there is no engine."""
        stream = self._streams.get(head)
        try:
            if stream is None or stream.closed:
                stream = self._streams[head] = self._engine.open(
                    "turn" if head == "audio" else "chat", {},
                    on_result=lambda tag, body: self._answer(head, tag, getattr(body, "p", None)),
                    on_failed=lambda tag, message: self._failed(head, tag, message),
                    on_lost=self._on_lost,
                )  # fmt: skip
            stream.cancel()
            stream.feed(tag, body, (WORDS_DUE_MS if head == "words" else 0) if due_ms is None else due_ms)
        except EngineUnavailable:
            return False
        return True

    def _failed(self, head: Head, tag: int | None, message: str) -> None:
        log.warning("end of turn, %s: %s", head, message)
        if tag is not None:
            self._answer(head, tag, None)

    def _answer(self, head: Head, tag: int, score: float | None) -> None:
        """Tell the machine, or keep what it has not asked for yet; an older question's answer is nobody's."""
        newest = self._newest.get(head)
        if newest is None or newest.tag != tag:
            return
        newest.answered, newest.p = True, score
        if newest.on_answer is not None:
            newest.on_answer(score)
        if newest.ask is not None:
            self._tell(e.EouVerdict(self._now(), ItemId(""), newest.ask, score, head))
