"""Replay: a recorded call gives the same effects byte for byte, whole or cut off, and a changed build is found out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bargein.http_api.cli import main
from bargein.pipeline import journal, replay
from bargein.pipeline.inspect import Inspections
from bargein.pipeline.recording import Recorder

from .test_inspect import Listening, a_call


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Listening]:
    """A recording as the server writes it, of a call with turns, replies, updates and faults."""
    recorder = Recorder(tmp_path, keep_days=1, keep_mb=100)
    watch = Inspections(64).open("sess_rec", "test", recorder.start("sess_rec", "test"))
    p = a_call(watch)
    watch.end()
    recorder.close()
    return tmp_path / "sess_rec" / "journal.jsonl", p


def test_a_replay_has_the_same_effects_byte_for_byte(recorded: tuple[Path, Listening]) -> None:
    path, p = recorded
    done = list(replay.steps(replay.load(path)))
    assert [x.input for x in done] == p.inputs and all(x.same for x in done)
    assert done[-1].after == p.state
    assert replay.effects_line(tuple(p.effects)) == replay.effects_line(tuple(y for x in done for y in x.effects))


def test_a_journal_cut_off_anywhere_replays_up_to_the_cut(recorded: tuple[Path, Listening], tmp_path: Path) -> None:
    path, _ = recorded
    raw = path.read_bytes()
    whole = replay.load(path).entries
    cut = tmp_path / "cut.jsonl"
    ends = [n for n, byte in enumerate(raw) if byte == 10]
    for line, end in enumerate(ends):
        for at in (end + 1, end + 8):  # after a line, and in the middle of the next one
            cut.write_bytes(raw[:at])
            got = replay.load(cut)
            assert got.entries == whole[: len(got.entries)] and got.cut is (at < len(raw) and at == end + 8)
        complete = sum(b'{"in"' in x[:6] for x in raw.split(b"\n")[: line + 1])
        assert len(got.entries) == complete
    cut.write_bytes(raw[: ends[len(ends) // 2] + 5])
    assert all(x.same for x in replay.steps(replay.load(cut)))


def test_damage_in_the_middle_is_no_cut(recorded: tuple[Path, Listening]) -> None:
    path, _ = recorded
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:5], lines[5][:20] + "\n", *lines[6:]]))
    with pytest.raises(replay.JournalError, match="line 6"):
        replay.load(path)


def test_the_command_tells_a_changed_build(
    recorded: tuple[Path, Listening], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, p = recorded
    out = tmp_path / "effects.jsonl"
    assert main(["replay", str(path), "--effects", str(out)]) == 0
    assert f"{len(p.inputs)} of {len(p.inputs)} steps have the same effects, 0 not compared" in capsys.readouterr().out
    assert main(["replay", str(path), "--against", str(out)]) == 0
    assert main(["replay", str(path), "--step"]) == 0
    shown = capsys.readouterr().out
    assert "SpeechStarted(" in shown and ". vad: Silent() -> Speaking(" in shown
    monkeypatch.setattr("bargein.realtime.question.commit_delay_ms", lambda p, **_: 777)
    assert main(["replay", str(path)]) == 1
    assert "other effects than were recorded" in capsys.readouterr().out
    assert main(["replay", str(path), "--against", str(out)]) == 1
    shown = capsys.readouterr().out
    assert '+ {"_":"StartTimer","key":"commit"' in shown
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 2


def test_sets_have_one_spelling() -> None:
    names = [f"k{n}" for n in range(50)]
    assert journal.encode(frozenset(names)) == journal.encode(frozenset(reversed(names)))
    assert json.dumps(journal.encode(frozenset(names))).index("k1") < json.dumps(journal.encode(frozenset(names))).index("k9")
