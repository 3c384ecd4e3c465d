"""The contract on a real server: live scenarios, dialects on the wire, the journal of a real call."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from bargein.client.audio import read_wav
from bargein.conformance.live import SCENARIOS, play
from bargein.http_api.cli import main
from bargein.pipeline import replay

from .conftest import DATA, Served, serving

TURNS = int(os.environ.get("JOURNAL_TURNS", "3"))  # of the call whose journal is replayed; the bar is 10


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda x: x.__name__)
def test_live(server: Served, scenario: Any) -> None:
    assert play(scenario, server.url) == []


def test_the_command_drives_a_server(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "run", "--server", f"http://127.0.0.1:{server.port}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(SCENARIOS)} passed, 0 failed"
    for what in ("run", "fuzz"):
        assert main(["conformance", what, "--server", "ws://127.0.0.1:9"]) == 2


def first_update(url: str, session: dict[str, Any] | None, **how: Any) -> list[dict[str, Any]]:
    """What a server says first, and to an update and a typed item."""
    with connect(url, **how) as ws:
        if session is not None:
            ws.send(json.dumps({"type": "session.update", "session": session}))
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        ws.send(json.dumps({"type": "conversation.item.create", "item": item}))
        ws.send(json.dumps({"type": "session.close"}))
        return [json.loads(text) for text in ws]


@pytest.mark.parametrize(
    ("query", "how", "session"),
    [
        ("", {"additional_headers": {"OpenAI-Beta": "realtime=v1"}}, None),
        ("", {"subprotocols": ["realtime", "openai-beta.realtime-v1"]}, None),
        ("?events=beta", {}, None),
        ("", {}, {"modalities": ["text"], "voice": "default"}),
    ],
)
def test_a_beta_client_gets_beta_events(server: Served, query: str, how: Any, session: Any) -> None:
    said = first_update(server.url + query, session, **how)
    kinds = [ev["type"] for ev in said]
    assert kinds[0] == "session.created" and "conversation.item.created" in kinds
    assert "conversation.item.added" not in kinds and "session.done" not in kinds
    flat = said[1]["session"] if session else said[0]["session"]
    assert flat["input_audio_format"] == "pcm16" and flat["modalities"] == (["text"] if session else ["text", "audio"])


def test_the_first_update_may_ask_for_the_extended_dialect(server: Served) -> None:
    kinds = [ev["type"] for ev in first_update(server.url, {"type": "realtime", "events": "extended"})]
    assert kinds[-1] == "session.done" and "conversation.item.added" in kinds
    kinds = [ev["type"] for ev in first_update(server.url, {"type": "realtime"})]
    assert "session.done" not in kinds and kinds[-1] == "conversation.item.done"


def talk(server: Served, *questions: str, seconds: float) -> None:
    """Ask aloud, one question after the other's reply; stop listening after a while, wherever the reply is."""
    with connect(server.url + "?events=extended", max_size=2**24) as ws:
        brief = {"type": "realtime", "profile": "fast", "max_output_tokens": 6}
        ws.send(json.dumps({"type": "session.update", "session": brief}))
        for question in questions:
            pcm = read_wav(DATA / "questions" / f"{question}.wav")
            for n in range(0, len(pcm) + 12000, 480):
                frame = pcm[n : n + 480].tobytes().ljust(960, b"\0")
                ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(frame).decode()}))
                time.sleep(0.02)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    if json.loads(ws.recv(0.2))["type"] == "response.done":
                        break
                except TimeoutError:
                    pass


def ended(journal: Path) -> Path:
    """A journal, once the server has written its last line."""
    until = time.monotonic() + 20
    while '"end"' not in journal.read_text().splitlines()[-1]:
        assert time.monotonic() < until, "the journal of a closed session has no end"
        time.sleep(0.05)
    return journal


def test_the_journal_of_a_real_call_replays_also_after_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    running = serving(tmp_path / "log", "--set", f"inspector.session_dir={folder}")
    server = next(running)
    talk(server, *(("capital", "bees", "sum", "week") * 3)[:TURNS], seconds=40)
    (whole,) = folder.glob("*/journal.jsonl")
    done = list(replay.steps(replay.load(ended(whole))))
    assert len(done) > 100 and all(x.same for x in done)
    assert repr([x.effects for x in done]).count("ResponseDone(") >= TURNS
    with connect(server.url) as ws:
        ws.recv()
        for _ in range(100):
            ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": "AAAA" * 1280}))
            time.sleep(0.02)
        os.kill(server.pid, signal.SIGKILL)
    (killed,) = set(folder.glob("*/journal.jsonl")) - {whole}
    done = list(replay.steps(replay.load(killed)))
    assert len(done) > 20 and all(x.same for x in done)
    with pytest.raises(StopIteration):
        next(running)


def test_a_client_that_reads_is_not_too_slow_however_fast_it_asks(server: Served) -> None:
    with connect(server.url + "?events=extended", max_size=2**24, max_queue=None) as ws:
        for n in range(1000):
            ws.send(json.dumps({"type": "conversation.item.retrieve", "item_id": "nowhere", "event_id": f"c{n}"}))
        errors: list[dict[str, Any]] = []
        while len(errors) < 1000:
            ev = json.loads(ws.recv(20))
            errors += [ev["error"]] if ev["type"] == "error" else []
    assert [x["event_id"] for x in errors] == [f"c{n}" for n in range(1000)]


def test_hostile_clients_over_websocket(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["conformance", "fuzz", "--server", server.url, "--scenarios", "15", "--seed", "7"]
    assert main(command) == 0, capsys.readouterr().out


def test_hostile_clients_over_webrtc(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["conformance", "fuzz", "--server", server.url, "--webrtc", "--scenarios", "3", "--seed", "7"]
    assert main(command) == 0, capsys.readouterr().out


def written(url: str, *asked: str) -> list[str]:
    """What is written to each of these, all at once: the first in the conversation, the others beside it."""
    with connect(url, max_size=2**24) as ws:
        for n, text in enumerate(asked):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            how = {"output_modalities": ["text"], "temperature": 0, "max_output_tokens": 60, "input": [item]}
            beside = {"conversation": "none"} if n else {}
            ws.send(json.dumps({"type": "response.create", "response": how | beside}))
        ids: list[str] = []
        texts: dict[str, str] = {}
        while len(texts) < len(asked):
            ev = json.loads(ws.recv(60))
            if ev["type"] == "response.created":
                ids.append(ev["response"]["id"])
            elif ev["type"] == "response.done":
                assert ev["response"]["status"] in ("completed", "incomplete"), ev
                texts[ev["response"]["id"]] = ev["response"]["output"][0]["content"][0]["text"]
    return [texts[i] for i in ids]


def test_what_is_written_side_by_side_is_what_is_written_alone(server: Served) -> None:
    asked = ("Name three large cities.", "What is a violin?", "How do bees make honey?", "Why is the sky blue?")
    assert written(server.url, *asked) == [written(server.url, one)[0] for one in asked]
