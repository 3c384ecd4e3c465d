"""`bargein call`: speak files (or yourself) to a server, see what happens, keep the reply."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from .audio import RATE, read_wav, write_wav
from .session import ConnectFailed, RealtimeClient, Seen
from .turns import Microphone, Reply, converse

STAGES = (
    ("speech_end", "last voiced sample sent"),
    ("stopped", "speech stop announced"),
    ("committed", "turn committed"),
    ("transcript", "transcript"),
    ("response", "response begun"),
    ("first_token", "first token"),
    ("first_audio", "first audio"),
    ("audible", "first audible sample"),
    ("done", "reply played"),
)


class CallFailed(Exception):
    """The call could not be made; the message is for a person."""


async def call(args: argparse.Namespace) -> None:
    """Place the call that the command line describes. Raises CallFailed."""
    try:
        questions = [read_wav(path) for path in args.wav]
    except (ValueError, OSError) as problem:
        raise CallFailed(problem) from None
    client = RealtimeClient(args.url, args.key, on_event=_Printer())
    try:
        async with client:
            first = await client.wait("session.created", 0, 15)
            if first is None:
                raise CallFailed("the server did not greet the session")
            session: dict[str, Any] = {"profile": args.profile}
            if args.instructions is not None:
                session["instructions"] = args.instructions
            await client.update(**session)
            if args.mic:
                from .mic import talk

                await talk(client)
            else:
                await _ask(client, questions, args)
            await client.send("session.close")
            await client.wait("session.done", 0, 2)
    except ConnectFailed as problem:
        raise CallFailed(problem) from None
    finally:
        if args.trace is not None:
            write_trace(args.trace, client)


async def _ask(client: RealtimeClient, questions: list[Any], args: argparse.Namespace) -> None:
    mic = Microphone(client)
    replies: list[Reply] = []
    for path, question in zip(args.wav, questions, strict=True):
        print(f"\n> {path}")
        reply = await converse(client, mic, question, args.timeout)
        replies.append(reply)
        report(reply)
        if client.closed is not None:
            raise CallFailed(f"the server closed the call: {client.closed}")
    await mic.stop()
    audio = np.concatenate([r.audio for r in replies]) if replies else np.zeros(0, np.int16)
    write_wav(args.out, audio)
    print(f"\nreply: {args.out} ({len(audio) / RATE:.2f} s)")


def report(r: Reply) -> None:
    """The latency breakdown of one turn, each stage against the end of speech and the stage before."""
    print(f"\n  you:   {r.user_text or '(nothing heard)'}\n  reply: {r.text.strip() or '(none)'}  [{r.status}]\n")
    origin = previous = r.times["speech_end"]
    for key, label in STAGES:
        if (at := r.times.get(key)) is not None:
            print(f"  {label:26} {1000 * (at - origin):7.0f} ms   +{1000 * (at - previous):.0f}")
            previous = at
    if r.deltas:
        print(f"  {'gaps in the audio':26} {r.gap_ms:7.0f} ms")


def write_trace(path: Path, client: RealtimeClient) -> None:
    """Every wire event, one JSON object a line, with its time and direction; audio as its length."""
    rows = [(s.at, "server", s.event) for s in client.seen] + [(at, "client", ev) for at, ev in client.sent]
    start = min((r[0] for r in rows), default=time.monotonic())
    with open(path, "w") as file:
        for at, side, event in sorted(rows, key=lambda r: r[0]):
            if event.get("type") == "response.output_audio.delta":
                event = event | {"delta": f"({len(event['delta']) * 3 // 4} bytes)"}
            file.write(json.dumps({"ms": round(1000 * (at - start), 1), "from": side, "event": event}) + "\n")


class _Printer:
    """Events as they come: one line each, audio left out."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, s: Seen) -> None:
        ev = s.event
        match s.type:
            case "response.output_audio.delta":
                return
            case "input_audio_buffer.partial_transcription":
                detail = ev["text"]
            case "response.output_audio_transcript.delta":
                detail = ev["delta"]
            case "error":
                detail = f"{ev['error']['code']}: {ev['error']['message']}"
            case t if t.endswith("transcription.completed"):
                detail = ev["transcript"]
            case "response.done":
                detail = ev["response"]["status"]
            case _:
                detail = ev.get("item_id") or ""
        print(f"  {s.at - self._start:7.3f}  {s.type}  {detail}".rstrip())
