"""The echo guard: SPEC section 9.8, on the levels of real speech."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bargein.client.audio import read_wav
from bargein.realtime import alphabet as a
from bargein.realtime import events as e
from bargein.realtime.echo import Echo, hear, play
from bargein.realtime.echo import Path as EchoPath
from bargein.realtime.state import Held, Idle, Speaking

from .play import Play

DATA = Path(__file__).parent.parent / "data"
LEAD_MS = 40


def sound(path: Path, seconds: float) -> np.ndarray:
    x = read_wav(path, 16000).astype(np.float64) / 32768
    return x[: int(16000 * seconds)]


def level(x: np.ndarray) -> float:
    return float(10 * np.log10(max(np.mean(x * x), 1e-9)))


REPLY = sound(DATA / "austen-0870.wav", 7)
USER = sound(DATA / "questions" / "bees.wav", 3)


def through(
    gain_db: float | None, delay_ms: int, user_at_s: float | None = None, slips_ms: int = 0
) -> list[tuple[int, float, bool]]:
    """What the guard says of each window (its end, its level) of a call in which the reply comes back; from its third
    second on so much later (the player ran dry)."""
    rng = np.random.default_rng(1)
    jitter = random.Random(1)
    mic = rng.normal(0, 10 ** (-65 / 20), len(REPLY) + 64000)
    if gain_db is not None:
        for part, at_ms in ((slice(0, 48000), delay_ms), (slice(48000, None), 3000 + delay_ms + slips_ms)):
            piece = REPLY[part]
            mic[16 * at_ms : 16 * at_ms + len(piece)] += piece * 10 ** (gain_db / 20)
    if user_at_s is not None:
        at = int(16000 * user_at_s)
        mic[at : at + len(USER)] += USER
    parts = [REPLY[320 * k : 320 * (k + 1)] for k in range(len(REPLY) // 320)]
    frames = [(max(0, 20 * k - LEAD_MS), 0, 20 * k, level(x)) for k, x in enumerate(parts)]
    windows = [
        (32 * (k + 1) + jitter.uniform(0, 18), 1, 32 * (k + 1), level(mic[512 * k : 512 * (k + 1)]))
        for k in range(len(mic) // 512)
    ]
    echo, out = Echo(), []
    for at_ms, is_window, position, db in sorted(frames + windows):
        if is_window:
            echo, explained = hear(echo, 1000 + at_ms, position, db)
            out.append((position, db, explained))
        else:
            echo = play(echo, 1000 + position, db)
    return out


@pytest.mark.parametrize("delay_ms", [80, 200, 330])
@pytest.mark.parametrize("gain_db", [-10, -20, -30])
def test_the_reply_that_comes_back_is_nobodys_speech(gain_db: int, delay_ms: int) -> None:
    loud = [(end, explained) for end, db, explained in through(gain_db, delay_ms) if db > -50]
    assert len(loud) > 20
    unexplained = [end for end, explained in loud if not explained]
    assert len(unexplained) <= 2, "no three windows of it in a row, which would be speech"


@pytest.mark.parametrize("slips_ms", [20, 40, 60])
@pytest.mark.parametrize("gain_db", [-10, -20, -30])
def test_an_echo_that_has_become_later_is_still_the_reply(gain_db: int, slips_ms: int) -> None:
    loud = [(end, explained) for end, db, explained in through(gain_db, 200, slips_ms=slips_ms) if db > gain_db - 30]
    assert sum(end > 3300 for end, _ in loud) > 20
    assert sum(not explained for _, explained in loud) <= 2


@pytest.mark.parametrize("delay_ms", [80, 200])
@pytest.mark.parametrize("gain_db", [None, -10, -20, -30])
def test_a_user_who_speaks_over_the_echo_is_heard(gain_db: int | None, delay_ms: int) -> None:
    heard = through(gain_db, delay_ms, 2.0)
    voice = [(end, explained) for end, db, explained in heard if 2000 < end < 2600 and db > -40]
    passed = [end for end, explained in voice if not explained]
    assert passed[0] <= 2300 and len(passed) >= 0.3 * len(voice)


def test_without_an_echo_nothing_is_held_back_once_that_is_known() -> None:
    heard = through(None, 0, 2.0)
    assert not any(explained for end, db, explained in heard if end > 1200 and db > -50)


def test_before_anything_is_known_a_sound_that_is_quieter_than_the_reply_is_taken_for_it() -> None:
    echo = Echo()
    for k in range(8):
        echo = play(echo, 1000 + 20 * k, -20)
    _, quiet = hear(echo, 1160, 160, -25)
    _, loud = hear(echo, 1160, 160, -10)
    assert quiet and not loud


def test_the_end_of_a_reply_is_guarded_as_long_as_its_echo_lasts_and_no_longer() -> None:
    heard = through(-10, 200, len(REPLY) / 16000 + 0.5)
    tail = [explained for end, db, explained in heard if len(REPLY) / 16 < end < len(REPLY) / 16 + 200 and db > -50]
    after = [explained for end, db, explained in heard if end > len(REPLY) / 16 + 500 and db > -40]
    assert all(tail) and not any(after)


def replying(**settings: object) -> Play:
    p = Play(**settings)
    p.turn("Count to ten.")
    p.reply("one two three four five six seven eight nine ten")
    return p


def loop_back(p: Play, ms: int, gain_db: float, loud_after_ms: int | None = None) -> None:
    """Play `ms` of a reply whose level moves, and hear it again 100 ms later, all of it voice to VAD."""
    moving = [-20.0, -26.0, -31.0, -22.0, -40.0, -24.0, -29.0, -21.0, -35.0, -23.0, -27.0]
    levels = [moving[(k // 3) % len(moving)] for k in range(ms // 20)]
    written, played = 0, [-100.0] * 200  # the level of every ms from 200 ms before the reply
    for at in range(0, ms, 4):
        if at % 20 == 0 and not isinstance(p.state.resp, Held):
            played += [levels[written // 20]] * 20
            written += 20
            p.tell(e.FrameDue(p.at, p.epoch, written, written - 20, levels[written // 20 - 1]))
        p.advance(4)
        if at % 32 == 28:
            now = 200 + at + 4
            power = np.mean([10 ** (x / 10) for x in played[now - 132 : now - 100] or [-100.0]])
            db = 10 * float(np.log10(power)) + gain_db
            if loud_after_ms is not None and at > loud_after_ms:
                db = -5.0
            p.audio_ms += 32
            p.tell(e.AudioAppended(p.at, p.audio_ms))
            p.tell(e.VadWindow(p.at, p.audio_ms, 0.95 if db > -60 else 0.0, db))


def test_an_echo_does_not_hold_the_reply() -> None:
    p = replying()
    loop_back(p, 1900, -15.0)
    assert p.of(a.OutputPaused) == [] and p.state.echo.path is not None
    assert p.state.echo.path.gain_db == pytest.approx(-15, abs=2)
    q = replying(barge_in={"echo_guard": "off"})
    loop_back(q, 320, -15.0)
    assert len(q.of(a.OutputPaused)) == 1


def test_louder_than_any_echo_holds_it() -> None:
    p = replying()
    loop_back(p, 900, -15.0, loud_after_ms=600)
    assert isinstance(p.state.resp, Held)


def test_words_of_the_reply_are_no_evidence_where_it_echoes() -> None:
    p = replying()
    p.play(800)
    p.state = replace(p.state, echo=replace(p.state.echo, known=True, path=EchoPath(5, -20.0)))
    p.speech(640)
    p.partial("Two three four")
    assert isinstance(p.state.resp, Held)
    p.partial("Two three four stop it")
    assert isinstance(p.state.vad, Speaking)


@pytest.mark.parametrize(
    ("ms", "text", "cut"), [(128, "Make his blue.", False), (128, "Stop.", True), (480, "That is wrong.", True)]
)
def test_more_words_than_the_voice_had_time_for_are_the_echo_before_it(ms: int, text: str, cut: bool) -> None:
    p = replying()
    p.play(800)
    p.state = replace(p.state, echo=replace(p.state.echo, known=True, path=EchoPath(5, -20.0)))
    p.speech(ms)
    p.silence(352)
    p.partial(text)
    p.words(text)
    assert isinstance(p.state.resp, Idle) is cut


@pytest.mark.parametrize("quick", ["", "and the way in the way in the way in the way in the way"])
def test_words_that_a_quick_transcript_lost_in_the_echo_are_found_by_a_careful_one(quick: str) -> None:
    p = replying()
    p.play(800)
    p.state = replace(p.state, echo=replace(p.state.echo, known=True, path=EchoPath(5, -20.0)))
    p.speech(480)
    p.silence(352)
    p.partial(quick)
    assert isinstance(p.state.resp, Held)
    p.words("Stop.")
    assert isinstance(p.state.resp, Idle)


@pytest.mark.parametrize(("ms", "cut"), [(320, False), (960, True)])
def test_long_speech_whose_careful_transcript_hangs_takes_the_floor_at_the_cap(ms: int, cut: bool) -> None:
    p = replying()
    p.play(800)
    p.state = replace(p.state, echo=replace(p.state.echo, known=True, path=EchoPath(5, -20.0)))
    p.speech(ms)
    p.silence(352)
    p.partial("Can you say that again?", no_speech_prob=0.9)
    assert isinstance(p.state.resp, Held)
    p.advance(2000)
    assert bool(p.of(a.SpeechStarted)[1:]) is cut
