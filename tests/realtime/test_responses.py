"""The reply's side: SPEC sections 8 and 9."""

from __future__ import annotations

from typing import Any

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import FunctionOutput, Message, SpokenWord, words_heard
from bargein.realtime.ids import Epoch, ItemId
from bargein.realtime.settings import parse
from bargein.realtime.state import Drain, Idle, Speaking, live

from .play import Play, user

COUNTING = "one two three four five six seven eight nine ten"


def asked(**settings: Any) -> Play:
    """A question in cancel mode, its reply asked for."""
    p = Play(**({"barge_in": {"mode": "cancel"}} | settings))
    p.turn("Count to ten.")
    return p


def test_an_audio_response_in_order() -> None:
    p = asked()
    first = p.of(a.ResponseCreated)[0]
    del p.effects[:]
    epoch = Epoch(p.state.epoch)
    p.tell(e.ChatDelta(p.at, epoch, "Hello there."))
    words = (SpokenWord("Hello", 0, 200), SpokenWord(" there.", 200, 400))
    p.tell(e.PhrasePlanned(p.at, epoch, words, 400))
    for n in range(20):
        p.tell(e.FrameDue(p.at, epoch, (n + 1) * 20, n * 20))
        p.advance(20)
    p.tell(e.ChatDone(p.at, epoch, (), False, 12, 3, 5))
    p.tell(e.SpeechDone(p.at, epoch))
    p.tell(e.PlayoutDrained(p.at, epoch, 400))
    assert p.names() == [
        "OutputItemAdded", "ItemAdded", "ContentPartAdded", "SpokenDelta", "AudioDelta", "OutputStarted",
        "AudioDelta", "SpokenDelta", "AudioDelta", "AudioDone", "SpokenDone", "ContentPartDone", "ItemDone",
        "OutputItemDone", "ResponseDone", "OutputStopped",
    ]  # fmt: skip
    done = p.of(a.ResponseDone)[0].response
    assert (done.id, done.status, done.audio_end_ms, done.usage) == (
        first.response.id, "completed", 400, (12, 3, 5, True),
    )  # fmt: skip
    assert done.output[0].text() == "Hello there."
    assert p.of(a.SpokenDone)[0].transcript == "".join(d.delta for d in p.of(a.SpokenDelta)) == "Hello there."


def test_words_leave_with_the_frame_in_which_they_begin() -> None:
    p = asked()
    p.reply("one two three", word_ms=100)
    p.play(100)
    assert "".join(d.delta for d in p.of(a.SpokenDelta)) == "one"
    p.play(20, start_ms=100)
    assert "".join(d.delta for d in p.of(a.SpokenDelta)) == "one two"


def test_interrupted_history_holds_exactly_what_was_heard() -> None:
    p = asked()
    p.reply(COUNTING)
    p.play(980)  # to the end of "five"
    p.mark()
    p.speech(160)
    assert p.names() == [
        "AudioDone", "SpokenDone", "ContentPartDone", "ItemDone", "OutputItemDone", "OutputCleared", "ResponseDone",
        "ItemTruncated", "SpeechStarted",
    ]  # fmt: skip
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.reason) == ("cancelled", "turn_detected")
    assert p.of(a.ItemTruncated)[0].audio_end_ms == done.audio_end_ms
    assert isinstance(p.state.vad, Speaking) and isinstance(p.state.resp, Idle)
    heard = done.output[0].text()
    assert heard == "one two three four five-" or heard == "one two three four five"
    p.speech(800)
    p.silence(384)
    p.words("Go on.")
    p.verdict(1.0)
    p.advance(500)
    assert p.prompt == [("user", "Count to ten."), ("assistant", heard), ("user", "Go on.")]


@pytest.mark.parametrize(
    ("until", "text"),
    [(0, ""), (99, ""), (101, "one-"), (200, "one"), (299, "one"), (301, "one two-"), (400, "one two")],
)
def test_words_heard(until: int, text: str) -> None:
    words = (SpokenWord("one", 0, 200), SpokenWord(" two", 200, 400))
    assert words_heard(words, until) == text


def test_the_playout_clock_runs_between_frames() -> None:
    p = asked()
    p.reply(COUNTING)
    epoch = p.epoch
    for n in range(10):  # ten frames in one burst: 200 ms written, nothing played yet
        p.tell(e.FrameDue(p.at, epoch, (n + 1) * 20, 0))
    p.advance(70)
    p.tell(e.CancelResponse(p.at))
    assert p.of(a.ResponseDone)[0].response.audio_end_ms == 70


def test_an_interruption_before_the_first_sample_takes_the_reply_back() -> None:
    p = asked()
    p.reply(COUNTING, done=False)
    p.speech(160)
    assert p.of(a.ItemTruncated) == [] and p.of(a.ItemAdded)[-1].item.role == "user"
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.audio_end_ms, done.output) == ("cancelled", 0, ())


def test_written_but_nothing_played_deletes_the_item() -> None:
    p = asked()
    p.reply(COUNTING)
    p.tell(e.FrameDue(p.at, p.epoch, 20, 0))
    p.tell(e.CancelResponse(p.at))
    item = p.of(a.OutputItemAdded)[0].item.id
    assert p.of(a.ItemDeleted)[0].item_id == item
    assert p.state.conversation.get(item) is None


def test_nothing_of_a_retired_epoch_goes_out() -> None:
    p = asked()
    p.reply(COUNTING, done=False)
    p.play(400)
    old = p.epoch
    p.speech(160)
    p.mark()
    for ev in (
        e.ChatDelta(p.at, old, "more"),
        e.PhrasePlanned(p.at, old, (SpokenWord(" more", 0, 100),), 5000),
        e.FrameDue(p.at, old, 420, 400),
        e.ChatDone(p.at, old),
        e.SpeechDone(p.at, old),
        e.PlayoutDrained(p.at, old, 420),
        e.SpeechFailed(p.at, old, "x"),
        e.ChatFailed(p.at, old, "x"),
    ):
        assert p.tell(ev) == []


def test_interruption_off_runs_the_turn_beside_and_parks_its_reply() -> None:
    p = Play(barge_in={"mode": "off"})
    p.turn("Count to ten.")
    p.reply(COUNTING)
    p.play(400)
    p.turn("And then?")
    assert len(p.of(a.ResponseCreated)) == 1
    assert live(p.state.resp) is not None and p.state.parked is not None
    p.play(1600, start_ms=400)
    p.drained(2000)
    assert len(p.of(a.ResponseCreated)) == 2
    assert p.prompt == [("user", "Count to ten."), ("assistant", COUNTING), ("user", "And then?")]


def test_a_barge_in_delay_suppresses_short_speech() -> None:
    p = asked(turn_detection={"type": "semantic_vad", "barge_in_delay_ms": 300})
    p.reply(COUNTING)
    p.play(400)
    p.mark()
    p.speech(160)
    p.silence(400)
    assert p.of(a.SpeechStarted) == [] and p.of(a.ResponseDone) == []
    p.speech(480)
    assert p.names()[-1] == "SpeechStarted" and len(p.of(a.ResponseDone)) == 1


def test_drain_then_completed() -> None:
    p = asked()
    p.reply(COUNTING)
    p.play(1000)
    assert isinstance(p.state.resp, Drain)
    p.play(1000, start_ms=1000)
    p.drained(2000)
    assert p.of(a.ResponseDone)[0].response.status == "completed"
    assert "drain_cap" not in p.timers


def test_the_drain_cap_ends_a_reply_that_never_drains() -> None:
    p = asked()
    p.reply(COUNTING)
    p.play(1000)
    p.advance(5000)
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.reason) == ("incomplete", None)


def test_a_second_response_is_refused_while_one_runs_or_waits() -> None:
    p = asked()
    p.tell(e.CreateResponse(p.at, event_id="evt_2"))
    error = p.of(a.ErrorEvent)[0]
    assert (error.code, error.event_id) == ("conversation_already_has_active_response", "evt_2")


def test_cancel_without_a_response() -> None:
    p = Play()
    p.tell(e.CancelResponse(p.at, None, "evt_3"))
    assert (p.of(a.ErrorEvent)[0].code, p.of(a.ErrorEvent)[0].event_id) == ("response_cancel_not_active", "evt_3")


@pytest.mark.parametrize(
    ("failure", "code"),
    [(e.ChatFailed, "llm_error"), (e.SpeechFailed, "tts_error")],
)
def test_failures_end_the_response_and_keep_the_call(failure: type, code: str) -> None:
    p = asked()
    p.reply("Hello", done=False)
    p.play(100)
    p.tell(failure(p.at, p.epoch, "broken"))
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.error_code) == ("failed", code)
    p.turn("Again?")
    assert len(p.of(a.ResponseCreated)) == 2


def test_losing_the_engine_fails_the_response_and_the_call_goes_on() -> None:
    p = asked()
    p.reply("Hello", done=False)
    p.play(100)
    p.tell(e.EngineLost(p.at))
    assert p.of(a.ResponseDone)[0].response.error_code == "engine_unavailable"
    p.tell(e.EngineBack(p.at))
    p.advance(20_000)
    p.turn("Again?")
    assert len(p.of(a.ResponseCreated)) == 2


def test_an_engine_that_stays_away_ends_the_session() -> None:
    p = Play()
    p.tell(e.EngineLost(p.at))
    p.advance(15_000)
    assert p.names()[-2:] == ["ErrorEvent", "SessionDone"]
    assert isinstance(p.effects[-1], f.Close) and p.effects[-1].code == 1011


def test_tool_calls_are_items_after_the_spoken_one() -> None:
    p = asked()
    p.reply("Let me look.", done=False)
    calls = (e.ToolCall("call_1", "look", '{"a":1}'), e.ToolCall("call_2", "look", '{"a":2}'))
    p.tell(e.ChatDone(p.at, p.epoch, calls))
    p.tell(e.SpeechDone(p.at, p.epoch))
    p.play(600)
    p.drained(600)
    items = p.of(a.OutputItemDone)
    assert [x.output_index for x in items] == [0, 1, 2]
    assert [x.item.arguments for x in items[1:]] == ['{"a":1}', '{"a":2}']
    assert len(p.of(a.ArgumentsDone)) == 2 and p.of(a.ArgumentsDone)[0].name == "look"
    p.tell(e.CreateItem(p.at, FunctionOutput(ItemId(""), "call_1", "42")))
    p.tell(e.CreateResponse(p.at))
    chat = [x for x in p.effects if isinstance(x, f.StartChat)][-1].messages
    assert [(m.role, m.tool_call_id) for m in chat] == [
        ("user", None), ("assistant", None), ("tool", "call_1"), ("tool", "call_2"),
    ]  # fmt: skip
    assert len(chat[1].tool_calls) == 2 and [m.content for m in chat[2:]] == ["42", "(no result yet)"]


def test_a_tool_call_alone_makes_no_spoken_item() -> None:
    p = asked()
    p.tell(e.ChatDone(p.at, p.epoch, (e.ToolCall("call_1", "look", "{}"),)))
    p.tell(e.SpeechDone(p.at, p.epoch))
    done = p.of(a.ResponseDone)[0].response
    assert [type(i).__name__ for i in done.output] == ["FunctionCall"]
    assert done.status == "completed"


def test_out_of_band_text_leaves_the_conversation_alone() -> None:
    p = Play()
    params = e.ResponseParams(out_of_band=True, text_only=True, input=(user("What colour?"),), metadata={"k": "v"})
    p.tell(e.CreateResponse(p.at, params))
    assert p.prompt == [("user", "What colour?")]
    p.tell(e.ChatDelta(p.at, p.epoch, "Blue."))
    p.tell(e.ChatDone(p.at, p.epoch))
    assert p.of(a.ItemAdded) == [] and p.state.conversation.items == ()
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.metadata, done.output[0].text(), done.conversation_id) == (
        "completed", {"k": "v"}, "Blue.", None,
    )  # fmt: skip


def test_a_text_response_of_the_conversation() -> None:
    p = Play(output_modalities=["text"])
    p.turn("Hi.")
    p.tell(e.ChatDelta(p.at, p.epoch, "Hel"))
    p.tell(e.ChatDelta(p.at, p.epoch, "lo."))
    p.tell(e.ChatDone(p.at, p.epoch))
    assert p.of(a.TextDone)[0].text == "Hello."
    assert p.of(a.AudioDelta) == []
    assert p.state.conversation.items[-1].text() == "Hello."


def test_the_token_limit_makes_an_incomplete_response() -> None:
    p = asked()
    p.reply("one two", done=False)
    p.tell(e.ChatDone(p.at, p.epoch, (), True))
    p.tell(e.SpeechDone(p.at, p.epoch))
    p.play(400)
    p.drained(400)
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.reason, done.output[0].text()) == ("incomplete", "max_output_tokens", "one two")


def test_client_truncation_takes_the_smaller_figure_and_may_be_repeated() -> None:
    p = asked()
    p.reply(COUNTING)
    p.play(2000)
    p.drained(2000)
    item = p.of(a.ItemAdded)[-1].item.id
    for asked_ms, answered in ((650, 650), (9999, 650), (650, 650)):
        p.tell(e.TruncateItem(p.at, item, 0, asked_ms))
        assert p.of(a.ItemTruncated)[-1].audio_end_ms == answered
    kept = p.state.conversation.get(item)
    assert isinstance(kept, Message) and kept.text() == "one two three"


def test_clearing_the_output_keeps_chat_going() -> None:
    p = asked()
    p.reply(COUNTING, done=False)
    p.play(400)
    p.tell(e.ClearOutput(p.at))
    assert p.names()[-1] == "OutputCleared"
    p.mark()
    p.tell(e.FrameDue(p.at, Epoch(p.state.epoch), 420, 400))
    assert p.names() == []
    p.tell(e.ChatDone(p.at, Epoch(p.state.epoch)))
    done = p.of(a.ResponseDone)[0].response
    assert done.status == "completed" and done.output[0].text() == "one two"


def test_items_keep_the_clients_ids_and_their_place() -> None:
    p = Play()
    p.tell(e.CreateItem(p.at, user("b", "item_b")))
    p.tell(e.CreateItem(p.at, user("a", "item_a"), "root"))
    p.tell(e.CreateItem(p.at, user("c", "item_c"), "item_b"))
    assert [i.id for i in p.state.conversation.items] == ["item_a", "item_b", "item_c"]
    assert [x.previous_item_id for x in p.of(a.ItemAdded)] == [None, None, "item_b"]
    p.tell(e.CreateItem(p.at, user("x"), "nowhere", "evt_4"))
    assert (p.of(a.ErrorEvent)[-1].code, p.of(a.ErrorEvent)[-1].event_id) == ("item_not_found", "evt_4")
    p.tell(e.DeleteItem(p.at, "item_b"))
    p.tell(e.RetrieveItem(p.at, "item_b", "evt_5"))
    assert p.of(a.ErrorEvent)[-1].event_id == "evt_5"


def test_the_session_ends_in_order() -> None:
    p = asked()
    p.reply(COUNTING)
    p.play(400)
    p.mark()
    p.tell(e.CloseSession(p.at))
    assert p.names()[-2:] == ["ResponseDone", "SessionDone"]
    assert isinstance(p.effects[-1], f.Close)
    assert p.tell(e.CreateResponse(p.at)) == []


def test_the_longest_duration_ends_the_session() -> None:
    p = Play(session_max_duration_s=60)
    p.advance(60_001)
    assert p.of(a.SessionDone)[0].reason == "max_duration"


def test_an_update_applies_whole_or_not_at_all() -> None:
    p = Play()
    p.tell(e.UpdateSession(p.at, parse({"instructions": "Be brief.", "voice": "x"})))
    p.tell(e.UpdateSession(p.at, parse({"tools": [{"type": "function", "name": "t"}]})))
    s = p.of(a.SessionUpdated)[-1].settings
    assert (s.instructions, s.voice, len(s.tools)) == ("Be brief.", "x", 1)


def test_so_many_responses_run_beside_and_no_more() -> None:
    p = Play()
    for n in range(9):
        p.tell(e.CreateResponse(p.at, e.ResponseParams(out_of_band=True, text_only=True), f"c{n}"))
    assert len(p.of(a.ResponseCreated)) == 8
    (refused,) = p.of(a.ErrorEvent)
    assert (refused.code, refused.event_id) == ("rate_limit_exceeded", "c8")
    first = p.of(a.ResponseCreated)[0].response.id
    p.tell(e.CancelResponse(p.at, first))
    p.tell(e.CreateResponse(p.at, e.ResponseParams(out_of_band=True, text_only=True)))
    assert len(p.of(a.ResponseCreated)) == 9
