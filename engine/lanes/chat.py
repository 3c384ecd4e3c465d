"""The chat lane: the local language model. A stream keeps its attention cache between turns.

A prompt that extends what the cache holds prefills only what is new; one that departs from it (a reply that was cut at
the last word heard) rewinds the cache to where they part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bargein.models import chat_prompts, decoder, sampling
from bargein.models.tokenizer import Detokenizer, TextCodec

from .. import protocol as p
from ..core import Stream

PREFILL_CHUNK = 32
DEFAULT_MAX_TOKENS = 160


class ChatLane:
    """`codec`: the model's tokenizer."""

    def __init__(self, model: decoder.Model, codec: TextCodec) -> None:
        self._model, self._codec = model, codec

    def open(self, stream: Stream) -> None:
        stream.state = decoder.new_kv(self._model.config)

    def close(self, stream: Stream) -> None:
        stream.state = None

    def start(self, stream: Stream, tag: int, body: p.Body) -> Iterator[None] | None:
        if not isinstance(body, p.Generate):
            raise ValueError(f"the chat lane takes no {type(body).__name__}")
        return self._generate(stream, tag, body)

    def _prompt(self, body: p.Generate) -> list[int]:
        """The prompt's tokens; the oldest turns go where it would not fit."""
        messages = [{"role": m.role, "content": m.content} for m in body.messages]
        room = self._model.config.max_positions - (body.max_tokens or DEFAULT_MAX_TOKENS) - 8
        while True:
            ids = chat_prompts.render(self._model.config.kind, self._codec, messages, body.instructions)
            if len(ids) <= room or len(messages) <= 1:
                return ids[-room:]
            del messages[0]

    def _generate(self, stream: Stream, tag: int, body: p.Generate) -> Iterator[None]:
        kv: decoder.KV = stream.state
        w, cfg = self._model.weights, self._model.config
        ids = self._prompt(body)
        cached = 0
        for have, want in zip(kv.tokens, ids[:-1], strict=False):  # the last token is always computed
            if have != want:
                break
            cached += 1
        decoder.rewind(kv, cached)
        logits = None
        for start in range(cached, len(ids), PREFILL_CHUNK):
            chunk = ids[start : start + PREFILL_CHUNK]
            logits = decoder.forward(w, cfg, kv, chunk)
            yield
        assert logits is not None
        if body.max_tokens == 0:
            return
        yield from self._decode(stream, tag, body, logits, len(ids), cached)

    def _decode(
        self, stream: Stream, tag: int, body: p.Generate, logits: decoder.F32, given: int, cached: int
    ) -> Iterator[None]:
        kv: decoder.KV = stream.state
        w, cfg = self._model.weights, self._model.config
        settings = replace(chat_prompts.sampling(cfg.kind), seed=body.seed)
        if body.temperature is not None:
            settings = replace(settings, temperature=body.temperature)
        sampler = sampling.Sampler(settings)
        stop = chat_prompts.Stop(self._codec)
        text = Detokenizer(self._codec)
        limit = body.max_tokens or DEFAULT_MAX_TOKENS
        made = 0
        finish = "length"
        while made < limit:
            token = sampler.choose(logits)
            made += 1
            piece, over = stop.feed(token, text.push(token))
            if piece:
                stream.send(tag, p.Token(piece))
            if over:
                finish = "stop"
                break
            logits = decoder.forward(w, cfg, kv, [token])
            yield
        stream.send(tag, p.Generated("stop" if finish == "stop" else "length", given, made, cached))

    def warm(self) -> None:
        kv = decoder.new_kv(self._model.config)
        for n in (PREFILL_CHUNK, 7, 1):
            decoder.forward(self._model.weights, self._model.config, kv, [1] * n)
