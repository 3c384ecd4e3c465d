"""What remains of a call: its folder, held against an independent reading of its audio."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

from bargein.client.audio import read_wav
from bargein.client.session import RealtimeClient
from bargein.client.turns import Microphone, converse

from .conftest import DATA, Served
from .test_agent_call import ask, hears
from .test_phone_call import about, transcribe
from .upstream import Upstream

RATE = 24000
Recorded = tuple[Served, str, dict[str, Any]]


def fetch(served: Served, session: str, what: str = "", method: str = "GET") -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{served.port}/v1/inspect/{session}" + (f"/{what}" if what else "")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


@pytest.fixture(scope="module")
def call(desk: tuple[Served, Upstream]) -> Recorded:
    """A call with a greeting, a question that a tool answers, and a story that is spoken over; its id, and its transcript
    when the caller's words have their times."""
    served, _ = desk

    async def run() -> str:
        async with RealtimeClient(served.url + "?model=porter") as call:
            mic = Microphone(call)
            await hears(call, "How can I help you?", 0)
            await converse(call, mic, read_wav(DATA / "questions" / "capital.wav"), 40)
            mark = await ask(call, "Tell me a story without any tool.")
            await call.wait("response.output_audio.delta", mark)
            await asyncio.sleep(2.0)
            await mic.play(read_wav(DATA / "sounds" / "interrupt-thats_wrong.wav"))
            await call.wait(lambda s: s.type == "response.done" and s.event["response"]["status"] == "cancelled", mark)
            await call.wait("response.created", len(call.seen))
            await call.wait("response.done", len(call.seen))
            await mic.stop()
            return str(call.seen[0].event["session"]["id"])

    session = asyncio.run(run())
    return served, session, aligned(served, session)


def aligned(served: Served, session: str) -> dict[str, Any]:
    """A call's transcript, as soon as the caller's words have their times."""
    until = time.monotonic() + 30
    while True:
        status, body = fetch(served, session, "transcript.json")
        if status == 200 and (told := json.loads(body))["aligned"]:
            return told
        assert time.monotonic() < until, body
        time.sleep(0.1)


def sides(served: Served, session: str) -> dict[str, np.ndarray]:
    status, wav = fetch(served, session, "audio.wav")
    assert status == 200 and wav[:4] == b"RIFF" and int.from_bytes(wav[40:44], "little") == len(wav) - 44
    x = np.frombuffer(wav[44:], "<i2").reshape(-1, 2)
    return {"caller": x[:, 0], "agent": x[:, 1]}


def plain(text: str) -> list[str]:
    words = re.sub(r"[^a-z0-9 ]", "", text.lower().replace("twenty-one", "21")).split()
    return ["no" if w == "know" else w for w in words]  # they sound the same


def piece(x: np.ndarray, start_ms: float, end_ms: float) -> np.ndarray:
    return x[max(0, int(start_ms * RATE / 1000)) : int(end_ms * RATE / 1000)]


def loud(x: np.ndarray, start_ms: float, end_ms: float) -> tuple[float, float]:
    """When sound begins and ends between two moments, ms: 10 ms frames within 30 dB of the loudest."""
    part = piece(x, start_ms, end_ms).astype(np.float64)
    power = (part[: len(part) // 240 * 240].reshape(-1, 240) ** 2).mean(1)
    found = np.flatnonzero(power > power.max() / 1000)
    return max(0, start_ms) + 10 * found[0], max(0, start_ms) + 10 * (found[-1] + 1)


def test_both_sides_say_what_the_transcript_says(call: Recorded) -> None:
    served, session, told = call
    sound = sides(served, session)
    spoken = [x for x in told["items"] if not x.get("typed")]
    assert [x["speaker"] for x in spoken][:5] == ["agent", "caller", "agent", "agent", "caller"], told
    for item in spoken:
        assert [w for x in item["words"] for w in plain(x["word"])] == plain(item["text"])
        heard = plain(transcribe(served, piece(sound[item["speaker"]], item["start_ms"] - 150, item["end_ms"] + 150), RATE))
        cut = item.get("status") == "incomplete"  # half a word at the end may be heard as another
        assert heard[: -1 if cut else None] == plain(item["text"])[: -1 if cut else None], item
    cut = next(x for x in spoken if x.get("status") == "incomplete")
    assert cut["text"].startswith("Of course.") and 4 < len(plain(cut["text"])) < 40
    after = piece(sound["agent"], cut["end_ms"] + 200, cut["end_ms"] + 400)
    assert not after.any(), "what was cut is silent"
    assert any(x.get("typed") and "story" in x["text"] for x in told["items"])


def test_words_are_where_their_sound_is(call: Recorded) -> None:
    """Between silences the first word begins and the last ends with the sound, within 80 ms; what the caller's last words
    fade out with may be longer than the word."""
    served, session, told = call
    sound = sides(served, session)
    for item in told["items"]:
        if item.get("typed"):
            continue
        words = item["words"]
        gaps = [n for n in range(1, len(words)) if words[n]["start_ms"] - words[n - 1]["end_ms"] > 150]
        firsts, lasts = [0, *gaps], [*[n - 1 for n in gaps], len(words) - 1]
        for first, last in zip(firsts, lasts, strict=True):
            start, end = words[first]["start_ms"], words[last]["end_ms"]
            begins, ends = loud(sound[item["speaker"]], start - 140, end + 140)
            print(item["speaker"], words[first]["word"], start - begins, words[last]["word"], end - ends)
            assert abs(start - begins) <= 80, (item["text"], words[first], begins)
            if item.get("status") != "incomplete":
                assert abs(end - ends) <= (80 if item["speaker"] == "agent" else 180), (item["text"], words[last], ends)


SPOKEN = [x for x in json.loads((DATA / "words" / "times.json").read_text()) if x["file"] in {
    f"test-{n:04d}.wav" for n in (741, 742, 743, 744)}]  # one of each voice  # fmt: skip


def test_every_word_is_where_it_was_said(desk: tuple[Served, Upstream]) -> None:
    """Callers whose synthesizers told when each word is said; the agent's words beside an alignment of its side alone."""
    served, _ = desk

    async def run() -> str:
        async with RealtimeClient(served.url + "?model=porter") as call:
            mic = Microphone(call)
            await hears(call, "How can I help you?", 0)
            for clip in SPOKEN:
                await converse(call, mic, read_wav(DATA / "words" / clip["file"]), 40)
            await mic.stop()
            return str(call.seen[0].event["session"]["id"])

    session = asyncio.run(run())
    told = aligned(served, session)
    sound = sides(served, session)
    off: dict[str, list[tuple[float | None, float | None]]] = {"caller": [], "agent": []}
    heard = [w for x in told["items"] if x["speaker"] == "caller" for w in x["words"]]
    wanted = [
        (word, *(None if t is None else at + 1000 * t for t in times))
        for clip in SPOKEN
        for at in [found_at(sound["caller"], read_wav(DATA / "words" / clip["file"]))]
        for word, *times in clip["words"]
    ]
    for got, (_, start, end) in matched(heard, wanted):
        off["caller"].append((start and got["start_ms"] - start, end and got["end_ms"] - end))
    assert len(off["caller"]) >= 0.75 * len(wanted), (heard, wanted)  # a word may be misheard
    for item in told["items"]:
        if item["speaker"] == "agent" and item["status"] == "completed":
            first = item["start_ms"] - 150
            placed = align(served, piece(sound["agent"], first, item["end_ms"] + 150), item["text"])
            for got, (_, start, end) in matched(item["words"], placed):
                off["agent"].append((got["start_ms"] - first - start, got["end_ms"] - first - end))
    assert len(off["agent"]) >= 35
    for who, pairs in off.items():
        for side, x in zip(("starts", "ends"), zip(*pairs, strict=True), strict=True):
            known = np.array([t for t in x if t is not None])
            print(who, side, len(known), f"median {np.median(np.abs(known)):.0f} ms,", np.mean(np.abs(known) <= 80))
            assert np.mean(np.abs(known) <= 80) >= 0.95, (who, side, known)


def found_at(side: np.ndarray, clip: np.ndarray) -> float:
    """Where in one side of a recording a clip lies, ms: the peak of their correlation."""
    x, y = side.astype(np.float64), clip.astype(np.float64)
    size = 1 << int(len(x) + len(y)).bit_length()
    same = np.fft.irfft(np.fft.rfft(x, size) * np.conj(np.fft.rfft(y, size)), size)[: len(x)]
    return float(same.argmax()) * 1000 / RATE


def matched(got: list[dict[str, Any]], wanted: list[tuple[Any, ...]]) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
    """The words that both have, in order."""
    a, b = [" ".join(plain(w["word"])) for w in got], [" ".join(plain(w)) for w, *_ in wanted]
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return [(got[m.a + n], wanted[m.b + n]) for m in blocks for n in range(m.size)]


def align(served: Served, x: np.ndarray, text: str) -> list[tuple[str, float, float]]:
    """The words of a text in samples, with their times in ms, by the server's own route for that."""
    words = about(served, "alignments", x, RATE, text=text, language="en")["words"]
    return [(w["word"], 1000 * w["start"], 1000 * w["end"]) for w in words]


def test_tools_and_turns_are_told(call: Recorded) -> None:
    served, session, told = call
    tools = [json.loads(x) for x in fetch(served, session, "tools.jsonl")[1].splitlines()]
    assert [(x["name"], x["outcome"], x["output"]) for x in tools][:1] == [("room_temperature", "answered", "21 degrees")]
    assert tools[0]["took_ms"] < 500 and json.loads(tools[0]["arguments"]) == {"room": "hall"}
    turns = json.loads(fetch(served, session, "turns.json")[1])
    spoken = [t for t in turns if not t["typed"]]
    assert len(spoken) == 2 and any(t["typed"] for t in turns)
    question = next(x for x in told["items"] if x["speaker"] == "caller" and "capital" in x["text"])
    assert spoken[0]["id"] == question["id"]
    at = spoken[0]["at_ms"]
    assert abs(at["voice_end"] - question["words"][-1]["end_ms"]) < 400
    reply = next(x for x in told["items"] if x["speaker"] == "agent" and x["start_ms"] > question["end_ms"])
    sound = sides(served, session)["agent"]
    first = np.flatnonzero(piece(sound, at["voice_end"], reply["end_ms"]))[0] * 1000 / RATE + at["voice_end"]
    assert abs(at["first_frame"] - first) < 40, "the recording begins to speak when the turn says so"
    assert 0 < spoken[0]["voice_to_voice_ms"] == pytest.approx(at["first_frame"] - at["voice_end"], abs=0.2)
    assert at["voice_end"] < at["stop"] <= at["commit"] < at["done"]
    assert told["end_reason"] == "client_closed" and told["answered_by"] == "porter"


def test_its_start_and_end_were_told(call: Recorded, desk: tuple[Served, Upstream]) -> None:
    _, session, told = call
    got = [json.loads(body) for head, body in desk[1].hooks if head["webhook-signature"].startswith("v1,")]
    start, end = (x for x in got if x["data"]["call_id"] == session)
    assert (start["type"], end["type"]) == ("call.started", "call.ended")
    assert end["data"]["end_reason"] == "client_closed" and end["data"]["seconds"] == told["seconds"]
    assert end["data"]["voice_to_voice_ms"]["median"] > 0 and end["data"]["recorded"] is True
    assert "capital" not in json.dumps(got), "no content"


def test_a_call_is_deleted_by_its_id(call: Recorded) -> None:
    served, session, _ = call
    assert fetch(served, session, method="DELETE")[0] == 200
    for what in ("journal", "audio.wav", "transcript.json", ""):
        assert fetch(served, session, what)[0] == 404
    assert fetch(served, session, method="DELETE")[0] == 404
    assert session not in [x["session_id"] for x in served.get("/v1/inspect")[1]["data"]]
