"""When words are said, beside the truth of synthesizers and forced alignments by an independent tool (PocketSphinx)."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bargein.models import hibari, store, whisper, whisper_phones, whisper_window
from bargein.models.bench_words import clips, read_wav

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden" / "word-times.json").read_text())
SAID = HERE.parent / "data" / "words"

voice = cache(lambda: hibari.load(store.path("hibari-heart")))
model = cache(lambda name="whisper-base": whisper.load(store.path(name)))


def reader(name: str = "whisper-base") -> whisper_phones.Reader:
    found = whisper_phones.reader(name, model(name).cfg.width, voice().pronouncer)
    assert found is not None
    return found


def bare(word: str) -> str:
    return re.sub("[^a-z']", "", word.lower())


def placed(sound: np.ndarray, text: str, by: whisper_phones.Reader | None, name: str = "whisper-base", **more: str) -> list:
    """The words that a window is told to hold."""
    ask = whisper_window.Ask(more.get("language", "en"), words=True, text=text)
    steps = whisper_window.window_steps(model(name), sound, ask, reader=by)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return list(stop.value.words)


def within(off: list[tuple[float | None, float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Distances of starts and of ends, those that are known."""
    starts, ends = (np.array([x for x in side if x is not None]) for side in zip(*off, strict=True))
    return starts, ends


@pytest.mark.parametrize("name", ["whisper-base", "whisper-tiny-en"])
def test_words_are_where_a_synthesizer_put_them(name: str) -> None:
    off: list[tuple[float | None, float | None]] = []
    for clip in json.loads((SAID / "times.json").read_text()):
        text = " ".join(w for w, *_ in clip["words"])
        found = placed(read_wav(SAID / clip["file"]), text, reader(name), name)
        assert [w.text for w in found] == text.split()
        assert all(a.start_s < a.end_s <= b.start_s for a, b in itertools.pairwise(found))
        for w, (_, start, end) in zip(found, clip["words"], strict=True):
            off.append((None if start is None else w.start_s - start, None if end is None else w.end_s - end))
    assert len(off) == 84
    for x in within(off):
        assert np.mean(np.abs(x) <= 0.08) >= 0.95 and np.median(np.abs(x)) <= 0.02 and abs(np.median(x)) <= 0.01


@pytest.mark.parametrize("how,share", [("sounds", 0.95), ("attention", 0.75)])
def test_words_that_people_say(how: str, share: float) -> None:
    """Beside PocketSphinx; by attention, as other languages' words are found, less exactly."""
    off: list[tuple[float | None, float | None]] = []
    for clip in (c for c in clips() if c.name in GOLDEN):
        found = [w for w in placed(clip.sound, clip.words, reader() if how == "sounds" else None) if bare(w.text)]
        assert [bare(w.text) for w in found] == [word for word, *_ in GOLDEN[clip.name]]
        off += [(w.start_s - start, w.end_s - end) for w, (_, start, end) in zip(found, GOLDEN[clip.name], strict=True)]
    assert len(off) == 70
    for x in within(off):
        assert np.mean(np.abs(x) <= 0.08) >= share and np.median(np.abs(x)) <= 0.05
        assert abs(np.median(x)) <= 0.03, "neither early nor late as a whole"


def test_what_is_not_said_has_no_length_and_what_cannot_be_placed_is_left_to_attention() -> None:
    sound = next(c.sound for c in clips() if c.name == "austen-0880.wav")
    found = placed(sound, "He was — not an ill-disposed, young man! 😀", reader())
    assert [w.text for w in found] == ["He", "was", "—", "not", "an", "ill-disposed,", "young", "man!", "😀"]
    assert [w.start_s == w.end_s for w in found] == [False, False, True, False, False, False, False, False, True]
    assert whisper_phones.words(reader(), np.zeros((150, 512), np.float32), "... —", 3.0) == []
    assert whisper_phones.words(reader(), np.zeros((5, 512), np.float32), "far more than that", 0.1) == []
    assert [w.text for w in placed(sound[:1600], "far more than that", reader())] == ["far", "more", "than", "that"]
    other = placed(sound, "He was not an ill disposed young man", reader(), language="de")
    assert other == placed(sound, "He was not an ill disposed young man", None, language="de"), "no dictionary of German"
    assert {type(t) for w in found + other for t in w[1:]} == {float}, "as they go over the wire"


def test_words_of_a_reply_are_told_where_they_are_heard() -> None:
    """The voice's own word times beside PocketSphinx's, which were made from the audio of these very sentences."""
    off: list[tuple[float | None, float | None]] = []
    for text, wanted in json.loads((HERE / "golden" / "spoken-word-times.json").read_text()).items():
        words = hibari.synthesize(voice(), text).words
        assert [bare(w.text) for w in words] == [word for word, *_ in wanted]
        off += [(w.start_s - start, w.end_s - end) for w, (_, start, end) in zip(words, wanted, strict=True)]
    assert len(off) == 66
    for x in within(off):
        assert np.mean(np.abs(x) <= 0.08) >= 0.95 and abs(np.median(x)) <= 0.01, "neither early nor late as a whole"
