"""What WebRTC adds to a call, and what a bad network does to it. Needs a running server; run it from the repository:

    python bench/webrtc.py delay [--url http://127.0.0.1:8000] [--turns 12]    # voice to voice beside a WebSocket call
    python bench/webrtc.py loss [--url …]                                      # words and delay at 0 and 5 % loss, bursts

The peers are the tests' own: aiortc's client with its stock receiver, and with this project's jitter buffer at both
ends. `delay` takes turns between the three, question by question, in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".ns")]

from bargein.client.audio import RATE, read_wav  # noqa: E402
from bargein.client.session import RealtimeClient  # noqa: E402
from bargein.client.turns import Microphone, converse  # noqa: E402
from bargein.models.bench_words import clips, normal_words, word_errors  # noqa: E402
from tests.e2e.lossy import Network  # noqa: E402
from tests.e2e.peer import Peer  # noqa: E402

DONE = "conversation.item.input_audio_transcription.completed"


async def _over_websocket(url: str, question: np.ndarray) -> float | None:
    async with RealtimeClient(url.replace("http", "ws", 1) + "/v1/realtime") as call:
        await call.wait("session.created", 0, 15)
        await call.update(profile="fast")
        mic = Microphone(call)
        reply = await converse(call, mic, question, 40)
        await mic.stop()
    return 1000 * (reply.times["audible"] - reply.times["speech_end"]) if "audible" in reply.times else None


async def _over_webrtc(url: str, question: np.ndarray, stock: bool, lost: float = 0.0) -> float | None:
    peer = await Peer(url, stock=stock).connect("?events=extended", {"type": "realtime", "profile": "fast"})
    Network(peer, loss=lost)
    try:
        await peer.wait("session.created", 0, 15)
        await asyncio.sleep(0.5)
        _, end = await peer.mic.play(question)
        if await peer.wait("response.done", 0, 40) is None:
            return None
        await asyncio.sleep(0.5)
        heard = peer.audible_after(end)
        return None if heard is None else 1000 * (heard - end)
    finally:
        await peer.close()


async def delay(url: str, turns: int) -> None:
    """Voice to voice over the three ways, one after the other for each question."""
    wavs = sorted((ROOT / "tests/data/questions").glob("*.wav"))
    found: dict[str, list[float]] = {"websocket": [], "webrtc, our jitter buffer": [], "webrtc, stock aiortc": []}
    for n in range(turns):
        question = read_wav(wavs[n % len(wavs)])
        values = (
            await _over_websocket(url, question), await _over_webrtc(url, question, False),
            await _over_webrtc(url, question, True),
        )  # fmt: skip
        for name, value in zip(found, values, strict=True):
            if value is not None:
                found[name].append(value)
        print(wavs[n % len(wavs)].stem, *("-" if v is None else f"{v:.0f}" for v in values), flush=True)
    plain = found["websocket"]
    for name, got in found.items():
        added = [b - a for a, b in zip(plain, got, strict=False)]
        print(f"{name:28} median {statistics.median(got):5.0f} ms, over the websocket by {statistics.median(added):4.0f} "
              f"(median of pairs), n {len(got)}")  # fmt: skip


async def _heard(url: str, audio: np.ndarray, loss: float, jitter_ms: int = 0) -> tuple[str, Network]:
    peer = await Peer(url).connect("", {"type": "transcription"})
    await peer.wait("session.created", 0, 10)
    network = Network(peer, loss=loss, jitter_ms=jitter_ms)
    pause = np.zeros(RATE, np.int16)
    await peer.mic.play(np.concatenate([pause, audio, pause, pause]))
    await peer.wait(DONE, 0, 30)
    await asyncio.sleep(1)
    await peer.close()
    return " ".join(s.event["transcript"] for s in peer.of(DONE)), network


async def loss(url: str) -> None:
    """Word errors over the Austen clips, clean and through bad networks."""
    austen = [c for c in clips() if c.name.startswith("austen")]
    for name, share, jitter_ms in (
        ("clean", 0.0, 0),
        ("5 % lost", 0.05, 0),
        ("20 % lost", 0.2, 0),
        ("100 ms jitter", 0.0, 100),
    ):
        wrong = words = lost = 0
        for clip in austen:
            text, network = await _heard(url, read_wav(ROOT / "tests/data" / clip.name), share, jitter_ms)
            said = normal_words(clip.words)
            wrong, words, lost = wrong + word_errors(said, normal_words(text)), words + len(said), lost + network.num_lost
        print(f"{name:14} {wrong} of {words} words wrong ({100 * wrong / words:.1f} %), {lost} packets lost", flush=True)


async def added(url: str, turns: int) -> None:
    """Voice to voice with 5 % of all packets lost, both ways, beside none lost; then as soon as that is over."""
    wavs = sorted((ROOT / "tests/data/questions").glob("*.wav"))
    pairs = []
    for n in range(turns):
        question = read_wav(wavs[n % len(wavs)])
        clean, bad = await _over_webrtc(url, question, False), await _over_webrtc(url, question, False, 0.05)
        if clean is not None and bad is not None:
            pairs.append(bad - clean)
    print(f"5 % lost both ways: voice to voice later by {statistics.median(pairs):.0f} ms (median of {len(pairs)} pairs)")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("delay", "loss"))
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--turns", type=int, default=12)
    args = parser.parse_args()
    started = time.monotonic()
    if args.what == "delay":
        asyncio.run(delay(args.url, args.turns))
    else:
        asyncio.run(loss(args.url))
        asyncio.run(added(args.url, args.turns))
    print(f"({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
