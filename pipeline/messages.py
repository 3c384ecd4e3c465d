"""What travels along the graph's edges. Everything carries its epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bargein.realtime.ids import Epoch

from .speakable import Phrase


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More text of a reply; `last`: and that was all of it."""

    epoch: Epoch
    text: str
    last: bool
    speed: float


@dataclass(frozen=True, slots=True)
class PhraseToSay:
    """A phrase for the mouth; None with `last`: nothing follows."""

    epoch: Epoch
    phrase: Phrase | None
    last: bool
    speed: float


@dataclass(frozen=True, slots=True)
class SpokenAudio:
    """24 kHz float32; `last`: the reply ends with it."""

    epoch: Epoch
    pcm: npt.NDArray[np.float32]
    last: bool
