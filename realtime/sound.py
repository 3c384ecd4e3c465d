"""From sound to phases: the detector's edges, voice that grows, settings that change under it (SPEC sections 3, 4).

Speech that nobody has to make way for is an utterance (`turn`); speech over a reply is a candidate first (`candidate`).
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import candidate, question, turn
from . import events as e
from .detector import WINDOW_MS, Detector, Edge, OnsetLost, Quiet, RawOnset, Started, Thresholds, Voiced, detect, falls
from .detector import Stopped as StoppedEdge
from .draft import Draft
from .echo import hear
from .effects import DropAudio, PrepareStt, StopStt
from .ending import drop_prediction
from .ids import ItemId
from .settings import TurnDetection
from .state import Candidate, Pause, Silent, Speaking, Stopped

PREPARE_MS = WINDOW_MS  # silence after which the words are got ready, before it is a stop


def audio_appended(d: Draft, ev: e.AudioAppended) -> None:
    d.set(audio_ms=max(d.s.audio_ms, ev.end_ms))
    if not ev.filled:
        d.set(input_at=d.at, covered_at=d.at)


def vad_window(d: Draft, ev: e.VadWindow) -> None:
    """One window of sound: the detector's edges, then the phases that follow from them."""
    td = d.s.settings.turn_detection
    if td is None:
        return
    limits = Thresholds(td.threshold, td.stop_threshold, td.min_speech_duration_ms, td.silence_duration_ms)
    prob, level_db = ev.prob, ev.level_db
    if d.s.settings.barge_in.echo_guard == "auto":
        echo, explained = hear(d.s.echo, d.at, ev.end_ms, ev.level_db)
        d.set(echo=echo)
        if explained:  # the reply itself: no speech, and no noise of the room either
            prob, level_db = 0.0, min(level_db, d.s.detector.floor_db)
    falling = not d.s.is_busy and falls(d.s.detector, prob, level_db)
    detector, edges = detect(d.s.detector, limits, ev.end_ms, prob, level_db)
    d.set(detector=detector)
    for edge in edges:
        _edge(d, td, edge, ev)
    if falling and isinstance(d.s.vad, Speaking) and isinstance(detector.phase, Voiced):
        last_ms = detector.phase.last_voiced_ms
        if last_ms == ev.end_ms:  # the words are begun a window ahead of the silence
            d.do(PrepareStt(d.s.vad.item_id, last_ms, last_ms))
    _grow(d, td, ev.end_ms)


def _edge(d: Draft, td: TurnDetection, edge: Edge, ev: e.VadWindow) -> None:
    vad = d.s.vad
    match edge:
        case RawOnset(start_ms):
            d.note("vad", "onset", audio_ms=start_ms)
            if isinstance(vad, Silent):
                candidate.onset(d, td, start_ms, ev.end_ms - start_ms, confirmed=False)
        case OnsetLost(start_ms):
            d.note("vad", "onset_lost", audio_ms=start_ms)
            candidate.onset_lost(d)
        case Started(start_ms, voiced_ms):
            if isinstance(vad, Stopped):
                turn.re_enter(d, vad, voiced_ms)
            elif isinstance(vad, Candidate):
                candidate.started(d, vad, voiced_ms)
            elif isinstance(vad, Silent) and not candidate.onset(d, td, start_ms, voiced_ms, confirmed=True):
                start = turn.first_ms(d, td, start_ms)
                item_id = ItemId(d.fresh("item"))
                turn.announce(d, item_id, start, voiced_ms)
                turn.start_stt(d, item_id, start)
        case StoppedEdge(last_voiced_ms, _):
            if isinstance(vad, Candidate):
                candidate.stopped(d, vad, Pause(ev.end_ms, last_voiced_ms, d.at - (ev.end_ms - last_voiced_ms)))
            elif isinstance(vad, Speaking):
                turn.stop(d, vad, Pause(ev.end_ms, last_voiced_ms, d.at - (ev.end_ms - last_voiced_ms)))


def _grow(d: Draft, td: TurnDetection, end_ms: int) -> None:
    """Count voice while it lasts; let go of old silence; end speech that never ends."""
    vad, phase = d.s.vad, d.s.detector.phase
    if isinstance(vad, Speaking | Candidate) and isinstance(phase, Voiced):
        if isinstance(vad, Candidate):
            candidate.grow(d, vad, phase, ends=end_ms - phase.last_voiced_ms == candidate.ENDS_MS)
            return
        if end_ms - phase.last_voiced_ms == PREPARE_MS:
            d.do(PrepareStt(vad.item_id, end_ms, phase.last_voiced_ms))
            question.prepare_sound(d, vad.item_id, end_ms, phase.last_voiced_ms)
        vad = replace(vad, voiced_ms=vad.earlier_voiced_ms + phase.voiced_ms)
        d.set(vad=vad)
        if end_ms - vad.audio_start_ms >= d.s.settings.max_utterance_ms:
            d.set(detector=replace(d.s.detector, phase=Quiet()))
            d.emit(a.SpeechStopped(vad.item_id, end_ms))
            turn.commit(d, vad, end_ms, "max_utterance")
    elif isinstance(vad, Silent) and isinstance(phase, Quiet):
        keep = end_ms - td.prefix_padding_ms
        if keep - d.s.buffer_start_ms >= 1000:  # in one-second strides
            d.set(buffer_start_ms=keep)
            d.do(DropAudio(keep))


def detection_changed(d: Draft, before: TurnDetection | None) -> None:
    """Follow a change of `turn_detection` in the middle of things."""
    td = d.s.settings.turn_detection
    vad = d.s.vad
    if td is None or before is None or td.idle_timeout_ms != before.idle_timeout_ms:
        d.disarm("idle")
    if td is None and before is not None:
        d.disarm("commit", "hard_cap", "eou_timeout", *candidate.TIMERS)
        drop_prediction(d)
        if isinstance(vad, Speaking):  # it waits for the client's commit
            flush = d.token()
            d.set(vad=Stopped(vad.item_id, vad.audio_start_ms, d.s.audio_ms, vad.voiced_ms, d.at, flush, None))
        elif isinstance(vad, Stopped):  # an open question to the classifier gets no answer
            d.set(vad=replace(vad, ask=None))
        elif isinstance(vad, Candidate):
            d.do(StopStt(vad.item_id))
            d.set(vad=Silent())
        d.set(detector=Detector())
    elif td is not None and before is None:
        if isinstance(vad, Stopped):
            d.do(StopStt(vad.item_id))
            d.set(vad=Silent())
        d.set(detector=Detector(), buffer_start_ms=d.s.audio_ms)


# --- what STT says -------------------------------------------------------------------------------------------------


def stt_partial(d: Draft, ev: e.SttPartial) -> None:
    """Words so far: shown where the speech was announced, weighed where it was not."""
    vad = d.s.vad
    if isinstance(vad, Silent) or vad.item_id != ev.item_id:
        return
    if isinstance(vad, Candidate):
        candidate.partial(d, vad, ev)
    elif isinstance(vad, Speaking):
        d.emit(a.Partial(ev.item_id, ev.text, ev.stable_chars))


def stop_transcript(d: Draft, ev: e.SttStopTranscript) -> None:
    if (vad := _asked(d, ev.flush)) is not None:
        d.set(num_stt_failures=0)
        candidate.stop_transcript(d, vad, ev.transcript)
    else:
        turn.stop_transcript(d, ev)


def stt_failed(d: Draft, ev: e.SttFailed) -> None:
    if (vad := _asked(d, ev.flush)) is not None:
        candidate.stop_transcript(d, vad, None)
    else:
        turn.stt_failed(d, ev)


def _asked(d: Draft, flush: int) -> Candidate | None:
    """The candidate that waits for this transcript."""
    vad = d.s.vad
    return vad if isinstance(vad, Candidate) and vad.pause is not None and vad.pause.flush == flush else None
