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
