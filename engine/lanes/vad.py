"""The vad lane: every session's next 32 ms window in one batched call. Runs on its own thread, with its own slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bargein.kernels import cpu
from bargein.kernels.cpu import VadWeights
from bargein.models import silero

from .. import protocol as p
from ..lane import Stream

F32 = npt.NDArray[np.float32]

WINDOW = 512
MAX_BATCH = 64


@dataclass(slots=True)
class _Session:
    state: silero.State
    pending: list[F32] = field(default_factory=list)
    num_pending: int = 0
    position: int = 0  # samples consumed
    tag: int = 0
    at: float = 0.0  # when the last of it came


class VadLane:
    """State per stream: the recurrent state, one row, and audio that is not a whole window yet."""

    def __init__(self, weights: VadWeights, ops: Any = cpu) -> None:
        self._weights, self._ops = weights, ops
        self._active: dict[int, tuple[Stream, _Session]] = {}

    def open(self, stream: Stream) -> None:
        stream.state = _Session(silero.init_state(1))

    def close(self, stream: Stream) -> None:
        self._active.pop(id(stream), None)

    def feed(self, stream: Stream, tag: int, pcm: bytes, at: float) -> None:
        """Queue audio of a stream that came at this time (seconds, monotonic)."""
        session: _Session = stream.state
        x = np.frombuffer(pcm, np.float32)
        session.pending.append(x)
        session.num_pending += len(x)
        session.tag, session.at = tag, at
        if session.num_pending >= WINDOW:
            self._active[id(stream)] = (stream, session)

    def run_batch(self) -> list[float]:
        """One window of every stream that has one -> when the sound of each had come; empty where none has."""
        batch = list(self._active.values())[:MAX_BATCH]
        if not batch:
            return []
        x = np.stack([_take(s) for _, s in batch])
        state = silero.State(*(np.concatenate(parts) for parts in zip(*(s.state for _, s in batch), strict=True)))
        prob, after = silero.step(self._weights, state, x, self._ops)
        power = np.mean(x * x, axis=1)
        level = 10 * np.log10(np.maximum(power, 1e-12))
        for row, (stream, session) in enumerate(batch):
            session.state = silero.State(*(part[row : row + 1] for part in after))
            session.position += WINDOW
            if session.num_pending < WINDOW:
                self._active.pop(id(stream), None)
            stream.send(session.tag, p.Windows(session.position, (float(prob[row]),), (float(level[row]),)))
        return [session.at for _, session in batch]

    def warm(self) -> None:
        for n in (1, 2):
            silero.step(self._weights, silero.init_state(n), np.zeros((n, WINDOW), np.float32), self._ops)


def _take(s: _Session) -> F32:
    """The session's next window."""
    joined = s.pending[0] if len(s.pending) == 1 else np.concatenate(s.pending)
    rest = joined[WINDOW:]
    s.pending = [rest] if len(rest) else []
    s.num_pending = len(rest)
    return joined[:WINDOW]
