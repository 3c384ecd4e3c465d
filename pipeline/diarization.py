"""Who speaks when: speech by voice activity, a vector for every stretch of it, and stretches of one voice together.

Stretches are at most a second and a half, begun every 0.75 s. They are clustered by average cosine similarity, nearest
first, until no two clusters are alike enough, or until there are as many as were asked for. Where stretches overlap,
each moment goes to the one whose middle is nearest; what is left between two turns of one voice is closed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bargein.engine import protocol as p
from bargein.engine.fleet import Engine

from .cutting import RATE
from .oneshot import Use
from .recordings import Tally, windows

F32 = npt.NDArray[np.float32]

LENGTH, STEP = round(1.5 * RATE), round(0.75 * RATE)
SHORTEST = round(0.4 * RATE)
ALIKE = 0.68  # mean cosine similarity above which two clusters are one voice
CLOSE_S = 0.5  # a gap between two turns of one voice that is closed
FEW_S = 2.0  # a cluster with less speech than this is no speaker of its own, where the number is not given
MOST = 3000  # stretches that are clustered; more are joined in pairs first


@dataclass(frozen=True, slots=True)
class SpeakerTurn:
    """One voice's stretch of speech; speakers are named A, B, ... in the order they are heard."""

    start_s: float
    end_s: float
    speaker: str


class Voices:
    """Listens to a recording, then says who spoke when."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stretches: list[tuple[int, int]] = []
        self._vectors: list[F32] = []

    async def listen(self, sound: AsyncGenerator[F32, None]) -> float:
        """Hear a whole recording; its length in seconds. Raises NotAudio, WorkFailed, EngineUnavailable."""
        tally = Tally()
        async with Use(self._engine, "embed") as use, aclosing(windows(self._engine, sound, tally)) as found:
            async for window in found:
                spans = [s for a, b in window.spans for s in stretches(a, b)]
                if spans:
                    vectors: p.Vectors = await use.one(p.Voice(window.sound.tobytes(), tuple(spans)))
                    self._vectors += list(np.frombuffer(vectors.data, "<f4").reshape(vectors.rows, -1))
                    self._stretches += [(window.start + a, window.start + b) for a, b in spans]
        return tally.seconds

    async def turns(self, num_speakers: int | None = None) -> list[SpeakerTurn]:
        """Who spoke when. `num_speakers`: if known."""
        if not self._vectors:
            return []
        vectors = np.stack(self._vectors)
        labels = cluster(vectors, num_speakers)
        if num_speakers is None:
            labels = _without_few(vectors, labels, self._stretches)
        return merged(self._stretches, labels)


def stretches(start: int, end: int) -> list[tuple[int, int]]:
    """Overlapping stretches of one span of speech, in samples; none of a span that is too short for a voice."""
    if end - start < SHORTEST:
        return []
    if end - start <= LENGTH:
        return [(start, end)]
    out = [(a, a + LENGTH) for a in range(start, end - LENGTH + 1, STEP)]
    if out[-1][1] < end - STEP // 3:
        out.append((end - LENGTH, end))
    return out


def cluster(vectors: F32, num: int | None) -> list[int]:
    """A label for each vector [n, D] of unit length: average linkage on cosine similarity."""
    n = len(vectors)
    if n > MOST:
        pairs = vectors[: n // 2 * 2].reshape(n // 2, 2, -1).mean(1)
        pairs /= np.maximum(np.linalg.norm(pairs, axis=1, keepdims=True), 1e-9)
        halves = cluster(pairs, num)
        return [halves[min(i // 2, len(halves) - 1)] for i in range(n)]
    total = (vectors @ vectors.T).astype(np.float64)  # sums of similarities between clusters
    size = np.ones(n)
    label = np.arange(n)
    alive = np.ones(n, np.bool_)
    left = n
    mean = total.copy()
    np.fill_diagonal(mean, -np.inf)
    while left > (num or 1):
        i, j = divmod(int(mean.argmax()), n)
        if num is None and mean[i, j] < ALIKE:
            break
        total[i] += total[j]
        total[:, i] += total[:, j]
        size[i] += size[j]
        label[label == j] = i
        alive[j] = False
        mean[j], mean[:, j] = -np.inf, -np.inf
        row = np.where(alive, total[i] / (size[i] * size), -np.inf)
        row[i] = -np.inf
        mean[i], mean[:, i] = row, row
        left -= 1
    return [int(x) for x in label]


def _without_few(vectors: F32, labels: list[int], spans: list[tuple[int, int]]) -> list[int]:
    """Clusters with hardly any speech go to the likest of the others."""
    seconds: dict[int, float] = {}
    for label, (a, b) in zip(labels, spans, strict=True):
        seconds[label] = seconds.get(label, 0.0) + min(b - a, STEP) / RATE
    kept = [x for x, s in seconds.items() if s >= FEW_S]
    if not kept:
        return [max(seconds, key=lambda x: seconds[x])] * len(labels)
    array = np.asarray(labels)
    centres = np.stack([vectors[array == x].mean(0) for x in kept])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return [x if x in kept else kept[int((centres @ v).argmax())] for x, v in zip(labels, vectors, strict=True)]


def merged(spans: list[tuple[int, int]], labels: list[int]) -> list[SpeakerTurn]:
    """Turns that do not overlap, from stretches that do."""
    names: dict[int, str] = {}
    pieces: list[tuple[float, float, int]] = []
    for i, ((a, b), label) in enumerate(zip(spans, labels, strict=True)):
        start, end = float(a), float(b)
        if i and spans[i - 1][1] > a:
            start = (a + spans[i - 1][1]) / 2
        if i + 1 < len(spans) and spans[i + 1][0] < b:
            end = (spans[i + 1][0] + b) / 2
        if end > start:
            pieces.append((start / RATE, end / RATE, label))
    out: list[SpeakerTurn] = []
    for start, end, label in pieces:
        name = names.setdefault(label, _name(len(names)))
        if out and out[-1].speaker == name and start - out[-1].end_s <= CLOSE_S:
            out[-1] = SpeakerTurn(out[-1].start_s, round(end, 3), name)
        else:
            out.append(SpeakerTurn(round(start, 3), round(end, 3), name))
    return out


def _name(index: int) -> str:
    """A, B, ... Z, AA, ..."""
    name = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        name = chr(65 + rest) + name
    return name
