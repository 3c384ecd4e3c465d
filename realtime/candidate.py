"""Speech over a reply: may it have the floor? (SPEC section 9)

In cancel mode confirmed speech is a candidate for `barge_in_delay_ms`. In hold mode the raw onset is one, the reply
waits meanwhile, and words, the length of the speech, or the length of the pause decide. Speech that takes the floor is
announced and becomes an utterance (`turn`); what does not leaves no trace but the pause.
"""

from __future__ import annotations

from dataclasses import replace

from . import backchannels, ending, turn
from . import events as e
from .detector import WINDOW_MS, Voiced
from .draft import Draft
from .effects import AskPartial, FlushStt, StopStt
from .held import hold, is_all_heard, is_near_its_end, resume
from .ids import ItemId
from .settings import TurnDetection
from .state import Candidate, Held, Pause, Silent, Speaking, live

FIRST_PARTIAL_MS = 250
PARTIAL_EVERY_MS = 200
ENDS_MS = 3 * WINDOW_MS  # silence after which the words so far are asked for, before it is a stop
SURE_WORDS = 2  # of a partial
ECHO_WORDS_MS = 2000
WORD_MS = 120  # nobody says a word in less: more words than fit in the voice are the echo before it
SHORT_MS = 800  # of voice: a backchannel may be that long
FRESH_MS = 500  # a partial that old no longer says that there were no words
TIMERS = ("barge_in", "hold_cap", "partial")


# --- edges of the detector -----------------------------------------------------------------------------------------


def onset(d: Draft, td: TurnDetection, start_ms: int, voiced_ms: int, *, confirmed: bool) -> bool:
    """Speech (or what may be) begins. Returns whether it is a candidate: there is a reply that it could cut."""
    mode = d.s.settings.barge_in.mode
    if live(d.s.resp) is None or not d.s.settings.interrupts or not (confirmed or mode == "hold"):
        return False
    start = turn.first_ms(d, td, start_ms)
    item_id = ItemId(d.fresh("item"))
    d.set(vad=Candidate(item_id, start, voiced_ms, confirmed=confirmed))
    turn.start_stt(d, item_id, start)
    if mode == "hold":
        hold(d)
        d.note("bargein", "held", item_id=item_id, audio_ms=start_ms)
        d.arm("hold_cap", d.at + d.s.settings.barge_in.hold_cap_ms)
        d.arm("partial", d.at + FIRST_PARTIAL_MS)
    elif td.barge_in_delay_ms > 0:
        d.arm("barge_in", d.at + td.barge_in_delay_ms)
    else:
        commit(d, "confirmed")
    return True


def onset_lost(d: Draft) -> None:
    """The onset was no speech. Its audio stays: it may be the first sound of what comes next."""
    if isinstance(d.s.vad, Candidate) and not d.s.vad.confirmed:
        suppress(d, "onset_lost")


def started(d: Draft, vad: Candidate, voiced_ms: int) -> None:
    """Confirmed, or speaking again after a pause."""
    if vad.pause is not None:  # its words so far are not the last ones
        d.arm("partial", d.at + PARTIAL_EVERY_MS)
    d.set(vad=replace(vad, voiced_ms=vad.earlier_voiced_ms + voiced_ms, confirmed=True, pause=None))


def stopped(d: Draft, vad: Candidate, pause: Pause) -> None:
    """The speech has stopped. Held: its words decide; else it was too short to take the floor."""
    if not isinstance(d.s.resp, Held):
        suppress(d, "too_short")
        return
    d.disarm("partial")
    vad = replace(vad, earlier_voiced_ms=vad.voiced_ms, pause=pause)
    d.set(vad=vad)
    if not _is_whole(vad):
        d.do(AskPartial(vad.item_id))
    _judge(d)


def grow(d: Draft, vad: Candidate, phase: Voiced, *, ends: bool) -> None:
    """More voice, or a silence that may be the end (`ends`): then the words are got ready for the stop."""
    d.set(vad=replace(vad, voiced_ms=vad.earlier_voiced_ms + phase.voiced_ms))
    if ends and isinstance(d.s.resp, Held):
        d.do(AskPartial(vad.item_id))
    _judge(d)


# --- evidence ------------------------------------------------------------------------------------------------------


def partial(d: Draft, vad: Candidate, ev: e.SttPartial) -> None:
    """What STT hears so far."""
    d.note("stt", "partial", item_id=vad.item_id, text=ev.text, stable=ev.stable_chars, avg_logprob=ev.avg_logprob)
    d.set(vad=replace(vad, heard=ev))
    _judge(d)


def _judge(d: Draft) -> None:
    """Who has the floor, by what is known of a held reply's candidate; nothing is decided where it does not tell.

    The reply is silent already, so waiting costs nothing that could be heard. Hence what is heard in passing has to be
    two words that two partials agree on (a word that is cut off reads like another: "ri-", "rye"), and of speech that
    is over a quick transcript may let the reply go on, but only a careful one takes the floor, and near the reply's end,
    or where its echo is mixed with the voice, only a careful one lets it go on.
    """
    vad, held = d.s.vad, d.s.resp
    if not isinstance(vad, Candidate) or not isinstance(held, Held) or not vad.confirmed:
        return
    if vad.pause is None:
        if (heard := vad.heard) is None:  # slow ears are no reason to give up the floor before the cap
            return
        stable = _words(d, vad, heard.text[: heard.stable_chars])
        if len(stable) >= SURE_WORDS and not backchannels.loop(stable) and _claims(d, stable, unfinished=True):
            commit(d, "words")
            return
        long = vad.voiced_ms >= d.s.settings.barge_in.unworded_ms
        if long and d.s.audio_ms - heard.end_ms <= FRESH_MS and not backchannels.words(heard.text):
            commit(d, "length")
    elif _is_whole(vad) and vad.pause.flush is None:
        said = _all_words(d, vad)
        if _claims(d, said) or _echoes(d) or is_near_its_end(held, d.s.settings.barge_in.boundary_ms):
            pause = replace(vad.pause, flush=d.token())
            d.set(vad=replace(vad, pause=pause))
            d.do(FlushStt(vad.item_id, d.s.token, pause.audio_end_ms, pause.last_voiced_ms))
        else:
            suppress(d, "backchannel" if said else "no_words")


def stop_transcript(d: Draft, vad: Candidate, transcript: e.Transcript | None) -> None:
    """The careful transcript of speech that is over decides; None: it failed, and the quick one does."""
    assert vad.pause is not None and isinstance(d.s.resp, Held)
    if transcript is not None:
        text, end_ms = transcript.text, vad.pause.last_voiced_ms
        gate = (transcript.avg_logprob, transcript.no_speech_prob)
        vad = replace(vad, heard=e.SttPartial(d.at, vad.item_id, text, len(text), end_ms, *gate))
        d.set(vad=vad)
    _decide(d, vad, d.s.resp, () if transcript is None else transcript.near)


def _decide(d: Draft, vad: Candidate, held: Held, near: tuple[str, ...] = ()) -> None:
    """The speech is over, and so is the waiting. What is short and was nearly taken for a backchannel is one: alone and
    without context such sounds are often written as some other word."""
    said = _all_words(d, vad)
    if said and is_near_its_end(held, d.s.settings.barge_in.boundary_ms):
        commit(d, "answer")
    elif vad.voiced_ms <= SHORT_MS and any(_is_backchannel(d, x) for x in near):
        suppress(d, "backchannel")
    elif _claims(d, said):
        commit(d, "words")
    else:
        suppress(d, "backchannel" if said else "no_words")


def _is_whole(vad: Candidate) -> bool:
    """Whether what was heard covers all of the speech."""
    return vad.heard is not None and vad.pause is not None and vad.heard.end_ms >= vad.pause.last_voiced_ms


def _words(d: Draft, vad: Candidate, text: str) -> list[str]:
    """The normalised words of a candidate that count: none where the noise gate takes them for noise."""
    if vad.heard is None:
        return []
    transcript = e.Transcript(text, vad.heard.avg_logprob, vad.heard.no_speech_prob)
    gated = turn.is_gated(d, vad.heard.end_ms - vad.audio_start_ms, transcript)
    said = [] if gated else backchannels.words(text)
    if _echoes(d) and isinstance(d.s.resp, Held):
        own = _lately_said(d.s.resp)
        fits = len(said) <= 1 + vad.voiced_ms / WORD_MS
        said = [w for w in said if w not in own] if fits else []
    return said


def _echoes(d: Draft) -> bool:
    """Whether the reply is known to come back through the microphone."""
    return d.s.settings.barge_in.echo_guard == "auto" and d.s.echo.path is not None


def _lately_said(held: Held) -> set[str]:
    """The reply's words of the last two seconds before the pause: hearing them is no evidence."""
    voice = held.inner.voice
    near = [w for w in voice.words if w.end_ms > held.heard_ms - ECHO_WORDS_MS and w.start_ms < voice.written_ms]
    return set(backchannels.words(" ".join(w.text for w in near)))


def _all_words(d: Draft, vad: Candidate) -> list[str]:
    return [] if vad.heard is None else _words(d, vad, vad.heard.text)


def _claims(d: Draft, said: list[str], *, unfinished: bool = False) -> bool:
    """Whether these words take the floor: enough of them, and not all backchannels."""
    enough = len(said) >= d.s.settings.barge_in.min_words
    return enough and not backchannels.are_backchannels(said, _known(d), unfinished=unfinished)


def _is_backchannel(d: Draft, text: str) -> bool:
    said = backchannels.words(text)
    return bool(said) and backchannels.are_backchannels(said, _known(d))


def _known(d: Draft) -> backchannels.Phrases:
    """The backchannels of this session."""
    own, stt = d.s.settings.barge_in.backchannels, d.s.settings.transcription
    return backchannels.default(stt.language if stt else None) if own is None else backchannels.phrases(own)


# --- timers --------------------------------------------------------------------------------------------------------


def barge_in_timer(d: Draft) -> None:
    """The delay is over. A candidate that has gone quiet waits on, for more voice or for its stop."""
    phase = d.s.detector.phase
    if isinstance(phase, Voiced) and d.s.audio_ms - phase.last_voiced_ms > 2 * WINDOW_MS:
        d.arm("barge_in", d.at + WINDOW_MS)
    else:
        commit(d, "confirmed")


def hold_cap(d: Draft) -> None:
    """A reply does not wait for ever: speech that goes on has the floor, of speech that is over what is known decides. What
    slow ears have not heard all of has the floor where it was long, or where the reply had next to nothing left to say."""
    vad = d.s.vad
    if not isinstance(vad, Candidate):
        return
    if not vad.confirmed:
        suppress(d, "hold_cap")
    elif vad.pause is None:
        commit(d, "hold_cap")
    elif isinstance(held := d.s.resp, Held):
        limits = d.s.settings.barge_in
        unheard = not _is_whole(vad) or (vad.pause.flush is not None and not _all_words(d, vad))
        if unheard and (vad.voiced_ms >= limits.unworded_ms or is_near_its_end(held, limits.boundary_ms)):
            commit(d, "hold_cap")
        else:
            _decide(d, vad, held)


def partial_timer(d: Draft) -> None:
    if isinstance(d.s.vad, Candidate):
        d.arm("partial", d.at + PARTIAL_EVERY_MS)
        if d.s.vad.confirmed:
            d.do(AskPartial(d.s.vad.item_id))


# --- outcome -------------------------------------------------------------------------------------------------------


def commit(d: Draft, why: str) -> None:
    """The candidate takes the floor: the reply ends, then the speech is announced."""
    vad = d.s.vad
    assert isinstance(vad, Candidate)
    text = "" if vad.heard is None else vad.heard.text
    d.note("bargein", "commit", item_id=vad.item_id, why=why, voiced_ms=vad.voiced_ms, text=text)
    resp = live(d.s.resp)
    if isinstance(d.s.resp, Held) and d.s.resp.failure is None and is_all_heard(d.s.resp.inner, d.at):
        ending.complete(d)
    elif resp is not None:
        ending.barge_in(d)
    _announce(d, vad)


def suppress(d: Draft, why: str) -> None:
    """The candidate was nothing: its item id is void, its audio is dropped, a held reply goes on."""
    vad = d.s.vad
    assert isinstance(vad, Candidate)
    d.disarm(*TIMERS)
    d.do(StopStt(vad.item_id))
    d.set(vad=Silent())
    if vad.pause is not None:
        d.set(buffer_start_ms=max(d.s.buffer_start_ms, vad.pause.audio_end_ms))
    text = "" if vad.heard is None else vad.heard.text
    d.note("bargein", "suppressed", item_id=vad.item_id, why=why, voiced_ms=vad.voiced_ms, text=text)
    if isinstance(d.s.resp, Held):
        resume(d, d.s.resp)


def claim(d: Draft) -> None:
    """The client commits the buffer in the middle of a candidate: it vouches for it."""
    vad = d.s.vad
    if isinstance(vad, Candidate) and vad.confirmed and vad.voiced_ms >= d.s.settings.min_speech_ms:
        commit(d, "client")


def _announce(d: Draft, vad: Candidate) -> None:
    """From here on it is an utterance like any other; STT has had all of its audio."""
    d.disarm(*TIMERS)
    speaking = turn.announce(d, vad.item_id, vad.audio_start_ms, vad.voiced_ms, vad.earlier_voiced_ms)
    if vad.pause is not None:
        turn.stop(d, speaking, vad.pause)


def settle(d: Draft) -> None:
    """The coupling of the two sides, run at the end of every step: a candidate needs a reply that it may cut, a held
    reply needs a candidate, and nobody is announced over a reply that they may cut."""
    vad, s = d.s.vad, d.s.settings
    if isinstance(vad, Candidate):
        held = isinstance(d.s.resp, Held)
        if live(d.s.resp) is not None and s.interrupts and not (held and s.barge_in.mode == "cancel"):
            return
        if not vad.confirmed:
            suppress(d, "nothing_to_cut")
        elif live(d.s.resp) is not None and s.interrupts:
            commit(d, "confirmed")
        else:
            _announce(d, vad)
    elif isinstance(vad, Speaking) and live(d.s.resp) is not None and s.interrupts:
        ending.barge_in(d)
    if isinstance(d.s.resp, Held) and not isinstance(d.s.vad, Candidate):
        resume(d, d.s.resp)
