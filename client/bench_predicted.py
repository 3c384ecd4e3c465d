"""`bargein bench predicted`: what it is worth to begin a reply before the turn has ended.

Calls with and without prediction take turns, with the same questions in real time, and chat that answers the same words
alike (temperature 0: a reply's first phrase is a word or a dozen). Beside both, what chat alone takes for its first phrase:
the same question asked as text, from `response.created` to the end of the first phrase. What is saved question by question
is shown too: they differ by more than that, so that the medians of both kinds are of different questions.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from .audio import I16, read_wav
from .bench_call import measured, show, spread
from .session import ConnectFailed, RealtimeClient
from .turns import Microphone, Reply, converse

PHRASE = re.compile(r"[.!?,;:](\s|$)")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="bargein bench predicted", description=__doc__)
    p.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    p.add_argument("--key", default="")
    p.add_argument("--turns", type=int, default=20, help="of each kind (default %(default)s)")
    p.add_argument("--profile", default="balanced", choices=("balanced", "fast", "patient"))
    p.add_argument("--wavs", type=Path, default=Path("tests/data/questions"), help="a folder of questions")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    return p


def run(argv: list[str]) -> int:
    """Run the calls; 1 where prediction is worth less than chat's first phrase costs."""
    args = parser().parse_args(argv)
    paths = sorted(args.wavs.glob("*.wav"))
    if not paths:
        print(f"bargein: no WAV files in {args.wavs}")
        return 2
    figures = measured(_run(args, [read_wav(p) for p in paths]), args.json)
    if figures is None:
        return 2
    return 0 if figures["saved_ms"] >= figures["phrase_ms"]["median"] else 1


async def _run(args: argparse.Namespace, questions: list[I16]) -> dict[str, Any]:
    total: dict[bool, list[float]] = {True: [], False: []}
    phrases: list[float] = []
    saved: list[float] = []  # question by question
    for n in range(args.turns):
        question = questions[n % len(questions)]
        took: dict[bool, float] = {}
        for predict in (True, False) if n % 2 else (False, True):
            reply, phrase = await _turn(args, question, predict)
            if "audible" in reply.times:
                took[predict] = 1000 * (reply.times["audible"] - reply.times["speech_end"])
                total[predict].append(took[predict])
            if phrase is not None:
                phrases.append(phrase)
        if len(took) == 2:
            saved.append(took[False] - took[True])
    if not phrases or not saved:
        raise ConnectFailed("too few replies came")
    print(f"\nvoice to voice, {args.turns} turns of each kind, in turns")
    show("begun ahead", total[True])
    show("begun at the turn's end", total[False])
    show("saved, question by question", saved)
    show("chat's first phrase, alone", phrases)
    on, off, phrase_ms = spread(total[True]), spread(total[False]), spread(phrases)
    drop = off["median"] - on["median"]
    print(f"  the median drops by {drop:.0f} ms; chat's first phrase costs {phrase_ms['median']:.0f} ms")
    return {"ahead_ms": on, "at_the_end_ms": off, "phrase_ms": phrase_ms, "saved_ms": drop, "each_saved_ms": spread(saved)}


async def _turn(args: argparse.Namespace, question: I16, predict: bool) -> tuple[Reply, float | None]:
    """One spoken turn of a fresh call; without prediction also the time of chat's first phrase, alone (ms)."""
    async with RealtimeClient(args.url, args.key) as call:
        await call.wait("session.created", 0, 15)
        await call.update(profile=args.profile, predict=predict, temperature=0)
        mic = Microphone(call)
        reply = await converse(call, mic, question, 60)
        await mic.stop()
        return reply, None if predict else await _phrase(call, reply.user_text)


async def _phrase(call: RealtimeClient, text: str) -> float | None:
    mark = len(call.seen)
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await call.send(
        "response.create", response={"conversation": "none", "output_modalities": ["text"], "input": [asked], "temperature": 0}
    )
    created = await call.wait("response.created", mark, 10)
    done = await call.wait("response.done", mark, 30)
    if created is None or done is None:
        return None
    written = ""
    for s in call.of("response.output_text.delta", mark):
        written += s.event["delta"]
        if PHRASE.search(written):
            return 1000 * (s.at - created.at)
    return 1000 * (done.at - created.at)
