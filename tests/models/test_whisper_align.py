"""When words are said, beside forced alignments by an independent tool (PocketSphinx, as in bench/alignments.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from bargein.models import hibari, store, whisper, whisper_window
from bargein.models.bench_words import clips

GOLDEN = json.loads((Path(__file__).parent / "golden" / "word-times.json").read_text())


def test_words_begin_and_end_where_they_are_said() -> None:
    model = whisper.load(store.path("whisper-base"))
    off: list[tuple[float, float]] = []
    for clip in (c for c in clips() if c.name in GOLDEN):
        ask = whisper_window.Ask("en", "transcribe", "", 0.0, True, clip.words)
        steps = whisper_window.window_steps(model, clip.sound, ask)
        found = []
        try:
            while True:
                next(steps)
        except StopIteration as stop:
            found = [w for w in stop.value.words if re.search("[A-Za-z]", w.text)]
        wanted = GOLDEN[clip.name]
        assert [re.sub("[^a-z']", "", w.text.lower()) for w in found] == [word for word, *_ in wanted]
        off += [(w.start_s - start, w.end_s - end) for w, (_, start, end) in zip(found, wanted, strict=True)]
    assert len(off) == 70
    starts, ends = np.array(off).T
    assert np.median(np.abs(starts)) <= 0.05 and np.median(np.abs(ends)) <= 0.05
    assert np.mean(np.abs(starts) <= 0.08) >= 0.75 and np.mean(np.abs(ends) <= 0.08) >= 0.75
    assert abs(np.median(starts)) <= 0.03, "neither early nor late as a whole"


def test_words_of_a_reply_are_told_where_they_are_heard() -> None:
    """The voice's own word times beside the same tool's, which were made from the audio of these very sentences."""
    voice = hibari.load(store.path("hibari-heart"))
    off: list[tuple[float, float]] = []
    for text, wanted in json.loads((Path(__file__).parent / "golden" / "spoken-word-times.json").read_text()).items():
        words = hibari.synthesize(voice, text).words
        assert [re.sub("[^a-z']", "", w.text.lower()) for w in words] == [word for word, *_ in wanted]
        off += [(w.start_s - start, w.end_s - end) for w, (_, start, end) in zip(words, wanted, strict=True)]
    starts, ends = np.array(off).T
    assert len(off) == 66
    assert np.mean(np.abs(starts) <= 0.08) >= 0.9 and np.mean(np.abs(ends) <= 0.08) >= 0.9
