"""Replies that are begun before the turn has ended (SPEC section 8, Predicted)."""

from __future__ import annotations

from typing import Any

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import SpokenWord
from bargein.realtime.settings import parse
from bargein.realtime.state import Created, Idle, Predicted

from .play import Play


def stopped(text: str = "What time is it?", **settings: Any) -> Play:
    """A turn that has stopped, its words known, the classifier still thinking."""
    p = Play(**settings)
    p.speech(960)
    p.silence(384)
    p.words(text)
    return p


def chats(p: Play) -> list[f.StartChat]:
    return [x for x in p.effects if isinstance(x, f.StartChat)]


def test_a_draft_is_written_unseen_and_adopted() -> None:
    p = stopped()
    assert isinstance(p.state.resp, Predicted) and len(chats(p)) == 1
    held = [x for x in p.effects if isinstance(x, f.HoldOutput)]
    assert [x.epoch for x in held] == [p.epoch]
    p.tell(e.ChatDelta(p.at, p.epoch, "Noon."))
    p.tell(e.PhrasePlanned(p.at, p.epoch, (SpokenWord("Noon.", 0, 300),), 300))
    assert p.of(a.ResponseCreated) == []
    p.verdict(1.0)
    p.advance(500)
    assert len(p.of(a.ResponseCreated)) == 1 and len(chats(p)) == 1, "chat is asked once"
    assert isinstance(p.state.resp, Created) and p.state.resp.chat.text == "Noon."
    assert [x.epoch for x in p.effects if isinstance(x, f.ReleaseOutput)] == [p.epoch]
    p.tell(e.ChatDone(p.at, p.epoch, (), False, 3, 1, 0))
    p.tell(e.SpeechDone(p.at, p.epoch))
    p.play(300)
    p.drained(300)
    assert p.of(a.ResponseDone)[0].response.output[0].text() == "Noon."


def test_a_draft_that_was_finished_is_adopted_whole() -> None:
    p = stopped()
    p.reply("It is noon.")
    p.verdict(1.0)
    p.advance(500)
    p.play(600)
    p.drained(600)
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.output[0].text()) == ("completed", "It is noon.")


def test_speech_that_resumes_drops_the_draft_without_a_trace() -> None:
    p = stopped("I would like")
    first = p.epoch
    p.speech(640)
    assert isinstance(p.state.resp, Idle)
    assert [x.epoch for x in p.effects if isinstance(x, f.RetireEpoch)] == [first]
    assert p.tell(e.ChatDelta(p.at, first, "late")) == []
    p.silence(384)
    p.words("I would like tea.")
    p.verdict(1.0)
    p.advance(500)
    assert len(p.of(a.ResponseCreated)) == 1 and p.prompt == [("user", "I would like tea.")]


def test_settings_that_change_the_question_drop_the_draft() -> None:
    p = stopped()
    first = p.epoch
    p.tell(e.UpdateSession(p.at, parse({"instructions": "Speak like a pirate."})))
    p.verdict(1.0)
    p.advance(500)
    assert chats(p)[-1].instructions == "Speak like a pirate." and p.epoch != first
    assert len(p.of(a.ResponseCreated)) == 1


def test_at_most_two_drafts_a_turn() -> None:
    p = Play()
    for n in range(4):
        p.speech(640)
        p.silence(384)
        p.words("word " * (n + 1))
    assert len(chats(p)) == 2


def test_a_draft_never_refuses_a_response() -> None:
    p = stopped()
    p.tell(e.CreateResponse(p.at, e.ResponseParams(instructions="Other.")))
    assert p.of(a.ErrorEvent) == []
    p.verdict(1.0)
    p.advance(500)
    assert len(p.of(a.ResponseCreated)) == 1 and chats(p)[-1].instructions == "Other."


@pytest.mark.parametrize("failure", [e.ChatFailed, e.SpeechFailed])
def test_a_draft_that_fails_is_forgotten_and_the_reply_is_asked_anew(failure: type) -> None:
    p = stopped()
    p.tell(failure(p.at, p.epoch, "x"))
    assert p.of(a.ResponseDone) == []
    p.verdict(1.0)
    p.advance(500)
    assert len(chats(p)) == 2 and len(p.of(a.ResponseCreated)) == 1


def test_ids_seen_by_the_client_do_not_depend_on_drafts() -> None:
    def item_ids(predicting: bool) -> list[str]:
        p = Play(turn_detection={"type": "semantic_vad", "create_response": predicting})
        p.speech(640)
        p.silence(384)
        p.words("One.")
        p.speech(640)
        p.silence(384)
        p.words("One two.")
        p.verdict(1.0)
        p.advance(500)
        return [x.item.id for x in p.of(a.ItemAdded)]

    assert item_ids(True) == item_ids(False)


def test_noise_and_muted_replies_get_no_draft() -> None:
    p = Play()
    p.speech(960)
    p.silence(384)
    p.words("Thanks for watching.", no_speech_prob=0.9)
    assert chats(p) == []
    assert chats(stopped(type="transcription")) == []
    assert chats(stopped(turn_detection={"type": "semantic_vad", "create_response": False})) == []


def test_a_predicted_text_reply() -> None:
    p = stopped(output_modalities=["text"])
    p.tell(e.ChatDelta(p.at, p.epoch, "No"))
    p.tell(e.ChatDelta(p.at, p.epoch, "on."))
    p.tell(e.ChatDone(p.at, p.epoch))
    p.verdict(1.0)
    p.advance(500)
    assert p.of(a.TextDone)[0].text == "Noon." and p.of(a.ResponseDone)[0].response.status == "completed"


def test_nothing_is_written_ahead_where_the_session_does_not_want_it() -> None:
    p = stopped(predict=False)
    assert isinstance(p.state.resp, Idle) and chats(p) == []
    p.verdict(1.0)
    p.advance(500)
    assert len(chats(p)) == 1 and isinstance(p.state.resp, Created)


# --- before the stop -----------------------------------------------------------------------------------------------


def paused(text: str = "What time is it?", p: float | None = 1.0, **settings: Any) -> Play:
    """A silence that is no stop yet; the words up to it are known."""
    play = Play(**settings)
    play.speech(960)
    play.silence(96)
    play.ahead(text, p)
    return play


@pytest.mark.parametrize("kind", ["fusion", "text", "integrated", "audio", "heuristic", "vad"])
def test_a_draft_is_begun_before_the_stop_and_goes_on_over_it(kind: str) -> None:
    p = paused(eou={"kind": kind})
    assert isinstance(p.state.resp, Predicted) and len(chats(p)) == 1
    first = p.epoch
    p.silence(288)
    p.words("What time is it?")
    assert len(chats(p)) == 1 and p.epoch == first, "the stop transcript asks nothing new"
    p.advance(6000)
    assert [x.epoch for x in chats(p)] == [first] and len(p.of(a.ResponseCreated)) == 1


@pytest.mark.parametrize("written", ["what time is it", "What time, is it?", " What  time is it ?"])
def test_the_same_words_written_otherwise_adopt_the_draft(written: str) -> None:
    p = paused()
    p.silence(288)
    p.words(written)
    p.verdict(1.0)
    p.advance(500)
    assert len(chats(p)) == 1 and len(p.of(a.ResponseCreated)) == 1
    assert p.state.conversation.items[0].text() == written.strip(), "what was heard last is what stands"


@pytest.mark.parametrize("other", ["What is the time?", "What is 1.5 + 1?", "What is 15 + 1?", "What is 15 - 1?"])
def test_other_words_at_the_stop_begin_another(other: str) -> None:
    p = paused("What is 15 + 1")
    p.silence(288)
    p.words(other)
    p.verdict(1.0)
    p.advance(500)
    same = other == "What is 15 + 1?"
    assert len(chats(p)) == (1 if same else 2) and p.prompt == [("user", "What is 15 + 1" if same else other)]


@pytest.mark.parametrize("p", [0.2, None])
def test_words_that_will_go_on_get_no_draft(p: float | None) -> None:
    play = paused("I would like to,", p)
    assert chats(play) == [] and isinstance(play.state.resp, Idle)


def test_one_more_window_of_voice_drops_what_was_begun() -> None:
    p = paused()
    first = p.epoch
    p.speech(32)
    assert isinstance(p.state.resp, Idle)
    assert [x.epoch for x in p.effects if isinstance(x, f.RetireEpoch)] == [first]
    p.silence(32)
    late = e.WordsAhead(p.at, p.of(a.SpeechStarted)[0].item_id, 960, e.Transcript("What time is it?"), 1.0)
    assert p.tell(late) == [] and isinstance(p.state.resp, Idle), "they are of what was said before"


def test_words_that_come_after_the_stop_or_of_nobody_begin_nothing() -> None:
    p = Play()
    p.speech(960)
    p.silence(384)
    p.ahead("What time is it?")
    assert chats(p) == []
    p.words("What time is it?")
    p.verdict(1.0)
    p.advance(500)
    p.ahead("What time is it?")
    assert len(chats(p)) == 1


def test_nobody_is_answered_ahead_while_a_reply_runs_or_where_it_is_off() -> None:
    assert chats(paused(predict=False)) == []
    p = Play(barge_in={"mode": "off"})
    p.turn("Tell me a story.")
    p.reply("Once upon a time.", done=False)
    before = len(chats(p))
    p.speech(960)
    p.silence(96)
    p.ahead("What time is it?")
    assert len(chats(p)) == before


def prepared(p: Play) -> list[tuple[int, int]]:
    """(end, end of the voice) of the words that were asked for ahead of a stop."""
    return [(x.end_ms, x.voiced_ms) for x in p.effects if isinstance(x, f.PrepareStt)]


def test_words_are_asked_for_as_the_voice_goes_away() -> None:
    p = Play()
    p.speech(960)
    p.sound(32, 0.6, -45.0)  # voice still, by the detector
    assert prepared(p) == [(992, 992)]
    p.silence(96)
    assert prepared(p) == [(992, 992), (1024, 992)], "and once more when it has gone"


@pytest.mark.parametrize(("prob", "level_db"), [(0.95, -45.0), (0.6, -25.0)])
def test_a_quieter_voice_or_an_unsure_one_is_no_end(prob: float, level_db: float) -> None:
    p = Play()
    p.speech(960)
    p.sound(32, prob, level_db)
    assert prepared(p) == []


def test_a_voice_that_comes_and_goes_asks_for_no_words_each_time() -> None:
    p = Play()
    p.speech(960)
    for _ in range(10):
        p.sound(32, 0.6, -45.0)
        p.sound(64, 0.95, -20.0)
    assert len(prepared(p)) == 1, "it has to be certain again first"


def test_a_busy_server_begins_nothing_ahead() -> None:
    p = Play()
    p.load(True)
    p.speech(960)
    p.silence(96)
    p.ahead("What time is it?", 1.0)
    assert chats(p) == [] and isinstance(p.state.resp, Idle)
    p.silence(288)
    p.words("What time is it?")
    p.verdict(1.0)
    p.advance(500)
    assert len(chats(p)) == 1 and isinstance(p.state.resp, Created), "the turn's end is answered as ever"
    p.load(False)
    assert not p.state.is_busy


def test_words_are_asked_for_as_the_voice_goes_away_unless_the_server_is_busy() -> None:
    def asked(is_busy: bool) -> list[int]:
        p = Play()
        p.load(is_busy)
        p.speech(960)
        p.sound(32, 0.6, -60.0)  # still voice, and a last one
        p.silence(32)
        return [x.end_ms for x in p.effects if isinstance(x, f.PrepareStt)]

    ahead, late = asked(False), asked(True)
    assert len(ahead) == 2 and late == ahead[1:] and ahead[1] - ahead[0] == 32
