"""When a reply begins to sound: at once where the mouth is quick, with more in hand where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import numpy as np
import pytest

from bargein.engine import protocol as p
from bargein.pipeline.channel import Channel, Epochs
from bargein.pipeline.messages import PhraseToSay, SpokenAudio
from bargein.pipeline.nodes.speech import Mouth, SpeechFailure, tts_node
from bargein.pipeline.speakable import Speaker
from bargein.realtime.ids import Epoch

EPOCH = Epoch(3)


class Slow:
    """A mouth whose chunks take and last so many ms; None: it fails."""

    def __init__(self, *phrases: list[tuple[int, int] | None]) -> None:
        self.now = 1000.0
        self._phrases = list(phrases)

    async def say(self, words: tuple[str, ...], speed: float, due_ms: float) -> AsyncGenerator[p.Speech, None]:
        for chunk in self._phrases.pop(0):
            if chunk is None:
                raise SpeechFailure("hoarse")
            took, lasts = chunk
            self.now += took
            yield p.Speech(np.zeros(24 * lasts, np.float32).tobytes(), (), False)
        yield p.Speech(b"", ((0, 1),) * len(words), True)


class Player:
    """Notes when sound comes, in ms since the reply was asked for, and how many ms of it."""

    def __init__(self, mouth: Slow) -> None:
        self.mouth, self.got, self.ended = mouth, list[tuple[float, int]](), asyncio.Event()

    async def send(self, piece: SpokenAudio) -> None:
        if piece.last:
            self.ended.set()
        else:
            self.got.append((self.mouth.now - 1000, len(piece.pcm) // 24))


def played(*phrases: list[tuple[int, int] | None]) -> list[tuple[float, int]]:
    async def run() -> list[tuple[float, int]]:
        mouth, epochs = Slow(*phrases), Epochs()
        epochs.admit(EPOCH)
        player = Player(mouth)
        inp: Channel[PhraseToSay] = Channel("phrases", 99, "block", epochs)
        out = cast("Channel[SpokenAudio]", player)
        node = asyncio.create_task(
            tts_node(inp, out, cast(Mouth, mouth), epochs, lambda told: None, lambda: mouth.now, lambda: 0)
        )
        speaker = Speaker()
        [phrase] = [*speaker.feed("One two three."), *speaker.finish()]
        for _ in phrases:
            await inp.send(PhraseToSay(EPOCH, phrase, False, 1.0))
        await inp.send(PhraseToSay(EPOCH, None, True, 1.0))
        await asyncio.wait_for(player.ended.wait(), 5)
        node.cancel()
        return player.got

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("phrases", "begins", "lasts"),
    [
        ([[(30, 145), (10, 600)]], 30, 745),  # quick: the first piece is played as it comes
        ([[(400, 145), (300, 600), (300, 800)]], 700, 1545),  # the second piece outlasts what it took
        ([[(400, 145), (300, 100), (300, 200)]], 1000, 445),
        ([[(400, 145)]], 400, 145),  # all there is
        ([[(400, 145), None], [(900, 300)]], 400, 445),  # what was made is said
        ([[None], [(900, 300)]], 900, 300),
        ([[(30, 145)], [(900, 300), (10, 300)]], 30, 745),  # what comes later is not held
    ],
)
def test_a_reply_begins_with_enough_in_hand(phrases: Any, begins: int, lasts: int) -> None:
    pieces = played(*phrases)
    assert pieces[0][0] == begins and sum(ms for _, ms in pieces) == lasts
