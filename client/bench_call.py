"""`bargein bench call` and `bench barge`: latency as a client sees it, over real calls in real time.

Voice-to-voice is from the sending of the last voiced 20 ms frame to the first reply sample that is louder than silence,
as a player that starts with the first delta would play it. Stop time is from the sending of the first voiced frame of
an interruption to the arrival of the last reply frame.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from .audio import I16, read_wav
from .call import STAGES
from .session import ConnectFailed, RealtimeClient
from .turns import Microphone, Reply, converse

TURNS_PER_CALL = 5


def parser(what: str) -> argparse.ArgumentParser:
    """Options of both benchmarks."""
    p = argparse.ArgumentParser(prog=f"bargein bench {what}", description=__doc__)
    p.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    p.add_argument("--key", default="")
    p.add_argument("--turns", type=int, default=20)
    p.add_argument("--calls", type=int, default=1, help="calls at once (default %(default)s)")
    p.add_argument("--profile", default="fast", choices=("balanced", "fast", "patient"))
    p.add_argument("--wavs", type=Path, default=Path("tests/data/questions"), help="a folder of questions")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    return p


def run(what: str, argv: list[str]) -> int:
    """Run one of the two; returns the exit status."""
    args = parser(what).parse_args(argv)
    paths = sorted(args.wavs.glob("*.wav"))
    if not paths:
        print(f"bargein: no WAV files in {args.wavs}")
        return 2
    questions = [read_wav(p) for p in paths]
    work = _calls(args, questions) if what == "call" else _barges(args, questions)
    return 2 if measured(work, args.json) is None else 0


def measured(work: Coroutine[Any, Any, dict[str, Any]], file: Path | None) -> dict[str, Any] | None:
    """A benchmark's figures, written to `file` too; None, and why is printed, where the server cannot be used."""
    try:
        figures = asyncio.run(work)
    except ConnectFailed as problem:
        print(f"bargein: {problem}")
        return None
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile (nearest rank) and extremes, rounded to whole ms."""
    ordered = sorted(values)
    rank = max(0, -(-95 * len(ordered) // 100) - 1)
    return {
        "n": len(ordered),
        "min": round(ordered[0]),
        "median": round(statistics.median(ordered)),
        "p95": round(ordered[rank]),
        "max": round(ordered[-1]),
    }


def show(name: str, values: Sequence[float], unit: str = "ms") -> None:
    if not values:
        print(f"  {name:32} (none)")
        return
    s = spread(values)
    print(f"  {name:32} median {s['median']:5.0f} {unit}   p95 {s['p95']:5.0f}   min {s['min']:5.0f}   n {s['n']}")


# --- voice to voice ------------------------------------------------------------------------------------------------


async def _calls(args: argparse.Namespace, questions: list[I16]) -> dict[str, Any]:
    per_call = max(1, args.turns // args.calls)
    replies = await asyncio.gather(*(_talk(args, questions, per_call, start) for start in range(args.calls)))
    turns = [r for call in replies for r in call]
    return report([r for r in turns if "audible" in r.times], len(turns))


async def _talk(args: argparse.Namespace, questions: list[I16], turns: int, start: int) -> list[Reply]:
    """`turns` turns of one caller, a fresh call every few."""
    out: list[Reply] = []
    await asyncio.sleep(0.7 * start)
    while len(out) < turns:
        async with RealtimeClient(args.url, args.key) as client:
            await client.wait("session.created", 0, 15)
            await client.update(profile=args.profile)
            mic = Microphone(client)
            for _ in range(min(TURNS_PER_CALL, turns - len(out))):
                question = questions[(start * 3 + len(out)) % len(questions)]
                out.append(await converse(client, mic, question, 60))
                await asyncio.sleep(0.3)
            await mic.stop()
            if mic.worst_late_ms > 60:
                print(f"  (this machine was busy: a frame left {mic.worst_late_ms:.0f} ms late)")
    return out


def report(replies: list[Reply], asked: int) -> dict[str, Any]:
    """Print and return the figures of a set of turns."""
    total = [1000 * (r.times["audible"] - r.times["speech_end"]) for r in replies]
    print(f"\nvoice to voice, {len(replies)} of {asked} turns answered")
    show("last voiced -> first audible", total)
    stages: dict[str, Any] = {}
    previous = "speech_end"
    for key, label in STAGES[1:-1]:
        values = [1000 * (r.times[key] - r.times[previous]) for r in replies if key in r.times and previous in r.times]
        show(f"  {label}", values)
        if values:
            stages[key] = spread(values)
            previous = key
    gaps = [r.gap_ms for r in replies]
    show("gaps in reply audio", gaps)
    figures = {"answered": len(replies), "asked": asked, "stages": stages}
    if total:
        figures |= {"v2v_ms": spread(total), "gap_ms": spread(gaps)}
    return figures


# --- barge-in ------------------------------------------------------------------------------------------------------

LONG_ANSWER = "You are a storyteller. Always answer with a story of at least ten long sentences."


async def _barges(args: argparse.Namespace, questions: list[I16]) -> dict[str, Any]:
    rng = random.Random(1)
    stops: list[float] = []
    tries = 0
    while len(stops) < args.turns and tries < 2 * args.turns:
        async with RealtimeClient(args.url, args.key) as client:
            await client.wait("session.created", 0, 15)
            await client.update(profile=args.profile, barge_in={"mode": "cancel"}, instructions=LONG_ANSWER)
            mic = Microphone(client)
            for _ in range(TURNS_PER_CALL):
                tries += 1
                if len(stops) >= args.turns:
                    break
                if (ms := await _barge(client, mic, questions, rng)) is not None:
                    stops.append(ms)
            await mic.stop()
    print(f"\nbarge-in (cancel mode), {len(stops)} of {tries} replies still ran when the user spoke")
    show("first voiced -> last reply frame", stops)
    return {"stop_ms": spread(stops), "tries": tries} if stops else {"tries": tries}


async def _barge(client: RealtimeClient, mic: Microphone, questions: list[I16], rng: random.Random) -> float | None:
    """Ask for a long reply by text, speak over it; None where it had ended by itself."""
    mark = len(client.seen)
    await client.send("response.create", response={"instructions": LONG_ANSWER + " Tell me about the sea."})
    if await client.wait("response.output_audio.delta", mark, 30) is None:
        return None
    await asyncio.sleep(rng.uniform(0.4, 1.0))
    if client.of("response.done", mark):
        return None
    onset, _ = await mic.play(rng.choice(questions))
    done = await client.wait("response.done", mark, 10)
    if done is None or done.event["response"]["status"] != "cancelled":
        return None
    last = client.of("response.output_audio.delta", mark)
    frames = [s.at for s in last if s.at <= done.at]
    await client.wait(lambda s: s.type == "response.done" and s.at > done.at, mark, 30)
    await asyncio.sleep(0.2)
    return max(0.0, 1000 * (frames[-1] - onset))
