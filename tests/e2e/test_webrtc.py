"""Calls over WebRTC with aiortc's own client, against a real server with the real models."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from typing import Any

import aiohttp
import numpy as np
import pytest

from bargein.client.audio import read_wav
from bargein.models.bench_words import normal_words

from .conftest import DATA, Served
from .peer import Peer
from .test_call import QUESTIONS, transcribe, word_error
from .test_leaks import usage


def base(server: Served) -> str:
    return f"http://127.0.0.1:{server.port}"


def post(server: Served, path: str, body: bytes, kind: str = "application/sdp", **headers: str) -> tuple[int, Any, dict]:
    """Status, JSON or text, headers."""
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    request = urllib.request.Request(base(server) + path, body, {"Content-Type": kind} | named)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            text, status, got = reply.read().decode(), reply.status, dict(reply.headers)
    except urllib.error.HTTPError as refused:
        text, status, got = refused.read().decode(), refused.code, dict(refused.headers)
    return status, json.loads(text) if text.startswith("{") else text, got


STORY = {"instructions": "Answer with a long story of many sentences.", "max_output_tokens": 150}


@pytest.mark.parametrize("stock", [False, True], ids=["own-ears", "stock-ears"])
def test_a_spoken_question_gets_a_spoken_answer(storyteller: Served, stock: bool) -> None:
    async def run() -> None:
        session = {"type": "realtime", "speed": 0.9}
        peer = await Peer(base(storyteller), stock=stock).connect("?events=extended", session)
        assert peer.location.startswith("/v1/realtime/calls/rtc_")
        created = await peer.wait("session.created", 0, 5)
        assert created is not None and created.event["session"]["audio"]["output"]["speed"] == 0.9
        assert created.event["session"]["pacer"]["lead_ms"] == 40
        _, end = await peer.mic.play(read_wav(DATA / "questions" / "bees.wav"))
        done = await peer.wait("response.done", 0, 40)
        assert done is not None and done.event["response"]["status"] == "completed"
        await asyncio.sleep(0.5)
        await peer.close()
        heard = [s.event["transcript"] for s in peer.seen if s.type.endswith("transcription.completed")]
        assert word_error(QUESTIONS["bees"], " ".join(heard)) == 0
        said = "".join(s.event["delta"] for s in peer.of("response.output_audio_transcript.delta"))
        assert normal_words(said) == normal_words("Of course. I am happy to help you with that today.")
        audio = peer.audio_since(end)
        loud = np.flatnonzero(np.abs(audio) > 200)
        assert word_error(said, transcribe(audio[max(0, loud[0] - 2400) : loud[-1] + 2400])) <= 0.15
        kinds = [s.type for s in peer.seen]
        assert "response.output_audio.delta" not in kinds, "audio has a track of its own"
        assert kinds.count("output_audio_buffer.started") == kinds.count("output_audio_buffer.stopped") == 1

    asyncio.run(run())


def test_speaking_over_a_reply_stops_it_within_a_frame_or_two(storyteller: Served) -> None:
    async def run() -> None:
        peer = await Peer(base(storyteller)).connect("?events=extended")
        await peer.update(profile="fast", barge_in={"mode": "cancel"})
        text = {"type": "input_text", "text": "Tell me a story."}
        peer.send("conversation.item.create", item={"type": "message", "role": "user", "content": [text]})
        peer.send("response.create")
        started = await peer.wait("output_audio_buffer.started", 0, 30)
        assert started is not None
        await asyncio.sleep(0.8)
        assert not peer.of("response.done"), "the reply was too short to be interrupted"
        first, _ = await peer.mic.play(read_wav(DATA / "questions" / "bees.wav"))
        cut = await peer.wait("response.done", 0, 10)
        assert cut is not None
        response = cut.event["response"]
        assert response["status"] == "cancelled" and response["status_details"]["reason"] == "turn_detected"
        await asyncio.sleep(max(0.0, cut.at + 0.7 - time.monotonic()))
        quiet = [x for t, x in peer.heard if cut.at + 0.1 < t < cut.at + 0.6 and len(x)]
        assert quiet and max(int(np.abs(x.astype(int)).max()) for x in quiet) < 300, "audio after the cut"
        assert cut.at - first < 0.6
        played = response["audio_end_ms"]
        assert played == pytest.approx(1000 * (cut.at - started.at), abs=150), "what was sent is what was heard"
        truncated = await peer.wait("conversation.item.assistant_truncated", 0, 5)
        assert truncated is not None and truncated.event["audio_end_ms"] == played
        assert peer.of("output_audio_buffer.cleared")
        await peer.close()

    asyncio.run(run())


def test_garbage_on_the_channel_is_answered_and_the_call_goes_on(server: Served) -> None:
    async def run() -> None:
        peer = await Peer(base(server)).connect()
        for raw in ("{not json", b"\xff\xfe\x00", '{"type":"no.such","event_id":"e1"}',
                    '{"type":"partial_message","id":"x","index":3,"total":9,"data":"@@"}',
                    '{"type":"input_audio_buffer.append","audio":"AAAA","event_id":"e2"}'):  # fmt: skip
            peer.channel.send(raw)
        await peer.wait(lambda s: s.type == "error" and s.event["error"]["event_id"] == "e2", 0, 5)
        errors = [s.event["error"] for s in peer.of("error")]
        assert len(errors) == 5 and errors[2]["event_id"] == "e1" and errors[4]["param"] == "audio"
        peer.channel.send('{"type":"full_message","data":"eyJ0eXBlIjoiaW5wdXRfYXVkaW9fYnVmZmVyLmNsZWFyIn0="}')
        assert await peer.wait("input_audio_buffer.cleared", 0, 5)
        await peer.close()

    asyncio.run(run())


async def short_call(server: Served, n: int) -> None:
    """One of many: ends by hang-up, by goodbye, or by vanishing in the middle of a reply."""
    peer = await Peer(base(server)).connect()
    assert await peer.wait("session.created", 0, 10)
    if n % 10 == 3:
        peer.send("response.create", response=STORY)
        assert await peer.wait("output_audio_buffer.started", 0, 30)
    if n % 3 == 0:
        async with aiohttp.ClientSession() as http, http.post(f"{base(server)}{peer.location}/hangup") as reply:
            assert reply.status == 200
        await asyncio.wait_for(peer.closed.wait(), 5)
    await peer.close()


async def all_gone(server: Served) -> None:
    """Wait until the server has no live session."""
    async with aiohttp.ClientSession() as http:
        for _ in range(100):
            async with http.get(f"{base(server)}/v1/inspect") as reply:
                if not [s for s in (await reply.json())["data"] if s["live"]]:
                    return
            await asyncio.sleep(0.1)
    raise AssertionError("sessions are left")


def test_fifty_calls_in_a_row_and_four_at_once_leave_nothing_behind(server: Served) -> None:
    async def some(first: int, last: int) -> None:
        for n in range(first, last):
            await short_call(server, n)
        await asyncio.gather(*(short_call(server, n) for n in (3, 4, 5, 6)))
        await all_gone(server)

    asyncio.run(some(0, 6))
    before = usage(server.pid)
    asyncio.run(some(6, 56))
    after = usage(server.pid)
    for _ in range(50):  # the last HTTP connection goes in its own time
        if after["descriptors"] <= before["descriptors"]:
            break
        time.sleep(0.1)
        after = usage(server.pid)
    assert after["threads"] <= before["threads"], (before, after)
    assert after["descriptors"] <= before["descriptors"], (before, after)
    assert after["rss_mb"] <= before["rss_mb"] + 40, (before, after)


def offer() -> str:
    async def make() -> str:
        peer = Peer("")
        peer.pc.createDataChannel("oai-events")
        peer.pc.addTrack(peer.mic)
        await peer.pc.setLocalDescription(await peer.pc.createOffer())
        text: str = peer.pc.localDescription.sdp
        await peer.close()
        return text

    return asyncio.run(make())


def test_bad_offers_are_refused_and_say_why(server: Served) -> None:
    good = offer()
    lines = good.splitlines()
    candidate = next(n for n, line in enumerate(lines) if line.startswith("a=candidate"))
    broken = [*lines[:candidate], "a=candidate:x y z", *lines[candidate + 1 :]]
    for text, named in (
        ("hello", "line 1"),
        ("v=0\r\nnonsense\r\n", "line 2"),
        ("\r\n".join(broken), f"line {candidate + 1}"),
        (good.replace("opus/48000/2", "opux/48000/2"), "no common codec"),
        ("v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n", "no audio"),
        (good.replace("a=ice-ufrag", "a=ice-xfrag"), "ice-ufrag"),
    ):
        for path in ("/v1/realtime", "/v1/realtime/calls"):
            status, body, _ = post(server, path, text.encode())
            assert status == 400 and named in body["error"]["message"], (status, body)
    assert post(server, "/v1/realtime/calls", b"v=0\r\n" + b"a=x\r\n" * 20_000)[0] == 413
    assert post(server, "/v1/realtime/calls", b"{}", "application/json")[0] == 415
    assert post(server, "/v1/realtime/calls?model=nonesuch", good.encode())[0] == 404
    assert post(server, "/v1/realtime/calls/rtc_none/hangup", b"")[0] == 404


def test_doors_of_the_browser(server: Served) -> None:
    good = offer().encode()
    assert post(server, "/v1/realtime/calls", good, Origin="https://evil.example")[0] == 403
    assert post(server, "/v1/realtime/calls", good, Host="evil.example")[0] == 403
    assert post(server, "/v1/realtime/calls", good, Authorization="Bearer ek_wrong")[0] == 401
    status, body, _ = post(server, "/v1/realtime/client_secrets", b'{"session":{"type":"realtime"}}', "application/json")
    assert status == 200 and body["value"].startswith("ek_") and body["session"]["type"] == "realtime"
    assert body["expires_at"] > 0
    bad = post(server, "/v1/realtime/client_secrets", b'{"session":{"type":"realtime","speed":9}}', "application/json")
    assert bad[0] == 400 and bad[1]["error"]["param"] == "session.speed"
    assert post(server, "/v1/realtime/client_secrets", b"{}", "application/json", Origin="https://evil.example")[0] == 403
    status, body, _ = post(server, "/v1/realtime/sessions", b'{"voice":"default"}', "application/json")
    assert status == 200 and body["client_secret"]["value"].startswith("ek_")


def test_an_ephemeral_key_carries_its_session_and_a_sideband_sees_the_call(server: Served) -> None:
    async def run() -> None:
        session = {"type": "realtime", "instructions": "Answer in one word.", "profile": "fast"}
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{base(server)}/v1/realtime/client_secrets", json={"session": session}) as reply:
                key = (await reply.json())["value"]
            peer = await Peer(base(server), headers={"Authorization": f"Bearer {key}"}).connect()
            created = await peer.wait("session.created", 0, 5)
            assert created is not None and created.event["session"]["instructions"] == "Answer in one word."
            call_id = peer.location.rsplit("/", 1)[1]
            async with http.ws_connect(f"{server.url}?call_id={call_id}") as side:
                first = json.loads(await side.receive_str())
                assert first["type"] == "session.created" and first["session"]["id"] == created.event["session"]["id"]
                text = {"type": "input_text", "text": "What do bees make?"}
                item = {"type": "message", "role": "user", "content": [text]}
                await side.send_json({"type": "conversation.item.create", "item": item})
                await side.send_json({"type": "response.create"})
                assert await peer.wait("response.done", 0, 30)
                kinds = []
                while "response.done" not in kinds:
                    kinds.append(json.loads(await side.receive_str(timeout=5))["type"])
                assert kinds[0] == "conversation.item.added"
            assert not peer.closed.is_set(), "the end of a sideband is not the end of the call"
            async with http.ws_connect(f"{server.url}?call_id={call_id}") as side:
                await side.receive_str()
                await peer.close()
                message = await side.receive(timeout=10)
                while message.type == aiohttp.WSMsgType.TEXT:
                    message = await side.receive(timeout=10)
                assert message.type == aiohttp.WSMsgType.CLOSE and message.data == 1000
            async with http.get(f"{base(server)}/v1/realtime?call_id={call_id}", headers={"Upgrade": "websocket"}) as r:
                assert r.status == 404

    asyncio.run(run())
