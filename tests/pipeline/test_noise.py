"""`noise_reduction`: the suppressor that stands before VAD and STT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bargein.client.audio import read_wav
from bargein.pipeline.audio import NoiseReducer

SPEECH = Path(__file__).parent.parent / "data" / "questions" / "bees.wav"


def level(x: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(x.astype(np.float64) ** 2)))


@pytest.mark.parametrize("kind", ["near_field", "far_field"])
def test_noise_goes_and_speech_stays(kind: str) -> None:
    rng = np.random.default_rng(0)
    speech = read_wav(SPEECH, 16000).astype(np.float32) / 32768
    noise = rng.normal(0, 0.02, 64000).astype(np.float32)
    reducer = NoiseReducer(kind)
    out = reducer.process(np.concatenate([noise, speech + noise[: len(speech)]]))
    assert level(out[32000:64000]) < level(noise) - 5
    assert level(out[64000:]) == pytest.approx(level(speech), abs=3)


def test_chunks_of_any_size_make_the_same_sound() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 0.05, 16000).astype(np.float32)
    whole = NoiseReducer("near_field").process(x)
    reducer = NoiseReducer("near_field")
    parts = np.concatenate([reducer.process(p) for p in np.split(x, np.sort(rng.integers(0, len(x), 60)))])
    assert len(whole) == 16000 and np.array_equal(parts, whole)
