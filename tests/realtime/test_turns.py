"""The user's side: SPEC sections 3 to 7, in numbers."""

from __future__ import annotations

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.eou import commit_delay_ms, hard_cap_ms, is_noise
from bargein.realtime.settings import parse
from bargein.realtime.state import Silent, Speaking, Stopped

from .play import Play


def test_a_clean_turn_in_order() -> None:
    p = Play()
    p.silence(320)
    p.speech(960)
    p.silence(384)
    p.words("What time is it?")
    p.verdict(1.0)
    p.advance(500)
    assert p.names() == [
        "SessionCreated", "SpeechStarted", "SpeechStopped", "Committed", "ItemAdded", "TranscriptionDelta",
        "TranscriptionCompleted", "ItemDone", "ResponseCreated",
    ]  # fmt: skip
    started, stopped, committed = p.of(a.SpeechStarted)[0], p.of(a.SpeechStopped)[0], p.of(a.Committed)[0]
    assert started.item_id == stopped.item_id == committed.item_id
    assert started.audio_start_ms == 320 - 300
    assert stopped.audio_end_ms == 320 + 960
    assert p.prompt == [("user", "What time is it?")]


def test_speech_below_the_minimum_is_never_announced() -> None:
    p = Play()
    p.speech(64)
    p.silence(1000)
    assert p.names() == ["SessionCreated"]


def test_words_are_made_ready_before_the_stop_and_adopted_at_commit() -> None:
    p = Play()
    p.speech(960)
    p.silence(96)
    prepared = [x for x in p.effects if isinstance(x, f.PrepareStt)]
    assert [x.voiced_ms for x in prepared] == [960]
    p.silence(320)
    flush = [x for x in p.effects if isinstance(x, f.FlushStt)]
    assert len(flush) == 1 and flush[0].voiced_ms == 960
    p.words("Hello.")
    p.verdict(1.0)
    p.advance(1000)
    assert len([x for x in p.effects if isinstance(x, f.FlushStt)]) == 1, "STT must not run twice"
    assert p.of(a.TranscriptionCompleted)[0].transcript == "Hello."


def test_delays_count_from_the_last_voiced_sample() -> None:
    p = Play()
    p.speech(960)
    voiced_at = p.at
    p.silence(352)
    p.words("Hello.")
    p.verdict(1.0)  # certain: 400 ms after the last voiced sample
    assert p.of(a.Committed) == []
    p.advance(voiced_at + 399 - p.at)
    assert p.of(a.Committed) == []
    p.advance(2)
    assert len(p.of(a.Committed)) == 1


def test_below_the_threshold_the_wait_is_the_longest() -> None:
    p = Play()
    p.speech(960)
    voiced_at = p.at
    p.silence(352)
    p.words("I would like")
    p.verdict(0.2)
    p.advance(voiced_at + 3999 - p.at)
    assert p.of(a.Committed) == []
    p.advance(2)
    assert len(p.of(a.Committed)) == 1


@pytest.mark.parametrize(("p", "expected"), [(0.49, 4000), (0.5, 4000), (0.75, 2200), (1.0, 400)])
def test_the_delay_curve(p: float, expected: int) -> None:
    assert commit_delay_ms(p, threshold=0.5, min_ms=400, max_ms=4000, k=12) == pytest.approx(expected, abs=5)


def test_the_hard_cap_races_a_hanging_classifier() -> None:
    p = Play()
    p.speech(960)
    voiced_at = p.at
    p.silence(352)
    p.advance(voiced_at + 4999 - p.at)
    assert p.of(a.Committed) == []
    p.advance(2)
    assert len(p.of(a.Committed)) == 1
    notes = [x.payload["why"] for x in p.effects if isinstance(x, f.Inspect) and x.kind == "commit"]
    assert notes == ["hard_cap_during_eou"]


def test_an_explicit_smaller_cap_wins() -> None:
    assert hard_cap_ms(None, 5000, 4000) == 5000
    assert hard_cap_ms(None, 5000, 8000) == 9000
    assert hard_cap_ms(1200, 5000, 4000) == 1200


@pytest.mark.parametrize("score", [None, float("nan"), 1.5, -0.1])
def test_a_failed_classifier_waits_a_second(score: float | None) -> None:
    p = Play()
    p.speech(960)
    voiced_at = p.at
    p.silence(352)
    p.verdict(score)  # before there are any words that could speak for it
    p.words("Hello.")
    p.advance(voiced_at + 999 - p.at)
    assert p.of(a.Committed) == []
    p.advance(2)
    assert len(p.of(a.Committed)) == 1


def test_a_slow_classifier_times_out_after_the_stop_transcript() -> None:
    p = Play()
    p.speech(960)
    p.silence(352)
    p.words("Hello.")
    assert "eou_timeout" in p.timers
    p.advance(260)
    assert "eou_timeout" not in p.timers and "commit" in p.timers


def test_speech_that_resumes_keeps_its_item_and_start() -> None:
    p = Play()
    p.speech(960)
    p.silence(352)
    p.words("My name is")
    p.verdict(0.1)
    p.speech(640)
    assert isinstance(p.state.vad, Speaking)
    assert "commit" not in p.timers and "hard_cap" not in p.timers
    first, second = p.of(a.SpeechStarted)
    assert first == second
    p.verdict(1.0)  # late: the question was dropped
    p.advance(300)
    assert p.of(a.Committed) == []
    p.silence(352)
    p.words("My name is John.")
    p.verdict(1.0)
    p.advance(300)
    assert p.of(a.TranscriptionCompleted)[0].transcript == "My name is John."
    assert p.of(a.Committed)[0].item_id == first.item_id


def test_a_stale_flush_is_not_adopted() -> None:
    p = Play()
    p.speech(960)
    p.silence(352)
    old = [x for x in p.effects if isinstance(x, f.FlushStt)][-1].flush
    p.speech(640)
    p.silence(352)
    p.words("half", flush=old)
    assert isinstance(p.state.vad, Stopped) and p.state.vad.transcript is None


def test_kind_vad_commits_when_the_silence_is_over() -> None:
    p = Play(turn_detection={"type": "server_vad", "silence_duration_ms": 500})
    p.speech(960)
    p.silence(480)
    assert p.of(a.Committed) == []
    p.silence(32)
    assert len(p.of(a.Committed)) == 1
    assert [x for x in p.effects if isinstance(x, f.AskEou)] == []


def test_an_empty_transcript_is_completed_and_gets_no_reply() -> None:
    p = Play()
    p.turn("")
    assert p.of(a.TranscriptionCompleted)[0].transcript == ""
    assert p.of(a.ResponseCreated) == []
    assert p.state.conversation.chat_messages() == ()


@pytest.mark.parametrize(
    ("audio_ms", "no_speech", "logprob", "noise"),
    [
        (1000, 0.7, -0.1, True),
        (1000, 0.5, -0.1, False),
        (1000, 0.1, -1.1, True),
        (1500, 0.1, -0.9, False),
        (3250, 0.1, -1.9, False),
        (3250, 0.1, -2.1, True),
        (5001, 0.1, -9.0, False),
    ],
)
def test_the_noise_gate(audio_ms: int, no_speech: float, logprob: float, noise: bool) -> None:
    scores = {"no_speech_prob": no_speech, "avg_logprob": logprob}
    assert is_noise(audio_ms=audio_ms, **scores, no_speech_limit=0.6, logprob_limit=-1.0) is noise
    assert is_noise(audio_ms=audio_ms, **scores, no_speech_limit=None, logprob_limit=None) is False


def test_gated_text_never_reaches_chat() -> None:
    p = Play()
    p.speech(960)
    p.silence(384)
    p.words("Thanks for watching.", no_speech_prob=0.9)
    p.verdict(1.0)
    p.advance(500)
    assert p.of(a.TranscriptionCompleted)[0].transcript == ""
    assert p.of(a.ResponseCreated) == []


def test_null_transcription_hides_events_but_stt_runs() -> None:
    p = Play(audio={"input": {"transcription": None}})
    p.turn("Hello.")
    assert p.of(a.TranscriptionCompleted) == [] and p.of(a.TranscriptionDelta) == []
    assert p.prompt == [("user", "Hello.")]


def test_push_to_talk() -> None:
    p = Play(turn_detection=None)
    p.speech(1600)
    assert p.names() == ["SessionCreated"]
    p.tell(e.CommitBuffer(p.at, "evt_1"))
    p.words("Hello.")
    assert p.names() == [
        "SessionCreated", "Committed", "ItemAdded", "TranscriptionDelta", "TranscriptionCompleted", "ItemDone",
    ]  # fmt: skip
    p.tell(e.CreateResponse(p.at))
    assert p.prompt == [("user", "Hello.")]


def test_a_response_asked_for_before_the_words_waits_for_them() -> None:
    p = Play(turn_detection=None)
    p.speech(1600)
    p.tell(e.CommitBuffer(p.at))
    p.tell(e.CreateResponse(p.at))
    assert p.of(a.ResponseCreated) == []
    p.words("Hello.")
    assert len(p.of(a.ResponseCreated)) == 1
    assert p.prompt == [("user", "Hello.")]


@pytest.mark.parametrize("detection", [None, {"type": "server_vad"}])
def test_an_empty_commit_is_refused_with_its_event_id(detection: dict[str, str] | None) -> None:
    p = Play(turn_detection=detection)
    if detection is not None:
        p.silence(640)
    p.tell(e.CommitBuffer(p.at, "evt_7"))
    error = p.of(a.ErrorEvent)[0]
    assert (error.code, error.event_id) == ("input_audio_buffer_commit_empty", "evt_7")


def test_a_manual_commit_in_mid_speech_leaves_the_detector_deaf_until_silence() -> None:
    p = Play()
    p.speech(960)
    p.tell(e.CommitBuffer(p.at))
    assert p.names()[-3:] == ["SpeechStopped", "Committed", "ItemAdded"]
    p.words("Hello.")
    p.mark()
    p.speech(960)
    p.silence(640)
    assert p.of(a.SpeechStarted) == [] and p.of(a.SpeechStopped) == []
    p.speech(960)
    assert len(p.of(a.SpeechStarted)) == 1


def test_clear_voids_the_item_id() -> None:
    p = Play()
    p.speech(960)
    voided = p.of(a.SpeechStarted)[0].item_id
    p.tell(e.ClearBuffer(p.at))
    assert p.names()[-1] == "Cleared"
    assert isinstance(p.state.vad, Silent)
    p.silence(640)
    p.speech(960)
    assert p.of(a.SpeechStarted)[1].item_id != voided


def test_too_little_voice_is_discarded() -> None:
    p = Play(min_speech_ms=500)
    p.speech(320)
    p.silence(384)
    p.words("uh")
    p.verdict(1.0)
    p.advance(500)
    assert p.names()[-1] == "Discarded"
    assert isinstance(p.state.vad, Silent)


def test_endless_speech_is_committed() -> None:
    p = Play(max_utterance_ms=3000)
    p.speech(3200)
    assert len(p.of(a.Committed)) == 1
    p.words("a b c")
    assert p.of(a.TranscriptionCompleted)[0].transcript == "a b c"


def test_detection_off_in_mid_speech_waits_for_a_commit() -> None:
    p = Play()
    p.speech(960)
    p.tell(e.UpdateSession(p.at, parse({"turn_detection": None})))
    p.advance(20000)
    assert p.of(a.Committed) == []
    p.tell(e.CommitBuffer(p.at))
    assert len(p.of(a.Committed)) == 1


def test_failed_transcription_keeps_the_item_and_gets_no_reply() -> None:
    p = Play()
    for n in range(2):
        p.speech(960)
        p.silence(384)
        p.verdict(1.0)
        p.advance(500)
        asked = [x for x in p.effects if isinstance(x, f.FlushStt)][-1]
        p.tell(e.SttFailed(p.at, asked.item_id, asked.flush, "no"))
        assert len(p.of(a.TranscriptionFailed)) == n + 1
    assert p.of(a.ResponseCreated) == []
    assert [x.code for x in p.of(a.ErrorEvent)] == ["stt_failed"], "said from the second in a row"


def test_a_transcription_session_never_replies() -> None:
    p = Play(type="transcription")
    p.turn("Hello.")
    assert p.of(a.TranscriptionCompleted)[0].transcript == "Hello."
    assert p.of(a.ResponseCreated) == []
    p.tell(e.CancelResponse(p.at, None, "evt"))
    assert p.of(a.ErrorEvent) == []
    p.tell(e.CommitBuffer(p.at, "evt_c"))
    assert p.of(a.ErrorEvent)[0].event_id == "evt_c"


def test_a_verdict_after_detection_was_turned_off_arms_nothing() -> None:
    p = Play()
    p.speech(960)
    p.silence(384)
    p.tell(e.UpdateSession(p.at, parse({"turn_detection": None})))
    p.verdict(0.1)
    assert set(p.timers) == {"max_duration"}


def test_a_timer_that_was_armed_anew_does_not_fire_under_its_old_token() -> None:
    p = Play()
    p.speech(960)
    p.silence(352)
    p.words("My name is")
    p.verdict(0.1)
    old = p.timers["commit"][1]
    p.speech(640)
    p.silence(352)
    p.verdict(0.1)
    assert p.timers["commit"][1] != old
    assert p.tell(e.TimerFired(p.at, "commit", old)) == [] and isinstance(p.state.vad, Stopped)
