"""When is each word said? This project's word times beside those of who knows, and beside CMU PocketSphinx's.

    python bench/alignments.py    # an environment with the project's packages and `pip install pocketsphinx==5.1.1`

Truth are the times that synthesizers told of the sets `tuning` and `test` of make_words.py. Three get a clip and what is
said in it: this project by sounds (models/whisper_phones.py) and by the cross-attention of Whisper base
(models/whisper_align.py), and PocketSphinx (its packaged US English model, phones on a 10 ms grid). The five Austen clips,
read by a person, have no truth: there PocketSphinx's times are what ours are held against, with the text given and found.
Prints the median distance of starts and ends, their bias, and the share within 80 ms.
`--write FILE` keeps PocketSphinx's times as JSON: tests/models/golden/word-times.json is that.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ns"))

from bargein.models import hibari, store, whisper, whisper_phones, whisper_window  # noqa: E402
from bargein.models.bench_words import Clip, clips, normal_words, read_wav  # noqa: E402

Times = list[tuple[str, float, float]]


def plain(word: str) -> str:
    """A word as both write it."""
    return re.sub(r"[^a-z']", "", word.lower())


def sphinx(clip: Clip) -> Times:
    """Words with start and end in seconds, by PocketSphinx; what it cannot place: nothing."""
    from pocketsphinx import Decoder

    decoder = Decoder(samprate=16000, loglevel="FATAL", bestpath=False, beam=1e-80, wbeam=1e-60, pbeam=1e-80)
    said = [(plain(w) or w, normal_words(w)) for w in clip.words.split()]
    decoder.set_align_text(" ".join(part for _, parts in said for part in parts))
    decoder.start_utt()
    decoder.process_raw(np.rint(np.clip(clip.sound, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    rate = 100
    found = [(s.word, s.start_frame / rate, (s.end_frame + 1) / rate) for s in decoder.seg() or []]
    found = [x for x in found if not x[0].startswith(("<", "["))]
    if len(found) != sum(len(parts) for _, parts in said):
        return []
    out = []
    for word, parts in said:
        mine, found = found[: len(parts)], found[len(parts) :]
        out.append((word, mine[0][1], mine[-1][2]))
    return out


def ours(model: whisper.Model, reader: whisper_phones.Reader | None, clip: Clip, text: str) -> Times:
    """The same by this project, by sounds or (no reader) by attention; `text` "": find out what is said."""
    steps = whisper_window.window_steps(model, clip.sound, whisper_window.Ask("en", words=True, text=text), reader=reader)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return [(plain(w.text) or w.text, w.start_s, w.end_s) for w in stop.value.words]


def matched(a: Times, b: Sequence[Sequence[Any]]) -> list[tuple[float | None, float | None]]:
    """Differences of start and end of the words that both have, in order, in ms; None where `b` does not tell."""
    out = []
    matcher = difflib.SequenceMatcher(None, [w for w, *_ in a], [w for w, *_ in b], autojunk=False)
    for i, j, n in matcher.get_matching_blocks():
        for k in range(n):
            got, wanted = a[i + k][1:], b[j + k][1:]
            start, end = (None if t is None else 1000 * (g - t) for g, t in zip(got, wanted, strict=True))
            out.append((start, end))
    return out


def told(pairs: list[tuple[float | None, float | None]]) -> str:
    """How far starts and ends are off."""
    parts = []
    for what, side in zip(("starts", "ends"), zip(*pairs, strict=True), strict=True):
        x = np.array([t for t in side if t is not None])
        near = 100 * np.mean(np.abs(x) <= 80)
        parts.append(f"{what} {np.median(np.abs(x)):.0f} ms off (bias {np.median(x):+.0f}), {near:.1f} % within 80")
    return f"{len(pairs)} words; " + "; ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--sets", nargs="*", default=["tuning", "test"])
    args = parser.parse_args()
    model = whisper.load(store.path("whisper-base"))
    reader = whisper_phones.reader("whisper-base", model.cfg.width, hibari.load(store.path("hibari-heart")).pronouncer)
    ways: dict[str, Callable[[Clip], Times]] = {
        "by sounds": lambda c: ours(model, reader, c, c.words), "by attention": lambda c: ours(model, None, c, c.words),
        "PocketSphinx": sphinx,
    }  # fmt: skip
    folder = store.home() / "bench" / "words"
    made = json.loads((folder / "manifest.json").read_text()) if (folder / "manifest.json").is_file() else []
    for name in args.sets if made else ():
        chosen = [x for x in made if x["set"] == name]
        for way, place in ways.items():
            pairs, started = [], time.process_time()
            for x in chosen:
                clip = Clip(x["file"], name, " ".join(w for w, *_ in x["words"]), read_wav(folder / x["file"]))
                pairs += matched(place(clip), [(plain(w) or w, *times) for w, *times in x["words"]])
            print(f"{name}, {way}: {told(pairs)}; {time.process_time() - started:.0f} s of CPU")
    austen = [c for c in clips() if c.name.startswith("austen")]
    wanted = {c.name: sphinx(c) for c in austen}
    if args.write is not None:
        args.write.write_text(json.dumps(wanted, indent=1) + "\n")
    for way, by in (("by sounds", reader), ("by attention", None)):
        for how in ("found", "given"):
            pairs = [p for c in austen for p in matched(ours(model, by, c, c.words if how == "given" else ""), wanted[c.name])]
            print(f"Austen beside PocketSphinx, {way}, text {how}: {told(pairs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
