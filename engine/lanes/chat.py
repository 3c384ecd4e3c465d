"""The chat lane: the local language model. A stream keeps its attention cache between turns.

A prompt that extends what the cache holds prefills only what is new; one that departs from it (a reply that was cut at
the last word heard) rewinds the cache to where they part.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import replace

from bargein.models import chat_prompts, decoder, end_of_words, sampling
from bargein.models.tokenizer import Detokenizer, TextCodec

from .. import protocol as p
from ..core import Stream

PREFILL_CHUNK = 32


class ChatLane:
    """`codec`: the model's tokenizer."""

    def __init__(self, model: decoder.Model, codec: TextCodec) -> None:
        self._model, self._codec = model, codec
        self._style = chat_prompts.STYLES["smollm2" if model.config.kind == "llama" else model.config.kind]
        self._judge = end_of_words.judge(model, codec, self._style.kind)
        self._opening: decoder.KV | None = None  # what every prompt without instructions begins with, read once

    def open(self, stream: Stream) -> None:
        stream.state = decoder.copy_kv(self._opening) if self._opening else decoder.new_kv(self._model.config)

    def close(self, stream: Stream) -> None:
        stream.state = None

    def start(self, stream: Stream, tag: int, body: p.Body) -> Iterator[None] | None:
        if isinstance(body, p.EndOfWords):
            return self._finished(stream, tag, body)
        if not isinstance(body, p.Generate):
            raise ValueError(f"the chat lane takes no {type(body).__name__}")
        return self._generate(stream, tag, body)

    def _finished(self, stream: Stream, tag: int, body: p.EndOfWords) -> Iterator[None]:
        """Score an end of words; asked with no words, it only reads the conversation's head in advance."""
        started = time.monotonic()
        history = [chat_prompts.Message(m.role, m.content) for m in body.messages]
        ids = end_of_words.prompt(self._judge, body.text, history, body.max_tokens)
        yield from self._read(stream.state, ids)
        logits = decoder.forward(self._model.weights, self._model.config, stream.state, ids[stream.state.length :])
        score = end_of_words.probability(self._judge, logits) if body.text.strip() else 0.0
        stream.send(tag, p.TurnScore(score, 1000 * (time.monotonic() - started)))

    def _read(self, kv: decoder.KV, ids: list[int]) -> Generator[None, None, int]:
        """Rewind the cache to where it parts from `ids`, then read all but the last chunk -> tokens that were cached."""
        cached = 0
        for have, want in zip(kv.tokens, ids[:-1], strict=False):  # the last token is always computed
            if have != want:
                break
            cached += 1
        decoder.rewind(kv, cached)
        while len(ids) - kv.length > PREFILL_CHUNK:  # only the prompt's end needs the head
            decoder.extend(self._model.weights, self._model.config, kv, ids[kv.length : kv.length + PREFILL_CHUNK])
            yield
        return cached

    def _prompt(self, body: p.Generate, limit: int) -> list[int]:
        """The prompt's tokens; the oldest turns go where it would not fit."""
        messages = [chat_prompts.Message(m.role, m.content) for m in body.messages]
        room = self._model.config.max_positions - limit - 8
        while True:
            ids = chat_prompts.render(self._codec, self._style.kind, messages, body.instructions)
            if len(ids) <= room or len(messages) <= 1:
                return ids[-room:]
            del messages[0]

    def _generate(self, stream: Stream, tag: int, body: p.Generate) -> Iterator[None]:
        kv: decoder.KV = stream.state
        limit = self._style.max_tokens if body.max_tokens is None else body.max_tokens
        ids = self._prompt(body, limit)
        cached = yield from self._read(kv, ids)
        w, cfg = self._model.weights, self._model.config
        if limit == 0:
            decoder.extend(w, cfg, kv, ids[kv.length :])
            return
        logits = decoder.forward(w, cfg, kv, ids[kv.length :])
        yield
        params = replace(self._style.sampling, seed=body.seed)
        if body.temperature is not None:
            params = replace(params, temperature=body.temperature)
        end = yield from self._decode(stream, tag, params, limit, logits, ids)
        stream.send(tag, p.Generated(end.finish, end.input_tokens, end.output_tokens, cached))

    def _decode(
        self, stream: Stream, tag: int, params: sampling.Sampling, limit: int, logits: decoder.F32, prompt: list[int]
    ) -> Generator[None, None, p.Generated]:
        kv: decoder.KV = stream.state
        state = sampling.init_state(params, prompt)
        watcher = chat_prompts.ReplyWatcher(self._style.stops)
        text = Detokenizer(self._codec)
        for made in range(1, limit + 1):
            token = sampling.choose(logits, params, state).token
            if token in self._codec.eos:
                if rest := watcher.push(text.finish()).text + watcher.finish():
                    stream.send(tag, p.Token(rest))
                return p.Generated("stop", len(prompt), made, 0)
            piece = watcher.push(text.push(token))
            if piece.text:
                stream.send(tag, p.Token(piece.text))
            if piece.finish is not None:
                return p.Generated("stop", len(prompt), made, 0)
            logits = decoder.forward(self._model.weights, self._model.config, kv, [token])
            yield
        if rest := watcher.finish():
            stream.send(tag, p.Token(rest))
        return p.Generated("length", len(prompt), limit, 0)

    def warm(self) -> None:
        kv = decoder.new_kv(self._model.config)
        for n in (PREFILL_CHUNK, 7, 1):
            decoder.forward(self._model.weights, self._model.config, kv, [1] * n)
        ids = chat_prompts.render(self._codec, self._style.kind, [])
        decoder.rewind(kv, 0)
        decoder.prefill(self._model.weights, self._model.config, kv, ids, PREFILL_CHUNK)
        self._opening = kv
