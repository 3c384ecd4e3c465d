"""Whole calls against a real server with the real models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import websockets

from bargein.client.audio import I16, RATE, read_wav
from bargein.client.session import RealtimeClient
from bargein.client.turns import Microphone, Reply, collect, converse
from bargein.models import store, whisper, whisper_stream
from bargein.models.bench_words import normal_words, word_errors

from .conftest import DATA, Served, free_port, start

QUESTIONS = {
    "capital": "What is the capital of France?",
    "bees": "What do bees make?",
    "week": "How many days are there in a week?",
    "romeo": "Who wrote Romeo and Juliet?",
}


def word_error(said: str, heard: str) -> float:
    """Words that differ, relative to what was said; "3" and "three" are the same word."""
    told = normal_words(said)
    return word_errors(told, normal_words(heard)) / max(1, len(told))


def transcribe(audio: I16) -> str:
    import soxr

    x = soxr.resample(audio.astype(np.float32) / 32768, RATE, 16000).astype(np.float32)
    model = whisper.load(store.path("whisper-base"))
    return whisper_stream.transcribe(model, x, whisper_stream.Options()).text


async def ask(server: Served, *names: str, **session: object) -> list[Reply]:
    async with RealtimeClient(server.url) as call:
        await call.wait("session.created", 0, 10)
        await call.update(profile="fast", **session)
        mic = Microphone(call)
        replies = [await converse(call, mic, read_wav(DATA / "questions" / f"{n}.wav"), 40) for n in names]
        await mic.stop()
        return replies


def test_a_spoken_question_gets_a_spoken_answer(server: Served) -> None:
    (reply,) = asyncio.run(ask(server, "capital"))
    assert word_error(QUESTIONS["capital"], reply.user_text) == 0
    assert reply.status == "completed" and normal_words(reply.text)
    assert word_error(reply.text, transcribe(reply.audio)) <= 0.15
    assert reply.gap_ms == 0


def test_two_calls_at_once_hear_their_own_question(server: Served) -> None:
    async def both() -> list[list[Reply]]:
        return await asyncio.gather(ask(server, "bees"), ask(server, "week"))

    (bees,), (week,) = asyncio.run(both())
    assert word_error(QUESTIONS["bees"], bees.user_text) == 0
    assert word_error(QUESTIONS["week"], week.user_text) == 0
    assert bees.gap_ms == week.gap_ms == 0
    for reply, other in (bees, week), (week, bees):
        heard = transcribe(reply.audio)
        assert reply.status == "completed" and word_error(reply.text, heard) < word_error(other.text, heard)


def test_speaking_over_a_reply_stops_it_and_history_holds_what_was_heard(server: Served) -> None:
    async def run() -> None:
        async with RealtimeClient(server.url) as call:
            await call.update(profile="fast", barge_in={"mode": "cancel"})
            mic = Microphone(call)
            text = "Count from one to twenty, please."
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            await call.send("conversation.item.create", item=item)
            story = "Answer with a long story of many sentences."
            await call.send("response.create", response={"instructions": story, "max_output_tokens": 150})
            assert await call.wait("response.output_audio.delta", 0, 30)
            await asyncio.sleep(0.8)
            mark = len(call.seen)
            assert not call.of("response.done"), "the reply was too short to be interrupted"
            _, end = await mic.play(read_wav(DATA / "questions" / "bees.wav"))
            cut = await call.wait("response.done", 0, 10)
            assert cut is not None
            response = cut.event["response"]
            assert response["status"] == "cancelled"
            assert response["status_details"]["reason"] == "turn_detected"
            late = [s for s in call.of("response.output_audio.delta") if s.event["response_id"] == response["id"]]
            assert late[-1].at <= cut.at, "audio of a cancelled response after its end"
            truncated = call.of("conversation.item.assistant_truncated")[0].event
            assert truncated["audio_end_ms"] == response["audio_end_ms"] > 0
            await call.wait(lambda s: s.type == "response.done" and s.at > cut.at, mark, 30)
            await mic.stop()
            await call.send("conversation.item.retrieve", item_id=truncated["item_id"])
            kept = await call.wait("conversation.item.retrieved", mark, 5)
            said = "".join(s.event["delta"] for s in call.of("response.output_audio_transcript.delta")
                           if s.event["response_id"] == response["id"])  # fmt: skip
            heard = kept.event["item"]["content"][0]["transcript"]
            assert said.startswith(heard.rstrip("-")) and heard
            assert word_error(QUESTIONS["bees"], collect(call, mark, end).user_text) == 0

    asyncio.run(run())


def test_bad_events_are_answered_and_the_call_goes_on(server: Served) -> None:
    bad = [
        "{not json",
        "[]",
        '{"type":5}',
        '{"type":"no.such","event_id":"e1"}',
        '{"type":"input_audio_buffer.append","audio":"@@","event_id":"e2"}',
        '{"type":"input_audio_buffer.append","audio":"QQ==","event_id":"e3"}',
        '{"type":"session.update","session":{"type":"realtime","nonsense":1},"event_id":"e4"}',
        '{"type":"session.update","session":{"type":"realtime","speed":99},"event_id":"e5"}',
        '{"type":"conversation.item.create","item":{"type":"message","role":"x"},"event_id":"e6"}',
        '{"type":"conversation.item.retrieve","item_id":"nope","event_id":"e7"}',
        '{"type":"response.cancel","event_id":"e8"}',
        '{"type":"input_audio_buffer.commit","event_id":"e9"}',
    ]

    async def run() -> list[dict]:
        async with websockets.connect(server.url) as ws:
            await ws.recv()
            out = []
            for raw in bad:
                await ws.send(raw)
                out.append(json.loads(await asyncio.wait_for(ws.recv(), 5)))
            await ws.send('{"type":"input_audio_buffer.clear"}')
            assert json.loads(await asyncio.wait_for(ws.recv(), 5))["type"] == "input_audio_buffer.cleared"
            return out

    answers = asyncio.run(run())
    assert [a["type"] for a in answers] == ["error"] * len(bad)
    assert [a["error"]["event_id"] for a in answers[3:]] == [f"e{n}" for n in range(1, 10)]
    assert answers[6]["error"]["param"] == "session.nonsense" and answers[7]["error"]["param"] == "session.speed"
    assert len({a["event_id"] for a in answers}) == len(bad)


def test_the_doors(server: Served) -> None:
    assert server.get("/health") == (200, {"status": "ok"})
    assert server.get("/version")[1]["name"] == "bargein"
    assert {"whisper-base", "hibari-heart"} <= {m["id"] for m in server.get("/v1/models")[1]["data"]}
    status, body = server.get("/nowhere")
    assert status == 404 and set(body["error"]) == {"message", "type", "param", "code"}

    async def foreign() -> int:
        try:
            async with websockets.connect(server.url, origin="https://evil.example"):  # type: ignore[arg-type]
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    assert asyncio.run(foreign()) == 403


def test_silence_alone_is_not_an_error_and_gets_no_words(server: Served) -> None:
    async def run() -> list[str]:
        async with RealtimeClient(server.url) as call:
            mic = Microphone(call)
            await mic.play(np.zeros(RATE * 3, np.int16))
            rng = np.random.default_rng(0)
            await mic.play(rng.normal(0, 300, RATE * 3).astype(np.int16))
            await mic.stop()
            assert call.closed is None
            return [s.type for s in call.seen]

    assert asyncio.run(run()) == ["session.created"]


def test_a_killed_engine_fails_the_reply_and_the_next_turn_works(server: Served) -> None:
    async def run() -> None:
        async with RealtimeClient(server.url) as call:
            await call.update(profile="fast")
            mic = Microphone(call)
            story = {"instructions": "Tell a long story.", "max_output_tokens": 150}
            await call.send("response.create", response=story)
            assert await call.wait("response.output_audio.delta", 0, 30)
            os.kill(server.processes()["engine"], signal.SIGKILL)
            done = await call.wait("response.done", 0, 10)
            assert done is not None and done.event["response"]["status"] in ("failed", "completed")
            if done.event["response"]["status"] == "failed":
                assert done.event["response"]["status_details"]["error"]["code"] == "engine_unavailable"
            deadline = time.monotonic() + 60
            while server.get("/health/ready")[0] != 200:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.5)
            reply = await converse(call, mic, read_wav(DATA / "questions" / "bees.wav"), 40)
            await mic.stop()
            assert word_error(QUESTIONS["bees"], reply.user_text) == 0 and reply.status == "completed"

    asyncio.run(run())


def test_who_loads_the_models_may_die_and_no_call_notices(server: Served) -> None:
    async def run() -> None:
        async with RealtimeClient(server.url) as call:
            await call.update(profile="fast")
            mic = Microphone(call)
            before = server.processes()
            os.kill(before["loader"], signal.SIGKILL)
            reply = await converse(call, mic, read_wav(DATA / "questions" / "bees.wav"), 40)
            assert word_error(QUESTIONS["bees"], reply.user_text) == 0 and reply.status == "completed"
            async with asyncio.timeout(10):
                while (after := server.processes()).get("loader") in (None, before["loader"]):
                    await asyncio.sleep(0.1)
            await mic.stop()
            assert Path(f"/proc/{before['engine']}").exists() and "engine" not in after, "the engine that it made goes on"
            os.kill(before["engine"], signal.SIGKILL)
            async with asyncio.timeout(60):
                while "engine" not in server.processes() or server.get("/health/ready")[0] != 200:
                    await asyncio.sleep(0.1)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--set", "server.prot=1"], "server.prot"),
        (["--stt", "nonesuch"], "nonesuch"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["--set", "session.speed=9"], "speed"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(tmp_path: Path, args: list[str], named: str) -> None:
    process, _ = start(*args, log=tmp_path / "log")
    assert process.wait(60) == 2
    lines = (tmp_path / "log").read_text().strip().splitlines()
    assert len(lines) == 1 and named in lines[0]


def test_a_port_in_use_is_said(server: Served, tmp_path: Path) -> None:
    process, _ = start("--port", str(server.port), log=tmp_path / "log")
    assert process.wait(60) == 2
    assert f"127.0.0.1:{server.port}" in (tmp_path / "log").read_text().splitlines()[-1]


def test_the_client_says_when_nobody_answers(tmp_path: Path) -> None:
    import sys

    wav = str(DATA / "questions" / "bees.wav")
    command = [sys.executable, "-m", "bargein.http_api.cli", "call", wav, "--url", f"ws://127.0.0.1:{free_port()}/"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "bargein serve" in run.stderr
