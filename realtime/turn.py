"""The user's turn: from announced speech to its end, commit and transcript (SPEC sections 3, 6 and 7).

A stop makes a transcript and a question to the classifier, and a timer or the verdict makes the commit. What sound it
comes from is `sound`'s business, what the reply does about it `response`'s.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import events as e
from . import life, predicted, question, response, tools
from .conversation import Message, Part
from .detector import Voiced, deafen
from .draft import Draft
from .effects import DropAudio, FlushStt, SealBuffer, StartStt, StopStt
from .eou import hard_cap_ms, is_noise
from .ids import ItemId
from .settings import Settings, TurnDetection
from .state import Pause, Sealed, Silent, Speaking, Stopped

DEFAULT_CAP_MS = 5000

# --- an utterance --------------------------------------------------------------------------------------------------


def first_ms(d: Draft, td: TurnDetection, onset_ms: int) -> int:
    """Where the audio of speech begins whose onset is at `onset_ms`."""
    return max(onset_ms - td.prefix_padding_ms, d.s.buffer_start_ms, 0)


def start_stt(d: Draft, item_id: ItemId, start_ms: int) -> None:
    stt = d.s.settings.transcription
    d.do(StartStt(item_id, start_ms, stt.language if stt else None, stt.prompt if stt else None))


def announce(d: Draft, item_id: ItemId, start_ms: int, voiced_ms: int, earlier_voiced_ms: int = 0) -> Speaking:
    """The user has the floor; STT is running on it already."""
    vad = Speaking(item_id, start_ms, voiced_ms, earlier_voiced_ms)
    d.set(vad=vad)
    d.emit(a.SpeechStarted(item_id, start_ms))
    tools.floor_taken(d)
    question.prepare(d)
    return vad


def re_enter(d: Draft, vad: Stopped, voiced_ms: int) -> None:
    """The same utterance goes on: same item, same start."""
    d.disarm("commit", "hard_cap", "eou_timeout")
    announce(d, vad.item_id, vad.audio_start_ms, vad.voiced_ms + voiced_ms, vad.voiced_ms)
    d.note("turn", "re_entry", item_id=vad.item_id)


def stop(d: Draft, vad: Speaking, mark: Pause) -> None:
    """Speech has stopped: ask for its words, and whether the user has finished."""
    s = d.s.settings
    d.emit(a.SpeechStopped(vad.item_id, mark.last_voiced_ms))
    flush = d.token()
    d.do(FlushStt(vad.item_id, flush, mark.audio_end_ms, mark.last_voiced_ms))
    stopped = Stopped(
        item_id=vad.item_id,
        audio_start_ms=vad.audio_start_ms,
        audio_end_ms=mark.audio_end_ms,
        voiced_ms=vad.voiced_ms,
        last_voiced_at=mark.last_voiced_at,
        flush=flush,
        ask=None,
    )
    if s.eou.kind == "vad" and not s.eou.stack_silence:
        commit(d, stopped, mark.audio_end_ms, "silence")
        return
    d.set(vad=stopped)
    if s.eou.kind == "vad":  # as in version 3: the wait comes on top of the silence
        d.arm("commit", d.at + s.eou.min_delay_ms)
    else:
        question.ask(d, stopped, mark.audio_end_ms, mark.last_voiced_ms)
    cap = hard_cap_ms(s.eou.silence_hard_cap_ms, DEFAULT_CAP_MS, s.eou.max_delay_ms)
    d.arm("hard_cap", stopped.last_voiced_at + cap)


# --- end of utterance ----------------------------------------------------------------------------------------------


def eou_verdict(d: Draft, ev: e.EouVerdict) -> None:
    """A head of the classifier has spoken: commit now, or wait as long as its doubt asks for."""
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.ask == ev.ask:
        _wait(d, question.answer(d, vad, ev.head, ev.p))


def classifier_lost(d: Draft) -> None:
    """The engine is gone: an open question gets no answer."""
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.ask is not None:
        _wait(d, question.close(d, vad))


def eou_timeout(d: Draft) -> None:
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.ask is not None:
        d.note("eou", "timeout", item_id=vad.item_id)
        _wait(d, question.close(d, vad))


def _wait(d: Draft, due: float | None) -> None:
    """Commit when that time comes; None: the question is still open."""
    if due is None:
        return
    if due <= d.at:
        commit_timer(d, "eou")
    else:
        d.arm("commit", due)


def commit_timer(d: Draft, why: str) -> None:
    vad = d.s.vad
    if isinstance(vad, Stopped):
        if why == "hard_cap":
            why = "hard_cap_during_eou" if vad.ask is not None else "hard_cap_during_wait"
        commit(d, vad, vad.audio_end_ms, why)


# --- commit --------------------------------------------------------------------------------------------------------


def commit(d: Draft, vad: Stopped | Speaking, end_ms: int, why: str) -> None:
    """Seal an utterance that detection found; discard it where it holds too little voice."""
    s = d.s.settings
    d.disarm("commit", "hard_cap", "eou_timeout")
    if vad.voiced_ms < s.min_speech_ms:
        d.set(vad=Silent(), buffer_start_ms=end_ms)
        d.do(StopStt(vad.item_id))
        d.emit(a.Discarded(vad.item_id))
        return
    d.note("turn", "commit", item_id=vad.item_id, why=why, voiced_ms=vad.voiced_ms)
    td = s.turn_detection
    wanted = td is not None and td.create_response and vad.voiced_ms >= s.min_speech_for_response_ms
    transcript = None
    if isinstance(vad, Stopped):
        flush, transcript = vad.flush, vad.transcript
    else:
        flush = d.token()
        d.do(FlushStt(vad.item_id, flush, end_ms, end_ms))
    d.set(vad=Silent())
    sealed = Sealed(vad.item_id, vad.audio_start_ms, end_ms, vad.voiced_ms, flush, wanted)
    _seal(d, sealed)
    if transcript is not None:
        _transcribed(d, sealed, transcript)


def _seal(d: Draft, sealed: Sealed) -> None:
    """Rotate the buffer: the item is born, `committed` precedes it."""
    d.do(SealBuffer(sealed.item_id, sealed.start_ms, sealed.end_ms))
    waiting = [b for b in d.s.sealed if b.flush is not None]
    kept = tuple(b for b in (*d.s.sealed, sealed)[-d.s.limits.sealed_buffer_retention_count :])
    lost = tuple(b for b in waiting if b not in kept)  # a transcript is never forgotten
    d.set(sealed=lost + kept, buffer_start_ms=sealed.end_ms, num_drafts=0, was_answered=False)
    item = Message(sealed.item_id, "user", (Part("input_audio"),))
    previous = d.s.conversation.items[-1].id if d.s.conversation.items else None
    d.emit(a.Committed(sealed.item_id, previous))
    d.set(conversation=d.s.conversation.insert(item))
    d.emit(a.ItemAdded(item, previous))


def commit_buffer(d: Draft, ev: e.CommitBuffer) -> None:
    """The client's own commit (SPEC section 4): with detection on, only voiced audio counts."""
    s, vad = d.s.settings, d.s.vad
    end = d.s.audio_ms
    if s.turn_detection is None:
        length = end - d.s.buffer_start_ms
        if length < max(s.min_speech_ms, 1):
            d.error("input_audio_buffer_commit_empty", f"the buffer holds {length} ms of audio", ev.event_id)
            return
        start, item_id = d.s.buffer_start_ms, ItemId(d.fresh("item"))
        if isinstance(vad, Stopped):  # detection was turned off in mid-speech
            item_id, start = vad.item_id, vad.audio_start_ms
            d.set(vad=Silent())
        else:
            start_stt(d, item_id, start)
        voiced = length
    elif isinstance(vad, Speaking | Stopped) and vad.voiced_ms >= s.min_speech_ms:
        d.disarm("commit", "hard_cap", "eou_timeout")
        d.set(vad=Silent(), detector=deafen(d.s.detector))
        if isinstance(vad, Speaking):
            d.emit(a.SpeechStopped(vad.item_id, end))
        item_id, start, voiced = vad.item_id, vad.audio_start_ms, vad.voiced_ms
    else:
        d.error("input_audio_buffer_commit_empty", "the buffer holds no speech", ev.event_id)
        return
    flush = d.token()
    d.do(FlushStt(item_id, flush, end, end))
    d.note("turn", "commit", item_id=item_id, why="client")
    _seal(d, Sealed(item_id, start, end, voiced, flush, answer=False))


def idle_timeout(d: Draft) -> None:
    """Nobody has spoken since the reply: the silence becomes an empty item, and the assistant speaks again."""
    td = d.s.settings.turn_detection
    assert td is not None and td.idle_timeout_ms is not None
    end = d.s.audio_ms
    item_id = ItemId(d.fresh("item"))
    start = max(0, end - td.idle_timeout_ms)
    d.emit(a.TimeoutTriggered(item_id, start, end))
    sealed = Sealed(item_id, start, end, 0, None, answer=False)
    _seal(d, sealed)
    _transcribed(d, sealed, e.Transcript(""))
    response.request(d, e.ResponseParams())


def clear_buffer(d: Draft, ev: e.ClearBuffer) -> None:
    """Drop the open buffer and void its item id; in mid-speech the detector goes deaf."""
    vad = d.s.vad
    if not isinstance(vad, Silent):
        d.do(StopStt(vad.item_id))
    d.disarm("commit", "hard_cap", "eou_timeout", "barge_in", "hold_cap", "partial")
    d.set(vad=Silent(), detector=deafen(d.s.detector), buffer_start_ms=d.s.audio_ms)
    d.do(DropAudio(d.s.audio_ms))
    d.emit(a.Cleared())


# --- transcripts ---------------------------------------------------------------------------------------------------


def stop_transcript(d: Draft, ev: e.SttStopTranscript) -> None:
    """The flush was answered: kept for the commit, or, after it, adopted as final."""
    d.set(num_stt_failures=0)
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.flush == ev.flush:
        vad = replace(vad, transcript=ev.transcript)
        d.note("stt", "stop_transcript", item_id=ev.item_id, text=ev.transcript.text)
        d.set(vad=replace(vad, transcript=ev.transcript))
        _predict(d, vad, vad.audio_end_ms, ev.transcript)
        _wait(d, question.words_came(d, vad))
        return
    sealed = next((b for b in d.s.sealed if b.item_id == ev.item_id and b.flush == ev.flush), None)
    if sealed is not None:
        _transcribed(d, sealed, ev.transcript)


def words_ahead(d: Draft, ev: e.WordsAhead) -> None:
    """The words of a silence that is no stop yet. Where they are likely to be the last ones their reply is begun."""
    vad, phase = d.s.vad, d.s.detector.phase
    if not isinstance(vad, Speaking) or vad.item_id != ev.item_id or not isinstance(phase, Voiced):
        return
    if ev.voiced_ms != phase.last_voiced_ms:  # there was more voice since
        return
    if question.may_be_the_end(d, ev.transcript.text, ev.p):
        _predict(d, vad, d.s.audio_ms, ev.transcript)


def _predict(d: Draft, vad: Stopped | Speaking, end_ms: int, transcript: e.Transcript) -> None:
    """If the turn ends with these words they get a reply: let it be written while the classifier makes up its mind."""
    s, td = d.s.settings, d.s.settings.turn_detection
    if td is None or not td.create_response or s.type != "realtime" or vad.voiced_ms < s.min_speech_for_response_ms:
        return
    text = "" if is_gated(d, end_ms - vad.audio_start_ms, transcript) else transcript.text.strip()
    if s.predict and text and vad.voiced_ms >= s.min_speech_ms:
        predicted.predict(d, Message(vad.item_id, "user", (Part("input_audio", text),)), vad.voiced_ms)


def is_gated(d: Draft, audio_ms: int, transcript: e.Transcript) -> bool:
    """Whether a transcript of `audio_ms` of audio is taken for noise."""
    s = d.s.settings
    return is_noise(
        audio_ms=audio_ms,
        no_speech_prob=transcript.no_speech_prob,
        avg_logprob=transcript.avg_logprob,
        no_speech_limit=s.no_speech_prob_threshold,
        logprob_limit=s.avg_logprob_threshold,
    )


def _shows_transcripts(s: Settings) -> bool:
    """Null hides a realtime session's transcription events; a transcription session has nothing else to say."""
    return s.transcribe or s.type == "transcription"


def _done_waiting(d: Draft, sealed: Sealed) -> None:
    d.set(sealed=tuple(replace(b, flush=None) if b.item_id == sealed.item_id else b for b in d.s.sealed))


def _transcribed(d: Draft, sealed: Sealed, transcript: e.Transcript) -> None:
    s = d.s.settings
    length = sealed.end_ms - sealed.start_ms
    noise = is_gated(d, length, transcript)
    text = "" if noise else transcript.text.strip()
    d.note(
        "stt", "final", item_id=sealed.item_id, raw=transcript.text, gated=noise,
        avg_logprob=transcript.avg_logprob, no_speech_prob=transcript.no_speech_prob,
    )  # fmt: skip
    _done_waiting(d, sealed)
    item = d.s.conversation.get(sealed.item_id)
    if not isinstance(item, Message):  # deleted meanwhile
        return
    item = replace(item, content=(Part("input_audio", text),))
    d.set(conversation=d.s.conversation.put(item))
    if _shows_transcripts(s):
        if text:
            d.emit(a.TranscriptionDelta(sealed.item_id, text))
        d.emit(a.TranscriptionCompleted(sealed.item_id, text, length / 1000))
    d.emit(a.ItemDone(item, d.s.conversation.before(item.id)))
    if text and sealed.answer and s.type == "realtime":
        response.request(d, e.ResponseParams())


def stt_failed(d: Draft, ev: e.SttFailed) -> None:
    """The item stays without text and gets no reply; in a row, the client hears of it."""
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.flush == ev.flush:
        d.set(vad=replace(vad, transcript=None))
        if vad.ask is not None:
            _wait(d, question.answer(d, vad, "words", None))
    sealed = next((b for b in d.s.sealed if b.item_id == ev.item_id and b.flush == ev.flush), None)
    if sealed is None:
        return
    _done_waiting(d, sealed)
    d.set(num_stt_failures=d.s.num_stt_failures + 1)
    item = d.s.conversation.get(ev.item_id)
    if isinstance(item, Message):
        if _shows_transcripts(d.s.settings):
            d.emit(a.TranscriptionFailed(ev.item_id, ev.message))
        d.emit(a.ItemDone(item, d.s.conversation.before(item.id)))
    if d.s.num_stt_failures >= d.s.limits.stt_failure_limit:
        life.fail(d, "stt_failed", ev.message)
    elif d.s.num_stt_failures >= 2:
        d.error("stt_failed", ev.message)
