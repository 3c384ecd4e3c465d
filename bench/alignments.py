"""When is each word said? This project's word times beside a forced alignment by CMU PocketSphinx.

    python bench/alignments.py    # an environment with the project's packages and `pip install pocketsphinx==5.1.1`

Both get the five Austen clips and what is said in them. PocketSphinx (its packaged US English model) places words by
phones on a 10 ms grid; ours come from the cross-attention of Whisper base (models/whisper_align.py), with the text found
by itself and with the text given. Prints the median and the 90th percentile of the difference of starts and of ends.
`--write FILE` keeps PocketSphinx's times as JSON: tests/models/golden/word-times.json is that.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ns"))

from bargein.models import store, whisper, whisper_window  # noqa: E402
from bargein.models.bench_words import Clip, clips  # noqa: E402

Times = list[tuple[str, float, float]]


def plain(word: str) -> str:
    """A word as both write it."""
    return re.sub(r"[^a-z']", "", word.lower())


def sphinx(clip: Clip) -> Times:
    """Words with start and end in seconds, by PocketSphinx."""
    from pocketsphinx import Decoder

    decoder = Decoder(samprate=16000, loglevel="FATAL", bestpath=False, beam=1e-80, wbeam=1e-60, pbeam=1e-80)
    decoder.set_align_text(" ".join(plain(w) for w in clip.words.split()))
    decoder.start_utt()
    decoder.process_raw(np.rint(np.clip(clip.sound, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
    decoder.end_utt()
    rate = 100
    found = [(s.word.split("(")[0], s.start_frame / rate, (s.end_frame + 1) / rate) for s in decoder.seg()]
    return [x for x in found if not x[0].startswith("<") and plain(x[0])]


def ours(model: whisper.Model, clip: Clip, text: str) -> Times:
    """The same by this project; `text` "": find out what is said."""
    steps = whisper_window.window_steps(model, clip.sound, whisper_window.Ask("en", "transcribe", "", 0.0, True, text))
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return [(plain(w.text), w.start_s, w.end_s) for w in stop.value.words]


def matched(a: Times, b: Times) -> list[tuple[float, float]]:
    """Differences of start and end of the words that both have, in order, in ms."""
    out = []
    matcher = difflib.SequenceMatcher(None, [w for w, *_ in a], [w for w, *_ in b], autojunk=False)
    for i, j, n in matcher.get_matching_blocks():
        out += [(1000 * (a[i + k][1] - b[j + k][1]), 1000 * (a[i + k][2] - b[j + k][2])) for k in range(n)]
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    model = whisper.load(store.path("whisper-base"))
    austen = [c for c in clips() if c.name.startswith("austen")]
    wanted = {c.name: sphinx(c) for c in austen}
    if args.write is not None:
        args.write.write_text(json.dumps(wanted, indent=1) + "\n")
    for name, given in (("text found", False), ("text given", True)):
        pairs = [pair for c in austen for pair in matched(ours(model, c, c.words if given else ""), wanted[c.name])]
        starts, ends = (np.abs([p[k] for p in pairs]) for k in (0, 1))
        told = " and ".join(
            f"{what} differ by {np.median(x):.0f} ms (90 %: {np.quantile(x, 0.9):.0f})"
            for what, x in (("starts", starts), ("ends", ends))
        )
        print(f"{name}: {len(pairs)} words; {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
