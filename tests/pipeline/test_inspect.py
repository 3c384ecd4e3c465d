"""The inspector's relay, the journal and recordings: bounded, exact, and readable again."""

from __future__ import annotations

import asyncio
import json
import os
import time
import wave
from pathlib import Path

import numpy as np
import pytest

from bargein.conformance.walker import Walker
from bargein.pipeline import journal
from bargein.pipeline.inspect import Inspections, Relay, Watch
from bargein.pipeline.recording import Recorder
from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import Message, Part, SpokenWord
from bargein.realtime.ids import ItemId
from bargein.realtime.machine import step
from bargein.realtime.settings import parse
from bargein.realtime.state import Session
from bargein.realtime.wire import read

from ..realtime.play import Play


class Listening(Play):
    """A played session that keeps its inputs and is watched."""

    def __init__(self, watch: Watch | None = None, **settings: object) -> None:
        self.inputs: list[e.Input] = []
        self.watch = watch
        super().__init__(**settings)

    def tell(self, ev: e.Input) -> list:
        self.inputs.append(ev)
        effects = super().tell(ev)
        if self.watch is not None:
            self.watch.step(ev, self.state, tuple(effects))
        return effects


def a_call(watch: Watch | None = None) -> Listening:
    p = Listening(watch, profile="fast", type="realtime")
    p.turn("What do bees make?")
    p.reply("Bees make honey.")
    p.play(600)
    p.drained(600)
    for raw in (
        {"type": "session.update", "session": {"type": "realtime", "tools": [{"type": "function", "name": "f"}],
                                               "eou": {"thresholds": {"en": 0.4}}}},
        {"type": "conversation.item.create", "item": {"type": "message", "role": "user",
                                                      "content": [{"type": "input_text", "text": "_ hi"}]}},
        {"type": "response.create", "response": {"metadata": {"_": "x"}, "conversation": "none"}},
        {"type": "no.such"},
    ):  # fmt: skip
        p.tell(read(json.dumps(raw), p.at, "pcm16"))  # type: ignore[arg-type]
    p.turn("And wasps?")
    return p


def replay(inputs: list[e.Input]) -> list:
    state, out = Session(), []
    for ev in inputs:
        state, effects = step(state, ev)
        out.append(effects)
    return out


def test_a_journal_gives_back_the_very_same_inputs_and_a_replay_the_same_effects() -> None:
    p = a_call()
    lines = [json.dumps({"in": journal.encode(ev)}) for ev in p.inputs]
    back = journal.inputs(lines)
    assert back == p.inputs and [type(x) for x in back] == [type(x) for x in p.inputs]
    assert repr(replay(back)) == repr(replay(p.inputs))
    odd = e.UpdateSession(1.5, parse({"type": "realtime", "audio": {"input": {"turn_detection": None}}}), None)
    assert journal.decode(json.loads(json.dumps(journal.encode(odd)))) == odd
    with pytest.raises(ValueError, match="another version"):
        journal.decode({"_": "NoSuchInput"})


def test_a_trace_alone_explains_a_commit() -> None:
    watch = Inspections(1024).open("sess_x", "test", None)
    a_call(watch)
    records = list(watch.relay.history())
    seen = {(r.lane, r.kind) for r in records}
    wanted = {("vad", "window"), ("stt", "flush"), ("stt", "transcript"), ("eou", "ask"), ("eou", "score"),
              ("eou", "verdict"), ("turn", "commit"), ("llm", "ask"), ("llm", "token"), ("tts_chunk", "planned"),
              ("tts_pacer", "frame"), ("state", "phase"), ("state", "timer")}  # fmt: skip
    assert wanted <= seen
    verdict = next(r for r in records if (r.lane, r.kind) == ("eou", "verdict"))
    assert verdict.payload["p"] == 1.0 and "threshold" in verdict.payload and "delay_ms" in verdict.payload
    commit = next(r for r in records if (r.lane, r.kind) == ("turn", "commit"))
    assert commit.payload["why"] and commit.corr["turn_id"] == commit.corr["item_id"]
    assert [r.seq for r in records] == sorted({r.seq for r in records})


def test_a_slow_reader_loses_the_oldest_and_is_told() -> None:
    async def run() -> None:
        relay = Relay("sess_x", 8)
        reader = relay.follow()
        for n in range(100):
            relay.add(relay.make("turn", "tick", {"n": n}))
        lines = [json.loads(x) for x in (await reader.next()).splitlines()]
        assert lines[0]["kind"] == "records_dropped" and lines[0]["payload"]["count"] == 84
        assert [x["payload"]["n"] for x in lines[1:]] == list(range(84, 100))
        relay.end()
        assert await reader.next() == b""

    asyncio.run(run())


def test_fast_lanes_do_not_push_out_the_story() -> None:
    relay = Relay("sess_x", 8)
    relay.add(relay.make("turn", "commit", {}))
    for n in range(1000):
        relay.add(relay.make("vad", "window", {"n": n}))
    held = list(relay.history())
    assert held[0].kind == "commit" and len(held) == 9


def test_what_is_odd_does_not_reach_the_session() -> None:
    watch = Inspections(16).open("sess_x", "test", None)
    watch.step("no input", Session(), ())  # type: ignore[arg-type]
    watch.client_event(b"\xff\xfe" * 5000)
    assert list(watch.relay.history())


def sides(file: Path) -> np.ndarray:
    """[samples, 2]"""
    with wave.open(str(file)) as wav:
        assert (wav.getframerate(), wav.getnchannels()) == (24000, 2)
        return np.frombuffer(wav.readframes(wav.getnframes()), "<i2").reshape(-1, 2)


def test_a_recording_holds_journal_and_both_sides_in_place(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, keep_days=1, keep_mb=100)
    sink = recorder.start("sess_rec", "test")
    watch = Inspections(64).open("sess_rec", "test", sink)
    p = a_call(watch)
    now = sink._origin_ms
    tone = np.full(1600, 0.5, np.float32)
    sink.mic(tone, now + 300)
    sink.mic(tone, now + 430)  # 30 ms late: not moved
    sink.out(np.full(480, 1000, "<i2").tobytes(), now + 1000, "a")
    sink.out(np.full(480, 1000, "<i2").tobytes(), now + 1021, "a")  # a clock's jitter: follows on
    sink.out(np.full(480, 1000, "<i2").tobytes(), now + 1240, "a")  # a pause
    watch.end()
    recorder.close()  # what is written in the background is on disk now
    assert recorder.list()[0]["session_id"] == "sess_rec"
    lines = (tmp_path / "sess_rec" / "journal.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["session"] == "sess_rec" and "end" in json.loads(lines[-1])
    assert journal.inputs(lines) == p.inputs
    assert {json.loads(x)["rec"]["lane"] for x in lines if '"rec"' in x} >= {"turn", "eou", "stt", "llm"}
    x = sides(tmp_path / "sess_rec" / "audio.wav")
    loud = np.flatnonzero(np.abs(x[:, 0]) > 8192)
    assert abs(loud[0] - 200 * 24) < 12 and abs(loud[-1] - 400 * 24) < 12 and np.all(np.diff(loud) == 1)
    assert np.flatnonzero(x[:, 1]).tolist() == [*range(24000, 24960), *range(1240 * 24, 1260 * 24)]


def test_what_was_cut_is_silent_and_what_was_paused_is_a_pause(tmp_path: Path) -> None:
    """A reply of two words, paused in between, is cut in its second; its audio had been written ahead."""
    recorder = Recorder(tmp_path, keep_days=1, keep_mb=100)
    sink = recorder.start("sess_cut", "test")
    zero = sink._origin_ms
    for n in range(50):
        at = 500 + 20 * n if n < 25 else 1500 + 20 * (n - 25)
        sink.out(np.full(480, 1000 + n, "<i2").tobytes(), zero + at, "item_a")
    words = (SpokenWord("One ", 100, 500), SpokenWord("two ", 500, 700), SpokenWord("three ", 700, 900))
    said = Message(ItemId("item_a"), "assistant", (Part("output_audio", "One two"),), "incomplete", words, 720)
    sink.input(e.TransportClosed(zero + 1720), (f.Emit(a.ItemDone(said, None)),))
    sink.input(e.TransportClosed(zero + 1800), (f.Emit(a.ItemTruncated(ItemId("item_a"), 640, "client")),))
    sink.out(np.full(480, 7, "<i2").tobytes(), zero + 1900, "item_b")
    watch = Inspections(64).open("sess_cut", "test", sink)
    watch.end()
    recorder.close()
    x = sides(tmp_path / "sess_cut" / "audio.wav")[:, 1]
    spans = [*range(500 * 24, 1000 * 24), *range(1500 * 24, 1640 * 24), *range(1900 * 24, 1920 * 24)]
    assert np.flatnonzero(x).tolist() == spans
    told = json.loads((tmp_path / "sess_cut" / "transcript.json").read_text())
    (item,) = told["items"]
    assert item["text"] == "One two-" and item["status"] == "incomplete" and told["aligned"] is True
    words_told = [(w["word"], w["start_ms"], w["end_ms"]) for w in item["words"]]
    assert words_told == [("One", 600, 1000), ("two-", 1500, 1640)]


def test_a_quiet_session_is_on_disk_too(tmp_path: Path) -> None:
    """Nothing comes after these inputs, and nobody closes: a killed process would leave them readable."""
    recorder = Recorder(tmp_path, keep_days=1, keep_mb=100)
    watch = Inspections(64).open("sess_still", "test", recorder.start("sess_still", "test"))
    p = a_call(watch)
    file, text = tmp_path / "sess_still" / "journal.jsonl", ""
    until = time.monotonic() + 20
    while text.count('\n{"in"') < len(p.inputs) or not text.endswith("\n"):
        assert time.monotonic() < until, f"{len(text)} characters reached the disk"
        time.sleep(0.05)
        text = file.read_text() if file.exists() else ""
    assert journal.inputs(text.splitlines()) == p.inputs
    recorder.close()


def test_old_recordings_go_by_age_and_by_size(tmp_path: Path) -> None:
    def put(name: str, size: int, days: float) -> None:
        (tmp_path / name).mkdir()
        for file in (tmp_path / name / "journal.jsonl", tmp_path / name / "audio.wav"):
            file.write_bytes(b"x" * (size // 2))
            os.utime(file, (time.time() - days * 86400,) * 2)

    put("sess_old", 10, 9)
    put("sess_big1", 600_000, 2)
    put("sess_big2", 600_000, 1)
    put("other", 600_000, 9)
    (tmp_path / "notes.txt").write_text("not ours")
    recorder = Recorder(tmp_path, keep_days=5, keep_mb=1)
    recorder.close()
    assert sorted(x.name for x in tmp_path.iterdir()) == ["notes.txt", "other", "sess_big2"]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_in_a_session_is_inspected(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """A record that its reader chokes on would take the rest of its step with it."""
    walker = Walker(seed)
    watch = Watch(Relay("sess_walk", 64), "websocket")
    tell = walker.p.tell

    def watched(ev: e.Input) -> list[f.Effect]:
        effects = tell(ev)
        watch.step(ev, walker.p.state, tuple(effects))
        return effects

    walker.p.tell = watched  # type: ignore[method-assign]
    for _ in range(600):
        walker.step()
    watch.end()
    assert not [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
