"""The chat lane: the local language model. A stream keeps its attention cache between turns.

A prompt that extends what the cache holds prefills only what is new; one that departs from it (a reply that was cut at
the last word heard) rewinds the cache to where they part; what another stream's cache holds of it is shared with that: a
conversation's pages are there once, for the reply and for the judge of its words. Where more pages are in use than may be,
caches are let go, those used longest ago first; what was in them is then read again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bargein.models import chat_prompts, decoder, end_of_words, grammar, sampling
from bargein.models.tokenizer import Detokenizer, TextCodec

from .. import protocol as p
from ..lane import Lane, Steps, Stream, Together
from ..learned import STEP_S, StepCost
from . import writing
from .writing import Writer

PREFILL_CHUNK, LEAST_CHUNK = 32, 4  # tokens of a prompt that are read in a step; where others wait, as few as take little
# A reply is spoken more slowly than it is written: a token this far on may wait until others have been served.
FIRST_PHRASE_TOKENS, SPOKEN_TOKEN_S = 12, 0.2


def _common(have: Sequence[int], want: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginning; of `want` the last is never counted: it is computed."""
    same, count = 0, max(0, min(len(have), len(want) - 1))
    while same < count:  # halves of what is left: lists compare much faster than their parts
        step = (count - same + 1) // 2
        if have[same : same + step] == want[same : same + step]:
            same += step
        elif step == 1:
            break
        else:
            count = same + step
    return same


class ChatLane(Lane):
    """`codec`: the model's tokenizer; `graph`: the functions of `decoder`, or a device's methods of the same names; `room`:
    bytes that the streams' caches may take together, 0 for as many as the graph gives."""

    shares = True  # a token of several replies is one reading of the weights; streams share pages of their caches

    def __init__(self, model: decoder.Model, codec: TextCodec, graph: Any = decoder, room: int = 0) -> None:
        self._model, self._codec, self._graph = model, codec, graph
        self._style = chat_prompts.STYLES["smollm2" if model.config.kind == "llama" else model.config.kind]
        self._judge = end_of_words.judge(model, codec, self._style.kind)
        self._pool = graph.new_pool(model.config)
        self._opening = self._new_kv()  # what a prompt without instructions begins with, once warm
        self._open: list[Stream] = []  # the one used last is the last
        self._working: Counter[Stream] = Counter()  # jobs of each
        self._room = room
        self._reading = StepCost()  # of a prompt's tokens
        self._writer = Writer(model, codec, self._style, graph)

    def _new_kv(self) -> decoder.KV:
        kv: decoder.KV = self._graph.new_kv(self._model.config, self._pool)
        return kv

    def open(self, stream: Stream) -> None:
        stream.state = self._new_kv()
        self._open.append(stream)

    def close(self, stream: Stream) -> None:
        stream.state = None
        self._open.remove(stream)
        del self._working[stream]

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        steps = self._steps(stream, tag, body)
        return None if steps is None else self._at_work(stream, steps)

    def _at_work(self, stream: Stream, steps: Steps) -> Steps:
        """A job, while which its stream's cache stays."""
        self._working[stream] += 1
        try:
            yield from steps
        finally:
            if stream.state is not None:
                self._working[stream] -= 1
                self._open.remove(stream)
                self._open.append(stream)
                self._make_room()

    def _make_room(self) -> None:
        """A page that several caches share is counted once, and stays while one of them does."""
        if not self._room:
            return
        for stream in self._open[:-1]:
            if self._pool.bytes_used <= self._room:
                return
            if not self._working[stream]:
                stream.state = self._new_kv()

    def _steps(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        if isinstance(body, p.EndOfWords):
            return self._finished(stream, tag, body)
        if isinstance(body, p.Write):
            ids = self._writer.prompt(body)
            self._writer.sampling(body)
            if body.max_tokens == 0:
                stream.send(tag, p.Generated("length", len(ids), 0, 0))
                return None
            return self._write(stream, tag, body, ids, self._writer.guide(body))
        if not isinstance(body, p.Generate):
            raise ValueError(f"the chat lane takes no {type(body).__name__}")
        return self._generate(stream, tag, body)

    def together(self, kind: str, items: Sequence[writing.Next]) -> list[decoder.F32]:
        """The next token's logits [vocab] for several replies: the weights are read once for all."""
        w, cfg = self._model.weights, self._model.config
        ask = self._graph.forward_spans if kind == writing.WHOLE else self._graph.forward_top_spans
        return list(ask(w, cfg, [(x.kv, [x.token]) for x in items]))

    def _finished(self, stream: Stream, tag: int, body: p.EndOfWords) -> Steps:
        """Score an end of words; asked about no words, it only reads the conversation in advance."""
        started = time.monotonic()
        history = [chat_prompts.Message(m.role, m.content) for m in body.messages]
        ids, num_words = end_of_words.prompt(self._judge, body.text, history, body.max_tokens, body.instructions)
        w, cfg = self._model.weights, self._model.config
        yield from self._read(stream, ids[:num_words])
        kv: decoder.KV = stream.state
        score = 0.0
        if not body.text.strip():
            self._graph.extend(w, cfg, kv, ids[kv.length :])
        elif len(ids) > num_words:  # the reply's first token comes with the same reading
            logits = self._graph.forward_two(w, cfg, kv, ids[kv.length :], num_words - 1 - kv.length)
            score = end_of_words.probability(self._judge, logits)
        else:
            score = end_of_words.probability(self._judge, self._graph.forward(w, cfg, kv, ids[kv.length :]))
        stream.send(tag, p.TurnScore(score, 1000 * (time.monotonic() - started)))

    def _read(self, stream: Stream, ids: list[int]) -> Generator[None, None, int]:
        """Bring the stream's cache to all but the last chunk of `ids` -> tokens that some cache held already."""
        cached = self._take_over(stream, ids)
        own: decoder.KV = stream.state
        self._graph.rewind(own, cached)
        while len(ids) - own.length > (chunk := self._chunk(stream)):  # only the prompt's end needs the head
            started = time.monotonic()
            self._graph.extend(self._model.weights, self._model.config, own, ids[own.length : own.length + chunk])
            self._reading.took(chunk, time.monotonic() - started)
            yield None
        return cached

    def _chunk(self, stream: Stream) -> int:
        """How many tokens of this stream's prompt to read in a step: beside others' replies, no more than they can wait for.

        A smaller step takes longer by the token (8 in a step a fifth more than 32, 4 half as much again), hence twice STEP_S. A
        call reads whole chunks unless another call is at work, others do while there is no call.
        """
        if stream.cls == "live":
            others = any(n for other, n in self._working.items() if other is not stream and other.cls == "live")
        else:
            others = any(other.cls == "live" for other in self._open)
        if not others:
            return PREFILL_CHUNK
        return self._reading.most(2 * STEP_S, LEAST_CHUNK, PREFILL_CHUNK)

    def _take_over(self, stream: Stream, ids: list[int]) -> int:
        """Make the stream's cache begin like `ids` for as long as any cache of this lane does -> so many tokens.

        These are not computed again: sessions share instructions, and a reply's prompt was often read when its words were
        judged.
        """
        own: decoder.KV = stream.state
        caches = (own, *(s.state for s in self._open))
        whole = next((kv for kv in caches if kv.ahead is not None and kv.tokens == ids), None)
        if whole is not None:  # read to its end, and its first token computed
            if whole is not own:
                stream.state = self._graph.copy_kv(whole, len(ids))
            return len(ids)
        cached = _common(own.tokens, ids)
        other = max((self._opening, *(s.state for s in self._open)), key=lambda kv: _common(kv.tokens, ids))
        if (shared := _common(other.tokens, ids)) > cached:
            stream.state = self._graph.copy_kv(other, shared)
            cached = shared
        return cached

    def _prompt(self, body: p.Generate, limit: int) -> list[int]:
        """The prompt's tokens; the oldest turns go where it would not fit."""
        kind, messages = self._style.kind, [chat_prompts.Message(m.role, m.content) for m in body.messages]
        room = self._model.config.max_positions - limit - 8
        ids = chat_prompts.render(self._codec, kind, messages, body.instructions)
        if len(ids) > room:
            head = len(chat_prompts.render(self._codec, kind, [], body.instructions))
            kept = chat_prompts.fitting(self._codec, kind, messages, room - head) or messages[-1:]
            ids = chat_prompts.render(self._codec, kind, kept, body.instructions)
        return ids[-room:]

    def _generate(self, stream: Stream, tag: int, body: p.Generate) -> Steps:
        limit = self._style.max_tokens if body.max_tokens is None else body.max_tokens
        ids = self._prompt(body, limit)
        cached = yield from self._read(stream, ids)
        kv: decoder.KV = stream.state
        w, cfg = self._model.weights, self._model.config
        if limit == 0:
            if kv.length < len(ids):
                self._graph.extend(w, cfg, kv, ids[kv.length :])
            return
        logits = kv.ahead if kv.ahead is not None else self._graph.forward_top(w, cfg, kv, ids[kv.length :])
        yield None
        params = replace(self._style.sampling, seed=body.seed)
        if body.temperature is not None:
            params = replace(params, temperature=body.temperature)
        end = yield from self._decode(stream, tag, params, limit, logits, ids)
        stream.send(tag, p.Generated(end.finish, end.input_tokens, end.output_tokens, cached))

    def _write(self, stream: Stream, tag: int, body: p.Write, ids: list[int], guide: grammar.Guide | None) -> Steps:
        cached = yield from self._read(stream, ids)
        try:
            end = yield from self._writer.steps(stream.state, ids, body, guide, lambda answer: stream.send(tag, answer))
        except grammar.GrammarError as problem:  # it turned out to be too much in the middle
            stream.fail(tag, str(problem), "caller")
            return
        stream.send(tag, msgspec.structs.replace(end, cached_tokens=cached))

    def _decode(
        self, stream: Stream, tag: int, params: sampling.Sampling, limit: int, logits: decoder.F32, prompt: list[int]
    ) -> Generator[Together, decoder.F32, p.Generated]:
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
            spare_s = max(0, made - FIRST_PHRASE_TOKENS) * SPOKEN_TOKEN_S
            logits = yield Together(writing.LIKELIEST, writing.Next(kv, token), spare_s)
        if rest := watcher.finish():
            stream.send(tag, p.Token(rest))
        return p.Generated("length", len(prompt), limit, 0)

    def prepare(self) -> None:
        self._writer.prepare()

    def sample(self) -> None:
        """Four tokens."""
        kv = self._new_kv()
        for _ in range(4):
            self._graph.forward_top(self._model.weights, self._model.config, kv, [1])

    def warm(self) -> None:
        kv = self._new_kv()
        for n in (PREFILL_CHUNK, 7, 1):
            self._graph.forward(self._model.weights, self._model.config, kv, [1] * n)
            self._graph.forward_top(self._model.weights, self._model.config, kv, [1] * n)
        ids = chat_prompts.render(self._codec, self._style.kind, [])
        self._graph.rewind(kv, 0)
        self._graph.prefill(self._model.weights, self._model.config, kv, ids, PREFILL_CHUNK)
        self._opening = kv
