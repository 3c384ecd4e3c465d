"""`bargein bench load`: many calls at once, from a process of their own, by a seeded script, in real time.

Each caller dials, asks recorded questions, listens to the reply to its end, waits a moment, and now and then speaks over
the reply instead. What it reports is what callers hear: voice to voice, how soon a reply stops when spoken over, gaps
in its audio; and from the server's /metrics what that cost: processor time, memory, answers that came late by lane,
how long voice windows waited.
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
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from .audio import I16, read_wav
from .bench_call import show, spread
from .recognizer import http_root, transcribed
from .session import ConnectFailed, RealtimeClient
from .turns import Microphone, Reply, collect, converse

DIAL_S = 0.7  # between one caller and the next
SLICES = 6
HELD = {
    "front_mb": ("process_resident_memory_bytes", 1e6), "engine_mb": ("bargein_engine_resident_bytes", 1e6),
    "descriptors": ("process_open_fds", 1), "sessions": ("bargein_realtime_sessions", 1),
    "streams": ("bargein_engine_streams", 1),
}  # fmt: skip
Counts = dict[str, float]


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
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path, metavar="FILE", help="append the figures here, one JSON object a line")
    p.add_argument("--results", type=Path, metavar="FILE.md", help="append one row to this table")
    p.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw every turn's delay over time")
    return p


@dataclass(slots=True)
class Heard:
    """What all callers heard. Times of `turns` are seconds since the start."""

    turns: list[tuple[float, float]] = field(default_factory=list)  # when, voice to voice in ms
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
    questions = [read_wav(p) for p in sorted(args.wavs.glob("*.wav"))]
    if not questions:
        print(f"bargein: no WAV files in {args.wavs}")
        return 2
    try:
        figures = asyncio.run(_load(args, questions))
    except ConnectFailed as problem:
        print(f"bargein: {problem}")
        return 2
    if args.json is not None:
        with args.json.open("a") as out:
            out.write(json.dumps(figures) + "\n")
    if args.results is not None:
        begun = args.results.exists()
        with args.results.open("a") as out:
            out.write(("" if begun else HEADING) + row(figures))
    return 0


VAD_DUE_MS = 20  # how long a voice window may wait
COLUMNS = ("when", "machine", "calls", "seconds", "answered", "voice to voice: median, p95, p99 ms", "stop p95 ms",
           "gap max ms", "late answers", "CPU s a call minute", "MB", "voice window p99 ms")  # fmt: skip
HEADING = (
    "# Calls under load\n\nRows of `bargein bench load --results`, the newest last: seeded callers in a process of their own "
    "on the same machine.\n\n| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|\n"
)


def row(f: dict[str, Any]) -> str:
    """A run's figures as a line of the table."""
    v2v, server = f.get("v2v_ms", {}), f.get("server", {})
    late = sum(lane["late"] for lane in server.get("lanes", {}).values())
    due = sum(lane["answered"] for lane in server.get("lanes", {}).values())
    cells = (
        f["at"], f["machine"], f["calls"], f["seconds"], f"{f['answered']} of {f['asked']}",
        ", ".join(f"{v2v[k]:.0f}" for k in ("median", "p95", "p99")) if v2v else "-",
        f.get("stop_ms", {}).get("p95", "-"), f.get("gap_ms", {}).get("max", "-"), f"{late:.0f} of {due:.0f}",
        server.get("cpu_s_per_call_min", "-"), server.get("memory_mb", "-"), server.get("vad_p99_ms", "-"),
    )  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


async def _load(args: argparse.Namespace, questions: list[I16]) -> dict[str, Any]:
    gc.collect()
    gc.freeze()
    heard, started = Heard(), time.monotonic()
    before = await asyncio.to_thread(_metrics, args)
    end = started + args.seconds
    reading = asyncio.create_task(_transcribe(args, end)) if args.file is not None else None
    watching = asyncio.create_task(_watch(args, started))
    await asyncio.gather(*(_caller(args, questions, n, started, end, heard) for n in range(args.calls)))
    seconds = time.monotonic() - started
    after = await asyncio.to_thread(_metrics, args)
    figures = _report(args, heard, before, after, seconds)
    watching.cancel()
    figures["over_time"] = over_time(heard.turns, await watching, args.seconds / SLICES)
    if reading is not None:
        figures["files_transcribed"] = await reading
        print(f"  the file was transcribed {figures['files_transcribed']} times meanwhile")
    if args.plot is not None:
        args.plot.write_text(plot(heard.turns, args.seconds, f"{args.calls} calls"))
    return figures


async def _watch(args: argparse.Namespace, started: float) -> list[tuple[float, Counts]]:
    """What the server holds, at the end of each slice of the time; to be cancelled."""
    told = []
    with contextlib.suppress(asyncio.CancelledError):
        for n in range(1, SLICES + 1):
            await asyncio.sleep(started + n * args.seconds / SLICES - time.monotonic())
            told.append((time.monotonic() - started, await asyncio.to_thread(_metrics, args)))
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
    args: argparse.Namespace, questions: list[I16], number: int, started: float, end: float, heard: Heard
) -> None:
    """One caller until the end: calls of at most `--redial` seconds, turns of question, reply and silence."""
    rng = random.Random(f"{args.seed}/{number}")
    await asyncio.sleep(DIAL_S * number)
    while time.monotonic() < end:
        hang_up = min(end, time.monotonic() + args.redial)
        try:
            async with RealtimeClient(args.url, args.key) as client:
                await client.wait("session.created", 0, 15)
                await client.update(profile=args.profile)
                mic = Microphone(client)
                while time.monotonic() < hang_up and client.closed is None:
                    await _turn(args, client, mic, rng, questions, started, heard)
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


async def _turn(
    args: argparse.Namespace,
    client: RealtimeClient,
    mic: Microphone,
    rng: random.Random,
    questions: list[I16],
    started: float,
    heard: Heard,
) -> None:
    """Ask, then listen to the end or speak over it."""
    client.seen.clear()  # what an hour's calls have seen would hold this process up, whenever its collector looks through it
    mark = 0
    heard.num_asked += 1
    if rng.random() >= args.interrupt:
        reply = await converse(client, mic, rng.choice(questions), 30)
        _note(reply, started, heard)
        heard.replies.append(len(reply.audio) / 24000)
        left = reply.deltas[0][0] + len(reply.audio) / 24000 - time.monotonic() if reply.deltas else 0.0
        await asyncio.sleep(max(0.0, left))  # a person hears it out
        return
    _, spoken = await mic.play(rng.choice(questions))
    if await client.wait("response.output_audio.delta", mark, 30) is None:
        heard.num_unanswered += 1
        return
    await asyncio.sleep(rng.uniform(0.3, 1.2))
    _note(collect(client, mark, spoken), started, heard)
    if client.of("response.done", mark):
        return
    again = len(client.seen)
    onset, _ = await mic.play(rng.choice(questions))
    done = await client.wait("response.done", again, 15)
    if done is not None and done.event["response"]["status"] == "cancelled":
        frames = [s.at for s in client.of("response.output_audio.delta", mark) if s.at <= done.at]
        silent = [s.at for s in client.of("output_audio_buffer.paused", again) if s.at <= done.at]
        heard.stops.append(max(0.0, 1000 * (min([*silent, *frames[-1:]], default=onset) - onset)))
    if await client.wait(lambda s: s.type == "response.done" and s is not done, again, 30) is None:
        heard.num_unanswered += 1


def _note(reply: Reply, started: float, heard: Heard) -> None:
    if "audible" not in reply.times:
        heard.num_unanswered += 1
        return
    spoken = reply.times["speech_end"]
    heard.turns.append((spoken - started, 1000 * (reply.times["audible"] - spoken)))
    heard.gaps.append(reply.gap_ms)


async def _transcribe(args: argparse.Namespace, end: float) -> int:
    """Have the file transcribed again and again until the end -> how often it was."""
    file, done = args.file.read_bytes(), 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.1, end - time.monotonic())):
            while True:
                await transcribed(args.url, args.key, file)
                done += 1
    return done


# --- the server's side ------------------------------------------------------------------------------------------------


def _metrics(args: argparse.Namespace) -> Counts:
    """The server's counters and gauges by name (and lane or bound), empty where it does not tell."""
    headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
    request = urllib.request.Request(http_root(args.url) + "/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            text = reply.read().decode()
    except OSError:
        return {}
    return {
        ":".join([s.name, *(s.labels[k] for k in ("lane", "le") if k in s.labels)]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def _report(args: argparse.Namespace, heard: Heard, before: Counts, after: Counts, seconds: float) -> dict[str, Any]:
    delays = [ms for _, ms in heard.turns]
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
        "callers_cores": round(time.process_time() / seconds, 3),
    }  # fmt: skip
    if heard.replies:
        figures["reply_s"] = round(sum(heard.replies) / len(heard.replies), 2)
    for name, values in (("v2v_ms", delays), ("stop_ms", heard.stops), ("gap_ms", heard.gaps)):
        if values:
            figures[name] = spread(values) | {"p99": round(sorted(values)[max(0, -(-99 * len(values) // 100) - 1)])}
    if after:
        figures["server"] = _server(before, after, seconds, args.calls)
    return figures


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def _server(before: Counts, after: Counts, seconds: float, calls: int) -> dict[str, Any]:
    """What it cost, from the difference of two readings."""

    def grew(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    lanes = {}
    for key in sorted(k for k in after if k.startswith("bargein_engine_device_seconds_total:")):
        lane = key.split(":")[1]
        answered, late = (grew(f"bargein_engine_{what}_total:{lane}") for what in ("answered", "late"))
        steps, job_steps = (grew(f"bargein_engine_{what}_total:{lane}") for what in ("steps", "job_steps"))
        busy = grew(key)
        lanes[lane] = {"busy": round(busy / seconds, 3), "answered": answered, "late": late,
                       "batch": round(job_steps / steps, 2) if steps else 0}  # fmt: skip
        due = f"late {late:.0f} of {answered:.0f}   " if answered else ""
        print(f"  {lane:6} device {100 * busy / seconds:5.1f} %   {due}"
              f"jobs a step {job_steps / max(steps, 1):.2f}")  # fmt: skip
    cpu = grew("process_cpu_seconds_total") + grew("bargein_engine_cpu_seconds_total")
    memory = after.get("process_resident_memory_bytes", 0.0) + after.get("bargein_engine_resident_bytes", 0.0)
    vad, (windows, late) = _vad_p99(before, after), _vad_late(before, after)
    print(f"  server: {cpu / seconds * 60 / max(calls, 1):.1f} CPU seconds a call minute, {memory / 1e6:.0f} MB; "
          f"{windows} voice windows: p99 at most {vad} ms, {late} later than {VAD_DUE_MS}")  # fmt: skip
    engine = grew("bargein_engine_cpu_seconds_total")
    return {"cpu_s_per_call_min": round(cpu / seconds * 60 / max(calls, 1), 2), "memory_mb": round(memory / 1e6),
            "front_cores": round((cpu - engine) / seconds, 3), "engine_cores": round(engine / seconds, 3),
            "vad_p99_ms": vad, "vad_windows": windows, "vad_late": late, "lanes": lanes}  # fmt: skip


def _vad_p99(before: Counts, after: Counts) -> float | None:
    """The bound under which 99 of 100 windows' waits were, in ms; None: above the last bound, or no windows."""
    counts = _vad_waits(before, after)
    total = max(counts.values(), default=0.0)
    found = next((b for b, n in counts.items() if total and n >= 0.99 * total), float("inf"))
    return None if found == float("inf") else 1000 * found


def _vad_late(before: Counts, after: Counts) -> tuple[int, int]:
    """How many windows there were, and how many of them waited longer than they may."""
    counts = _vad_waits(before, after)
    total = max(counts.values(), default=0.0)
    return round(total), round(total - counts.get(VAD_DUE_MS / 1000, total))


def _vad_waits(before: Counts, after: Counts) -> dict[float, float]:
    """How many windows waited at most so many seconds; the bounds rise."""
    name = "bargein_engine_vad_seconds_bucket:"
    bounds = sorted(float(k[len(name) :]) for k in after if k.startswith(name))
    return {b: after[f"{name}{_le(b)}"] - before.get(f"{name}{_le(b)}", 0.0) for b in bounds}


def _le(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


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
