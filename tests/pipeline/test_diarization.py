"""Clusters of known vectors, and turns of overlapping stretches."""

from __future__ import annotations

import itertools

import numpy as np

from bargein.pipeline.cutting import RATE
from bargein.pipeline.diarization import LENGTH, STEP, SpeakerTurn, cluster, merged, stretches


def voices(order: str, noise: float = 0.02) -> np.ndarray:
    """A vector near its speaker's own axis for each letter."""
    random = np.random.default_rng(0)
    x = np.eye(26, 64)[[ord(c) - 65 for c in order]] + 0.3 + random.normal(0, noise, (len(order), 64))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def groups(labels: list[int]) -> str:
    names: dict[int, str] = {}
    return "".join(names.setdefault(x, chr(65 + len(names))) for x in labels)


def test_the_number_of_speakers_is_found_or_given() -> None:
    x = np.eye(4, 8, dtype=np.float32)[[0, 0, 1, 1, 0, 2, 2]]
    assert groups(cluster(x, None)) == "AABBACC"
    assert len(set(cluster(x, 2))) == 2
    assert len(set(cluster(voices("ABAB"), 1))) == 1


def test_many_stretches_are_clustered_in_pairs() -> None:
    x = np.repeat(np.eye(2, 8, dtype=np.float32), 1600, axis=0)
    assert groups(cluster(x, None)) == "A" * 1600 + "B" * 1600


def test_stretches_cover_their_span() -> None:
    assert stretches(0, RATE // 10) == []
    assert stretches(5, 5 + RATE) == [(5, 5 + RATE)]
    parts = stretches(0, 5 * RATE)
    assert parts[0] == (0, LENGTH) and parts[-1][1] == 5 * RATE
    assert all(b[0] - a[0] <= STEP for a, b in itertools.pairwise(parts))


def test_turns_do_not_overlap_and_meet_in_the_middle() -> None:
    spans = [(0, LENGTH), (STEP, STEP + LENGTH), (2 * STEP, 2 * STEP + LENGTH)]
    turns = merged(spans, [5, 5, 9])
    assert turns == [SpeakerTurn(0.0, 1.875, "A"), SpeakerTurn(1.875, 3.0, "B")]
