"""Canonical traces, their comparison, and the rules on traces of both sides."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bargein.conformance import fixture
from bargein.conformance.canonical import canonical
from bargein.conformance.rules import check, check_pace
from bargein.http_api.cli import main

FIXTURES = fixture.load()


def raw(name: str) -> list[dict[str, Any]]:
    """Both sides of a fixture's wire."""
    return fixture.run(name, FIXTURES[name]).raw


def test_the_same_call_under_other_ids_and_times_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = [ev for ev in raw("cancel_while_streaming") if "sent" not in ev]
    text = json.dumps(one)
    names = {x for ev in one for x in [ev.get("item_id"), ev.get("response_id"), (ev.get("item") or {}).get("id")] if x}
    for n, name in enumerate(sorted(names, reverse=True)):
        text = text.replace(name, f"other{n}")
    two = json.loads(text)
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    a.write_text("\n".join(map(json.dumps, one)))
    b.write_text("\n".join(json.dumps({"ms": n, "from": "server", "event": ev}) for n, ev in enumerate(two)))
    assert main(["conformance", "diff", str(a), str(b)]) == 0
    two[3]["item_id"] = "another"
    b.write_text("\n".join(map(json.dumps, two)))
    capsys.readouterr()
    assert main(["conformance", "diff", str(a), str(b)]) == 1 and "ITEM_2" in capsys.readouterr().out
    assert main(["conformance", "canonical", str(a)]) == 0
    shown = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
    assert [x["n"] for x in shown] == list(range(len(shown))) and shown[1]["item_id"] == "ITEM_1"


def test_audio_is_its_length_however_it_is_cut() -> None:
    def delta(n: int) -> dict[str, Any]:
        audio = base64.b64encode(bytes(n)).decode()
        return {"type": "response.output_audio.delta", "event_id": f"e{n}", "response_id": "r", "item_id": "i", "delta": audio}

    kept = delta(0) | {"delta": "(960 bytes)"}
    assert canonical([delta(480), delta(480)]) == canonical([delta(960)]) == canonical([kept])
    other = delta(480) | {"response_id": "s"}
    assert len(canonical([delta(480), other, delta(480)])) == 3


def test_check_shows_the_offending_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    trace = raw("turn_clean")
    path.write_text("\n".join(map(json.dumps, trace)))
    assert main(["conformance", "check", str(path)]) == 0
    path.write_text("\n".join(map(json.dumps, [*trace, trace[-2]])))
    assert main(["conformance", "check", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "W1 at" in shown and '"response.done"' in shown and shown.splitlines()[-1].endswith("2 violations")
    path.write_text('{"no": "event"}')
    assert main(["conformance", "check", str(path)]) == 2


def found(trace: list[dict[str, Any]]) -> set[str]:
    return {v.rule for v in check(trace, ended=False, complete=True)}


def without(trace: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [ev for ev in trace if ev["type"] != kind]


def moved(trace: list[dict[str, Any]], kind: str, after: str) -> list[dict[str, Any]]:
    """The first event of a kind put after the last one of another."""
    ev = next(ev for ev in trace if ev["type"] == kind)
    rest = [x for x in trace if x is not ev]
    at = max(n for n, x in enumerate(rest) if x["type"] == after)
    return [*rest[: at + 1], ev, *rest[at + 1 :]]


def changed(trace: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    trace = json.loads(json.dumps(trace))
    next(ev for ev in trace if ev["type"] == kind).update(fields)
    return trace


CUT, CLEAN, ASKED = "cancel_while_streaming", "turn_clean", "items_retrieved"
AUDIO, ADDED = "response.output_audio.delta", "conversation.item.added"


@pytest.mark.parametrize(
    ("rule", "name", "damage"),
    [
        ("W1", CLEAN, lambda t: [*t, next(x for x in t if x["type"] == "response.created")]),
        ("W2", CLEAN, lambda t: without(t, "response.created")),
        ("W3", CLEAN, lambda t: without(t, "input_audio_buffer.speech_stopped")),
        ("W3", CLEAN, lambda t: moved(t, "input_audio_buffer.committed", ADDED)),
        ("W6", CLEAN, lambda t: moved(t, AUDIO, "response.done")),
        ("W7", CUT, lambda t: moved(t, "conversation.item.assistant_truncated", "session.created")),
        ("W8", CLEAN, lambda t: [*t, next(x for x in t if x["type"] == ADDED)]),
        ("W9", ASKED, lambda t: [*t, next(x for x in t if x["type"] == "conversation.item.retrieved")]),
        ("W9", ASKED, lambda t: without(t, "conversation.item.retrieved")),
        ("W10", CLEAN, lambda t: moved(t, "output_audio_buffer.started", "response.created")),
        ("W13", CLEAN, lambda t: without(t, AUDIO)),
        ("W15", ASKED, lambda t: changed(t, "error", error={"type": "invalid_request_error", "event_id": None})),
        ("W15", ASKED, lambda t: changed(t, "error", error={"type": "invalid_request_error", "event_id": "c99"})),
        ("W16", CLEAN, lambda t: changed(t, ADDED, previous_item_id="nowhere")),
        ("W16", CLEAN, lambda t: changed(t, ADDED, event_id=t[0]["event_id"])),
        ("W17", CLEAN, lambda t: without(t, "conversation.item.input_audio_transcription.delta")),
    ],
)
def test_each_rule_sees_its_breach(rule: str, name: str, damage) -> None:  # type: ignore[no-untyped-def]
    trace = raw(name)
    assert found(trace) == set()
    assert rule in found(damage(trace))


def test_rules_of_the_end_and_of_the_pace() -> None:
    trace = raw(CLEAN)
    cut = [ev for ev in trace if ev["type"] not in ("response.done", "output_audio_buffer.stopped")]
    assert {v.rule for v in check(cut, ended=True)} == {"W1", "W11"} and found(cut) == set()
    stopped = raw("turn_late_verdict")[:3]
    other = stopped[1] | {"item_id": "item_other", "event_id": "e"}
    assert "W14" in found([*stopped, other])
    end = changed(trace, "response.done", response=trace[-2]["response"] | {"audio_end_ms": None})
    assert "W4" in found(end)

    def timed(*at: float) -> list[tuple[float, dict[str, Any]]]:
        ev = {"type": "response.output_text.delta", "response_id": "r", "delta": "x"}
        return [(t, ev) for t in at]

    done = {"type": "response.output_text.done", "response_id": "r"}
    assert check_pace([*timed(0, 1400, 2900), (3300, done)]) == []
    assert [v.rule for v in check_pace(timed(0, 1600))] == ["W12"]
    assert [v.rule for v in check_pace([*timed(0), (600, done)])] == ["W12"]
    resumed = {"type": "output_audio_buffer.resumed", "response_id": "r"}
    assert check_pace([*timed(0), (1700, resumed), *timed(1800)]) == []
