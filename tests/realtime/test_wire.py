"""What goes over the wire for the settings, events and items of sections 9 to 11."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import events as e
from bargein.realtime.dialects import asked_for, of_first_update
from bargein.realtime.ids import ItemId, ResponseId
from bargein.realtime.settings import Settings, SettingsError, apply, echo, parse
from bargein.realtime.wire import Encoder, read, render

from .play import Play, user


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


# --- which dialect, and beta's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "header", "protocols", "dialect"),
    [
        (None, None, (), None),
        (None, None, ("realtime",), None),
        ("extended", "realtime=v1", (), "extended"),
        ("beta", None, (), "beta"),
        ("nonsense", None, (), None),
        (None, "realtime=v1", (), "beta"),
        (None, "assistants=v2, realtime=v1", (), "beta"),
        (None, "assistants=v2", (), None),
        (None, None, ("realtime", "openai-insecure-api-key.x", "openai-beta.realtime-v1"), "beta"),
    ],
)
def test_what_a_connection_asks_for(query: Any, header: Any, protocols: tuple[str, ...], dialect: Any) -> None:
    assert asked_for(query, header, protocols) == dialect


@pytest.mark.parametrize(
    ("session", "dialect"),
    [
        ({"type": "realtime", "voice": "x"}, "ga"),
        ({"instructions": "x"}, "ga"),
        ({"audio": {"output": {"voice": "x"}}}, "ga"),
        ({"voice": "x"}, "beta"),
        ({"modalities": ["text"]}, "beta"),
        ({"input_audio_format": "pcm16", "turn_detection": None}, "beta"),
        ({"events": "extended", "voice": "x"}, "extended"),
        ({"type": "realtime", "events": "extended"}, "extended"),
    ],
)
def test_what_the_first_update_says(session: dict[str, Any], dialect: str) -> None:
    assert of_first_update(session) == dialect
    assert parse(session), "and it is an update that is accepted"


def beta_trace() -> list[dict[str, Any]]:
    """A call with a turn, a spoken reply with a tool call, a typed item, an idle timeout, a refusal."""
    p = Play(model="gpt-realtime", turn_detection={"type": "server_vad", "idle_timeout_ms": 5000})
    p.turn("Count to ten.")
    p.reply("one two three", done=False)
    p.tell(e.ChatDone(p.at, p.epoch, (e.ToolCall("call_1", "look", "{}"),)))
    p.tell(e.SpeechDone(p.at, p.epoch))
    p.play(600)
    p.drained(600)
    p.tell(e.CreateItem(p.at, user("hi")))
    p.tell(e.CreateResponse(p.at, e.ResponseParams(text_only=True)))
    p.tell(e.ChatDelta(p.at, p.epoch, "Hi."))
    p.tell(e.ChatDone(p.at, p.epoch))
    p.tell(e.UpdateSession(p.at, parse({"voice": "x"})))
    p.tell(e.CancelResponse(p.at, None, "evt_1"))
    encoder = Encoder("beta", "m")
    return [json.loads(x) for ev in p.events() if (x := encoder.encode(ev, b"\0" * 960)) is not None]


def test_beta_events_satisfy_openais_beta_types() -> None:
    """Every event validates, strictly, as the type that the official package has for its name."""
    from openai.types.beta.realtime import realtime_server_event
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(realtime_server_event.RealtimeServerEvent)
    trace = beta_trace()
    for event in trace:
        model = adapter.validate_python(event)
        assert model.type == event["type"]
    kinds = [x["type"] for x in trace]
    for name in ("conversation.item.created", "response.audio.delta", "response.audio_transcript.done",
                 "response.text.delta", "response.function_call_arguments.done", "session.updated"):  # fmt: skip
        assert name in kinds
    ga = {"conversation.item.added", "conversation.item.done", "input_audio_buffer.timeout_triggered"}
    assert not ga & set(kinds) and not [k for k in kinds if "output_audio" in k or "output_text" in k]


def test_beta_has_flat_sessions_and_its_own_part_names() -> None:
    trace = beta_trace()
    session = trace[0]["session"]
    assert session["input_audio_format"] == "pcm16" and session["modalities"] == ["text", "audio"]
    assert session["turn_detection"]["idle_timeout_ms"] == 5000 and session["max_response_output_tokens"] == "inf"
    assert session["input_audio_transcription"]["language"] == "en"
    assert not {"audio", "output_modalities", "max_output_tokens", "type"} & session.keys()
    done = [x["response"] for x in trace if x["type"] == "response.done"]
    assert done[0]["output"][0]["content"] == [{"type": "audio", "transcript": "one two three"}]
    assert done[0]["output_audio_format"] == "pcm16" and done[0]["modalities"] == ["text", "audio"]
    assert done[1]["output"][0]["content"] == [{"type": "text", "text": "Hi."}] and done[1]["modalities"] == ["text"]


def test_beta_transcription_sessions_have_their_own_events() -> None:
    raw = json.dumps({"type": "transcription_session.update", "session": {"input_audio_format": "g711_ulaw"}})
    p = Play()
    p.tell(read(raw, p.at, "pcm16"))  # type: ignore[arg-type]
    shown = render(p.events()[-1], "beta")
    assert shown is not None and shown["type"] == "transcription_session.updated"
    assert shown["session"]["input_audio_format"] == "g711_ulaw" and "voice" not in shown["session"]
