"""A call to an agent: greeting, tools that work and that do not, hand-off and end, over a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from typing import Any
from urllib.parse import quote

from bargein.client.audio import read_wav
from bargein.client.session import RealtimeClient, Seen
from bargein.client.turns import Microphone

from .conftest import DATA, Served
from .upstream import Upstream


def is_done(s: Seen) -> bool:
    return s.type == "response.done"


def said(call: RealtimeClient, since: int = 0) -> str:
    """What was spoken, reply by reply."""
    done = [s.event["transcript"].strip() for s in call.of("response.output_audio_transcript.done", since)]
    return " | ".join(done)


async def ask(call: RealtimeClient, text: str) -> int:
    """Type a question and ask for the answer; returns where the events about it begin."""
    mark = len(call.seen)
    part = {"type": "input_text", "text": text}
    await call.send("conversation.item.create", item={"type": "message", "role": "user", "content": [part]})
    await call.send("response.create")
    return mark


async def hears(call: RealtimeClient, text: str, since: int, timeout: float = 12) -> Seen:
    """Wait until a reply that holds these words has been spoken to its end."""

    def match(s: Seen) -> bool:
        output = s.event["response"]["output"] if is_done(s) else []
        return any(text in (p.get("transcript") or "") for item in output for p in item.get("content", ()))

    found = await call.wait(match, since, timeout)
    assert found is not None, (said(call, since), [s.event["item"] for s in call.of("conversation.item.done", since)])
    return found


def tool_records(served: Served, call: RealtimeClient) -> list[dict[str, Any]]:
    """What the inspector holds of a call's tools so far, in order."""
    session = call.seen[0].event["session"]["id"]
    found: list[dict[str, Any]] = []
    url = f"http://127.0.0.1:{served.port}/v1/inspect/{session}"
    with contextlib.suppress(TimeoutError), urllib.request.urlopen(url, timeout=0.5) as reader:
        for line in reader:  # it goes on as long as the call does
            found.append(json.loads(line))
    return [x for x in found if x["lane"] == "tool"]


def test_the_greeting_a_tool_and_the_history(desk: tuple[Served, Upstream]) -> None:
    served, upstream = desk

    async def run() -> RealtimeClient:
        async with RealtimeClient(served.url) as call:
            start = time.monotonic()
            await hears(call, "Hello, this is Maple House.", 0)
            begun = next(s for s in call.seen if s.type == "response.created").at - start
            assert 0.25 < begun < 1.0
            mark = await ask(call, "What is the room temperature in the kitchen?")
            await hears(call, "It is 31 degrees in there right now.", mark)
            items = [s.event["item"] for s in call.of("conversation.item.done", mark)]
            assert [i["type"] for i in items] == ["message", "function_call", "function_call_output", "message"]
            assert items[1]["name"] == "room_temperature" and items[2]["output"] == "31 degrees"
            assert not call.of("response.function_call_arguments.done") and not call.of("error")
            return call

    asyncio.run(run())
    first, second = upstream.requests[-2:]
    assert [m["role"] for m in second["messages"]] == ["system", "assistant", "user", "assistant", "tool"]
    assert first["messages"][0]["content"].startswith("You are the desk of Maple House. Today is ")
    assert first["messages"][1]["content"] == "Hello, this is Maple House."
    names = [t["function"]["name"] for t in first["tools"]]
    assert {"room_temperature", "end_call", "transfer_to_billing"} <= set(names)


def test_a_slow_tool_is_bridged_and_one_that_fails_is_apologised_for(desk: tuple[Served, Upstream]) -> None:
    served, _ = desk

    async def run() -> None:
        async with RealtimeClient(served.url + "?model=desk&variables=" + quote('{"house":"Elm Court"}')) as call:
            await hears(call, "Hello, this is Elm Court.", 0)
            mark = await ask(call, "Please make the slow report.")
            asked = time.monotonic()
            filler = await hears(call, "One moment, please.", mark)
            first = next(s for s in call.seen[mark:] if s.type == "response.output_audio.delta").at - asked
            assert 0.6 < first < 1.6, first
            done = await hears(call, "It is ready for Elm Court in there", mark)
            assert done.at - asked > 4 and filler.at < done.at
            for question, told in (
                ("Switch the broken lamp.", '{"error":"the lamp is broken"}'),
                ("Try the hanging door.", '{"error":"it took longer than 0.5 s"}'),
                ("Give me the huge answer.", '{"error":"the result is 1048576 characters long, more than 262144"}'),
            ):
                mark = await ask(call, question)
                await hears(call, "I am sorry, that did not work.", mark)
                outputs = [s.event["item"].get("output") for s in call.of("conversation.item.done", mark)]
                assert told in outputs
            records = tool_records(served, call)
            failed = [r["payload"]["output"] for r in records if r["kind"] == "answer" and r["payload"]["outcome"] == "failed"]
            assert len(failed) == 3 and "the lamp is broken" in failed[0]
            mark = await ask(call, "Now without any tool: hello.")
            await hears(call, "I am happy to help you", mark)

    asyncio.run(run())


def test_speaking_over_the_filler_cancels_the_tool_or_keeps_it(desk: tuple[Served, Upstream]) -> None:
    served, _ = desk
    speech = read_wav(DATA / "sounds" / "interrupt-thats_wrong.wav")

    async def run(question: str, cancels: bool) -> None:
        async with RealtimeClient(served.url) as call:
            mic = Microphone(call)  # from the start: whether there is an echo is found out in the greeting
            await hears(call, "Hello", 0)
            await call.update(barge_in={"mode": "cancel"})  # the filler is short
            mark = await ask(call, f"Please do the {question}.")
            await call.wait("response.output_audio.delta", mark, 10)
            await mic.play(speech)
            assert await call.wait("input_audio_buffer.speech_started", mark, 5)
            if cancels:
                cancelled = await call.wait(lambda s: "cancelled: the caller" in json.dumps(s.event), mark, 5)
                assert cancelled is not None
                assert "found" not in said(call, mark)
            else:
                await hears(call, "It is ready for Maple House", mark)
            await mic.stop()
            kinds = [r["kind"] for r in tool_records(served, call)]
            assert ("cancel" in kinds) == cancels

    async def both() -> None:
        await asyncio.gather(run("cancellable search", True), run("slow report", False))

    asyncio.run(both())


def test_a_hand_off_and_the_end_of_the_call(desk: tuple[Served, Upstream]) -> None:
    served, _ = desk

    async def run() -> RealtimeClient:
        async with RealtimeClient(served.url) as call:
            await hears(call, "Hello", 0)
            mark = await ask(call, "Please transfer me.")
            await hears(call, "Billing here.", mark)
            session = call.of("session.updated", mark)[0].event["session"]
            assert session["instructions"] == "You are billing." and session["audio"]["output"]["speed"] == 1.1
            return call

    asyncio.run(run())

    async def end() -> RealtimeClient:
        async with RealtimeClient(served.url) as call:
            await hears(call, "Hello", 0)
            mark = await ask(call, "You may call it an end.")
            await hears(call, "Goodbye.", mark)
            ended = await call.wait("session.done", mark, 5)
            assert ended is not None and ended.event["reason"] == "agent_ended"
            await call.wait(lambda s: False, 0, 3)
            return call

    assert (asyncio.run(end()).closed or "").startswith("1000")


def test_agents_are_models_and_only_for_calls(desk: tuple[Served, Upstream]) -> None:
    served, _ = desk
    assert [m["id"] for m in served.get("/v1/models")[1]["data"]][:2] == ["desk", "billing"]
    assert served.get("/v1/models/desk")[0] == 200
    assert served.get("/v1/realtime/capabilities")[1]["agents"] == ["desk", "billing", "porter"]
