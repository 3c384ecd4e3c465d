"""Hold-mode barge-in: SPEC section 9.3, and what the other sections say of a held reply."""

from __future__ import annotations

from typing import Any

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import backchannels
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import SpokenWord
from bargein.realtime.ids import ItemId
from bargein.realtime.settings import parse
from bargein.realtime.state import Candidate, Created, Drain, Held, Idle, Silent, Speaking, Stopped, Streaming, live

from .play import Play

COUNTING = "one two three four five six seven eight nine ten"
STOP_MS = 352  # silence after which speech has stopped


def replying(ms: int = 800, *, done: bool = True, **settings: Any) -> Play:
    """A reply of ten words of 200 ms, `ms` of it played. The effects of what led here are forgotten."""
    p = Play(**settings)
    p.turn("Count to ten.")
    p.reply(COUNTING, done=done)
    p.play(ms)
    p.mark()
    return p


def held(p: Play) -> Held:
    assert isinstance(p.state.resp, Held)
    return p.state.resp


def said(p: Play, text: str) -> None:
    """The speech is over, and this is what it said, heard quickly and then with care."""
    p.silence(STOP_MS)
    p.partial(text)
    p.words(text)


def outputs(p: Play) -> list[str]:
    """What was done with the output, in order."""
    return [type(x).__name__ for x in p.effects if isinstance(x, f.HoldOutput | f.ReleaseOutput | f.RetireEpoch)]


def why(p: Play) -> list[str]:
    """What the notes on the candidate give as reasons."""
    notes = [x.payload for x in p.effects if isinstance(x, f.Inspect) and x.lane == "bargein"]
    return [n["why"] for n in notes if "why" in n]


def test_the_default_is_to_hold() -> None:
    assert Play().state.settings.barge_in.mode == "hold"


def test_output_pauses_at_the_raw_onset_before_speech_is_confirmed() -> None:
    p = replying()
    p.speech(32)
    assert p.names() == ["OutputPaused"] and outputs(p) == ["HoldOutput"]
    assert isinstance(held(p).inner, Drain) and isinstance(p.state.vad, Candidate)
    assert not p.state.vad.confirmed


def test_above_a_noisy_floor_the_onset_takes_two_windows() -> None:
    p = Play()
    p.turn("Count to ten.")
    p.reply(COUNTING)
    p.sound(5000, 0.01, -30.0)
    p.mark()
    p.speech(32)
    assert outputs(p) == []
    p.speech(32)
    assert outputs(p) == ["HoldOutput"]


def test_an_onset_that_is_not_confirmed_resumes_at_once() -> None:
    p = replying()
    p.speech(64)
    p.silence(96)
    assert isinstance(p.state.resp, Held)
    p.silence(32)
    assert p.names() == ["OutputPaused", "OutputResumed"]
    assert outputs(p) == ["HoldOutput", "ReleaseOutput"] and why(p) == ["onset_lost"]
    assert isinstance(p.state.resp, Drain) and isinstance(p.state.vad, Silent)
    p.play(1200, start_ms=800)
    p.drained(2000)
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.output[0].text(), done.audio_end_ms) == ("completed", COUNTING, 2000)


def test_stt_hears_the_candidate_from_before_its_onset() -> None:
    p = replying()
    p.silence(640)
    onset = p.audio_ms
    p.speech(160)
    started = [x for x in p.effects if isinstance(x, f.StartStt)]
    assert [x.start_ms for x in started] == [onset - 300]
    p.partial("Stop now")
    assert p.of(a.SpeechStarted)[0].audio_start_ms == onset - 300
    assert len([x for x in p.effects if isinstance(x, f.StartStt)]) == 1, "the utterance keeps its audio"
    p.speech(640)
    p.silence(STOP_MS)
    p.words("Stop now please.")
    p.verdict(1.0)
    p.advance(500)
    sealed = next(x for x in p.effects if isinstance(x, f.SealBuffer))
    assert sealed.start_ms == onset - 300 and sealed.item_id == started[0].item_id


def test_partials_are_asked_for_from_250_ms_on_every_200_ms() -> None:
    p = replying(barge_in={"unworded_ms": 5000})
    at = p.at
    asked: list[float] = []
    for _ in range(30):
        before = len([x for x in p.effects if isinstance(x, f.AskPartial)])
        p.speech(32)
        if len([x for x in p.effects if isinstance(x, f.AskPartial)]) > before:
            asked.append(p.at - at - 32)  # from the onset, whose window took 32 ms
    assert [round(x / 32) for x in asked] == [8, 15, 21, 27]  # 250, 450, 650, 850 ms, seen at the next window


@pytest.mark.parametrize(
    ("text", "commits"),
    [("Stop it", True), ("Mm-hmm", False), ("Yeah, right", False), ("Yeah but", True), ("", False), ("...", False)],
)
def test_words_of_a_partial_take_the_floor(text: str, commits: bool) -> None:
    p = replying()
    p.speech(320)
    p.partial(text)
    assert isinstance(p.state.vad, Speaking) is commits
    if commits:
        assert p.names() == [
            "OutputPaused", "AudioDone", "SpokenDone", "ContentPartDone", "ItemDone", "OutputItemDone", "OutputCleared",
            "ResponseDone", "ItemTruncated", "SpeechStarted",
        ]  # fmt: skip
        done = p.of(a.ResponseDone)[0].response
        assert (done.status, done.reason) == ("cancelled", "turn_detected")
        assert done.output[0].text() == "one two three four"


def test_a_word_that_may_still_change_is_no_evidence() -> None:
    p = replying()
    p.speech(320)
    p.partial("Rye", stable=0)
    p.partial("Right", stable=0)
    p.partial("Right, but what", stable=5)
    assert isinstance(p.state.resp, Held)
    p.partial("Right, but what about", stable=10)
    assert isinstance(p.state.resp, Idle)


def test_a_word_alone_waits_for_the_stop() -> None:
    p = replying()
    p.speech(320)
    p.partial("Stop")
    assert isinstance(p.state.resp, Held)
    p.silence(STOP_MS)
    p.words("Stop.")
    assert isinstance(p.state.vad, Stopped)


def test_speech_with_words_is_judged_by_them_and_not_by_its_length() -> None:
    p = replying()
    p.speech(640)
    p.partial("Yeah, right", stable=0)
    p.speech(640)
    assert isinstance(p.state.resp, Held)
    p.partial("Yeah, right, yeah, mm-hm")
    p.silence(STOP_MS)
    assert isinstance(p.state.resp, Drain)


def test_a_partial_that_the_noise_gate_takes_for_noise_is_no_evidence() -> None:
    p = replying()
    p.speech(320)
    p.partial("Thanks for watching.", no_speech_prob=0.9)
    p.partial("Thank you.", avg_logprob=-1.4, no_speech_prob=0.1)
    assert isinstance(p.state.resp, Held)


def test_a_partial_of_an_unconfirmed_onset_or_another_utterance_is_no_evidence() -> None:
    p = replying(barge_in={"unworded_ms": 5000})
    p.tell(e.UpdateSession(p.at, parse({"turn_detection": {"type": "semantic_vad", "min_speech_duration_ms": 1000}})))
    p.speech(320)
    p.partial("Stop it now")
    assert isinstance(p.state.resp, Held)
    q = replying()
    q.speech(320)
    q.tell(e.SttPartial(q.at, ItemId("item_x"), "Stop it now", 11, q.audio_ms))
    assert isinstance(q.state.resp, Held)


def test_min_words() -> None:
    p = replying(barge_in={"min_words": 3})
    p.speech(320)
    p.partial("Stop it")
    assert isinstance(p.state.resp, Held)
    p.partial("Stop it now")
    assert isinstance(p.state.resp, Idle)
    q = replying(barge_in={"min_words": 3})
    q.speech(320)
    q.silence(STOP_MS)
    q.partial("Stop it.")
    assert isinstance(q.state.resp, Drain), "too few words when it has stopped: the reply goes on"


def test_words_are_counted_in_this_utterance_only() -> None:
    p = replying(barge_in={"min_words": 2})
    for _ in range(2):
        p.speech(160)
        p.partial("Stop")
        p.silence(STOP_MS)
        assert isinstance(p.state.resp, Drain)


def test_voiced_speech_without_words_takes_the_floor_after_unworded_ms() -> None:
    p = replying()
    p.speech(640)
    p.partial("")
    p.speech(128)
    assert isinstance(p.state.resp, Held)
    p.speech(32)
    assert isinstance(p.state.resp, Idle) and isinstance(p.state.vad, Speaking) and "length" in why(p)


def test_slow_ears_do_not_give_up_the_floor_before_the_cap() -> None:
    p = replying()
    p.speech(160)
    p.partial("")
    p.speech(1120)
    assert isinstance(p.state.resp, Held), "what was heard a second ago says nothing of now"
    p.partial("")
    assert isinstance(p.state.resp, Idle)
    q = replying()
    q.speech(1280)
    assert isinstance(q.state.resp, Held)
    q.speech(800)
    assert "hold_cap" in why(q)


def test_the_hold_cap_gives_the_floor() -> None:
    p = replying(barge_in={"unworded_ms": 5000})
    at = p.at
    p.speech(1984)
    p.speech(64)
    assert why(p) == ["hold_cap"] and isinstance(p.state.vad, Speaking)
    assert p.at - at < 2100


@pytest.mark.parametrize(
    ("heard", "ms", "commits"),
    [(None, 480, False), ("Mm-hm", 480, False), ("Stop", 480, True), (None, 960, True), ("Mm-hm", 960, True)],
)
def test_the_hold_cap_while_the_last_words_hang(heard: str | None, ms: int, commits: bool) -> None:
    p = replying()
    p.speech(320)
    if heard is not None:
        p.partial(heard, stable=0)
    p.speech(ms - 320)
    p.silence(STOP_MS)
    assert isinstance(p.state.resp, Held)
    p.advance(2000)
    if commits:
        assert p.names()[-2:] == ["SpeechStarted", "SpeechStopped"] and isinstance(p.state.vad, Stopped)
    else:
        assert p.names() == ["OutputPaused", "OutputResumed"]


def test_near_the_end_speech_that_nobody_has_heard_by_the_cap_may_be_an_answer() -> None:
    p = replying(1400)
    p.speech(320)
    p.silence(STOP_MS)
    p.advance(2000)
    assert why(p) == ["hold_cap"] and isinstance(p.state.vad, Stopped)


def test_an_onset_that_stays_unconfirmed_does_not_hold_for_ever() -> None:
    p = replying(barge_in={"unworded_ms": 5000})
    p.tell(e.UpdateSession(p.at, parse({"turn_detection": {"type": "semantic_vad", "min_speech_duration_ms": 60000}})))
    p.speech(2100)
    assert why(p) == ["hold_cap"] and outputs(p) == ["HoldOutput", "ReleaseOutput"]
    assert p.of(a.SpeechStarted) == []


@pytest.mark.parametrize("text", ["", "Mm-hmm.", "Yeah.", "Right.", "Uh-huh, I see.", " . "])
def test_no_words_or_backchannels_resume_the_reply(text: str) -> None:
    p = replying()
    p.speech(320)
    p.silence(STOP_MS)
    assert isinstance(p.state.resp, Held)
    p.partial(text)
    assert p.names() == ["OutputPaused", "OutputResumed"]
    assert isinstance(p.state.resp, Drain) and isinstance(p.state.vad, Silent)
    assert [type(x).__name__ for x in p.effects if isinstance(x, f.StopStt)] == ["StopStt"]
    start = p.state.buffer_start_ms
    assert start == p.audio_ms, "the candidate's audio is dropped"


def test_a_gated_stop_transcript_resumes_the_reply() -> None:
    p = replying()
    p.speech(320)
    p.silence(STOP_MS)
    p.partial("Thanks for watching.", no_speech_prob=0.95)
    assert isinstance(p.state.resp, Drain)


def test_the_words_are_got_ready_in_the_silence_before_the_stop() -> None:
    p = replying()
    p.speech(320)
    p.mark()
    p.silence(96)
    assert len([x for x in p.effects if isinstance(x, f.AskPartial)]) == 1
    p.partial("Mm-hm.")
    assert isinstance(p.state.resp, Held), "it may go on"
    p.silence(256)
    assert isinstance(p.state.resp, Drain), "decided at the stop"


def test_words_of_a_part_of_the_speech_do_not_decide_at_its_stop() -> None:
    p = replying()
    p.speech(320)
    p.partial("Right", stable=0)
    p.speech(320)
    p.silence(STOP_MS)
    assert isinstance(p.state.resp, Held)
    p.partial("Right, stop.", stable=0)
    p.words("Right, stop.")
    assert isinstance(p.state.vad, Stopped)


@pytest.mark.parametrize(("careful", "commits"), [("Ice.", True), ("I see.", False), ("", False), (None, True)], ids=str)
def test_only_a_careful_transcript_takes_the_floor_from_speech_that_is_over(careful: str | None, commits: bool) -> None:
    p = replying()
    p.speech(320)
    p.partial("Ice Ice Ice Ice Ice")
    assert isinstance(p.state.resp, Held), "it caught itself"
    p.silence(STOP_MS)
    assert isinstance(p.state.resp, Held)
    asked = next(x for x in p.effects if isinstance(x, f.FlushStt))
    if careful is not None:
        p.words(careful)
    else:
        p.tell(e.SttFailed(p.at, asked.item_id, asked.flush, "no"))
    assert isinstance(p.state.vad, Stopped) is commits
    assert isinstance(p.state.resp, Drain) is not commits


def test_the_beginning_of_a_backchannel_is_no_evidence() -> None:
    p = replying()
    p.speech(320)
    p.partial("I see I see", stable=7)  # "I see I"
    assert isinstance(p.state.resp, Held)
    p.partial("Yeah, of course", stable=8)  # "Yeah, of"
    assert isinstance(p.state.resp, Held)
    p.partial("I want", stable=6)
    assert isinstance(p.state.resp, Idle)


def test_words_of_the_stop_transcript_take_the_floor_and_run_a_turn() -> None:
    p = replying()
    p.speech(320)
    said(p, "Stop.")
    assert p.names()[-3:] == ["ItemTruncated", "SpeechStarted", "SpeechStopped"]
    asked = [x for x in p.effects if isinstance(x, f.FlushStt)]
    assert len({(x.end_ms, x.voiced_ms) for x in asked}) == 1, "the same words are asked for, and made once"
    p.words("Stop.")
    p.verdict(1.0)
    p.advance(500)
    assert p.of(a.TranscriptionCompleted)[0].transcript == "Stop."
    assert p.prompt == [("user", "Count to ten."), ("assistant", "one two three four"), ("user", "Stop.")]


def test_speech_that_goes_on_before_its_words_came() -> None:
    p = replying()
    p.speech(320)
    p.silence(STOP_MS)
    p.speech(160)
    p.partial("", stable=0)
    assert isinstance(p.state.resp, Held), "the words of its first half decide nothing"
    p.speech(320)
    p.partial("")
    assert isinstance(p.state.vad, Speaking) and p.state.vad.voiced_ms >= 800, "voice adds up over the pause"


@pytest.mark.parametrize("text", ["Yes.", "No.", "Two."])
@pytest.mark.parametrize(("ms", "status"), [(1400, "cancelled"), (2000, "completed")])
def test_a_short_answer_near_the_replys_end_is_an_answer(text: str, ms: int, status: str) -> None:
    p = replying(ms)
    p.speech(160)
    said(p, text)
    assert p.of(a.ResponseDone)[0].response.status == status
    p.words(text)
    p.verdict(1.0)
    p.advance(500)
    assert p.of(a.TranscriptionCompleted)[0].transcript == text and p.prompt[-1] == ("user", text)


def test_the_boundary_rule_needs_words_and_a_reply_that_is_all_planned() -> None:
    p = replying(1900)
    p.speech(160)
    said(p, "")
    assert isinstance(p.state.resp, Drain)
    q = replying(1900, done=False)  # nobody knows yet whether "ten" is the last word
    q.speech(160)
    q.silence(STOP_MS)
    q.partial("Yes.")
    assert isinstance(q.state.resp, Streaming)
    r = replying()
    r.speech(160)
    r.silence(STOP_MS)
    r.partial("Yes.")
    assert isinstance(r.state.resp, Drain), "in the middle of the reply a yes is a backchannel"


def test_an_answer_that_was_heard_badly_at_first_is_an_answer() -> None:
    p = replying(1900)
    p.speech(320)
    p.silence(STOP_MS)
    p.partial("D'youve", avg_logprob=-1.8)
    p.words("Two.")
    assert isinstance(p.state.vad, Stopped)


def test_everything_heard_ends_completed_and_keeps_every_word() -> None:
    p = replying(2000)
    p.speech(320)
    p.partial("And then?")
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.output[0].text(), done.audio_end_ms) == ("completed", COUNTING, 2000)
    assert p.of(a.ItemTruncated) == [] and p.names()[-2:] == ["OutputStopped", "SpeechStarted"]


def test_the_snapshot_is_what_was_written_before_the_pause() -> None:
    p = Play()
    p.turn("Count to ten.")
    p.reply(COUNTING)
    epoch = p.epoch
    for n in range(20):  # a lead of 100 ms: 400 ms written when 300 are played
        p.tell(e.FrameDue(p.at, epoch, (n + 1) * 20, max(0, n * 20 - 80)))
        p.advance(20)
    p.speech(320)
    p.partial("Stop it")
    assert p.of(a.ResponseDone)[0].response.audio_end_ms == 400


# --- while held ----------------------------------------------------------------------------------------------------


def test_chat_and_speech_go_on_while_held() -> None:
    p = Play()
    p.turn("Count to ten.")
    p.reply("one two", done=False)
    p.play(200)
    p.speech(160)
    epoch = p.epoch
    p.tell(e.ChatDelta(p.at, epoch, " three"))
    p.tell(e.PhrasePlanned(p.at, epoch, (SpokenWord(" three", 400, 600),), 600))
    p.tell(e.ChatDone(p.at, epoch, (), False, 1, 1, 0))
    p.tell(e.SpeechDone(p.at, epoch))
    assert isinstance(p.state.resp, Held) and "drain_cap" not in p.timers
    said(p, "")
    assert isinstance(p.state.resp, Drain) and "drain_cap" in p.timers
    p.play(400, start_ms=200)
    p.drained(600)
    assert p.of(a.ResponseDone)[0].response.output[0].text() == "one two three"


def test_nothing_of_the_reply_goes_out_while_held() -> None:
    p = replying()
    p.speech(32)
    p.mark()
    p.tell(e.FrameDue(p.at, p.state.epoch, 820, 800))
    p.tell(e.PlayoutDrained(p.at, p.state.epoch, 800))
    assert p.names() == []


def test_the_drain_cap_stands_still_while_held() -> None:
    p = replying()
    p.speech(32)
    held_at, left = p.at, held(p).cap_left_ms
    p.speech(288)
    p.silence(STOP_MS)
    assert "drain_cap" not in p.timers and left is not None
    p.partial("Mhm.")
    assert p.at - held_at == 640 and p.timers["drain_cap"][0] == p.at + left


def test_cancel_while_held_announces_the_candidate() -> None:
    p = replying()
    p.speech(160)
    p.tell(e.CancelResponse(p.at))
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.reason) == ("cancelled", "client_cancelled")
    assert p.names()[-3:] == ["ResponseDone", "ItemTruncated", "SpeechStarted"] and isinstance(p.state.vad, Speaking)


def test_cancel_before_the_candidate_is_confirmed_announces_it_when_it_is() -> None:
    p = replying()
    p.speech(32)
    p.tell(e.CancelResponse(p.at))
    assert p.of(a.SpeechStarted) == [] and isinstance(p.state.vad, Silent)
    p.speech(128)
    assert len(p.of(a.SpeechStarted)) == 1


def test_cancel_after_the_candidate_has_stopped_runs_its_turn() -> None:
    p = replying()
    p.speech(320)
    p.silence(STOP_MS)
    p.tell(e.CancelResponse(p.at))
    assert p.names()[-2:] == ["SpeechStarted", "SpeechStopped"]
    p.words("Yes.")
    p.verdict(1.0)
    p.advance(500)
    assert p.prompt[-1] == ("user", "Yes.")


@pytest.mark.parametrize(("failure", "code"), [(e.ChatFailed, "llm_error"), (e.SpeechFailed, "tts_error")])
def test_a_failure_waits_for_resume_or_commit(failure: type, code: str) -> None:
    p = replying(done=False)
    p.speech(160)
    p.tell(failure(p.at, p.epoch, "broken"))
    assert p.of(a.ResponseDone) == []
    p.silence(STOP_MS)
    p.partial("Mhm.")
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.error_code) == ("failed", code)
    q = replying(done=False)
    q.speech(320)
    q.tell(failure(q.at, q.epoch, "broken"))
    q.partial("Stop it")
    assert q.of(a.ResponseDone)[0].response.status == "cancelled"


def test_clear_while_held_empties_the_queue_and_stays_held() -> None:
    p = replying(done=False)
    p.speech(160)
    p.tell(e.ClearOutput(p.at))
    assert p.names() == ["OutputPaused", "OutputCleared"] and isinstance(p.state.resp, Held)
    assert [x for x in p.effects if isinstance(x, f.FlushOutput)]
    p.silence(STOP_MS)
    p.partial("")
    assert p.names() == ["OutputPaused", "OutputCleared"]
    p.tell(e.ChatDone(p.at, p.epoch))
    assert p.of(a.ResponseDone)[0].response.output[0].text() == "one two three four"


def test_the_engine_lost_while_held_fails_the_reply_and_announces_the_candidate() -> None:
    p = replying()
    p.speech(160)
    p.tell(e.EngineLost(p.at))
    assert p.of(a.ResponseDone)[0].response.error_code == "engine_unavailable"
    assert p.names()[-1] == "SpeechStarted"


def test_the_session_ends_while_held() -> None:
    p = replying()
    p.speech(160)
    p.tell(e.CloseSession(p.at))
    assert p.names()[-2:] == ["ResponseDone", "SessionDone"]
    assert p.of(a.SpeechStarted) == []


@pytest.mark.parametrize(
    ("update", "resumed", "announced"),
    [
        ({"barge_in": {"mode": "off"}}, True, True),
        ({"turn_detection": {"type": "semantic_vad", "interrupt_response": False}}, True, True),
        ({"barge_in": {"mode": "cancel"}}, False, True),
        ({"turn_detection": None}, True, False),
    ],
)
def test_settings_that_change_while_held(update: dict[str, Any], resumed: bool, announced: bool) -> None:
    p = replying()
    p.speech(160)
    p.tell(e.UpdateSession(p.at, parse(update)))
    assert (live(p.state.resp) is not None) is resumed and not isinstance(p.state.resp, Held)
    assert bool(p.of(a.SpeechStarted)) is announced


def test_interruption_turned_on_in_mid_speech_cuts_the_reply() -> None:
    p = replying(barge_in={"mode": "off"})
    p.speech(320)
    assert isinstance(p.state.vad, Speaking) and live(p.state.resp) is not None
    p.tell(e.UpdateSession(p.at, parse({"barge_in": {"mode": "hold"}})))
    assert p.of(a.ResponseDone)[0].response.reason == "turn_detected"


def test_a_clear_of_the_buffer_resumes_the_reply() -> None:
    p = replying()
    p.speech(160)
    p.tell(e.ClearBuffer(p.at))
    assert p.names() == ["OutputPaused", "Cleared", "OutputResumed"] and isinstance(p.state.resp, Drain)


def test_a_commit_by_the_client_takes_the_floor() -> None:
    p = replying()
    p.speech(320)
    p.tell(e.CommitBuffer(p.at, "evt_1"))
    assert p.names()[-4:] == ["SpeechStarted", "SpeechStopped", "Committed", "ItemAdded"]
    q = replying()
    q.speech(32)
    q.tell(e.CommitBuffer(q.at, "evt_2"))
    assert q.of(a.ErrorEvent)[0].event_id == "evt_2" and isinstance(q.state.resp, Held)


# --- before the first sample, text, and the other sections -----------------------------------------------------------


def test_a_cough_before_the_first_sample_does_not_kill_the_reply() -> None:
    p = Play()
    p.turn("Count to ten.")
    p.reply(COUNTING, done=False)
    p.mark()
    p.speech(160)
    assert isinstance(held(p).inner, Created) and p.names() == [], "nothing was started, so nothing is said of a pause"
    p.silence(STOP_MS)
    p.partial("")
    assert p.names() == [] and outputs(p) == ["HoldOutput", "ReleaseOutput"]
    p.play(400)
    assert "".join(d.delta for d in p.of(a.SpokenDelta)) == "one two"


def test_words_before_the_first_sample_take_the_reply_back() -> None:
    p = Play()
    p.turn("Count to ten.")
    p.reply(COUNTING, done=False)
    p.mark()
    p.speech(320)
    p.partial("And backwards")
    assert p.names() == ["ResponseDone", "SpeechStarted"]
    assert p.of(a.ResponseDone)[0].response.audio_end_ms == 0


def test_late_words_of_an_older_utterance_cannot_interrupt() -> None:
    p = replying()
    sealed = p.state.conversation.items[0].id
    p.speech(320)
    p.tell(e.SttPartial(p.at, sealed, "Count to ten please", 19, p.audio_ms))
    p.tell(e.SttStopTranscript(p.at, sealed, 1, e.Transcript("Count to ten please.")))
    assert isinstance(p.state.resp, Held)


def test_a_text_reply_is_held_in_name_only() -> None:
    p = Play(output_modalities=["text"])
    p.turn("Hi.")
    p.tell(e.ChatDelta(p.at, p.epoch, "Hel"))
    p.speech(160)
    p.tell(e.ChatDelta(p.at, p.epoch, "lo."))
    p.tell(e.ChatDone(p.at, p.epoch))
    assert p.of(a.ResponseDone) == [] and p.of(a.OutputPaused) == []
    p.partial("And you?")
    assert p.of(a.ResponseDone)[0].response.status == "completed" and p.of(a.TextDone)[0].text == "Hello."


def test_speech_that_began_before_the_reply_holds_it_when_it_is_confirmed() -> None:
    p = Play(turn_detection={"type": "semantic_vad", "min_speech_duration_ms": 300})
    p.speech(160)
    p.tell(e.CreateResponse(p.at))
    p.speech(160)
    assert isinstance(held(p).inner, Created)
    assert isinstance(p.state.vad, Candidate) and p.state.vad.confirmed


# --- backchannels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "text", "yes"),
    [
        ("en", "Mm-hmm.", True), ("en", "Uh huh, uh huh", True), ("en", "OKAY!", True), ("en", "Hmmm…", True),
        ("en", "Right, but why?", False), ("en", "No.", False), ("en", "Wait", False), ("en-GB", "All right.", True),
        ("de", "Ja, genau.", True), ("de", "Ach so!", True), ("de", "Nein", False),
        ("fr", "D'accord.", True), ("fr", "Oui, oui", True), ("fr", "D’accord", True), ("fr", "Non", False),
        ("es", "Sí, claro.", True), ("es", "Espera", False), ("it", "Va bene.", True), ("it", "Aspetta", False),
        ("pt", "Pois é.", True), ("pt", "Espera", False), ("nl", "Ja, precies.", True), ("nl", "Wacht", False),
        ("ja", "うんうん。", True), ("ja", "はい、そうですね。", True), ("ja", "待ってください", False),
        (None, "Genau, mhm", True), ("xx", "Oui", True),
    ],
)  # fmt: skip
def test_backchannels_of_a_language(language: str | None, text: str, yes: bool) -> None:
    assert backchannels.are_backchannels(backchannels.words(text), backchannels.default(language)) is yes


def test_own_backchannels_replace_the_list() -> None:
    p = replying(barge_in={"backchannels": ["go on", "Weiter"]})
    p.speech(320)
    p.partial("Weiter! Go on.")
    assert isinstance(p.state.resp, Held)
    p.partial("Yeah, right")
    assert isinstance(p.state.resp, Idle)


@pytest.mark.parametrize(
    ("text", "near", "voiced_ms", "commits"),
    [
        ("You have", ("Yeah",), 416, False),
        ("Amar.", ("Uh-huh.", "Come on."), 416, False),
        ("Wait.", ("Weight", "Wait"), 416, True),
        ("Wait.", ("", "..."), 416, True),
        ("You have the wrong one", ("Yeah",), 1200, True),  # too long for one
    ],
)
def test_what_was_nearly_written_as_a_backchannel_is_one(
    text: str, near: tuple[str, ...], voiced_ms: int, commits: bool
) -> None:
    p = replying()
    p.speech(voiced_ms)
    p.silence(STOP_MS)
    p.partial(text)
    asked = [x for x in p.effects if isinstance(x, f.FlushStt)][-1]
    p.tell(e.SttStopTranscript(p.at, asked.item_id, asked.flush, e.Transcript(text, -0.8, 0.1, near)))
    assert isinstance(p.state.resp, Idle) is commits and why(p)[-1] == ("words" if commits else "backchannel")


def test_near_the_end_it_is_an_answer_all_the_same() -> None:
    p = replying(1400)
    p.speech(416)
    p.silence(STOP_MS)
    p.partial("You have")
    asked = [x for x in p.effects if isinstance(x, f.FlushStt)][-1]
    p.tell(e.SttStopTranscript(p.at, asked.item_id, asked.flush, e.Transcript("You have", -0.8, 0.1, ("Yeah",))))
    assert why(p)[-1] == "answer"


@pytest.mark.parametrize("text", ["Mem", "Mim.", "BAM!", "Mama", "bim bim", "Memph", "Mom.", "M-m."])
def test_a_hum_is_a_backchannel_however_it_is_written(text: str) -> None:
    assert backchannels.are_backchannels(backchannels.words(text), backchannels.default("en"))


@pytest.mark.parametrize("text", ["Help me", "My name", "Home", "Him", "Maybe", "Tom", "Map", "Stop", "Member", "Hum it"])
def test_words_with_an_m_are_words(text: str) -> None:
    assert not backchannels.are_backchannels(backchannels.words(text), backchannels.default("en"))
