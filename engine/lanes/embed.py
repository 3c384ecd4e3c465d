"""The embed lane: vectors of texts and of voices. One text, or one window of a voice's batch, is a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from bargein.kernels import cpu
from bargein.models import ge2e, minilm

from .. import protocol as p
from ..lane import Lane, Steps, Stream

VOICE_BATCH = 8  # windows of 1.6 s at once


class EmbedLane(Lane):
    """Stateless."""

    def __init__(self, texts: minilm.Model, voices: ge2e.Model, ops: Any = cpu) -> None:
        self._texts, self._voices, self._ops = texts, voices, ops

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        if isinstance(body, p.Embed):
            read = [minilm.encode(self._texts, text) for text in body.inputs]
            return self._embed(stream, tag, [ids for ids, _ in read], tuple(count for _, count in read))
        if isinstance(body, p.Voice):
            return self._voice(stream, tag, body)
        raise ValueError(f"the embed lane takes no {type(body).__name__}")

    def _embed(self, stream: Stream, tag: int, texts: list[list[int]], counts: tuple[int, ...]) -> Steps:
        rows = []
        for ids in texts:
            rows.append(minilm.embed(self._texts, ids, self._ops))
            yield None
        stream.send(tag, p.Vectors(np.stack(rows).astype("<f4").tobytes(), len(rows), counts))

    def _voice(self, stream: Stream, tag: int, body: p.Voice) -> Steps:
        audio = np.frombuffer(body.pcm, np.float32)
        rows = []
        for start, end in body.stretches:
            windows = ge2e.windows(ge2e.mel(self._voices, audio[start:end]))
            yield None
            parts = []
            for at in range(0, len(windows), VOICE_BATCH):
                parts.append(ge2e.embed(self._voices, windows[at : at + VOICE_BATCH], self._ops))
                yield None
            mean = np.concatenate(parts).mean(0)
            rows.append(mean / max(float(np.linalg.norm(mean)), 1e-9))
        data = np.stack(rows).astype("<f4").tobytes() if rows else b""
        stream.send(tag, p.Vectors(data, len(rows)))

    def warm(self) -> None:
        minilm.embed(self._texts, minilm.encode(self._texts, "Hello there.")[0], self._ops)
        ge2e.voice(self._voices, np.zeros(ge2e.SAMPLE_RATE, np.float32), self._ops)
