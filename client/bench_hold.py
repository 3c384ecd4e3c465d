"""`bargein bench hold`: what becomes of a reply when something is heard over it, on real calls in real time.

Each sound (of `bench/make_sounds.py`) is played over a reply of a fresh call. A backchannel or a noise must leave the
reply whole: it ends completed, what was sent is what an uninterrupted reply sends, but for the fades where it resumed, and
what a player of it played is transcribed (by the server's own route), and has to read as the uninterrupted reply does but
for the pause. With the pause in it, often in the middle of a word, a recognizer may read it otherwise: that is told beside.
An interruption must cut it, an answer at its end must be answered. "User starts" is the sending of the first voiced frame,
"assistant silent" when a player that starts with the first delta has played the last frame that it got.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .audio import I16, RATE, read_wav, write_wav
from .bench_call import measured, show, spread
from .recognizer import transcribed
from .session import ConnectFailed, RealtimeClient, Seen
from .turns import Microphone

# The embedded model is brief unless the call so far was not.
STORY = (
    ("Tell me about the mountains.",
     "The mountains are high and old. In winter they are covered with snow, and in summer the shepherds bring their "
     "sheep up to the green meadows. Many people walk there every year. They sleep in small huts, and in the morning "
     "they watch the sun come up over the peaks, and they are happy."),
    ("Tell me about the forest.",
     "The forest is dark and quiet. Deer and foxes live there, and in the evening you can hear the owls call from the "
     "tall trees. People go there to gather mushrooms and berries. They walk for hours along the narrow paths, and when "
     "they come home they are tired, and they cook a warm soup."),
    ("Tell me about the sea.", ""),
)  # fmt: skip
FADE_MS = 20
ALL_ECHOES = tuple(f"{db}:{ms}" for db in (-10, -20, -30) for ms in (80, 200))
KEEPS = ("backchannel", "noise", "nothing")  # what must leave the reply whole; `nothing`: but for its echo


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="bargein bench hold", description=__doc__)
    p.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    p.add_argument("--key", default="")
    p.add_argument("--sounds", type=Path, required=True, metavar="FOLDER", help="what make_sounds.py made")
    p.add_argument("--mode", default="hold", choices=("hold", "cancel"))
    p.add_argument("--kinds", default="backchannel,noise,interrupt,answer")
    p.add_argument("--each", type=int, default=20, help="trials of each kind (default %(default)s)")
    p.add_argument("--lead", type=int, default=40, help="pacer.lead_ms")
    p.add_argument("--tokens", type=int, default=90, help="length of a reply")
    p.add_argument("--echo", default="", metavar="DB:MS,…", help="loop the reply back into the microphone, so loud and so "
                   "late; one round of trials for each; `all`: -10, -20, -30 dB, each at 80 and 200 ms")
    p.add_argument("--calls", type=int, default=1, help="calls at once (default %(default)s; latencies want 1)")
    p.add_argument("--verbose", action="store_true", help="one line a trial")
    p.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what was played of the whole replies, for "
                   "`bench/judge_replies.py judge`")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    return p


@dataclass(slots=True)
class Trial:
    """What one sound over one reply led to."""

    sound: str
    status: str = ""
    num_pauses: int = 0
    paused_ms: float = 0.0
    silent_ms: float | None = None  # from the user's first voiced frame
    heard: str = ""  # what the sound was transcribed as, where it became a turn
    answered: bool = False
    flaw: str = ""  # how a resumed reply differs from an uninterrupted one
    text: str = ""
    audio: I16 = field(default_factory=lambda: np.zeros(0, np.int16))
    played: I16 = field(default_factory=lambda: np.zeros(0, np.int16))  # the same as a player played it, pauses and all
    read: str = ""  # what was played, without the pauses, is transcribed as
    read_paused: str = ""  # and with them
    otherwise: bool = False  # it reads otherwise than the uninterrupted reply
    otherwise_paused: bool = False


def run(argv: list[str]) -> int:
    """Run the trials; returns the exit status."""
    args = parser().parse_args(argv)
    return 2 if measured(_run(args), args.json) is None else 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    whole = await _trial(args, None, 0.0)
    whole.read = await reads(args, whole.audio)
    print(f"a reply of {len(whole.audio) / RATE:.1f} s: {whole.text!r}", flush=True)
    figures: dict[str, Any] = {"mode": args.mode, "lead_ms": args.lead, "reply_s": round(len(whole.audio) / RATE, 1)}
    echoes = ALL_ECHOES if args.echo == "all" else tuple(args.echo.split(","))
    for kind in args.kinds.split(","):
        files: list[Path | None] = sorted(args.sounds.glob(f"{kind}-*.wav"))
        if not files and kind != "nothing":
            print(f"no {kind}-*.wav in {args.sounds}")
            continue
        trials: list[Trial] = []
        files = files or [None]
        for k, echo in enumerate(echoes):
            chosen = [files[(n + k * args.each) % len(files)] for n in range(args.each)]
            if echo:
                print(f"{kind}, echo {echo}:", flush=True)
            trials += await _round(args, kind, chosen, whole, echo)
        figures[kind] = report(kind, trials)
        if args.keep is not None and kind in KEEPS:
            keep(args.keep / kind, trials)
    return figures


async def _round(
    args: argparse.Namespace, kind: str, chosen: list[Path | None], whole: Trial, echo: str
) -> list[Trial]:
    """One trial of each of these sounds, `args.calls` at a time."""
    rng = random.Random(f"2{echo}")
    gate = asyncio.Semaphore(max(1, args.calls))
    length = len(whole.audio) / RATE

    async def one(n: int, start: float) -> Trial:
        async with gate:
            trial = await _trial(args, chosen[n], start, kind, echo)
        if kind in KEEPS and trial.status == "completed":
            trial.flaw = flaw(trial.audio, whole.audio, trial.num_pauses)
            trial.read = await reads(args, trial.audio)
            trial.read_paused = await reads(args, trial.played)
            trial.otherwise = words(trial.read) != words(whole.read) or words(trial.text) != words(whole.text)
            trial.otherwise_paused = words(trial.read_paused) != words(whole.read)
        if args.verbose:
            print(f"  {start:4.1f} s  {line(trial)}", flush=True)
        return trial

    if kind == "answer":  # from 0.3 s before the end to 0.5 s after it
        starts = [length - 0.3 + 0.8 * n / max(1, len(chosen) - 1) for n in range(len(chosen))]
    else:
        starts = [rng.uniform(1.2 if echo else 0.6, max(1.3, min(length - 2.5, 3.0))) for _ in chosen]
    return list(await asyncio.gather(*(one(n, start) for n, start in enumerate(starts))))


def line(t: Trial) -> str:
    """One trial in one line."""
    silent = "-" if t.silent_ms is None else f"{t.silent_ms:.0f}"
    pauses = f"{t.num_pauses} pauses of {t.paused_ms:.0f} ms"
    out = f"{t.sound:46} {t.status:10} {pauses}, silent after {silent} ms, heard {t.heard!r} {t.flaw}"
    out += f"\n    reads otherwise: {t.read!r}" if t.otherwise else ""
    return out + (f"\n    with the pause: {t.read_paused!r}" if t.otherwise_paused else "")


class Loudspeaker:
    """A player in a room with a microphone: it starts with the first delta and drops what is cleared."""

    def __init__(self, call: RealtimeClient, gain_db: float, delay_ms: float) -> None:
        self._gain, self._delay = 10 ** (gain_db / 20), delay_ms / 1000
        self._start = 0.0  # when the first sample of `_sound` is played
        self._sound = np.zeros(0, np.float32)
        call.on_event = self._on_event

    def _on_event(self, s: Seen) -> None:
        if s.type == "response.output_audio.delta":
            x = np.frombuffer(base64.b64decode(s.event["delta"]), "<i2").astype(np.float32)
            end = self._start + len(self._sound) / RATE
            if s.at > end:  # it ran dry
                gap = RATE if not self._start else min(int((s.at - end) * RATE), 10 * RATE)
                self._sound = np.concatenate([self._sound[-RATE:], np.zeros(gap, np.float32)])
                self._start = s.at - len(self._sound) / RATE
            self._sound = np.concatenate([self._sound, x])
        elif s.type == "output_audio_buffer.cleared":
            self._sound = self._sound[: max(0, int((s.at - self._start) * RATE))]

    def heard(self, at: float) -> I16:
        """What of it is in the microphone's 20 ms that end at `at`."""
        n = RATE // 50
        end = int((at - self._delay - self._start) * RATE)
        out = np.zeros(n, np.float32)
        first, last = max(0, end - n), min(end, len(self._sound))
        if self._start and last > first:
            out[first - (end - n) : last - (end - n)] = self._sound[first:last]
        return (out * self._gain).astype(np.int16)


def report(kind: str, trials: list[Trial]) -> dict[str, Any]:
    """Print and return the figures of one kind of sound."""
    n = len(trials)
    pauses = sum(t.num_pauses for t in trials)
    figures: dict[str, Any] = {"n": n, "pauses": pauses}
    if kind in KEEPS:
        kept = [t for t in trials if t.status == "completed"]
        sound = [t for t in kept if not t.flaw]
        print(f"{kind}: {len(kept)} of {n} replies reached their end, {len(sound)} as if never paused; {pauses} pauses")
        otherwise, paused = sum(t.otherwise for t in kept), sum(t.otherwise_paused for t in kept)
        print(f"  replies that read otherwise: {otherwise} of {len(kept)} ({paused} with the pause in them)")
        show("length of a pause", [t.paused_ms / t.num_pauses for t in kept if t.num_pauses])
        figures |= {"kept": len(kept), "as_if_never_paused": len(sound), "otherwise": otherwise, "otherwise_paused": paused}
        figures["lost"] = [t.sound for t in trials if t.status != "completed"]
    elif kind == "interrupt":
        cut = [t for t in trials if t.status == "cancelled"]
        silent = [t.silent_ms for t in cut if t.silent_ms is not None]
        print(f"{kind}: {len(cut)} of {n} cut the reply")
        show("user starts -> assistant silent", silent)
        figures |= {"cut": len(cut), "silent_ms": spread(silent) if silent else {}}
    else:
        answered = [t for t in trials if t.answered]
        print(f"{kind}: {len(answered)} of {n} answered")
        figures |= {"answered": len(answered), "missed": [t.sound for t in trials if not t.answered]}
    return figures


def story() -> list[dict[str, Any]]:
    """The call so far, as items."""
    items: list[dict[str, Any]] = []
    for asked, answered in STORY:
        items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": asked}]})
        if answered:
            content = [{"type": "output_text", "text": answered}]
            items.append({"type": "message", "role": "assistant", "content": content})
    return items


async def _trial(args: argparse.Namespace, file: Path | None, start: float, kind: str = "", echo: str = "") -> Trial:
    """Play `file` over a reply, `start` seconds after its first audio. None: hear the reply out. `echo`: "DB:MS"."""
    trial = Trial("" if file is None else file.stem)
    async with RealtimeClient(args.url, args.key) as call:
        await call.wait("session.created", 0, 15)
        await call.update(profile="fast", barge_in={"mode": args.mode}, pacer={"lead_ms": args.lead})
        mic = Microphone(call)
        if echo:
            gain_db, delay_ms = (float(x) for x in echo.split(":"))
            mic.echo = Loudspeaker(call, gain_db, delay_ms).heard
        ask = {"input": story(), "max_output_tokens": args.tokens, "temperature": 0}
        await call.send("response.create", response=ask)
        first = await call.wait("response.output_audio.delta", 0, 30)
        if first is None:
            raise ConnectFailed("no reply came")
        onset: float | None = None
        if file is not None:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(0.0, first.at + start - loop.time()))
            onset, _ = await mic.play(read_wav(file))
        done = await call.wait("response.done", 0, 60)
        if kind in ("interrupt", "answer"):
            words = "conversation.item.input_audio_transcription.completed"
            answered = await call.wait(lambda s: s.type == words, 0, 8)
            trial.heard = "" if answered is None else answered.event["transcript"]
        if kind == "answer":
            trial.answered = await call.wait(lambda s: len(call.of("response.created")) >= 2, 0, 4) is not None
        await mic.stop()
        if done is not None:
            _collect(trial, call, str(done.event["response"]["id"]), onset)
            trial.status = done.event["response"]["status"]
    return trial


def _collect(trial: Trial, call: RealtimeClient, response_id: str, onset: float | None) -> None:
    """The reply's audio and text, its pauses, and when a player of it fell silent."""
    pcm: list[I16] = []
    played: list[I16] = []
    clock, paused = 0.0, None
    for s in call.seen:
        if s.type == "output_audio_buffer.paused":
            paused = s.at
            trial.num_pauses += 1
        elif s.type in ("output_audio_buffer.resumed", "output_audio_buffer.cleared") and paused is not None:
            trial.paused_ms += 1000 * (s.at - paused)
            paused = None
        if s.event.get("response_id") != response_id:
            continue
        if s.type == "response.output_audio.delta":
            x = np.frombuffer(base64.b64decode(s.event["delta"]), "<i2")
            pcm.append(x)
            if pcm[1:] and s.at > clock:  # the player had nothing to play
                played.append(np.zeros(round((s.at - clock) * RATE), np.int16))
            played.append(x)
            clock = max(clock, s.at) + len(x) / RATE
        elif s.type == "response.output_audio_transcript.delta":
            trial.text += s.event["delta"]
    if pcm:
        trial.audio, trial.played = np.concatenate(pcm), np.concatenate(played)
    if onset is not None:
        trial.silent_ms = max(0.0, 1000 * (clock - onset))


async def reads(args: argparse.Namespace, sound: I16) -> str:
    """What the server's own recognizer makes of it."""
    file = io.BytesIO()
    write_wav(file, sound)
    return await transcribed(args.url, args.key, file.getvalue(), "en")


def words(text: str) -> list[str]:
    """As they are compared: without case and marks."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("’", "'"))


def keep(folder: Path, trials: list[Trial]) -> None:
    """Each whole reply as a listener heard it, and what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for n, t in enumerate(trials):
        if t.status == "completed":
            name = f"{n:02}-{t.sound}.wav"
            write_wav(folder / name, t.played)
            rows.append({"wav": name, "heard": t.sound, "said": t.text})
    (folder / "replies.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


def flaw(got: I16, want: I16, num_pauses: int) -> str:
    """How a resumed reply's sound differs from the uninterrupted one, other than by a fade after each pause."""
    if len(got) != len(want):
        return f"{len(got)} samples instead of {len(want)}"
    wrong = np.flatnonzero(got != want)
    faded = 0
    while len(wrong):
        faded += 1
        wrong = wrong[wrong > wrong[0] + FADE_MS * RATE // 1000]
    return f"differs in {faded} places, paused {num_pauses} times" if faded > num_pauses else ""
