"""One-shot writing on the chat lane's model: every sampling parameter, log-probabilities, stop strings, grammars.

Runs beside the calls' own generations (lanes/chat.py), which need none of this and skip what it costs: a grammar, a
bias or log-probabilities want the whole head of the model, not only its likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from bargein.models import chat_prompts, decoder, grammar, sampling
from bargein.models.tokenizer import Detokenizer, TextCodec, encode

from .. import protocol as p
from ..lane import Steps, Together

Send = Callable[[p.Answer], None]
DEFAULT_MAX_TOKENS = 256
SCHEMA_MAX_TOKENS = 512


# What a reply may want of its next token: the logits of the likeliest tokens only, or all.
LIKELIEST, WHOLE = "likeliest", "whole"


class Next(NamedTuple):
    """A reply's cache and its last token, which is not in there yet."""

    kv: decoder.KV
    token: int


class Writer:
    """What writing needs of the lane: the model, its tokenizer, its style and its vocabulary's tree."""

    def __init__(self, model: decoder.Model, codec: TextCodec, style: chat_prompts.Style, graph: Any = decoder) -> None:
        self.model, self.codec, self.style, self._graph = model, codec, style, graph
        self._vocabulary: grammar.Vocabulary | None = None

    def prepare(self) -> None:
        """Build the vocabulary's tree: seconds of work, which no call should wait for."""
        self._vocabulary = grammar.Vocabulary(self.codec, self.model.config.vocab)

    @property
    def vocabulary(self) -> grammar.Vocabulary:
        if self._vocabulary is None:
            self.prepare()
        assert self._vocabulary is not None
        return self._vocabulary

    def prompt(self, body: p.Write) -> list[int]:
        """The tokens to continue. Raises ValueError where they do not fit the model."""
        if body.prompt is None:
            messages = [chat_prompts.Message(m.role, m.content) for m in body.messages]
            ids = chat_prompts.render(self.codec, self.style.kind, messages, body.instructions)
        else:
            text = body.prompt
            ids = encode(self.codec, text) if isinstance(text, str) else list(text)
            if self.codec.bos is not None and ids[:1] != [self.codec.bos]:
                ids = [self.codec.bos, *ids]
            ids = ids or [min(self.codec.eos)]
        if any(not 0 <= i < self.model.config.vocab for i in ids):
            raise ValueError("the prompt holds a token id that is not in the vocabulary")
        ids += encode(self.codec, body.lead) if body.lead else []
        room = self.model.config.max_positions - 16
        if len(ids) + (body.max_tokens or 1) > room:
            raise ValueError(f"context_length_exceeded: the prompt has {len(ids)} tokens; it and the reply have {room}")
        return ids

    def limit(self, body: p.Write, num_prompt: int) -> int:
        """How many tokens at most."""
        usual = DEFAULT_MAX_TOKENS if body.schema is None else SCHEMA_MAX_TOKENS
        room = self.model.config.max_positions - 16 - num_prompt
        return min(usual if body.max_tokens is None else body.max_tokens, room)

    def sampling(self, body: p.Write) -> sampling.Sampling:
        """The style's own settings, as the request changes them. Raises ValueError."""
        asked: dict[str, Any] = {
            "temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k, "min_p": body.min_p,
            "presence_penalty": body.presence_penalty, "frequency_penalty": body.frequency_penalty,
            "repetition_penalty": body.repetition_penalty,
        }  # fmt: skip
        return replace(
            self.style.sampling if body.prompt is None else sampling.Sampling(temperature=1.0),
            seed=body.seed, logit_bias=body.logit_bias, logprobs=body.logprobs,
            **{k: v for k, v in asked.items() if v is not None},
        )  # fmt: skip

    def guide(self, body: p.Write) -> grammar.Guide | None:
        """What holds the text to what is asked of it. Raises ValueError for a schema, a grammar, … that cannot be held to."""
        if body.schema is not None:
            return grammar.Guide(self.vocabulary, grammar.of_schema(body.schema), "schema")
        if body.regex:
            return grammar.Guide(self.vocabulary, grammar.of_regex(body.regex), "regex")
        if body.grammar:
            return grammar.Guide(self.vocabulary, grammar.of_lark(body.grammar), "grammar")
        return grammar.Guide(self.vocabulary, grammar.of_choices(body.choices)) if body.choices else None

    def steps(self, kv: decoder.KV, ids: list[int], body: p.Write, guide: grammar.Guide | None, send: Send) -> Steps:
        """Write after a prompt of which `kv` holds all but the last tokens; sends Tokens, returns the end."""
        params = self.sampling(body)
        whole = guide is not None or bool(body.logit_bias) or body.logprobs is not None
        ask = self._graph.forward if whole else self._graph.forward_top
        w, cfg = self.model.weights, self.model.config
        limit = self.limit(body, len(ids))
        if kv.length >= len(ids):
            self._graph.rewind(kv, len(ids) - 1)
        logits = ask(w, cfg, kv, ids[kv.length :])
        yield None
        state = sampling.init_state(params, ids)
        own = self.style.stops if body.prompt is None and guide is None else ()
        watcher = chat_prompts.ReplyWatcher((*body.stop, *own), watch_repetition=bool(own))
        text = Detokenizer(self.codec)
        scores: list[p.TokenScore] = []

        def give(piece: str) -> None:
            if piece or scores:
                send(p.Token(piece, tuple(scores)))
                scores.clear()

        def end(made: int, said: str, finish: Literal["stop", "length"], stop: str = "") -> p.Generated:
            give(said)
            return p.Generated(finish, len(ids), made, 0, stop)

        for made in range(1, limit + 1):
            if guide is not None:
                logits = guide.rule_out(logits)
            choice = sampling.choose(logits, params, state)
            if choice.token in self.codec.eos:
                last = watcher.push(text.finish())
                return end(made, last.text + ("" if last.finish else watcher.finish()), "stop")
            if body.logprobs is not None:
                top = tuple((self.vocabulary.tokens[t], value) for t, value in choice.top)
                scores.append(p.TokenScore(self.vocabulary.tokens[choice.token], choice.logprob, top))
            before = watcher.held
            new = text.push(choice.token)
            piece = watcher.push(new)
            if piece.finish == "stop":
                return end(made, piece.text, "stop", _which(before + new, body.stop, own))
            if piece.finish is not None:
                return end(made, piece.text, "stop")
            give(piece.text)
            if guide is not None:
                guide.take(choice.token)
                if guide.is_over:
                    return end(made, text.finish() + watcher.finish(), "stop")
            logits = yield Together(WHOLE if whole else LIKELIEST, Next(kv, choice.token))
        last = watcher.push(text.finish())
        return end(limit, last.text + ("" if last.finish else watcher.finish()), "length")


def _which(text: str, asked: tuple[str, ...], own: tuple[str, ...]) -> str:
    """The asked-for stop string that comes first in the text, if one does before the model's own."""
    found = sorted((text.find(s), s) for s in (*asked, *own) if s and s in text)
    return found[0][1] if found and found[0][1] in asked else ""
