"""What an agent does of itself: SPEC section 16."""

from __future__ import annotations

from typing import Any

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import FunctionCall, FunctionOutput, Message, Part, to_chat
from bargein.realtime.ids import ItemId
from bargein.realtime.settings import Agent
from bargein.realtime.state import Created, Held, Terminated, live

from .play import Play, user

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
DESK = Agent(
    name="desk", greeting="Hello, this is the desk.", tools=(LOOK,), filler="One moment.", apology="That went wrong.",
    farewell="Goodbye.", say_on_failure="Please say that again.",
)  # fmt: skip
CALL = (e.ToolCall("call_1", "look", '{"a":1}'),)


def desk(**settings: Any) -> Play:
    """A conversation with the desk in which the greeting does not come."""
    p = Play(agent=DESK, **({"barge_in": {"mode": "cancel"}} | settings))
    p.turn("Count to ten.")
    return p


def called(**settings: Any) -> Play:
    """The desk has called its tool without a word."""
    p = desk(**settings)
    p.tell(e.ChatDone(p.at, p.epoch, CALL))
    p.tell(e.SpeechDone(p.at, p.epoch))
    return p


def effects(p: Play, kind: type) -> list[Any]:
    return [x for x in p.effects if isinstance(x, kind)]


def said(p: Play) -> list[str]:
    return [x.text for x in effects(p, f.SayLine)]


def finish(p: Play, ms: int) -> None:
    p.play(ms)
    p.drained(ms)


# --- the greeting --------------------------------------------------------------------------------------------------


def test_the_greeting_comes_after_300_ms_of_silence_and_enters_the_history() -> None:
    p = Play(agent=DESK)
    p.silence(288)
    assert said(p) == []
    p.silence(32)
    assert said(p) == ["Hello, this is the desk."]
    assert p.line() == "Hello, this is the desk."
    finish(p, 1000)
    (item,) = p.state.conversation.items
    assert isinstance(item, Message) and (item.role, item.text()) == ("assistant", "Hello, this is the desk.")
    assert effects(p, f.StartChat) == []
    p.turn("Hello.")
    assert p.prompt == [("assistant", "Hello, this is the desk."), ("user", "Hello.")]


def test_the_greeting_waits_for_a_caller_who_makes_a_sound_first() -> None:
    p = Play(agent=DESK)
    p.silence(96)
    p.speech(64)  # too short to be a turn
    p.silence(224)
    assert said(p) == []
    p.silence(800)
    assert said(p) == ["Hello, this is the desk."]


def test_a_caller_who_speaks_first_gets_a_reply_and_no_greeting() -> None:
    p = desk()
    p.reply("one two")
    finish(p, 400)
    p.silence(2000)
    assert said(p) == [] and len(p.of(a.ResponseCreated)) == 1


def test_the_greeting_is_interrupted_as_any_reply_and_history_holds_what_was_heard() -> None:
    p = Play(agent=DESK, barge_in={"mode": "cancel"})
    p.silence(320)
    p.line()
    p.play(400)
    p.speech(160)
    done = p.of(a.ResponseDone)[0].response
    assert (done.status, done.reason) == ("cancelled", "turn_detected")
    assert done.output[0].text().startswith("Hello, this") and "desk" not in done.output[0].text()


def test_the_greeting_is_held_by_an_mm_hm_and_goes_on() -> None:
    p = Play(agent=DESK)
    p.silence(320)
    p.line(word_ms=600)  # far from its end, where anything said is an answer
    p.play(200)
    p.speech(160)
    assert isinstance(p.state.resp, Held)
    p.silence(96)
    p.partial("Mm-hm.")
    p.silence(400)
    assert not isinstance(p.state.resp, Held) and live(p.state.resp) is not None


def test_the_greeting_is_text_in_a_text_session() -> None:
    p = Play(agent=DESK, output_modalities=["text"])
    p.silence(320)
    p.tell(e.ChatDelta(p.at, p.epoch, DESK.greeting))
    p.tell(e.ChatDone(p.at, p.epoch))
    assert p.of(a.TextDone)[0].text == DESK.greeting


def test_a_transcription_session_greets_nobody() -> None:
    p = Play(agent=DESK, type="transcription")
    p.silence(2000)
    assert p.of(a.ResponseCreated) == []


# --- tools ---------------------------------------------------------------------------------------------------------


def test_a_call_of_an_own_tool_is_an_item_and_no_output_and_is_run() -> None:
    p = called()
    assert effects(p, f.RunTool) == [f.RunTool("call_1", "look", '{"a":1}')]
    assert p.of(a.ResponseDone)[0].response.output == () and p.of(a.OutputItemAdded) == p.of(a.ArgumentsDone) == []
    item = p.state.conversation.items[-1]
    assert isinstance(item, FunctionCall) and p.of(a.ItemDone)[-1].item == item
    assert effects(p, f.StartChat)[-1].tools == (LOOK,)


def test_the_answer_is_an_item_and_the_reply_goes_on() -> None:
    p = called()
    p.advance(100)
    p.tell(e.ToolDone(p.at, "call_1", "31 degrees"))
    assert isinstance(p.state.conversation.items[-1], FunctionOutput)
    assert isinstance(p.state.resp, Created) and p.prompt[-1] == ("tool", "31 degrees")
    assert said(p) == []


def test_a_slow_tool_is_bridged_once_and_its_answer_follows_the_filler() -> None:
    p = called()
    p.advance(699)
    assert said(p) == []
    p.advance(1)
    assert said(p) == ["One moment."]
    p.line()
    p.play(200)
    p.tell(e.ToolDone(p.at, "call_1", "31 degrees"))
    assert len(effects(p, f.StartChat)) == 1
    p.play(200, start_ms=200)
    p.drained(400)
    assert p.prompt == [("user", "Count to ten."), ("assistant", "One moment."), ("tool", "31 degrees")]
    assert len(effects(p, f.StartChat)) == 2
    p.advance(5000)
    assert said(p)[:1] == ["One moment."] and said(p).count("One moment.") == 1


@pytest.mark.parametrize("cancels", [True, False])
def test_speaking_over_the_filler_cancels_the_tool_or_keeps_it_as_declared(cancels: bool) -> None:
    agent = Agent(tools=({**LOOK, "cancel_on_barge_in": cancels},), filler="One moment please.")
    p = Play(agent=agent, barge_in={"mode": "cancel"})
    p.turn("Count to ten.")
    p.tell(e.ChatDone(p.at, p.epoch, CALL))
    p.tell(e.SpeechDone(p.at, p.epoch))
    p.advance(700)
    p.line()
    p.play(200)
    p.turn("And the hall?")
    assert p.of(a.ResponseDone)[1].response.reason == "turn_detected"
    assert len(effects(p, f.CancelTool)) == cancels
    tool = [m for m in effects(p, f.StartChat)[-1].messages if m.role == "tool"]
    assert [m.content for m in tool] == ['{"error": "cancelled: the caller spoke"}' if cancels else "(no result yet)"]
    p.reply("It is cold.")
    finish(p, 600)
    num = len(effects(p, f.StartChat))
    p.tell(e.ToolDone(p.at, "call_1", "31 degrees"))
    if cancels:  # a late answer has no effect
        assert len(effects(p, f.StartChat)) == num
    else:
        messages = effects(p, f.StartChat)[-1].messages
        assert len(effects(p, f.StartChat)) == num + 1
        assert [(m.role, m.content) for m in messages if m.role != "assistant"] == [
            ("user", "Count to ten."), ("tool", "(no result yet)"), ("user", "And the hall?"), ("tool", "31 degrees"),
        ]  # fmt: skip
        assert messages[1].content.startswith("One") and messages[-2].tool_calls[0][0] == "call_1_late"


def test_an_answer_that_comes_while_the_caller_speaks_waits_for_the_turn() -> None:
    p = called()
    p.speech(320)
    num = len(effects(p, f.StartChat))
    p.tell(e.ToolDone(p.at, "call_1", "31 degrees"))
    assert len(effects(p, f.StartChat)) == num and p.state.parked is not None
    p.speech(320)
    p.silence(500)
    p.words("And?")
    p.verdict(1.0)
    p.advance(1000)
    assert p.prompt[-2:] == [("tool", "31 degrees"), ("user", "And?")] and len(p.of(a.ResponseCreated)) == 2


def test_a_tool_that_fails_ends_in_an_apology_and_the_call_goes_on() -> None:
    p = called()
    p.tell(e.ToolDone(p.at, "call_1", '{"error": "broken"}', "failed"))
    assert said(p) == ["That went wrong."] and len(effects(p, f.StartChat)) == 1
    p.line()
    finish(p, 600)
    p.turn("Again.")
    assert [m.content for m in effects(p, f.StartChat)[-1].messages if m.role == "tool"] == ['{"error": "broken"}']


def test_two_calls_at_once_go_on_when_both_have_answered() -> None:
    p = desk()
    p.tell(e.ChatDone(p.at, p.epoch, (*CALL, e.ToolCall("call_2", "look", "{}"))))
    p.tell(e.SpeechDone(p.at, p.epoch))
    p.tell(e.ToolDone(p.at, "call_2", "B"))
    assert len(effects(p, f.StartChat)) == 1
    p.tell(e.ToolDone(p.at, "call_1", "A"))
    chat = effects(p, f.StartChat)[-1].messages
    assert [m.content for m in chat if m.role == "tool"] == ["A", "B"]


def test_a_tool_of_the_clients_beside_an_own_one_goes_to_the_client() -> None:
    p = desk()
    p.tell(e.ChatDone(p.at, p.epoch, (*CALL, e.ToolCall("call_2", "theirs", "{}"))))
    p.tell(e.SpeechDone(p.at, p.epoch))
    assert [i.name for i in p.of(a.ResponseDone)[0].response.output] == ["theirs"]
    assert [x.name for x in effects(p, f.RunTool)] == ["look"]
    assert p.of(a.OutputItemDone)[0].output_index == 0


def test_the_agent_ends_the_call_after_its_last_word() -> None:
    p = called()
    p.tell(e.ToolDone(p.at, "call_1", "ok", "ended"))
    assert said(p) == ["Goodbye."]
    p.line()
    p.play(200)
    assert not isinstance(p.state.phase, Terminated)
    p.drained(200)
    assert isinstance(p.state.phase, Terminated) and p.state.phase.reason == "agent_ended"
    assert isinstance(p.effects[-1], f.Close) and p.effects[-1].code == 1000


def test_a_session_that_ends_cancels_its_tools() -> None:
    p = called()
    p.tell(e.TransportClosed(p.at))
    assert [x.call_id for x in effects(p, f.CancelTool)] == ["call_1"]


# --- failures of chat ----------------------------------------------------------------------------------------------


def test_a_chat_that_fails_is_spoken_of() -> None:
    p = desk()
    p.tell(e.ChatFailed(p.at, p.epoch, "broken"))
    assert p.of(a.ResponseDone)[0].response.status == "failed" and said(p) == ["Please say that again."]


def test_a_chat_that_does_not_begin_in_5_s_is_given_up() -> None:
    p = desk()
    resp = live(p.state.resp)
    assert resp is not None
    p.advance(resp.plan.created_at + 4999 - p.at)
    assert said(p) == []
    p.advance(1)
    assert said(p) == ["Please say that again."] and p.of(a.ResponseDone)[0].response.error_code == "llm_error"


def test_a_chat_that_has_begun_is_waited_for() -> None:
    p = desk()
    p.tell(e.ChatDelta(p.at, p.epoch, "one"))
    p.advance(20_000)
    assert said(p) == []


# --- lines and keys ------------------------------------------------------------------------------------------------


def test_a_line_waits_for_the_reply_and_is_dropped_where_the_caller_speaks() -> None:
    p = desk()
    p.reply("one two three four five")
    p.play(200)
    p.tell(e.Say(p.at, "By the way."))
    assert said(p) == []
    p.turn("Stop.")
    assert said(p) == [] and p.prompt[-1] == ("user", "Stop.")


def test_keys_are_a_message_after_a_pause_or_at_the_hash() -> None:
    p = desk()
    p.reply("one two")
    finish(p, 400)
    for key in "42":
        p.tell(e.KeyPressed(p.at, key, 1))
        p.advance(500)
    p.advance(1000)
    assert p.prompt[-1] == ("user", "(keys pressed: 4 2)")
    p.reply("three")
    p.play(100)
    p.tell(e.KeyPressed(p.at, "#", 1))  # over a reply: it stops
    assert p.of(a.ResponseDone)[-1].response.reason == "turn_detected"
    assert p.prompt[-1] == ("user", "(keys pressed: #)")
    num = len(p.state.conversation.items)
    p.tell(e.KeyPressed(p.at, "7", 1, taken=True))
    p.advance(5000)
    assert len(p.state.conversation.items) == num and len(p.of(a.KeyPressed)) == 4


# --- what chat is given --------------------------------------------------------------------------------------------


def test_every_call_is_answered_before_anything_else_is_said() -> None:
    def call(n: int) -> FunctionCall:
        return FunctionCall(ItemId(f"c{n}"), f"call_{n}", "look", "{}")

    def result(n: int) -> FunctionOutput:
        return FunctionOutput(ItemId(f"r{n}"), f"call_{n}", f"R{n}")

    def shown(*items: Any) -> list[str]:
        return [m.tool_call_id or (f"{m.role}:{len(m.tool_calls)}") for m in to_chat(items)]

    def said(text: str) -> Message:
        return Message(ItemId(text), "assistant", (Part("output_audio", text),))

    assert shown(call(1), user("x"), result(1)) == ["assistant:1", "call_1", "user:0", "assistant:1", "call_1_late"]
    assert shown(call(1), result(1), call(2), result(2)) == ["assistant:1", "call_1", "assistant:1", "call_2"]
    assert shown(call(1), call(2), result(2), result(1)) == ["assistant:2", "call_1", "call_2"]
    assert shown(call(1), call(2), result(1), user("x")) == ["assistant:2", "call_1", "call_2", "user:0"]
    assert [m.content for m in to_chat((call(1), user("x")))] == ["", "(no result yet)", "x"]
    assert [m.content for m in to_chat((said("a"), call(1), said("b"), result(1), said("c")))] == ["a b", "R1", "c"]
    assert shown(result(9)) == ["call_9"]
