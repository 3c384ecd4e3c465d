"""A chat server that calls tools, standing in for a large model: OpenAI's streaming chat completions on a thread.

It is a test's double of somebody else's server, at its wire: it calls the tool whose name the question speaks of, or
else the first, with an argument found in the question, and when a tool has answered it says the result in a sentence.
It also stands in for those who are told of calls: it keeps webhooks and traces.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from aiohttp import web


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    body = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "stub",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class Upstream:
    """`with Upstream() as up:` serves at `up.url`; `up.requests` holds the bodies it was sent."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.url = ""
        self.hooks: list[tuple[dict[str, str], bytes]] = []  # webhooks
        self.traces: list[bytes] = []  # OTLP
        self.next_tool = ""  # the tool to call next, whatever is asked
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Upstream:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/hooks", self._hook)
        app.router.add_post("/v1/traces", self._trace)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _hook(self, request: web.Request) -> web.Response:
        self.hooks.append(({k.lower(): v for k, v in request.headers.items()}, await request.read()))
        return web.Response(status=204)

    async def _trace(self, request: web.Request) -> web.Response:
        self.traces.append(await request.read())
        return web.Response(headers={"Content-Type": "application/x-protobuf"})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        last = body["messages"][-1]
        tools = body.get("tools")
        if last["role"] == "tool":
            for word in f"It is {last['content']} in there right now.".split():
                await out.write(_chunk({"content": word + " "}))
            await out.write(_chunk({}, "stop"))
        elif tools and last["role"] == "user" and "without any tool" not in last["content"]:
            asked = last["content"].lower()
            wanted, self.next_tool = self.next_tool, ""
            asked += " " + wanted.replace("_", " ")
            named_in = (t for t in tools if any(w in asked for w in t["function"]["name"].split("_") if len(w) > 3))
            function = next(named_in, tools[0])["function"]
            room = "kitchen" if "kitchen" in asked else "hall"
            arguments = json.dumps({name: room for name in list(function["parameters"]["properties"])[:1]})
            named = {"name": function["name"], "arguments": ""}
            call = {"index": 0, "id": f"call_{len(self.requests)}", "type": "function", "function": named}
            await out.write(_chunk({"tool_calls": [call]}))
            for n in range(0, len(arguments), 4):
                piece = {"index": 0, "function": {"arguments": arguments[n : n + 4]}}
                await out.write(_chunk({"tool_calls": [piece]}))
            await out.write(_chunk({}, "tool_calls"))
        else:
            sentences = 10 if "story" in last["content"] else 1
            for word in ("Of course. I am happy to help you with that today. " * sentences).split():
                await out.write(_chunk({"content": word + " "}))
            await out.write(_chunk({}, "stop"))
        await out.write(b"data: [DONE]\n\n")
        return out


if __name__ == "__main__":
    import time

    with Upstream() as up:
        print(up.url, flush=True)
        while True:
            time.sleep(60)
