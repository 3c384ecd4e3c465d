"""The turn lane: is the utterance over? One question, one score."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bargein.kernels import cpu
from bargein.models import smart_turn

from .. import protocol as p
from ..lane import Lane, Steps, Stream


class TurnLane(Lane):
    """Stateless: every question carries its audio."""

    def __init__(self, model: smart_turn.Model, ops: Any = cpu) -> None:
        self._model, self._ops = model, ops

    def start(self, stream: Stream, tag: int, body: p.Body) -> Steps | None:
        if not isinstance(body, p.AskTurn):
            raise ValueError(f"the turn lane takes no {type(body).__name__}")
        return self._answer(stream, tag, body)

    def _answer(self, stream: Stream, tag: int, body: p.AskTurn) -> Steps:
        started = time.monotonic()
        score = yield from smart_turn.predict_steps(self._model, np.frombuffer(body.pcm, np.float32), self._ops)
        stream.send(tag, p.TurnScore(score, 1000 * (time.monotonic() - started)))

    def sample(self) -> None:
        """A second of sound."""
        smart_turn.predict(self._model, np.zeros(16000, np.float32), self._ops)

    def warm(self) -> None:
        smart_turn.predict(self._model, np.zeros(16000, np.float32), self._ops)
