"""A function tool through a whole call, with an upstream that calls tools; and OpenAI's own agents client."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request
from pathlib import Path

import agents
import agents.realtime as realtime
import pytest

from bargein.client.session import RealtimeClient

from .conftest import start
from .upstream import Upstream

TOOL = {
    "type": "function",
    "name": "get_room_temperature",
    "description": "Temperature of a room",
    "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
}


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory):
    """(ws url, upstream) of a server whose chat is upstream."""
    log = tmp_path_factory.mktemp("tools") / "log"
    with Upstream() as upstream:
        process, port = start("--chat-base-url", upstream.url, "--chat-model", "stub", log=log)
        deadline = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
                    break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        yield f"ws://127.0.0.1:{port}/v1/realtime", upstream
        process.terminate()
        process.wait(15)


def test_a_tool_call_and_its_spoken_result(with_tools: tuple[str, Upstream]) -> None:
    url, upstream = with_tools

    async def run() -> str:
        async with RealtimeClient(url) as call:
            await call.update(tools=[TOOL], instructions="Be brief.")
            question = {"type": "input_text", "text": "How warm is the kitchen?"}
            await call.send("conversation.item.create", item={"type": "message", "role": "user", "content": [question]})
            await call.send("response.create")
            done = await call.wait("response.done", 0, 20)
            (item,) = done.event["response"]["output"]
            assert (item["type"], item["name"], item["arguments"]) == (
                "function_call", TOOL["name"], '{"room": "kitchen"}',
            )  # fmt: skip
            pieces = [s.event["delta"] for s in call.of("response.function_call_arguments.delta")]
            assert "".join(pieces) == item["arguments"] and len(pieces) > 2, "as chat wrote them"
            result = {"type": "function_call_output", "call_id": item["call_id"], "output": "31 degrees"}
            mark = len(call.seen)
            await call.send("conversation.item.create", item=result)
            await call.send("response.create")
            await call.wait("response.done", mark, 20)
            assert call.of("response.output_audio.delta", mark)
            return "".join(s.event["delta"] for s in call.of("response.output_audio_transcript.delta", mark))

    assert asyncio.run(run()).strip() == "It is 31 degrees in there right now."
    first, second = upstream.requests[-2:]
    assert first["tools"][0]["function"]["name"] == TOOL["name"]
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][2]["tool_calls"][0]["id"] == second["messages"][3]["tool_call_id"]


def test_the_agents_client_runs_a_tool(with_tools: tuple[str, Upstream]) -> None:
    agents.set_tracing_disabled(True)
    rooms: list[str] = []

    @agents.function_tool
    def get_room_temperature(room: str) -> str:
        """Current temperature of a room."""
        rooms.append(room)
        return "31 degrees"

    async def run() -> str:
        agent = realtime.RealtimeAgent(name="host", instructions="Be brief.", tools=[get_room_temperature])
        runner = realtime.RealtimeRunner(agent)
        config = {"url": with_tools[0], "api_key": "none", "initial_model_settings": {"model_name": "gpt-realtime"}}
        async with await runner.run(model_config=config) as session:
            await session.send_message("How warm is the kitchen?")
            heard = b""
            async with asyncio.timeout(40):
                async for event in session:
                    assert event.type != "error", event
                    if event.type == "audio" and rooms:
                        heard += event.audio.data
                    if event.type == "audio_end" and heard:
                        break
            assert len(heard) > 24000
            last = next(i for i in reversed(session._history) if getattr(i, "role", None) == "assistant")
            return last.content[0].transcript or ""

    assert "31 degrees" in asyncio.run(run())
    assert rooms == ["kitchen"]


def test_an_upstream_that_is_gone_fails_the_reply_and_keeps_the_call(tmp_path: Path) -> None:
    from bargein.pipeline.nodes.chat import ChatFailure, UpstreamChat
    from bargein.realtime.effects import StartChat
    from bargein.realtime.ids import Epoch, ResponseId

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}/v1"

    async def run() -> None:
        source = UpstreamChat(url, "", "m")
        ask = StartChat(Epoch(1), ResponseId("r"), (), "", (), "auto", None, None, True, "default", 1.0)
        with pytest.raises(ChatFailure, match="failed"):
            async for _ in source.generate(ask):
                pass
        await source.close()

    asyncio.run(run())
