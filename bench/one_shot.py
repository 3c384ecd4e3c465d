"""The HTTP routes measured: speech's first byte, a recording of an hour, each route at its knee. Needs a running server.

    python bench/one_shot.py first [--url http://127.0.0.1:8000]       # first byte of a 30-word sentence, and the whole of it
    python bench/one_shot.py hour --pid SERVER [--minutes 60] [--other PYTHON --other-model FOLDER]   # beside faster-whisper
    python bench/one_shot.py knee [--seconds 5] [--only embeddings]    # an open-loop driver, a call going on meanwhile

`hour` joins the Austen clips, a pause after each, until the time is full; memory is that of the server and of its children, in
private pages. faster-whisper runs in the interpreter given, after ours, on the same file. `knee` doubles the rate of a
route until its 99th percentile passes five times its delay alone (or 1 s, whichever is more) or a request fails: the rate
before is the knee. Then it drives four times that rate, and looks how soon the route is itself again. All the while a
call asks a question after another: its delays are printed beside those of a call on an idle server.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import soxr

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".ns")]

from bargein.client.audio import RATE, read_wav  # noqa: E402
from bargein.client.session import RealtimeClient  # noqa: E402
from bargein.client.turns import Microphone, converse  # noqa: E402
from bargein.models.bench_words import clips, normal_words, word_errors  # noqa: E402

SENTENCE = (
    "When the {} had finally left the station, she opened the letter that her sister had written in the spring, "
    "and read all of it twice before the first stop."
)
LEFT = ("train", "bus", "tram", "ferry", "coach", "doctor", "porter", "soldier", "crowd", "driver", "carriage", "captain",
        "painter", "baker", "singer", "teacher")  # a sentence of its own for each request  # fmt: skip
SPOKEN = "The rain had stopped by noon."
PAUSE_S = 1.0
MEMORY_S = 0.5
WORST = 5.0  # times its delay alone: a route's knee
FLOOR_S = 1.0
OTHER = """
import sys, time, json
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[2], device="cpu", compute_type="int8", cpu_threads=2)
start = time.monotonic()
segments, _ = model.transcribe(sys.argv[1], language="en", beam_size=5)
text = " ".join(s.text.strip() for s in segments)
print(json.dumps({"s": time.monotonic() - start, "text": text}))
"""


async def first(url: str) -> None:
    """First byte of streaming speech beside the time the whole takes."""
    begun, whole = [], []
    async with aiohttp.ClientSession() as http:
        for n, who in enumerate(LEFT):
            body = {"model": "tts-1", "voice": "alloy", "input": SENTENCE.format(who), "response_format": "pcm"}
            start = time.monotonic()
            async with http.post(f"{url}/v1/audio/speech", json=body) as reply:
                reply.raise_for_status()
                head = await reply.content.readany()
                got = time.monotonic() - start
                size = len(head) + len(await reply.content.read())
            if n:  # the first warms up
                begun.append(1000 * got)
                whole.append(1000 * (time.monotonic() - start))
    print(f"speech of {len(SENTENCE.split())} words, {size / 2 / RATE:.1f} s of sound: "
          f"first byte after {statistics.median(begun):.0f} ms (median of {len(begun)}; {min(begun):.0f} to {max(begun):.0f}), "
          f"all of it after {statistics.median(whole):.0f} ms")  # fmt: skip


def recording(minutes: float, path: Path) -> list[str]:
    """The Austen clips joined until the time is full; their words."""
    austen = [(read_wav(ROOT / "tests/data" / c.name), normal_words(c.words)) for c in clips() if c.name.startswith("austen")]
    words: list[str] = []
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        length, n = 0.0, 0
        while length < 60 * minutes:
            sound, said = austen[n % len(austen)]
            x = soxr.resample(np.concatenate([sound, np.zeros(int(PAUSE_S * RATE), np.int16)]), RATE, 16000)
            out.writeframes(x.astype("<i2").tobytes())
            length, n, words = length + len(x) / 16000, n + 1, words + said
    return words


def _memory_mb(pid: int) -> float:
    """Private memory of a process and of all its children."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return 0.0
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
    return own + sum(_memory_mb(int(child)) for child in children)


async def hour(url: str, pid: int, minutes: float, other: str, other_model: str, other_minutes: float) -> None:
    """A long recording: speed, memory, words, and how soon a stream of it begins."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "long.wav"
        said = recording(minutes, file)
        before = most = _memory_mb(pid)
        start, begun, text = time.monotonic(), 0.0, ""

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, _memory_mb(pid))
                await asyncio.sleep(MEMORY_S)

        watching = asyncio.create_task(watch())
        form = aiohttp.FormData()
        form.add_field("file", file.open("rb"), filename="long.wav")
        for name, value in (("model", "whisper-1"), ("language", "en"), ("stream", "true")):
            form.add_field(name, value)
        limit = aiohttp.ClientTimeout(total=None)
        path = f"{url}/v1/audio/transcriptions"
        async with aiohttp.ClientSession(timeout=limit) as http, http.post(path, data=form) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                begun = begun or time.monotonic() - start
                if event["type"] == "transcript.text.done":
                    text = event["text"]
        took = time.monotonic() - start
        watching.cancel()
        heard = normal_words(text)
        print(f"{minutes:.0f} minutes: {took:.0f} s, {60 * minutes / took:.1f} times real time; "
              f"the stream began after {begun:.1f} s; memory {before:.0f} MB before, at most {most - before:.0f} more; "
              f"{word_errors(said, heard)} of {len(said)} words wrong", flush=True)  # fmt: skip
        if other:
            less = min(minutes, other_minutes)
            said = recording(less, file)
            done = subprocess.run([other, "-c", OTHER, str(file), other_model], check=True, capture_output=True, text=True)
            got = json.loads(done.stdout.splitlines()[-1])
            speed, wrong = 60 * less / got["s"], word_errors(said, normal_words(got["text"]))
            ours = 60 * minutes / took / speed
            print(f"faster-whisper int8, beam 5: {less:.0f} minutes in {got['s']:.0f} s, {speed:.1f} times real time; "
                  f"{wrong} of {len(said)} words wrong; ours is {ours:.1f} times as fast")  # fmt: skip


Body = dict[str, Any] | Callable[[], aiohttp.FormData]


def _clip(fields: dict[str, str]) -> Callable[[], aiohttp.FormData]:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(read_wav(ROOT / "tests/data/questions/bees.wav").tobytes())
    data = buffer.getvalue()

    def form() -> aiohttp.FormData:
        f = aiohttp.FormData()
        f.add_field("file", data, filename="a.wav")
        for name, value in fields.items():
            f.add_field(name, value)
        return f

    return form


def routes() -> dict[str, tuple[str, Body | None]]:
    """What is asked of each route: a small request of its usual kind."""
    ask = [{"role": "user", "content": "What do bees make?"}]
    return {
        "models": ("/v1/models", None),
        "count_tokens": ("/v1/messages/count_tokens", {"model": "gemma-3-270m", "messages": ask}),
        "embeddings": ("/v1/embeddings", {"model": "all-minilm-l6-v2", "input": SPOKEN}),
        "chat": ("/v1/chat/completions", {"model": "gemma-3-270m", "messages": ask, "max_completion_tokens": 8}),
        "completions": ("/v1/completions", {"model": "gemma-3-270m", "prompt": "Bees make", "max_tokens": 8}),
        "responses": ("/v1/responses", {"model": "gemma-3-270m", "input": "What do bees make?", "max_output_tokens": 16}),
        "messages": ("/v1/messages", {"model": "gemma-3-270m", "messages": ask, "max_tokens": 8}),
        "speech": ("/v1/audio/speech", {"model": "tts-1", "voice": "alloy", "input": SPOKEN, "response_format": "pcm"}),
        "transcriptions": ("/v1/audio/transcriptions", _clip({"model": "whisper-1", "language": "en"})),
        "alignments": ("/v1/audio/alignments", _clip({"model": "whisper-1", "text": "What do bees make?", "language": "en"})),
        "audio embeddings": ("/v1/audio/embeddings", _clip({"model": "ge2e"})),
        "diarization": ("/v1/audio/diarization", _clip({"model": "ge2e"})),
    }  # fmt: skip


@dataclass(slots=True)
class Driven:
    """What a rate gave: delays of what was answered with 200 (s), and everything else by its status."""

    delays: list[float]
    failed: Counter[str]

    @property
    def p99(self) -> float:
        return float(np.percentile(self.delays, 99)) if self.delays else float("inf")


class Driver:
    """Requests to one route at a given rate, whether or not the ones before are answered."""

    def __init__(self, http: aiohttp.ClientSession, url: str, path: str, body: Body | None) -> None:
        self._http, self._url, self._body = http, url + path, body

    async def one(self) -> tuple[str, float]:
        start = time.monotonic()
        try:
            if self._body is None:
                call = self._http.get(self._url)
            elif callable(self._body):
                call = self._http.post(self._url, data=self._body())
            else:
                call = self._http.post(self._url, json=self._body)
            async with call as reply:
                await reply.read()
                return str(reply.status), time.monotonic() - start
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            return type(problem).__name__, time.monotonic() - start

    async def drive(self, rate: float, seconds: float) -> Driven:
        start, running = time.monotonic(), []
        for n in range(max(3, round(rate * seconds))):
            await asyncio.sleep(max(0.0, start + n / rate - time.monotonic()))
            running.append(asyncio.create_task(self.one()))
        got = await asyncio.gather(*running)
        return Driven([s for status, s in got if status == "200"], Counter(status for status, _ in got if status != "200"))


async def _talk(url: str, delays: list[float], gaps: list[float], over: asyncio.Event) -> None:
    """A call that asks until it is over."""
    wavs = [ROOT / "tests/data/questions" / f"{n}.wav" for n in ("bees", "planet", "sky", "morning")]
    async with RealtimeClient(url.replace("http", "ws", 1) + "/v1/realtime") as call:
        await call.wait("session.created", 0, 15)
        await call.update(profile="fast")
        mic = Microphone(call)
        n = 0
        while not over.is_set():
            reply = await converse(call, mic, read_wav(wavs[n % len(wavs)]), 40)
            if reply.audible_at is not None:
                delays.append(1000 * (reply.audible_at - reply.times["speech_end"]))
            gaps.append(reply.gap_ms)
            n += 1
        await mic.stop()


async def _alone(url: str, turns: int) -> tuple[list[float], list[float]]:
    delays: list[float] = []
    gaps: list[float] = []
    over = asyncio.Event()
    talk = asyncio.create_task(_talk(url, delays, gaps, over))
    while len(gaps) < turns and not talk.done():
        await asyncio.sleep(0.1)
    over.set()
    await talk
    return delays, gaps


async def knee(url: str, seconds: float, only: str) -> None:
    """Every route's knee, its overload and its recovery, and a call's delays meanwhile."""
    alone, _ = await _alone(url, 8)
    print(f"a call alone: voice to voice {statistics.median(alone):.0f} ms (median of {len(alone)})", flush=True)
    print("| route | alone ms | knee, a second | p50 / p99 ms there | 4 x the knee: answered, p99 ms | else "
          "| itself again after | the call meanwhile: median, worst ms | gaps ms |\n" + "|---" * 9 + "|")  # fmt: skip
    limit = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as http:
        for name, (path, body) in routes().items():
            if only and name != only:
                continue
            driver = Driver(http, url, path, body)
            quiet = [await driver.one() for _ in range(6)][1:]
            assert all(status == "200" for status, _ in quiet), (name, quiet)
            own = statistics.median(s for _, s in quiet)
            bar = max(FLOOR_S, WORST * own)
            delays: list[float] = []
            gaps: list[float] = []
            over = asyncio.Event()
            talk = asyncio.create_task(_talk(url, delays, gaps, over))
            rate, best = 0.25 / own, None
            while True:
                got = await driver.drive(rate, seconds)
                if got.failed or got.p99 > bar:
                    break
                best = (rate, got)
                rate *= 2
                if rate > 4000:
                    break
            peak = 4 * (best[0] if best else rate)
            flood = await driver.drive(peak, seconds)
            ended = time.monotonic()
            while (await driver.one())[1] > max(2 * own, own + 0.1) and time.monotonic() - ended < 30:
                pass
            again = time.monotonic() - ended
            over.set()
            await talk
            at = "-" if best is None else f"{best[0]:.1f}"
            calm = "-" if best is None else f"{1000 * statistics.median(best[1].delays):.0f} / {1000 * best[1].p99:.0f}"
            failed = ", ".join(f"{n} × {status}" for status, n in flood.failed.items()) or "-"
            spread = f"{statistics.median(delays or [0]):.0f}, {max(delays or [0]):.0f}"
            print(f"| {name} | {1000 * own:.0f} | {at} | {calm} | {len(flood.delays)}, {1000 * flood.p99:.0f} | {failed} "
                  f"| {again:.1f} s | {spread} | {max(gaps or [0]):.0f} |", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("first", "hour", "knee"))
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--pid", type=int, default=0, help="the server's process")
    parser.add_argument("--other", default="", help="an interpreter that has faster-whisper")
    parser.add_argument("--other-model", default="base.en", help="its model or a CTranslate2 folder")
    parser.add_argument("--other-minutes", type=float, default=60, help="how much of the recording it hears")
    parser.add_argument("--seconds", type=float, default=5, help="of each rate")
    parser.add_argument("--only", default="", help="one route's name")
    args = parser.parse_args()
    if args.what == "first":
        asyncio.run(first(args.url))
    elif args.what == "hour":
        asyncio.run(hour(args.url, args.pid, args.minutes, args.other, args.other_model, args.other_minutes))
    else:
        asyncio.run(knee(args.url, args.seconds, args.only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
