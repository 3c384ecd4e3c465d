"""`bargein bench noise`: a minute of each sound that is nobody's speech, in calls side by side in real time.

No word may be heard in them and no reply made. Then each is played over replies, one call at a time: how often does it
hold the reply up (every pause of one is false), and does every reply reach its end?
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .audio import I16, RATE
from .bench_call import measured
from .bench_hold import story
from .session import ConnectFailed, RealtimeClient
from .turns import Microphone

F64 = npt.NDArray[np.float64]
SEED = 21


def _full(x: F64) -> F64:
    """The same, its loudest sample 1."""
    y: F64 = x / np.abs(x).max()
    return y


def _shaped(rng: np.random.Generator, n: int, gain: Callable[[F64], F64]) -> F64:
    """Noise with `gain` over frequency (Hz), loudest sample 1."""
    spectrum = np.fft.rfft(rng.normal(size=n)) * gain(np.asarray(np.fft.rfftfreq(n, 1 / RATE), np.float64))
    return _full(np.asarray(np.fft.irfft(spectrum, n), np.float64))


def _band(low: float, high: float) -> Callable[[F64], F64]:
    return lambda f: ((f > low) & (f < high)).astype(float)


def _breaths(rng: np.random.Generator, n: int) -> F64:
    """In and out, every few seconds."""
    out = np.zeros(n)
    at = RATE
    while at < n - 2 * RATE:
        length = int(rng.uniform(0.6, 1.3) * RATE)
        out[at : at + length] = _shaped(rng, length, _band(rng.uniform(200, 500), rng.uniform(2500, 6000))) * np.hanning(length)
        at += length + int(rng.uniform(0.5, 2.5) * RATE)
    return out


def _clicks(rng: np.random.Generator, n: int) -> F64:
    """Keys and switches, alone and in runs."""
    out = np.zeros(n)
    at = RATE // 2
    while at < n - RATE:
        for _ in range(int(rng.integers(1, 12))):
            if at > n - RATE // 10:
                break
            length = int(rng.integers(48, 400))
            out[at : at + length] += rng.normal(size=length) * np.exp(-np.arange(length) / (length / 5)) * rng.uniform(0.3, 1)
            at += int(rng.uniform(0.06, 0.25) * RATE)
        at += int(rng.uniform(0.2, 2) * RATE)
    return _full(out)


def _music(rng: np.random.Generator, n: int) -> F64:
    """Plucked notes of a scale over a bass, with overtones."""
    out = np.zeros(n)
    scale = (0, 2, 4, 7, 9, 12, 14, 16)
    at = 0
    while at < n - RATE:
        length = int(rng.choice((0.25, 0.5, 0.5, 1.0)) * RATE)
        t = np.arange(length) / RATE
        for base, loud in ((220.0, 1.0), (110.0, 0.6)):
            hz = base * 2 ** (rng.choice(scale) / 12)
            tone = np.sum([np.sin(2 * np.pi * k * hz * t) / k**1.5 for k in range(1, 7)], axis=0)
            out[at : at + length] += loud * tone * np.exp(-3 * t) * np.minimum(1, t / 0.005)
        at += length
    return _full(out)


def _hum(rng: np.random.Generator, n: int) -> F64:
    """Mains and a fan."""
    t = np.arange(n) / RATE
    tone: F64 = np.sum([np.sin(2 * np.pi * 50 * k * t + k) / k for k in range(1, 12)], axis=0)
    return 0.7 * _full(tone) + 0.3 * _shaped(rng, n, lambda f: 1 / np.maximum(f, 30))


SOUNDS: dict[str, tuple[float, Callable[[np.random.Generator, int], F64]]] = {  # peak, in dB of full scale
    "silence": (-200.0, lambda rng, n: np.zeros(n)),
    "white noise": (-20.0, lambda rng, n: _shaped(rng, n, np.ones_like)),
    "pink noise": (-14.0, lambda rng, n: _shaped(rng, n, lambda f: 1 / np.sqrt(np.maximum(f, 20)))),
    "hum": (-12.0, _hum),
    "breaths": (-14.0, _breaths),
    "clicks": (-6.0, _clicks),
    "music": (-10.0, _music),
}


def make(name: str, seconds: float) -> I16:
    """The sound as 24 kHz 16-bit samples."""
    peak_db, maker = SOUNDS[name]
    x = maker(np.random.default_rng(SEED), int(seconds * RATE)) * 10 ** (peak_db / 20)
    samples: I16 = np.rint(x * 32767).astype(np.int16)
    return samples


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="bargein bench noise", description=__doc__)
    p.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    p.add_argument("--key", default="")
    p.add_argument("--seconds", type=float, default=60, help="of each sound (default %(default)s)")
    p.add_argument("--over-s", type=float, default=20, help="of each sound over replies (default %(default)s)")
    p.add_argument("--sounds", default=",".join(SOUNDS), help="which (default: all)")
    p.add_argument("--profile", default="balanced", choices=("balanced", "fast", "patient"))
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    return p


def run(argv: list[str]) -> int:
    """Run the calls; 1 where something was heard or answered, or a reply was lost."""
    args = parser().parse_args(argv)
    figures = measured(_run(args), args.json)
    if figures is None:
        return 2
    return 1 if any(x["words"] or x["replies"] or x.get("lost") for x in figures.values()) else 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    names = args.sounds.split(",")
    print(f"{args.seconds:g} s of each:", flush=True)
    found = await asyncio.gather(*(_call(args, name) for name in names))
    for name, x in zip(names, found, strict=True):
        print(f"  {name:12} words {x['words'] or 'none'}, {x['replies']} replies, {x['starts']} false starts", flush=True)
    if args.over_s:
        print("over replies:", flush=True)
        for name, x in zip(names, found, strict=True):
            x |= await _over(args, name)
            print(f"  {name:12} {x['holds']} holds in {x['reply_s']:.0f} s, {x['lost']} replies lost", flush=True)
        minutes = sum(x["reply_s"] for x in found) / 60
        print(f"  false holds a minute: {sum(x['holds'] for x in found) / max(minutes, 1e-9):.1f}")
    return dict(zip(names, found, strict=True))


async def _over(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The sound over one reply after another."""
    async with RealtimeClient(args.url, args.key) as call:
        await call.wait("session.created", 0, 15)
        await call.update(profile=args.profile)
        mic = Microphone(call)
        playing: asyncio.Task[Any] | None = None
        seconds = 0.0
        while playing is None or not playing.done():
            mark = len(call.seen)
            ask = {"input": story(), "max_output_tokens": 90, "temperature": 0}
            await call.send("response.create", response=ask)
            first = await call.wait("response.output_audio.delta", mark, 30)
            if first is None:
                raise ConnectFailed("no reply came")
            playing = playing or asyncio.create_task(mic.play(make(name, args.over_s)))
            done = await call.wait("response.done", mark, 90)
            if done is None:
                raise ConnectFailed("a reply did not end")
            seconds += done.at - first.at
        await mic.stop()
        ends = [s.event["response"]["status"] for s in call.of("response.done")]
        return {
            "holds": len(call.of("output_audio_buffer.paused")),
            "reply_s": round(seconds, 1),
            "lost": sum(status == "cancelled" for status in ends),
        }


async def _call(args: argparse.Namespace, name: str) -> dict[str, Any]:
    async with RealtimeClient(args.url, args.key) as call:
        await call.wait("session.created", 0, 15)
        await call.update(profile=args.profile)
        mic = Microphone(call)
        await mic.play(make(name, args.seconds))
        await asyncio.sleep(3)  # what the end of it may still lead to
        await mic.stop()
        done = call.of("conversation.item.input_audio_transcription.completed")
        return {
            "words": [s.event["transcript"] for s in done if s.event["transcript"].strip()],
            "replies": len(call.of("response.created")),
            "starts": len(call.of("input_audio_buffer.speech_started")),
        }
