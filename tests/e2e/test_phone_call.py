"""Calls through Twilio's framing: mu-law both ways, in real time, to the tests' agent."""

from __future__ import annotations

import asyncio
import io
import json
import re
import urllib.request
import wave
from typing import Any

import numpy as np
import pytest
import websockets

from bargein.client.audio import read_wav

from .conftest import DATA, Served
from .phone import Phone
from .upstream import Upstream


def transcribe(served: Served, x: np.ndarray, rate: int = 8000) -> str:
    """What the server's own recognizer hears in samples, lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9 ]", "", about(served, "transcriptions", x, rate)["text"].lower())


def about(served: Served, route: str, x: np.ndarray, rate: int, **fields: str) -> dict[str, Any]:
    """What a route of the server's, `/v1/audio/…`, says of samples."""
    file = io.BytesIO()
    with wave.open(file, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(rate)
        w.writeframes(x.astype("<i2").tobytes())
    edge = b"--xx\r\nContent-Disposition: form-data; name="
    told = {"model": "whisper-1"} | fields
    body = b"".join(edge + f'"{name}"\r\n\r\n{value}\r\n'.encode() for name, value in told.items())
    body += edge + b'"file"; filename="a.wav"\r\n\r\n' + file.getvalue() + b"\r\n--xx--\r\n"
    head = {"Content-Type": "multipart/form-data; boundary=xx"}
    request = urllib.request.Request(f"http://127.0.0.1:{served.port}/v1/audio/{route}", body, head)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def url(served: Served, query: str = "?token=phone-key") -> str:
    return f"ws://127.0.0.1:{served.port}/v1/telephony/twilio{query}"


def test_a_caller_is_greeted_and_answered_with_the_tools_result(desk: tuple[Served, Upstream]) -> None:
    served, _ = desk

    async def run() -> tuple[np.ndarray, np.ndarray, list[str]]:
        async with Phone(url(served, ""), {"token": "phone-key", "agent": "porter", "house": "London Bridge"}) as phone:
            greeting = await phone.reply()
            await phone.say(read_wav(DATA / "questions" / "capital.wav"))
            answer = await phone.reply()
            return greeting, answer, [kind for _, kind in phone.events]

    greeting, answer, kinds = asyncio.run(run())
    assert "good evening this is london bridge" in transcribe(served, greeting)
    assert "21 degrees" in transcribe(served, answer).replace("twentyone", "21")
    assert "mark" in kinds


def test_speaking_over_a_story_clears_the_line(desk: tuple[Served, Upstream]) -> None:
    """The caller's words stop the reply; what the provider had buffered is dropped."""
    served, upstream = desk

    async def run() -> tuple[float, float]:
        async with Phone(url(served)) as phone:
            await phone.reply()
            for key in "1#":  # a typed turn: keys, whose answer is a tool's
                await phone.press(key)
            while phone.silent_ms:
                await asyncio.sleep(0.02)
            started = asyncio.get_running_loop().time()
            await phone.say(read_wav(DATA / "sounds" / "interrupt-thats_wrong.wav"))
            while not any(kind == "clear" for _, kind in phone.events):
                await asyncio.sleep(0.02)
                assert asyncio.get_running_loop().time() - started < 10
            return started, next(at for at, kind in phone.events if kind == "clear")

    asyncio.run(run())
    asked = [m["content"] for r in upstream.requests for m in r["messages"] if m["role"] == "user"]
    assert "(keys pressed: 1 #)" in asked


def test_keys_go_to_a_tool_that_waits_for_them(desk: tuple[Served, Upstream]) -> None:
    served, upstream = desk

    async def run() -> None:
        async with Phone(url(served, "?token=phone-key&agent=desk")) as phone:
            await phone.reply()
            num = len(upstream.requests)
            upstream.next_tool = "keypad_code"
            await phone.press("#")
            while len(upstream.requests) == num:
                await asyncio.sleep(0.02)
            await phone.reply(quiet_ms=100)  # the filler: the tool is at work
            for key in "4711":
                await phone.press(key)
            await phone.reply()

    asyncio.run(run())
    told = [m["content"] for m in upstream.requests[-1]["messages"] if m["role"] == "tool"]
    assert told[-1] == "code 4711", told


@pytest.mark.parametrize(
    ("query", "parameters", "code"),
    [("?token=wrong", {}, 401), ("", {}, 1008), ("", {"token": "wrong"}, 1008), ("?token=phone-key", {"agent": "no"}, 1008)],
)
def test_who_may_not_call(desk: tuple[Served, Upstream], query: str, parameters: dict[str, str], code: int) -> None:
    served, _ = desk

    async def run() -> int:
        try:
            async with Phone(url(served, query), parameters) as phone:
                while phone.close is None:
                    await asyncio.sleep(0.02)
                return phone.close[0]
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    assert asyncio.run(run()) == code
    assert served.get("/v1/telephony/nobody")[0] == 404
