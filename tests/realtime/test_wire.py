"""What goes over the wire for the settings, events and items of sections 9 to 11."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import events as e
from bargein.realtime.ids import ItemId, ResponseId
from bargein.realtime.settings import Settings, SettingsError, apply, echo, parse
from bargein.realtime.wire import read, render


def ask(response: dict[str, Any]) -> Any:
    return read(json.dumps({"type": "response.create", "response": response, "event_id": "e1"}), 0.0, "pcm16")


def test_a_response_may_name_items_as_its_input() -> None:
    named = [{"type": "item_reference", "id": "item_a"}]
    got = ask({"conversation": "none", "output_modalities": ["text"], "input": named})
    assert got.params.input == (e.ItemReference("item_a"),) and got.params.out_of_band
    bad = ask({"input": [{"type": "item_reference"}]})
    assert isinstance(bad, e.ClientFault) and bad.param == "response.input[0].id" and bad.event_id == "e1"


@pytest.mark.parametrize("name", ["paused", "resumed"])
def test_a_pause_is_shown_in_the_extended_dialect_only(name: str) -> None:
    kind = {"paused": a.OutputPaused, "resumed": a.OutputResumed}[name]
    event = kind(ResponseId("resp_1"))
    assert render(event, "extended") == {"type": f"output_audio_buffer.{name}", "response_id": "resp_1"}
    assert render(event, "ga") is None


def test_timeout_triggered_is_gas() -> None:
    assert render(a.TimeoutTriggered(ItemId("item_1"), 100, 6100), "ga") == {
        "type": "input_audio_buffer.timeout_triggered",
        "item_id": "item_1",
        "audio_start_ms": 100,
        "audio_end_ms": 6100,
    }


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [
        ("barge_in.min_words", 1, 20),
        ("barge_in.unworded_ms", 100, 10000),
        ("barge_in.boundary_ms", 0, 10000),
        ("barge_in.hold_cap_ms", 100, 10000),
        ("input_gap_ms", 60, 5000),
        ("turn_detection.idle_timeout_ms", 5000, 30000),
    ],
)
def test_bounds_of_settings(path: str, low: int, high: int) -> None:
    def update(value: Any) -> dict[str, Any]:
        *groups, leaf = path.split(".")
        out: dict[str, Any] = {leaf: value}
        for group in reversed(groups):
            out = {group: out}
        return out

    for good in (low, high):
        flat = json.dumps(echo(apply(Settings(), parse(update(good)))))
        assert f'"{path.rsplit(".", 1)[-1]}": {good}' in flat
    for bad in (low - 1, high + 1, "x", True, 1.5):
        with pytest.raises(SettingsError) as problem:
            parse(update(bad))
        assert problem.value.param == f"session.{path}"


@pytest.mark.parametrize(
    ("update", "param"),
    [
        ({"barge_in": {"mode": "pause"}}, "session.barge_in.mode"),
        ({"barge_in": {"echo_guard": "on"}}, "session.barge_in.echo_guard"),
        ({"barge_in": {"backchannels": "mm-hm"}}, "session.barge_in.backchannels"),
        ({"barge_in": {"backchannels": [1]}}, "session.barge_in.backchannels"),
        ({"truncation": "never"}, "session.truncation"),
        ({"truncation": {"type": "retention_ratio", "retention_ratio": 2}}, "session.truncation"),
        ({"parallel_tool_calls": 1}, "session.parallel_tool_calls"),
        ({"stt_failure_limit": 1}, "session.stt_failure_limit"),
        ({"session_idle_timeout_s": 1}, "session.session_idle_timeout_s"),
    ],
)
def test_bad_values_are_named(update: dict[str, Any], param: str) -> None:
    with pytest.raises(SettingsError) as problem:
        parse(update)
    assert problem.value.param == param


def test_what_stock_clients_set_is_echoed() -> None:
    update = {
        "type": "realtime",
        "truncation": {"type": "retention_ratio", "retention_ratio": 0.8},
        "parallel_tool_calls": False,
        "audio": {
            "input": {
                "noise_reduction": {"type": "near_field"},
                "turn_detection": {"type": "server_vad", "idle_timeout_ms": 6000},
            }
        },
    }
    out = echo(apply(Settings(), parse(update)))
    assert out["truncation"] == {"type": "retention_ratio", "retention_ratio": 0.8}
    assert out["parallel_tool_calls"] is False
    assert out["audio"]["input"]["noise_reduction"] == {"type": "near_field"}
    assert out["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 6000
    assert "ignored_fields" not in out
