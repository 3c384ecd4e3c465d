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
