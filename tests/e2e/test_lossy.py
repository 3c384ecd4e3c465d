"""A call over a bad network: words are still heard, time goes on, and the call survives."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bargein.client.audio import RATE, read_wav

from .conftest import DATA, Served
from .lossy import Network
from .peer import Peer
from .test_call import QUESTIONS, word_error
from .test_webrtc import base

SAID = "had he married a more amiable woman he might have been made still more respectable than he was"


@pytest.mark.parametrize(
    ("loss", "jitter_ms", "allowed"), [(0.05, 0, 0.15), (0.2, 0, 0.4), (0.0, 100, 0.25)], ids=["5%", "20%", "100ms"]
)
def test_speech_through_a_bad_network(server: Served, loss: float, jitter_ms: float, allowed: float) -> None:
    async def run() -> str:
        peer = await Peer(base(server)).connect("", {"type": "transcription"})
        assert await peer.wait("session.created", 0, 10)
        network = Network(peer, loss=loss, jitter_ms=jitter_ms)
        pause = np.zeros(RATE, np.int16)
        await peer.mic.play(np.concatenate([pause, read_wav(DATA / "austen-0920.wav"), pause, pause]))
        done = "conversation.item.input_audio_transcription.completed"
        assert await peer.wait(done, 0, 30)
        await asyncio.sleep(1)
        assert loss == 0 or network.num_lost > 5
        await peer.close()
        return " ".join(s.event["transcript"] for s in peer.of(done))

    assert word_error(SAID, asyncio.run(run())) <= allowed


def test_an_outage_of_three_seconds_is_survived(server: Served) -> None:
    async def run() -> None:
        peer = await Peer(base(server)).connect("", {"type": "realtime", "profile": "fast"})
        assert await peer.wait("session.created", 0, 10)
        network = Network(peer)
        await asyncio.sleep(1)
        network.outage = True
        await asyncio.sleep(3)
        network.outage = False
        await asyncio.sleep(1)
        mark = len(peer.seen)
        await peer.mic.play(read_wav(DATA / "questions" / "bees.wav"))
        done = await peer.wait("response.done", mark, 40)
        assert done is not None and done.event["response"]["status"] == "completed"
        heard = [s.event["transcript"] for s in peer.seen if s.type.endswith("transcription.completed")]
        assert word_error(QUESTIONS["bees"], " ".join(heard)) == 0
        await peer.close()

    asyncio.run(run())
