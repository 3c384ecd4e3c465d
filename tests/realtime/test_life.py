"""The life of a session: clocks, limits and ends (SPEC sections 1, 2, 7, 10, 11)."""

from __future__ import annotations

import pytest

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import FunctionOutput
from bargein.realtime.ids import ItemId
from bargein.realtime.machine import step
from bargein.realtime.settings import Limits, Settings, parse
from bargein.realtime.state import Candidate, Drain, Session, Silent, Speaking, Stopped

from .play import Play, user

COUNTING = "one two three four five six seven eight nine ten"


# --- section 1: two clocks and the input gap -------------------------------------------------------------------------


def test_input_that_stops_in_mid_speech_is_silence_at_wall_clock_speed() -> None:
    p = Play()
    p.speech(960)
    p.advance(199)
    assert [x for x in p.effects if isinstance(x, f.FeedSilence)] == []
    p.advance(2)
    assert [x.ms for x in p.effects if isinstance(x, f.FeedSilence)] == [200]
    p.advance(400)
    assert sum(x.ms for x in p.effects if isinstance(x, f.FeedSilence)) in range(350, 450)
    assert isinstance(p.state.vad, Stopped), "350 ms of missing input are a stop"
    p.words("Hello.")
    p.verdict(1.0)
    p.advance(500)
    assert len(p.of(a.Committed)) == 1


def test_a_muted_microphone_ends_its_turn_and_the_next_one_works() -> None:
    p = Play(turn_detection={"type": "semantic_vad", "create_response": False})
    p.speech(960)
    p.advance(20_000)
    assert len(p.of(a.Committed)) == 1, "the hard cap at the latest"
    p.words("Hello.")
    p.mark()
    p.silence(320)
    p.speech(640)
    assert len(p.of(a.SpeechStarted)) == 1


def test_a_gap_shorter_than_the_limit_changes_nothing() -> None:
    p = Play(input_gap_ms=500)
    for _ in range(4):
        p.speech(320)
        p.advance(400)
    assert [x for x in p.effects if isinstance(x, f.FeedSilence)] == [] and isinstance(p.state.vad, Speaking)
    assert "input_gap" in p.timers


def test_missing_input_does_not_hold_a_reply_for_ever() -> None:
    p = Play()
    p.turn("Count to ten.")
    p.reply(COUNTING)
    p.play(400)
    p.speech(160)
    assert isinstance(p.state.vad, Candidate)
    p.advance(700)
    p.partial("")
    assert isinstance(p.state.resp, Drain) and "input_gap" not in p.timers


def test_silence_without_speech_is_not_filled_and_ends_nothing() -> None:
    p = Play()
    p.silence(320)
    p.advance(90_000)
    assert [x for x in p.effects if isinstance(x, f.FeedSilence)] == []
    p.speech(960)
    assert len(p.of(a.SpeechStarted)) == 1


# --- section 11: GA's idle timeout -----------------------------------------------------------------------------------


def idle(ms: int = 6000) -> Play:
    """A reply that has just ended, with an idle timeout."""
    p = Play(turn_detection={"type": "server_vad", "idle_timeout_ms": ms})
    p.turn("Count to ten.")
    p.reply(COUNTING)
    p.play(2000)
    p.drained(2000)
    p.mark()
    return p


def test_silence_after_a_reply_makes_the_assistant_speak_again() -> None:
    p = idle()
    p.sound(5984, 0.01, -70.0)
    assert p.names() == []
    p.sound(64, 0.01, -70.0)
    assert p.names() == [
        "TimeoutTriggered", "Committed", "ItemAdded", "TranscriptionCompleted", "ItemDone", "ResponseCreated",
    ]  # fmt: skip
    timeout, committed = p.of(a.TimeoutTriggered)[0], p.of(a.Committed)[0]
    assert timeout.item_id == committed.item_id and timeout.audio_end_ms - timeout.audio_start_ms == 6000
    assert p.of(a.TranscriptionCompleted)[0].transcript == ""
    assert p.prompt == [("user", "Count to ten."), ("assistant", COUNTING)]


def test_speech_and_requests_stop_the_idle_timeout() -> None:
    p = idle()
    p.silence(3200)
    p.speech(320)
    p.advance(10_000)
    assert p.of(a.TimeoutTriggered) == []
    q = idle()
    q.tell(e.CreateResponse(q.at))
    q.advance(10_000)
    assert q.of(a.TimeoutTriggered) == []


def test_there_is_no_idle_timeout_before_the_first_reply_or_unless_asked_for() -> None:
    p = Play(turn_detection={"type": "server_vad", "idle_timeout_ms": 5000})
    p.advance(20_000)
    assert p.of(a.TimeoutTriggered) == []
    q = idle()
    q.tell(e.UpdateSession(q.at, parse({"turn_detection": {"type": "server_vad", "idle_timeout_ms": None}})))
    q.advance(20_000)
    assert q.of(a.TimeoutTriggered) == []


def test_a_changed_idle_timeout_counts_anew() -> None:
    p = idle(30_000)
    p.advance(2000)
    p.tell(e.UpdateSession(p.at, parse({"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5000}})))
    p.advance(4990)
    assert p.of(a.TimeoutTriggered) == []
    p.advance(20)
    assert len(p.of(a.TimeoutTriggered)) == 1


# --- section 11: the server's limits ---------------------------------------------------------------------------------


def test_a_session_may_last_no_longer_than_the_server_allows() -> None:
    p = Play(limits=Limits(session_max_duration_s=60))
    p.tell(e.UpdateSession(p.at, parse({"session_max_duration_s": 120}), "evt_1"))
    error = p.of(a.ErrorEvent)[0]
    assert (error.code, error.param, error.event_id) == (
        "session_update_invalid", "session.session_max_duration_s", "evt_1",
    )  # fmt: skip
    p.advance(60_001)
    assert p.of(a.SessionDone)[0].reason == "max_duration" and p.effects[-1] == f.Close(1000, "max_duration")


def test_the_servers_idle_limit_counts_from_the_last_sign_of_life() -> None:
    p = Play(limits=Limits(session_idle_timeout_s=60))
    p.advance(50_000)
    p.tell(e.CreateItem(p.at, user("hi")))
    p.advance(50_000)
    p.speech(960)
    p.silence(640)
    p.words("")
    p.verdict(1.0)
    p.sound(50_000, 0.01)
    assert p.of(a.SessionDone) == []
    p.advance(12_000)
    assert p.of(a.SessionDone)[0].reason == "idle_timeout" and p.effects[-1] == f.Close(1000, "idle_timeout")


def test_a_long_reply_is_a_sign_of_life() -> None:
    p = Play(limits=Limits(session_idle_timeout_s=1))
    p.tell(e.CreateResponse(p.at))
    p.reply(COUNTING)
    p.play(2000)
    assert p.of(a.SessionDone) == []


# --- sections 7 and 10: failures that end the session ----------------------------------------------------------------


@pytest.mark.parametrize(("kind", "codes"), [("realtime", ["stt_failed", "stt_failed"]), ("transcription", [])])
def test_stt_that_keeps_failing_ends_the_session(kind: str, codes: list[str]) -> None:
    p = Play(type=kind)
    for _ in range(3):
        p.speech(960)
        p.silence(384)
        p.verdict(1.0)
        p.advance(500)
        asked = [x for x in p.effects if isinstance(x, f.FlushStt)][-1]
        p.tell(e.SttFailed(p.at, asked.item_id, asked.flush, "no"))
    assert len(p.of(a.TranscriptionFailed)) == 3
    assert [x.code for x in p.of(a.ErrorEvent)] == codes, "from the second in a row, and at the end"
    assert p.names()[-1] == "SessionDone" and p.of(a.SessionDone)[0].reason == "stt_failed"
    assert p.effects[-1] == f.Close(1011, "stt_failed")


def test_a_success_forgives_earlier_failures() -> None:
    p = Play(limits=Limits(stt_failure_limit=2))
    for text in (None, "Hello.", None):
        p.speech(960)
        p.silence(384)
        if text is not None:
            p.words(text)
        p.verdict(1.0)
        p.advance(500)
        if text is None:
            asked = [x for x in p.effects if isinstance(x, f.FlushStt)][-1]
            p.tell(e.SttFailed(p.at, asked.item_id, asked.flush, "no"))
        elif p.of(a.ResponseCreated):
            p.tell(e.CancelResponse(p.at))
    assert p.of(a.SessionDone) == []


@pytest.mark.parametrize(
    ("code", "reason", "close"),
    [
        ("vad_failed", "vad_failed", 1011),
        ("client_too_slow", "client_too_slow", 1008),
        ("engine_unavailable", "engine_unavailable", 1011),
        ("whatever", "internal_state_error", 1011),
    ],
)
def test_every_end_by_the_server_comes_in_order(code: str, reason: str, close: int) -> None:
    p = Play()
    p.turn("Count to ten.")
    p.reply(COUNTING)
    p.play(400)
    p.mark()
    p.tell(e.NodeFailed(p.at, code, "x"))
    assert p.names()[-3:] == ["ResponseDone", "ErrorEvent", "SessionDone"]
    assert p.of(a.ErrorEvent)[0].code == code and p.effects[-1] == f.Close(close, reason)  # type: ignore[arg-type]


# --- section 7: transcription sessions -------------------------------------------------------------------------------


def test_a_transcription_session_says_only_what_its_clients_forgive() -> None:
    p = Play(type="transcription")
    p.mark()
    for ev in (
        e.CreateResponse(p.at, event_id="e1"),
        e.CancelResponse(p.at, None, "e2"),
        e.RetrieveItem(p.at, "nowhere", "e3"),
        e.ClientFault(p.at, "invalid_event", "bad", None, "e4"),
        e.SettingsRefused(p.at, "x", "y", "session_update_invalid", "e5"),
    ):
        p.tell(ev)
    assert p.names() == []
    p.tell(e.CommitBuffer(p.at, "e6"))
    p.tell(e.ClearBuffer(p.at))
    assert [x.event_id for x in p.of(a.ErrorEvent)] == ["e6"] and p.names()[-1] == "Cleared"


def test_a_transcription_session_answers_for_every_committed_item() -> None:
    p = Play(type="transcription", audio={"input": {"transcription": None}})
    for text in ("Hello.", "", None):
        p.speech(960)
        p.silence(384)
        if text is not None:
            p.words(text)
        p.verdict(1.0)
        p.advance(500)
        if text is None:
            asked = [x for x in p.effects if isinstance(x, f.FlushStt)][-1]
            p.tell(e.SttFailed(p.at, asked.item_id, asked.flush, "no"))
    committed = [x.item_id for x in p.of(a.Committed)]
    answered = [x.item_id for x in p.events() if isinstance(x, a.TranscriptionCompleted | a.TranscriptionFailed)]
    assert committed == answered and len(committed) == 3
    assert p.of(a.ResponseCreated) == [] and [x for x in p.effects if isinstance(x, f.StartChat)] == []


def test_a_commit_and_a_clear_at_the_end_of_a_stream() -> None:
    p = Play(type="transcription")
    p.speech(960)
    p.tell(e.CommitBuffer(p.at))
    p.tell(e.ClearBuffer(p.at))
    p.words("Hello.")
    assert p.of(a.TranscriptionCompleted)[0].transcript == "Hello." and isinstance(p.state.vad, Silent)


# --- section 8: what chat is given -----------------------------------------------------------------------------------


def test_old_turns_are_dropped_when_the_context_is_full() -> None:
    p = Play(limits=Limits(context_tokens=700))
    for n in range(12):
        p.tell(e.CreateItem(p.at, user(f"{n} " + "word " * 20)))
    p.tell(e.CreateResponse(p.at))
    said = [content.split()[0] for _, content in p.prompt]
    assert said == [str(n) for n in range(12)][-len(said) :] and 3 < len(said) < 8
    assert len(p.state.conversation.items) == 12, "the conversation itself keeps them"


@pytest.mark.parametrize(("ratio", "most"), [(None, 6), (0.5, 3), (0.9, 13)])
def test_a_full_context_begins_alike_for_several_turns(ratio: float | None, most: int) -> None:
    """Else every turn is read from its beginning: what a cache holds is only of use where the prompt begins as before."""
    truncation = "auto" if ratio is None else {"type": "retention_ratio", "retention_ratio": ratio}
    p = Play(limits=Limits(context_tokens=1200), truncation=truncation)
    firsts, counts = [], []
    for n in range(40):
        p.tell(e.CreateItem(p.at, user(f"{n} " + "word " * 20)))
        p.tell(e.CreateResponse(p.at))
        firsts.append(p.prompt[0][1].split()[0])
        counts.append(len(p.prompt))
        p.tell(e.CancelResponse(p.at))
    whole = max(counts)
    assert firsts[0] == "0" and len(set(firsts)) <= most + 1
    assert min(counts[whole:]) in range(round(whole * (ratio or 0.8)) - 2, whole + 1)


def test_a_context_may_not_be_truncated() -> None:
    p = Play(limits=Limits(context_tokens=1200), truncation="disabled")
    for _ in range(40):
        p.tell(e.CreateItem(p.at, user("word " * 20)))
    p.tell(e.CreateResponse(p.at))
    assert len(p.prompt) == 40


def test_a_call_and_its_result_go_together_and_the_system_stays() -> None:
    from bargein.realtime.context import fit
    from bargein.realtime.conversation import FunctionCall, Item, Message, Part

    def said(role: str, text: str, n: int) -> Message:
        return Message(ItemId(f"m{n}"), role, (Part("input_text", text),))  # type: ignore[arg-type]

    long = "word " * 100
    items: tuple[Item, ...] = (
        said("system", "Be brief.", 0),
        said("user", long, 1),
        FunctionCall(ItemId("f1"), "c1", "look", "{}"),
        said("user", long, 2),  # spoken while the tool ran
        FunctionOutput(ItemId("o1"), "c1", "42"),
        said("assistant", long, 3),
        said("user", "And now?", 4),
    )
    kept = [i.id for i in fit(items, "auto", 330)]
    assert kept == ["m0", "m2", "m3", "m4"], "the call went with its turn, and took its result along"
    assert [i.id for i in fit(items, "auto", 1)] == ["m0", "m4"]
    assert fit(items, "auto", 10_000) == fit(items, "disabled", 1) == items


def test_input_items_may_name_items_of_the_conversation() -> None:
    p = Play()
    p.tell(e.CreateItem(p.at, user("Blue is my colour.", "item_a")))
    p.tell(e.CreateItem(p.at, user("Forget it.", "item_b")))
    given = (e.ItemReference("item_a"), user("Which colour?"))
    p.tell(e.CreateResponse(p.at, e.ResponseParams(out_of_band=True, text_only=True, input=given)))
    assert p.prompt == [("user", "Blue is my colour."), ("user", "Which colour?")]
    bad = e.ResponseParams(input=(user("x"), e.ItemReference("item_z")))
    p.tell(e.CreateResponse(p.at, bad, "evt_9"))
    error = p.of(a.ErrorEvent)[0]
    assert (error.code, error.param, error.event_id) == ("item_not_found", "response.input[1].id", "evt_9")


@pytest.mark.parametrize(("model", "known"), [("gpt-realtime", True), ("here", True), ("default", True), ("elsewhere", False)])
def test_a_model_that_is_not_here_is_refused_in_mid_call_too(model: str, known: bool) -> None:
    state, _ = step(Session(), e.Opened(0.0, "seed", Settings(), models=("here",)))
    state, effects = step(state, e.UpdateSession(1.0, parse({"model": model, "instructions": "x"}), "c1"))
    (said,) = [x.event for x in effects if isinstance(x, f.Emit)]
    if known:
        assert isinstance(said, a.SessionUpdated) and state.settings.model == model
    else:
        assert isinstance(said, a.ErrorEvent) and state.settings.instructions == "", "nothing of it applies"
        assert (said.code, said.param, said.event_id) == ("model_not_found", "session.model", "c1")
