"""Traces that were not taken from a WebSocket."""

from __future__ import annotations

from bargein.conformance import rules


def test_a_data_channel_has_no_sound_to_be_missed() -> None:
    audio = {"output": {"format": {"type": "audio/pcm", "rate": 24000}}}
    ended = {"id": "resp_1", "status": "completed", "output_modalities": ["audio"], "audio_end_ms": 170, "audio": audio,
             "output": []}  # fmt: skip
    trace = [
        {"type": "response.created", "event_id": "e0", "response": ended | {"status": "in_progress"}},
        {"type": "output_audio_buffer.started", "event_id": "e1", "response_id": "resp_1"},
        {"type": "response.done", "event_id": "e2", "response": ended},
    ]
    silent = {v.rule for v in rules.check(trace, ended=False)}
    assert {"W10", "W13"} <= silent
    assert not {"W10", "W13"} & {v.rule for v in rules.check(trace, ended=False, sound=False)}


def joined(*events: tuple[str, dict]) -> tuple[set[str], set[str]]:
    """The rules that a trace breaks: taken from a session's beginning, and from its middle."""
    trace = [{"type": kind, "event_id": f"e{n}"} | fields for n, (kind, fields) in enumerate(events)]
    return tuple({v.rule for v in rules.check(trace, ended=False, joined=x)} for x in (False, True))  # type: ignore


def test_who_joins_a_session_does_not_see_what_began_before() -> None:
    item = {"type": "message", "role": "assistant", "content": []}
    done = {"id": "resp_1", "status": "completed", "output_modalities": ["audio"], "output": []}
    began_before = [
        ("response.output_item.added", {"response_id": "resp_1", "item": item | {"id": "item_2"}}),
        ("conversation.item.added", {"previous_item_id": "item_1", "item": item | {"id": "item_2"}}),
        ("output_audio_buffer.cleared", {"response_id": "resp_1"}),
        ("conversation.item.deleted", {"item_id": "item_0"}),
        ("conversation.item.assistant_truncated", {"item_id": "item_3"}),
        ("conversation.item.input_audio_transcription.completed", {"item_id": "item_4", "transcript": "Hello."}),
        ("response.done", {"response": done}),
    ]
    assert joined(*began_before) == ({"W2", "W7", "W16", "W17"}, set())


def test_who_joins_a_session_still_sees_what_breaks_a_rule() -> None:
    done = ("response.done", {"response": {"id": "resp_1", "status": "completed", "output_modalities": ["text"]}})
    late = ("response.output_text.delta", {"response_id": "resp_1", "delta": "more"})
    item = {"id": "item_1", "type": "message", "role": "user", "content": []}
    twice = ("conversation.item.added", {"previous_item_id": None, "item": item})
    assert joined(done, done)[1] == {"W1"} and joined(done, late)[1] == {"W6"} and joined(twice, twice)[1] == {"W8"}
