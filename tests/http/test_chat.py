"""Chat, completions, responses and messages through the stock SDKs: what is said, in the shapes they validate."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import anthropic
import anthropic.types as at
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from .conftest import Served
from .strict import fits, sse

MODEL = "gpt-4o-mini"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
    "additionalProperties": False,
}
ROOM = {"type": "object", "properties": {"room": {"type": "string", "enum": ["kitchen", "attic"]}}, "required": ["room"]}
LIGHTS = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
TOOLS = [
    {"type": "function", "function": {"name": "temperature", "description": "Temperature of a room", "parameters": ROOM}},
    {"type": "function", "function": {"name": "lights", "description": "Turn the lights on or off", "parameters": LIGHTS}},
]


def create(client: openai.OpenAI, **rest: Any) -> ChatCompletion:
    raw = client.chat.completions.with_raw_response.create(**({"model": MODEL, "messages": CAPITAL} | rest))
    return fits(ChatCompletion, raw.http_response.content)


def test_says_what_was_asked(client: openai.OpenAI) -> None:
    answer = create(client, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL and answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_seed_repeats_and_n_answers_differ(client: openai.OpenAI) -> None:
    ask = {"messages": [{"role": "user", "content": "Tell me something about the sea."}], "temperature": 1.5, "n": 3, "seed": 7}
    first, second = create(client, **ask), create(client, **ask)
    texts = [c.message.content for c in first.choices]
    assert texts == [c.message.content for c in second.choices]
    assert len(set(texts)) > 1 and [c.index for c in first.choices] == [0, 1, 2]


def test_stops_at_the_string_and_never_shows_it(client: openai.OpenAI) -> None:
    free = create(client, temperature=0).choices[0].message.content or ""
    cut = create(client, temperature=0, stop=["Paris"]).choices[0]
    assert free.index("Paris") > 0 and cut.finish_reason == "stop"
    assert cut.message.content == free[: free.index("Paris")]


def test_cut_at_the_limit(client: openai.OpenAI) -> None:
    answer = create(client, max_completion_tokens=2, temperature=0)
    assert answer.choices[0].finish_reason == "length" and answer.usage and answer.usage.completion_tokens == 2


def test_logprobs_are_the_tokens_of_the_text(client: openai.OpenAI) -> None:
    choice = create(client, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content
    joined = b"".join(bytes(t.bytes or []) for t in choice.logprobs.content).decode()
    assert joined.strip() == (choice.message.content or "").strip()
    for token in choice.logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(max(t.logprob for t in token.top_logprobs))
        assert sum(math.exp(t.logprob) for t in token.top_logprobs) <= 1.0001


def test_logit_bias_forbids_a_token(client: openai.OpenAI) -> None:
    ask: Any = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
    word = client.completions.create(**ask).choices[0].text
    # Which id that is only the model knows; common words have low ones.
    bias = {str(i): -100 for i in range(3000)}
    assert client.completions.create(**ask, logit_bias=bias).choices[0].text != word


def test_an_answer_fits_its_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        answer = create(client, response_format=form, temperature=1.0, seed=seed)
        value = json.loads(answer.choices[0].message.content or "")
        assert set(value) == {"city", "large"} and isinstance(value["city"], str) and isinstance(value["large"], bool)
    value = json.loads(create(client, response_format={"type": "json_object"}).choices[0].message.content or "")
    assert isinstance(value, dict)


def test_forced_and_required_tools_are_called_with_arguments_that_fit(client: openai.OpenAI) -> None:
    ask = [{"role": "user", "content": "How warm is the kitchen?"}]
    forced = create(client, messages=ask, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "temperature"}})
    (call,) = forced.choices[0].message.tool_calls or []
    assert call.type == "function" and json.loads(call.function.arguments)["room"] in ("kitchen", "attic")
    assert forced.choices[0].finish_reason == "tool_calls" and call.id.startswith("call_")
    required = create(client, messages=ask, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    (call,) = required.choices[0].message.tool_calls or []
    assert call.function.name in ("temperature", "lights") and json.loads(call.function.arguments)
    assert not create(client, messages=ask, tools=TOOLS, tool_choice="none").choices[0].message.tool_calls
    answered = [*ask, forced.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "31 degrees"}]
    assert create(client, messages=answered, tools=TOOLS).choices[0].message.content


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = create(client, temperature=0).choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=CAPITAL, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as raw:
        body = raw.read().decode()
    assert body.endswith("data: [DONE]\n\n")
    chunks = [fits(ChatCompletionChunk, json.dumps(e)) for e in sse(body)]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].choices == [] and chunks[-1].usage and chunks[-1].usage.completion_tokens > 0


def test_streamed_tool_calls_join_to_json(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, tools=TOOLS, stream=True, temperature=0,
        tool_choice={"type": "function", "function": {"name": "temperature"}},
    )  # fmt: skip
    pieces = [t for c in stream for x in c.choices for t in x.delta.tool_calls or []]
    assert pieces[0].id and pieces[0].function and pieces[0].function.name == "temperature"
    assert json.loads("".join((p.function.arguments or "") for p in pieces if p.function))["room"]


def test_many_at_once_through_the_async_client(server: Served) -> None:
    async def go() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0) as client:
            asks = [client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0) for _ in range(4)]
            return [a.choices[0].message.content or "" for a in await asyncio.gather(*asks)]

    answers = asyncio.run(go())
    assert len(set(answers)) == 1 and "Paris" in answers[0]


def test_completions_continue(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model=MODEL, prompt=["One, two, three,", "Monday, Tuesday,"], max_tokens=6, temperature=0, echo=True, logprobs=None
    )
    body = fits(Completion, raw.http_response.content)
    assert [c.index for c in body.choices] == [0, 1]
    assert body.choices[0].text.startswith("One, two, three,") and "four" in body.choices[0].text
    assert "Wednesday" in body.choices[1].text


def test_responses_stream_and_continue(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "input": "My favourite colour is blue.", "max_output_tokens": 40}
    raw = client.responses.with_raw_response.create(**ask)
    first = fits(Response, raw.http_response.content)
    assert first.status == "completed" and first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    assert client.responses.input_items.list(first.id).data[0].content[0].text == ask["input"]
    second = client.responses.create(model=MODEL, input="What is it?", previous_response_id=first.id, max_output_tokens=40)
    assert second.previous_response_id == first.id and second.usage and first.usage
    assert second.usage.input_tokens > first.usage.input_tokens + 5  # it read the first turn again
    with client.responses.with_streaming_response.create(**ask, stream=True) as stream:
        events = sse(stream.read().decode())
    for e in events:
        fits(ResponseStreamEvent, json.dumps(e))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    said = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert said == events[-1]["response"]["output"][0]["content"][0]["text"] != ""
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_messages_of_anthropic(server: Served) -> None:
    client = server.anthropic()
    cold = {"temperature": 0}  # this SDK does not name it any more; the wire does
    ask: Any = {"model": "claude-sonnet-4-5", "max_tokens": 60, "messages": CAPITAL, "system": "Answer briefly.",
                "extra_body": cold}  # fmt: skip
    raw = client.messages.with_raw_response.create(**ask)
    message = fits(at.Message, raw.http_response.content)
    assert message.stop_reason == "end_turn" and isinstance(message.content[0], at.TextBlock)
    assert "Paris" in message.content[0].text
    counted = client.messages.count_tokens(model=ask["model"], messages=CAPITAL, system=ask["system"])
    assert counted.input_tokens == message.usage.input_tokens > 0
    with client.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == message.content[0].text
        assert stream.get_final_message().usage.output_tokens == message.usage.output_tokens
    stopped = client.messages.create(**ask, stop_sequences=["Paris"])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "Paris"


def test_tools_of_anthropic(server: Served) -> None:
    client = server.anthropic()
    tools: Any = [{"name": "temperature", "description": "Temperature of a room", "input_schema": ROOM}]
    ask: Any = [{"role": "user", "content": "How warm is the kitchen?"}]
    kept: Any = {"model": "claude-haiku", "max_tokens": 80, "tools": tools}
    made = client.messages.create(**kept, messages=ask, tool_choice={"type": "tool", "name": "temperature"})
    block = made.content[0]
    assert isinstance(block, at.ToolUseBlock) and made.stop_reason == "tool_use" and block.input["room"]
    ask += [
        {"role": "assistant", "content": [block.to_dict()]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "31 degrees"}]},
    ]
    answer = client.messages.create(**kept, messages=ask)
    assert isinstance(answer.content[0], at.TextBlock) and answer.content[0].text
    with client.messages.stream(**kept, messages=ask[:1], tool_choice={"type": "any"}) as stream:
        final = stream.get_final_message()
    assert isinstance(final.content[0], at.ToolUseBlock) and final.content[0].input["room"] in ("kitchen", "attic")


def test_errors_of_anthropic_have_its_classes(server: Served) -> None:
    client = server.anthropic()
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="claude-x", max_tokens=5, messages=[])
    assert refused.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "'messages': must be an array of at least one message"},
    }
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="no-such-model", max_tokens=5, messages=CAPITAL)
