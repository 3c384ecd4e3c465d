"""When words are said, beside a forced alignment by an independent tool (bench/alignments.py wrote its times)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from bargein.models import store, whisper, whisper_window
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
    assert np.median(np.abs([start for start, _ in off])) <= 0.06
    assert np.median(np.abs([end for _, end in off])) <= 0.08
    assert abs(np.median([start for start, _ in off])) <= 0.06, "neither early nor late as a whole"
