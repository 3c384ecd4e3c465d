"""`bargein bench load`: many calls at once, from a process of their own, by a seeded script, in real time.

Each caller dials, asks recorded questions, listens to the reply to its end, waits a moment, and now and then speaks over
the reply instead. What it reports is what callers hear: voice to voice, how soon a reply stops when spoken over, gaps
in its audio; and from the server's /metrics what that cost: processor time, memory, answers that came late by lane,
how long voice windows waited. `--pairs` compares calls with and without a recording that is transcribed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import platform
import random
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import counters
from .audio import I16, read_wav
from .bench_call import show, spread
from .counters import Counts
from .recognizer import words_of
from .session import ConnectFailed, RealtimeClient
from .turns import Microphone, Reply, collect, converse

DIAL_S = 0.7  # between one caller and the next
SLICES = 6
HELD = {
    "front_mb": ("process_resident_memory_bytes", 1e6), "engine_mb": ("bargein_engine_resident_bytes", 1e6),
    "descriptors": ("process_open_fds", 1), "sessions": ("bargein_realtime_sessions", 1),
    "streams": ("bargein_engine_streams", 1),
}  # fmt: skip


class Turn(NamedTuple):
    """One that was answered."""

    at: float  # when it had been asked, s since the start
    ms: float  # voice to voice
    question: str
    caller: int


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="bargein bench load", description=__doc__)
    p.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    p.add_argument("--key", default="")
    p.add_argument("--calls", type=int, default=4)
    p.add_argument("--seconds", type=float, default=120)
    p.add_argument("--redial", type=float, default=1200, help="a call lasts so long, then dials anew (default %(default)s)")
    p.add_argument("--interrupt", type=float, default=0.15, help="share of replies that are spoken over")
    p.add_argument("--pause", type=float, default=3.0, help="mean silence between turns, in seconds")
    p.add_argument("--profile", default="fast", choices=("balanced", "fast", "patient"))
    p.add_argument("--wavs", type=Path, default=Path("tests/data/questions"), help="a folder of questions")
    p.add_argument("--file", type=Path, help="a recording to have transcribed over HTTP all the while")
    p.add_argument("--pairs", type=int, default=0, help="runs so many times with --file and as often without, and compares")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path, metavar="FILE", help="append the figures here, one JSON object a line")
    p.add_argument("--results", type=Path, metavar="FILE.md", help="append one row to this table")
    p.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw every turn's delay over time")
    return p


@dataclass(slots=True)
class Heard:
    """What all callers heard."""

    turns: list[Turn] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    replies: list[float] = field(default_factory=list)  # seconds of those heard out
    num_asked: int = 0
    num_unanswered: int = 0
    num_refused: int = 0
    problems: list[str] = field(default_factory=list)
    late_ms: float = 0.0  # the worst frame of a microphone: this process' own trouble


def run(argv: list[str]) -> int:
    """Run it; returns the exit status."""
    args = parser().parse_args(argv)
    questions = {p.stem: read_wav(p) for p in sorted(args.wavs.glob("*.wav"))}
    if not questions:
        print(f"bargein: no WAV files in {args.wavs}")
        return 2
    if args.pairs < 0 or (args.pairs and args.file is None):
        print("bargein: --pairs compares so many runs with and without a recording: name one with --file")
        return 2
    if args.file is not None and not args.file.is_file():
        print(f"bargein: --file: there is no {args.file}")
        return 2
    try:
        if args.pairs:
            _compare(args, questions)
        else:
            _once(args, questions)
    except ConnectFailed as problem:
        print(f"bargein: {problem}")
        return 2
    return 0


def _once(args: argparse.Namespace, questions: dict[str, I16]) -> dict[str, Any]:
    figures = asyncio.run(_load(args, questions))
    if args.json is not None:
        with args.json.open("a") as out:
            out.write(json.dumps(figures) + "\n")
    if args.results is not None:
        text = args.results.read_text("utf-8") if args.results.exists() else ""
        args.results.write_text(with_row(text, row(figures)), "utf-8")
    return figures


def _compare(args: argparse.Namespace, questions: dict[str, I16]) -> None:
    """Pairs of runs of one seed, with the recording and without, in turns; all turns of a kind are looked at together."""
    alone: list[Turn] = []
    beside: list[Turn] = []
    for n in range(args.pairs):
        runs = [(None, alone), (args.file, beside)]
        for file, turns in runs if n % 2 == 0 else reversed(runs):
            each = argparse.Namespace(**vars(args) | {"file": file, "seed": args.seed + n})
            turns.extend(Turn(*turn) for turn in _once(each, questions)["turns"])
    print(f"\n{args.pairs} pairs of {args.calls} calls for {args.seconds:.0f} s")
    show("voice to voice alone", [t.ms for t in alone])
    show(f"beside {args.file.name}", [t.ms for t in beside])
    for name, share in (("median", 0.5), ("p95", 0.95)) if alone and beside else ():
        print("  " + difference([t.ms for t in alone], [t.ms for t in beside], share, name))


def difference(a: list[float], b: list[float], share: float, name: str, seed: int = 0) -> str:
    """How much larger a quantile of `b` is than that of `a`, and between what it lies in 9 of 10 draws of as many turns from
    these (the bootstrap's interval: what another day's turns would have told)."""
    rng = np.random.default_rng(seed)

    def rise(x: list[float], y: list[float]) -> float:
        return 100 * float(np.quantile(y, share) / np.quantile(x, share) - 1)

    drawn = [rise(list(rng.choice(a, len(a))), list(rng.choice(b, len(b)))) for _ in range(1000)]
    low, high = np.quantile(drawn, (0.05, 0.95))
    return f"{name}: {rise(a, b):+.0f} % (9 of 10 draws: {low:+.0f} to {high:+.0f} %)"


COLUMNS = ("when", "machine", "calls", "seconds", "answered", "voice to voice: median, p95, p99 ms", "stop p95 ms",
           "gap max ms", "late answers", "CPU s a call minute", "MB", "voice window p99 ms")  # fmt: skip
TABLE = "| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|\n"
HEADING = (
    "# Calls under load\n\nRows of `bargein bench load --results`, the newest last: seeded callers in a process of their own "
    f"on the same machine.\n\n{TABLE}"
)


def with_row(text: str, line: str) -> str:
    """A page with one more row at the end of its table of loads, which is begun where it has none."""
    lines = text.splitlines()
    titles = TABLE.splitlines()[0]
    if titles not in lines:
        return text + ("\n" if text else "") + HEADING + line
    end = lines.index(titles)
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join([*lines[:end], line.rstrip(), *lines[end:], ""])


def row(f: dict[str, Any]) -> str:
    """A run's figures as a line of the table."""
    v2v, server = f.get("v2v_ms", {}), f.get("server", {})
    late = sum(lane["late"] for lane in server.get("lanes", {}).values())
    due = sum(lane["answered"] for lane in server.get("lanes", {}).values())
    beside = " beside a recording" if "words_transcribed" in f else ""
    cells = (
        f["at"], f["machine"], f"{f['calls']}{beside}", f["seconds"], f"{f['answered']} of {f['asked']}",
        ", ".join(f"{v2v[k]:.0f}" for k in ("median", "p95", "p99")) if v2v else "-",
        f.get("stop_ms", {}).get("p95", "-"), f.get("gap_ms", {}).get("max", "-"), f"{late:.0f} of {due:.0f}",
        server.get("cpu_s_per_call_min", "-"), server.get("memory_mb", "-"), server.get("vad_p99_ms", "-"),
    )  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


async def _load(args: argparse.Namespace, questions: dict[str, I16]) -> dict[str, Any]:
    gc.collect()
    gc.freeze()
    heard, started, used = Heard(), time.monotonic(), time.process_time()
    before = await asyncio.to_thread(counters.read, args.url, args.key)
    end = started + args.seconds
    reading = asyncio.create_task(_transcribe(args, end)) if args.file is not None else None
    watching = asyncio.create_task(_watch(args, started))
    await asyncio.gather(*(_caller(args, questions, n, started, end, heard) for n in range(args.calls)))
    seconds = time.monotonic() - started
    after = await asyncio.to_thread(counters.read, args.url, args.key)
    figures = _report(args, heard, before, after, seconds)
    figures["callers_cores"] = round((time.process_time() - used) / seconds, 3)
    watching.cancel()
    figures["over_time"] = over_time([(t.at, t.ms) for t in heard.turns], await watching, args.seconds / SLICES)
    if reading is not None:
        figures["files_transcribed"], words = await reading
        figures["words_transcribed"] = words
        print(f"  the file was transcribed {figures['files_transcribed']} times meanwhile ({words} words)")
    if args.plot is not None:
        args.plot.write_text(plot([(t.at, t.ms) for t in heard.turns], args.seconds, f"{args.calls} calls"))
    return figures


async def _watch(args: argparse.Namespace, started: float) -> list[tuple[float, Counts]]:
    """What the server holds, at the end of each slice of the time; to be cancelled."""
    told = []
    with contextlib.suppress(asyncio.CancelledError):
        for n in range(1, SLICES + 1):
            await asyncio.sleep(started + n * args.seconds / SLICES - time.monotonic())
            told.append((time.monotonic() - started, await asyncio.to_thread(counters.read, args.url, args.key)))
    return told


def over_time(turns: list[tuple[float, float]], held: list[tuple[float, Counts]], slice_s: float) -> list[dict[str, Any]]:
    """Delays and what the server held, slice by slice: whether anything drifts. Prints them."""
    rows = []
    for n, (at, counts) in enumerate(held):
        delays = [ms for when, ms in turns if n * slice_s <= when < (n + 1) * slice_s]
        row: dict[str, Any] = {"until_s": round(at), "turns": len(delays)}
        row |= {k: spread(delays)[k] for k in ("median", "p95")} if delays else {}
        row |= {name: round(counts.get(metric, 0) / unit) for name, (metric, unit) in HELD.items()}
        rows.append(row)
        print("  " + ", ".join(f"{name} {value}" for name, value in row.items()))
    return rows


async def _caller(
    args: argparse.Namespace, questions: dict[str, I16], number: int, started: float, end: float, heard: Heard
) -> None:
    """One caller until the end: calls of at most `--redial` seconds, turns of question, reply and silence."""
    rng = random.Random(f"{args.seed}/{number}")
    deck = _deck(rng, questions)
    await asyncio.sleep(DIAL_S * number)
    while time.monotonic() < end:
        hang_up = min(end, time.monotonic() + args.redial)
        try:
            async with RealtimeClient(args.url, args.key) as client:
                await client.wait("session.created", 0, 15)
                await client.update(profile=args.profile)
                mic = Microphone(client)
                while time.monotonic() < hang_up and client.closed is None:
                    await _turn(args, client, mic, rng, deck, number, started, heard)
                    await asyncio.sleep(min(rng.expovariate(1 / args.pause), max(0.0, hang_up - time.monotonic())))
                await mic.stop()
                heard.late_ms = max(heard.late_ms, mic.worst_late_ms)
                if client.closed is not None:
                    heard.problems.append(f"caller {number}: the call was closed: {client.closed}")
        except ConnectFailed as problem:
            if "status 503" not in str(problem):
                raise
            heard.num_refused += 1
            await asyncio.sleep(5)


def _deck(rng: random.Random, questions: dict[str, I16]) -> Iterator[tuple[str, I16]]:
    """All questions in an order of chance, then anew: runs of different seeds ask the same mixture."""
    while True:
        yield from rng.sample(list(questions.items()), len(questions))


async def _turn(
    args: argparse.Namespace,
    client: RealtimeClient,
    mic: Microphone,
    rng: random.Random,
    deck: Iterator[tuple[str, I16]],
    number: int,
    started: float,
    heard: Heard,
) -> None:
    """Ask, then listen to the end or speak over it."""
    client.seen.clear()  # what an hour's calls have seen would hold this process up, whenever its collector looks through it
    mark = 0
    heard.num_asked += 1
    name, question = next(deck)
    if rng.random() >= args.interrupt:
        reply = await converse(client, mic, question, 30)
        _note(reply, name, number, started, heard)
        heard.replies.append(len(reply.audio) / 24000)
        left = reply.deltas[0][0] + len(reply.audio) / 24000 - time.monotonic() if reply.deltas else 0.0
        await asyncio.sleep(max(0.0, left))  # a person hears it out
        return
    _, spoken = await mic.play(question)
    if await client.wait("response.output_audio.delta", mark, 30) is None:
        heard.num_unanswered += 1
        return
    await asyncio.sleep(rng.uniform(0.3, 1.2))
    _note(collect(client, mark, spoken), name, number, started, heard)
    if client.of("response.done", mark):
        return
    again = len(client.seen)
    onset, _ = await mic.play(next(deck)[1])
    done = await client.wait("response.done", again, 15)
    if done is not None and done.event["response"]["status"] == "cancelled":
        frames = [s.at for s in client.of("response.output_audio.delta", mark) if s.at <= done.at]
        silent = [s.at for s in client.of("output_audio_buffer.paused", again) if s.at <= done.at]
        heard.stops.append(max(0.0, 1000 * (min([*silent, *frames[-1:]], default=onset) - onset)))
    if await client.wait(lambda s: s.type == "response.done" and s is not done, again, 30) is None:
        heard.num_unanswered += 1


def _note(reply: Reply, question: str, caller: int, started: float, heard: Heard) -> None:
    if "audible" not in reply.times:
        heard.num_unanswered += 1
        return
    spoken = reply.times["speech_end"]
    heard.turns.append(Turn(spoken - started, 1000 * (reply.times["audible"] - spoken), question, caller))
    heard.gaps.append(reply.gap_ms)


async def _transcribe(args: argparse.Namespace, end: float) -> tuple[int, int]:
    """Have the file transcribed again and again until the end -> how often it was, and how many words that made."""
    file, done, words = args.file.read_bytes(), 0, 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.1, end - time.monotonic())):
            while True:
                async with aclosing(words_of(args.url, args.key, file)) as pieces:
                    async for num in pieces:
                        words += num
                done += 1
    return done, words


def _report(args: argparse.Namespace, heard: Heard, before: Counts, after: Counts, seconds: float) -> dict[str, Any]:
    delays = [t.ms for t in heard.turns]
    print(f"\n{args.calls} calls for {seconds:.0f} s: {len(delays)} of {heard.num_asked} questions answered in time")
    show("voice to voice", delays)
    show("reply stops when spoken over", heard.stops)
    show("gaps in reply audio", heard.gaps)
    if any(heard.gaps):  # few, so that neither median nor p95 tells them
        broken = sum(ms > 0 for ms in heard.gaps)
        print(f"  {broken} of {len(heard.gaps)} replies had a gap, the longest {max(heard.gaps):.0f} ms")
    if heard.num_refused:
        print(f"  {heard.num_refused} calls were refused: the server was full")
    for problem in heard.problems[:5]:
        print("  " + problem)
    if heard.late_ms > 60:
        print(f"  (this machine was busy: a microphone's frame left {heard.late_ms:.0f} ms late)")
    figures: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%d %H:%M"), "machine": f"{platform.machine()}, {_cores()} cores", "calls": args.calls,
        "seconds": round(seconds), "seed": args.seed, "profile": args.profile, "asked": heard.num_asked,
        "answered": len(delays), "unanswered": heard.num_unanswered, "refused": heard.num_refused,
        "problems": heard.problems, "mic_late_ms": round(heard.late_ms),
    }  # fmt: skip
    figures["turns"] = [t._replace(at=round(t.at, 2), ms=round(t.ms)) for t in heard.turns]
    figures["by_caller"] = by_caller(heard.turns)
    if heard.replies:
        figures["reply_s"] = round(sum(heard.replies) / len(heard.replies), 2)
    for name, values in (("v2v_ms", delays), ("stop_ms", heard.stops), ("gap_ms", heard.gaps)):
        if values:
            figures[name] = spread(values) | {"p99": round(sorted(values)[max(0, -(-99 * len(values) // 100) - 1)])}
    if after:
        figures["server"] = counters.cost(before, after, seconds, args.calls)
    return figures


def by_caller(turns: list[Turn]) -> dict[int, dict[str, float]]:
    """What each of them heard; prints the worst, whom the others' figures would hide."""
    delays: dict[int, list[float]] = {}
    for turn in turns:
        delays.setdefault(turn.caller, []).append(turn.ms)
    found = {caller: spread(ms) for caller, ms in sorted(delays.items())}
    if found:
        worst = max(found, key=lambda caller: found[caller]["p95"])
        show(f"of caller {worst}, the worst", delays[worst])
    return found


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def plot(turns: list[tuple[float, float]], seconds: float, title: str) -> str:
    """Every turn's delay over time as an SVG."""
    width, height, top = 720, 240, max([1500.0, *(ms for _, ms in turns)])
    dots = "".join(
        f'<circle cx="{40 + (width - 50) * at / seconds:.1f}" cy="{height - 20 - (height - 40) * ms / top:.1f}" r="3"/>'
        for at, ms in turns
    )
    bar = height - 20 - (height - 40) * 1500 / top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/><g fill="#2266cc" fill-opacity="0.6">{dots}</g>'
        f'<path d="M40 {bar:.1f}H{width - 10}" stroke="#cc4444" stroke-dasharray="4"/>'
        f'<text x="2" y="{bar:.1f}">1.5 s</text><text x="2" y="24">{top / 1000:.1f} s</text>'
        f'<text x="40" y="{height - 4}">0 s</text><text x="{width - 50}" y="{height - 4}">{seconds:.0f} s</text>'
        f'<text x="{width // 2 - 80}" y="14">voice to voice, {title}</text></svg>\n'
    )
