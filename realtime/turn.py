"""The user's side of the machine: voice, end of utterance, commit, transcript (SPEC sections 3 to 7).

Sound makes edges (`detector`), edges make phases, a stop makes a transcript and a question to the classifier, and a
timer or the verdict makes the commit. What the reply does about it is `response`'s business.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import ending, predicted, response
from . import events as e
from .conversation import Message, Part
from .detector import (
    WINDOW_MS,
    Detector,
    Edge,
    OnsetLost,
    Quiet,
    RawOnset,
    Started,
    Thresholds,
    Voiced,
    deafen,
    detect,
)
from .detector import Stopped as StoppedEdge
from .draft import Draft
from .effects import AskEou, DropAudio, FlushStt, PrepareStt, SealBuffer, StartStt, StopStt
from .eou import commit_delay_ms, hard_cap_ms, is_noise
from .ids import ItemId
from .settings import TurnDetection
from .state import Candidate, Sealed, Silent, Speaking, Stopped, live

KEEP_SEALED = 4
DEFAULT_CAP_MS = 5000
UNSURE_WAIT_MS = 1000
PREPARE_MS = 3 * WINDOW_MS  # silence after which the words are got ready, before it is a stop

# --- sound ---------------------------------------------------------------------------------------------------------


def audio_appended(d: Draft, ev: e.AudioAppended) -> None:
    d.set(audio_ms=max(d.s.audio_ms, ev.end_ms))


def vad_window(d: Draft, ev: e.VadWindow) -> None:
    """One window of sound: the detector's edges, then the phases that follow from them."""
    td = d.s.settings.turn_detection
    if td is None:
        return
    limits = Thresholds(td.threshold, td.stop_threshold, td.min_speech_duration_ms, td.silence_duration_ms)
    detector, edges = detect(d.s.detector, limits, ev.end_ms, ev.prob, ev.level_db)
    d.set(detector=detector)
    for edge in edges:
        _edge(d, td, edge, ev)
    _grow(d, td, ev.end_ms)


def _edge(d: Draft, td: TurnDetection, edge: Edge, ev: e.VadWindow) -> None:
    match edge:
        case RawOnset(start_ms):
            d.note("vad", "onset", audio_ms=start_ms)
        case OnsetLost(start_ms):
            d.note("vad", "onset_lost", audio_ms=start_ms)
        case Started(start_ms, voiced_ms):
            _speech_started(d, td, start_ms, voiced_ms)
        case StoppedEdge(last_voiced_ms, voiced_ms):
            _speech_stopped(d, ev, last_voiced_ms, voiced_ms)


def _grow(d: Draft, td: TurnDetection, end_ms: int) -> None:
    """Count voice while it lasts; let go of old silence; end speech that never ends."""
    vad, phase = d.s.vad, d.s.detector.phase
    if isinstance(vad, Speaking) and isinstance(phase, Voiced):
        vad = replace(vad, voiced_ms=vad.earlier_voiced_ms + phase.voiced_ms)
        d.set(vad=vad)
        if end_ms - phase.last_voiced_ms == PREPARE_MS:
            d.do(PrepareStt(vad.item_id, end_ms, phase.last_voiced_ms))
        if end_ms - vad.audio_start_ms >= d.s.settings.max_utterance_ms:
            d.set(detector=replace(d.s.detector, phase=Quiet()))
            d.emit(a.SpeechStopped(vad.item_id, end_ms))
            _commit(d, vad, end_ms, "max_utterance")
    elif isinstance(vad, Silent) and isinstance(phase, Quiet):
        keep = end_ms - td.prefix_padding_ms
        if keep - d.s.buffer_start_ms >= 1000:  # in one-second strides
            d.set(buffer_start_ms=keep)
            d.do(DropAudio(keep))


def _speech_started(d: Draft, td: TurnDetection, onset_ms: int, voiced_ms: int) -> None:
    vad = d.s.vad
    if isinstance(vad, Stopped):  # the same utterance goes on: same item, same start
        d.disarm("commit", "hard_cap", "eou_timeout")
        d.set(vad=Speaking(vad.item_id, vad.audio_start_ms, vad.voiced_ms + voiced_ms, vad.voiced_ms))
        d.emit(a.SpeechStarted(vad.item_id, vad.audio_start_ms))
        d.note("turn", "re_entry", item_id=vad.item_id)
        return
    if not isinstance(vad, Silent):
        return
    start = max(onset_ms - td.prefix_padding_ms, d.s.buffer_start_ms, 0)
    item_id = ItemId(d.fresh("item"))
    if live(d.s.resp) is not None and _interrupts(d, td):
        d.set(vad=Candidate(item_id, start, voiced_ms))
        if td.barge_in_delay_ms > 0:
            d.arm("barge_in", d.at + td.barge_in_delay_ms)
        else:
            commit_candidate(d)
        return
    _announce(d, item_id, start, voiced_ms)


def _interrupts(d: Draft, td: TurnDetection) -> bool:
    return td.interrupt_response and d.s.settings.barge_in.mode != "off"


def _announce(d: Draft, item_id: ItemId, start_ms: int, voiced_ms: int) -> None:
    s = d.s.settings
    d.set(vad=Speaking(item_id, start_ms, voiced_ms))
    d.emit(a.SpeechStarted(item_id, start_ms))
    stt = s.transcription
    d.do(StartStt(item_id, start_ms, stt.language if stt else None, stt.prompt if stt else None))


def barge_in_timer(d: Draft) -> None:
    """The delay is over. A candidate that has gone quiet waits on, for more voice or for its stop."""
    phase = d.s.detector.phase
    if isinstance(phase, Voiced) and d.s.audio_ms - phase.last_voiced_ms > 2 * WINDOW_MS:
        d.arm("barge_in", d.at + WINDOW_MS)
    else:
        commit_candidate(d)


def commit_candidate(d: Draft) -> None:
    """The candidate takes the floor: the reply is cut, then the speech is announced."""
    vad = d.s.vad
    if not isinstance(vad, Candidate):
        return
    d.disarm("barge_in")
    if live(d.s.resp) is not None:
        ending.barge_in(d)
    _announce(d, vad.item_id, vad.audio_start_ms, vad.voiced_ms)


def _speech_stopped(d: Draft, ev: e.VadWindow, last_voiced_ms: int, voiced_ms: int) -> None:
    vad = d.s.vad
    if isinstance(vad, Candidate):  # too short to take the floor
        d.disarm("barge_in")
        d.set(vad=Silent())
        d.note("bargein", "suppressed", item_id=vad.item_id, voiced_ms=voiced_ms)
        return
    if not isinstance(vad, Speaking):
        return
    s = d.s.settings
    d.emit(a.SpeechStopped(vad.item_id, last_voiced_ms))
    flush = d.token()
    stopped = Stopped(
        item_id=vad.item_id,
        audio_start_ms=vad.audio_start_ms,
        audio_end_ms=ev.end_ms,
        voiced_ms=vad.earlier_voiced_ms + voiced_ms,
        last_voiced_at=d.at - (ev.end_ms - last_voiced_ms),
        flush=flush,
        ask=None,
    )
    d.do(FlushStt(vad.item_id, flush, ev.end_ms, last_voiced_ms))
    if s.eou.kind == "vad":
        _commit(d, stopped, ev.end_ms, "silence")
        return
    ask = d.token()
    d.set(vad=replace(stopped, ask=ask))
    d.do(AskEou(vad.item_id, ask, ev.end_ms, s.eou.audio_window_ms))
    cap = hard_cap_ms(s.eou.silence_hard_cap_ms, DEFAULT_CAP_MS, s.eou.max_delay_ms)
    d.arm("hard_cap", stopped.last_voiced_at + cap)


# --- end of utterance ----------------------------------------------------------------------------------------------


def eou_verdict(d: Draft, ev: e.EouVerdict) -> None:
    """The classifier has spoken: commit now, or wait as long as its doubt asks for."""
    vad = d.s.vad
    if not isinstance(vad, Stopped) or vad.ask != ev.ask:
        return
    d.disarm("eou_timeout")
    d.set(vad=replace(vad, ask=None))
    eou = d.s.settings.eou
    stt = d.s.settings.transcription
    threshold = eou.thresholds.get((stt.language if stt else None) or "", eou.p_threshold)
    if ev.p is None or not 0.0 <= ev.p <= 1.0:
        delay = max(eou.min_delay_ms, UNSURE_WAIT_MS)
    else:
        delay = commit_delay_ms(
            ev.p, threshold=threshold, min_ms=eou.min_delay_ms, max_ms=eou.max_delay_ms, k=eou.curve_k
        )
    d.note("eou", "verdict", item_id=vad.item_id, p=ev.p, threshold=threshold, delay_ms=delay)
    _wait(d, vad.last_voiced_at + delay)


def classifier_lost(d: Draft) -> None:
    """The engine is gone: an open question gets no answer."""
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.ask is not None:
        eou_verdict(d, e.EouVerdict(d.at, vad.item_id, vad.ask, None))


def eou_timeout(d: Draft) -> None:
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.ask is not None:
        d.note("eou", "timeout", item_id=vad.item_id)
        eou_verdict(d, e.EouVerdict(d.at, vad.item_id, vad.ask, None))


def _wait(d: Draft, due: float) -> None:
    if due <= d.at:
        commit_timer(d, "eou")
    else:
        d.arm("commit", due)


def commit_timer(d: Draft, why: str) -> None:
    vad = d.s.vad
    if isinstance(vad, Stopped):
        if why == "hard_cap":
            why = "hard_cap_during_eou" if vad.ask is not None else "hard_cap_during_wait"
        _commit(d, vad, vad.audio_end_ms, why)


# --- commit --------------------------------------------------------------------------------------------------------


def _commit(d: Draft, vad: Stopped | Speaking, end_ms: int, why: str) -> None:
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
    kept = tuple(b for b in (*d.s.sealed, sealed)[-KEEP_SEALED:])
    lost = tuple(b for b in waiting if b not in kept)  # a transcript is never forgotten
    d.set(sealed=lost + kept, buffer_start_ms=sealed.end_ms, num_drafts=0)
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
            stt = s.transcription
            d.do(StartStt(item_id, start, stt.language if stt else None, stt.prompt if stt else None))
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


def clear_buffer(d: Draft, ev: e.ClearBuffer) -> None:
    """Drop the open buffer and void its item id; in mid-speech the detector goes deaf."""
    vad = d.s.vad
    if isinstance(vad, Speaking | Stopped):
        d.do(StopStt(vad.item_id))
    d.disarm("commit", "hard_cap", "eou_timeout", "barge_in")
    d.set(vad=Silent(), detector=deafen(d.s.detector), buffer_start_ms=d.s.audio_ms)
    d.do(DropAudio(d.s.audio_ms))
    d.emit(a.Cleared())


def detection_changed(d: Draft, before: TurnDetection | None) -> None:
    """Follow a change of `turn_detection` in the middle of things."""
    td = d.s.settings.turn_detection
    vad = d.s.vad
    if td is None and before is not None:
        d.disarm("commit", "hard_cap", "eou_timeout", "barge_in")
        ending.drop_prediction(d)
        if isinstance(vad, Speaking):  # it waits for the client's commit
            flush = d.token()
            d.set(vad=Stopped(vad.item_id, vad.audio_start_ms, d.s.audio_ms, vad.voiced_ms, d.at, flush, None))
        elif isinstance(vad, Stopped):  # an open question to the classifier gets no answer
            d.set(vad=replace(vad, ask=None))
        elif isinstance(vad, Candidate):
            d.set(vad=Silent())
        d.set(detector=Detector())
    elif td is not None and before is None:
        if isinstance(vad, Stopped):
            d.do(StopStt(vad.item_id))
            d.set(vad=Silent())
        d.set(detector=Detector(), buffer_start_ms=d.s.audio_ms)


# --- transcripts ---------------------------------------------------------------------------------------------------


def stt_partial(d: Draft, ev: e.SttPartial) -> None:
    if isinstance(d.s.vad, Speaking) and d.s.vad.item_id == ev.item_id:
        d.emit(a.Partial(ev.item_id, ev.text, ev.stable_chars))


def stop_transcript(d: Draft, ev: e.SttStopTranscript) -> None:
    """The flush was answered: kept for the commit, or, after it, adopted as final."""
    d.set(num_stt_failures=0)
    vad = d.s.vad
    if isinstance(vad, Stopped) and vad.flush == ev.flush:
        d.set(vad=replace(vad, transcript=ev.transcript))
        d.note("stt", "stop_transcript", item_id=ev.item_id, text=ev.transcript.text)
        _predict(d, vad, ev.transcript)
        if vad.ask is not None:
            d.arm("eou_timeout", d.at + d.s.settings.eou.inference_timeout_ms)
        return
    sealed = next((b for b in d.s.sealed if b.item_id == ev.item_id and b.flush == ev.flush), None)
    if sealed is not None:
        _transcribed(d, sealed, ev.transcript)


def _predict(d: Draft, vad: Stopped, transcript: e.Transcript) -> None:
    """If the turn ends with these words they get a reply: let it be written while the classifier makes up its mind."""
    s, td = d.s.settings, d.s.settings.turn_detection
    if td is None or not td.create_response or s.type != "realtime" or vad.voiced_ms < s.min_speech_for_response_ms:
        return
    text = "" if _noise(d, vad.audio_end_ms - vad.audio_start_ms, transcript) else transcript.text.strip()
    if text and vad.voiced_ms >= s.min_speech_ms:
        predicted.predict(d, Message(vad.item_id, "user", (Part("input_audio", text),)))


def _noise(d: Draft, audio_ms: int, transcript: e.Transcript) -> bool:
    s = d.s.settings
    return is_noise(
        audio_ms=audio_ms,
        no_speech_prob=transcript.no_speech_prob,
        avg_logprob=transcript.avg_logprob,
        no_speech_limit=s.no_speech_prob_threshold,
        logprob_limit=s.avg_logprob_threshold,
    )


def _done_waiting(d: Draft, sealed: Sealed) -> None:
    d.set(sealed=tuple(replace(b, flush=None) if b.item_id == sealed.item_id else b for b in d.s.sealed))


def _transcribed(d: Draft, sealed: Sealed, transcript: e.Transcript) -> None:
    s = d.s.settings
    length = sealed.end_ms - sealed.start_ms
    noise = _noise(d, length, transcript)
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
    if s.transcribe:
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
    sealed = next((b for b in d.s.sealed if b.item_id == ev.item_id and b.flush == ev.flush), None)
    if sealed is None:
        return
    _done_waiting(d, sealed)
    d.set(num_stt_failures=d.s.num_stt_failures + 1)
    item = d.s.conversation.get(ev.item_id)
    if isinstance(item, Message):
        d.emit(a.TranscriptionFailed(ev.item_id, ev.message))
        d.emit(a.ItemDone(item, d.s.conversation.before(item.id)))
    if d.s.num_stt_failures >= 2 and d.s.settings.type == "realtime":
        d.emit(a.ErrorEvent("stt_failed", ev.message))
