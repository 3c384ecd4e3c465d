"""Fits the layers that read phonemes from Whisper's encoder (models/whisper_phones.py), on the set `fit` of make_words.py.

    python bench/fit_phones.py    # writes models/phones/*.safetensors

Where words begin and end is known; which of their phonemes is where inside them is found while fitting: at first each
has an equal share, then what the layer fitted so far finds likeliest. Softmax regression, Adam.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ns"))

from bargein.models import g2p, hibari, store, whisper, whisper_phones  # noqa: E402
from bargein.models.bench_words import read_wav  # noqa: E402
from bargein.models.whisper_phones import Phones  # noqa: E402

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

PASSES, EPOCHS, BATCH, RATE, DECAY = 5, 6, 1024, 2e-3, 1e-4
STRESS = "ˈˌː"  # as the voice's phonemes mark it: no sounds of their own


class Clip(NamedTuple):
    """Encoded sound [T, width], the phonemes of stretches of words, and the positions where each begins and ends."""

    encoded: F32
    stretches: list[tuple[str, int, int]]


def encoded(m: whisper.Model, sound: F32) -> F32:
    """As a window of a recording is encoded."""
    frames = int(np.ceil(max(4.0, len(sound) / 16000 + 1.5) * 50)) * 2
    x = whisper.encode(m, whisper.log_mel(sound, min(frames, 3000), m.cfg.mels))
    return x[: int(np.ceil(len(sound) / 320))]


def stretches(phonemes: list[str], times: list[tuple[float | None, float | None]]) -> list[tuple[str, int, int]]:
    """Words, those together whose common boundary is not known."""
    out: list[tuple[str, int, int]] = []
    open_, start = "", None
    for phones, (first, last) in zip(phonemes, times, strict=True):
        start = first if start is None and not open_ else start
        open_ += phones
        if last is not None and start is not None:
            out.append((open_, round(start * 50), round(last * 50)))
        if last is not None:
            open_, start = "", None
    return [x for x in out if x[0]]


def labelled(clip: Clip, p: Phones | None, alphabet: str) -> I64:
    """The class of each position; -1: not to be learnt from."""
    labels = np.zeros(len(clip.encoded), np.int64)
    scores = None if p is None else whisper_phones.scores(p, clip.encoded)
    for phones, start, end in clip.stretches:
        states = np.array([alphabet.index(c) + 1 for c in phones])
        room = labels[start:end]
        if len(room) < len(states):
            room[:] = -1
        elif scores is None:
            room[:] = states[np.arange(len(room)) * len(states) // len(room)]
        else:
            entered = whisper_phones.path(np.ascontiguousarray(scores[start:end]), states, np.float32(0))
            room[:] = states[np.searchsorted(entered, np.arange(len(room)), "right") - 1]
    return labels


def fit(x: F32, y: I64, num: int, rng: np.random.Generator, p: Phones | None, alphabet: str) -> Phones:
    """Softmax regression of classes y [N] on x [N, width], from where `p` is."""
    w = np.zeros((x.shape[1] + 1, num), np.float32) if p is None else np.vstack([p.weight, p.bias])
    mean, square = np.zeros_like(w), np.zeros_like(w)
    step = 0
    total = EPOCHS * (len(x) // BATCH)
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for rows in order[: len(x) // BATCH * BATCH].reshape(-1, BATCH):
            step += 1
            seen, wanted = x[rows], y[rows]
            z = seen @ w[:-1] + w[-1]
            z = np.exp(z - z.max(1, keepdims=True))
            z /= z.sum(1, keepdims=True)
            z[np.arange(BATCH), wanted] -= 1
            slope = np.vstack([seen.T @ z, z.sum(0)]) / np.float32(BATCH) + np.float32(DECAY) * w
            mean = 0.9 * mean + 0.1 * slope
            square = 0.99 * square + 0.01 * slope * slope
            rate = RATE * (1 - step / (total + 1)) / (1 - 0.9**step)
            w -= np.float32(rate) * mean / (np.sqrt(square / np.float32(1 - 0.99**step)) + np.float32(1e-8))
    counts = np.bincount(y, minlength=num) + 1
    return Phones(w[:-1], w[-1], np.log(counts / counts.sum()).astype(np.float32), alphabet)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["whisper-base", "whisper-tiny-en"])
    parser.add_argument("--without", default="", metavar="VOICE", help="leave a voice out")
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "phones")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = store.home() / "bench" / "words"
    listed = [x for x in json.loads((folder / "manifest.json").read_text()) if x["set"] == "fit"]
    listed = [x for x in listed if not args.without or not x["voice"].startswith(args.without)]
    pronouncer = hibari.load(store.path("hibari-heart")).pronouncer
    said = [g2p.spelled(pronouncer, " ".join(w for w, *_ in x["words"])) for x in listed]
    counts = Counter(c for words in said for word in words for c in word if c not in STRESS)
    alphabet = "".join(sorted(c for c, n in counts.items() if n >= 20))
    said = [["".join(c for c in w if c in alphabet) for w in words] for words in said]
    print(len(listed), "clips,", len(alphabet), "phonemes:", alphabet)
    for name in args.models:
        m = whisper.load(store.path(name))
        clips = []
        for x, phonemes in zip(listed, said, strict=True):
            known = stretches(phonemes, [tuple(times) for _, *times in x["words"]])
            clips.append(Clip(encoded(m, read_wav(folder / x["file"])), known))
        every = np.concatenate([c.encoded for c in clips])
        p, rng = None, np.random.default_rng(1)
        for n in range(PASSES):
            y = np.concatenate([labelled(c, p, alphabet) for c in clips])
            p = fit(every[y >= 0], y[y >= 0], len(alphabet) + 1, rng, p, alphabet)
            right = (whisper_phones.scores(p, every[y >= 0]) + np.float32(whisper_phones.PRIOR_SHARE) * p.frequency).argmax(1)
            print(f"{name}, pass {n + 1}: {100 * np.mean(right == y[y >= 0]):.1f} % of {len(right)} positions", flush=True)
        assert p is not None
        tensors = {"weight": p.weight.astype(np.float16), "bias": p.bias, "frequency": p.frequency}
        save_file(tensors, args.out / f"{name}.safetensors", {"alphabet": alphabet})


if __name__ == "__main__":
    main()
