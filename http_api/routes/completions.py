"""`POST /v1/completions`: a bare text continued."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from bargein.engine import protocol as p
from bargein.pipeline.writing import Ask, Ended, Text

from ..errors import bad
from ..services import SERVICES, Services
from . import asking
from .chat import Choice, forward, gather
from .fields import Fields, is_token_ids, read_json
from .names import resolve
from .streams import DONE, event, json_response, new_id, stream

MAX_PROMPTS = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed request: one Ask for each prompt and answer, in the order of the choices."""

    asks: tuple[Ask, ...]
    prompts: tuple[str, ...]  # what is repeated in front of each answer, if `echo`
    model: str
    stream: bool
    include_usage: bool


async def create(request: web.Request) -> web.StreamResponse:
    """Continue one prompt or several."""
    services = request.app[SERVICES]
    fields = await read_json(request)
    if services.config.chat.base_url:
        return await forward(request, fields, "/completions")
    wanted = parse(services, fields)
    if wanted.stream:
        return await stream(request, _chunks(request, wanted))
    return json_response(await _completion(request, wanted))


def parse(services: Services, f: Fields) -> Wanted:
    """Read and check a request. Raises ApiError."""
    model = f.needed_text("model")
    resolve(services, "chat", model)
    prompts = _prompts(f.need("prompt"))
    n = f.integer("n", 1, 8, 1) or 1
    best = f.integer("best_of", 1, 8)
    if best is not None and best != n:
        raise bad("best_of", "'best_of': all answers are given; it must equal 'n'", "unsupported_value")
    f.only("suffix", ("",), "this model only continues texts")
    echo = f.flag("echo")
    if echo and not all(isinstance(x, str) for x in prompts):
        raise bad("echo", "'echo': only with a prompt of text", "unsupported_value")
    logprobs = f.integer("logprobs", 0, 5)
    if echo and logprobs is not None:
        raise bad("logprobs", "'logprobs': the prompt's own are not computed; leave 'echo' out", "unsupported_value")
    streaming = f.flag("stream")
    options = Fields(f.object("stream_options") or {}, "stream_options")
    include_usage = options.flag("include_usage")
    options.labels("include_obfuscation")
    options.finish()
    base = Ask(
        max_tokens=f.integer("max_tokens", 1, asking.MAX_TOKENS, 16),
        logit_bias=asking.bias(f),
        logprobs=logprobs,
        stop=asking.stops(f),
        **asking.held_to(f),
        **asking.sampling(f),
    )
    f.labels("user")
    f.finish()
    asks = tuple(
        replace(base, prompt=x, seed=None if base.seed is None else (base.seed + i) % 2**63) for x in prompts for i in range(n)
    )
    texts = tuple(str(x) if echo else "" for x in prompts for _ in range(n))
    return Wanted(asks, texts, model, streaming, include_usage)


def _prompts(value: Any) -> list[str | tuple[int, ...]]:
    if isinstance(value, str):
        return [value]
    if is_token_ids(value):
        return [tuple(value)]
    if isinstance(value, list) and 0 < len(value) <= MAX_PROMPTS and all(isinstance(x, str) or is_token_ids(x) for x in value):
        return [x if isinstance(x, str) else tuple(x) for x in value]
    raise bad("prompt", f"'prompt': must be a text, token ids, or up to {MAX_PROMPTS} of either", "invalid_type")


def _head(wanted: Wanted) -> dict[str, Any]:
    return {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": wanted.model}


def _usage(ends: list[Ended]) -> dict[str, int]:
    given, made = sum(e.input_tokens for e in ends), sum(e.output_tokens for e in ends)
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _logprobs(scores: list[p.TokenScore], offset: int) -> tuple[dict[str, Any], int]:
    tokens = [s.raw.decode("utf-8", "replace") for s in scores]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top = [{raw.decode("utf-8", "replace"): value for raw, value in s.top} for s in scores]
    body = {"tokens": tokens, "token_logprobs": [s.logprob for s in scores], "top_logprobs": top, "text_offset": offsets}
    return body, offset


async def _completion(request: web.Request, wanted: Wanted) -> dict[str, Any]:
    writer = asking.writer(request)
    done: list[Choice] = [await gather(writer, ask) for ask in wanted.asks]
    usage = _usage([c.end for c in done if c.end is not None])
    asking.count(request, usage["prompt_tokens"], usage["completion_tokens"])
    choices = [
        {
            "index": i, "text": prompt + c.text, "finish_reason": c.end.reason if c.end is not None else "stop",
            "logprobs": _logprobs(c.scores, 0)[0] if wanted.asks[0].logprobs is not None else None,
        }
        for i, (c, prompt) in enumerate(zip(done, wanted.prompts, strict=True))
    ]  # fmt: skip
    return _head(wanted) | {"choices": choices, "usage": usage}


async def _chunks(request: web.Request, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    writer, head, ends = asking.writer(request), _head(wanted), list[Ended]()
    if wanted.include_usage:
        head["usage"] = None
    for index, (ask, prompt) in enumerate(zip(wanted.asks, wanted.prompts, strict=True)):
        offset = 0
        async with aclosing(writer.write(ask)) as events:
            async for ev in events:
                choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
                if isinstance(ev, Text):
                    choice["text"], prompt = prompt + ev.text, ""
                    if ask.logprobs is not None:
                        choice["logprobs"], offset = _logprobs(list(ev.scores), offset)
                elif isinstance(ev, Ended):
                    ends.append(ev)
                    choice["text"], choice["finish_reason"] = prompt, ev.reason
                yield event(head | {"choices": [choice]})
    usage = _usage(ends)
    asking.count(request, usage["prompt_tokens"], usage["completion_tokens"])
    if wanted.include_usage:
        yield event(head | {"choices": [], "usage": usage})
    yield DONE
