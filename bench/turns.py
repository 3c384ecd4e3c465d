"""When has somebody finished? False cut-ins against delay, for each `eou.kind` and threshold.

    python bench/turns.py [--piper-wavs FOLDER] [--out bench/TURNS.md]

Sentences of bench/turns/tune.txt and test.txt (other sentences, other voices) are synthesized whole; `|` marks where a
speaker may pause. Each mark is a pause, each end an end: the sound up to there, 200 ms of faint noise, and what the
recognizer makes of it are scored as a session would. A pause lasts 300 to 1500 ms, drawn evenly; it is cut into when the
session's wait (from the last voiced sample) is over before the speaker goes on. Weights of the rule `gated` were fitted
on the tune half only. Voices: tune espeak-ng m3, en-gb f2, flite slt, awb; test espeak-ng f4, flite rms, hibari, and
piper's joe where `--piper-wavs` holds NAME.wav for each test sentence (NAME: the first 12 hex digits of the MD5 of its text).
Not people: intonation, which the classifier of sound listens to, is poorer in all of these voices.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr

from bargein.models import (
    chat_prompts,
    decoder,
    end_of_words,
    hibari,
    smart_turn,
    store,
    whisper,
    whisper_align,
    whisper_stream,
)
from bargein.models.tokenizer import load_codec
from bargein.realtime.eou import commit_delay_ms, fuse, text_score

sys.path.insert(0, str(Path(__file__).parent))
from make_speech import read, speak

HERE = Path(__file__).parent
RATE = 16000
VOICES = {
    "tune": ("espeak-ng en-us+m3", "espeak-ng en-gb+f2", "flite slt", "flite awb"),
    "test": ("espeak-ng en-us+f4", "flite rms", "hibari", "joe"),
}
PROFILES = {"fast": (100, 1500, 200), "balanced": (400, 4000, 350), "patient": (800, 6000, 500)}  # min, max, silence
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)


@dataclass
class Point:
    """A place where a speaker falls silent: at the end, or before going on."""

    half: str
    voice: str
    ends: bool
    sound: np.ndarray  # float32 [n], 16 kHz, up to the last voiced sample
    audio: float = 0.0
    words: float = 0.0
    text: str = ""


def sentences(half: str) -> list[list[str]]:
    lines = (HERE / "turns" / f"{half}.txt").read_text(encoding="utf-8").splitlines()
    return [[part.strip() for part in line.split("|")] for line in lines if line.strip()]


def points(half: str, m: whisper.Model, tts: hibari.Model, piper: Path | None) -> Iterator[Point]:
    """Every pause and end of a half's sentences, in each of its voices."""
    for parts in sentences(half):
        text = " ".join(parts)
        for voice in VOICES[half]:
            if voice == "joe":
                if piper is None:
                    continue
                sound = read(piper / f"{hashlib.md5(text.encode()).hexdigest()[:12]}.wav")
            elif voice == "hibari":
                said = hibari.synthesize(tts, text).audio
                sound = soxr.resample(said * (0.5 / np.abs(said).max()), 24000, RATE)
            else:
                sound = speak(voice, text, None)
            yield from cuts(half, voice, parts, np.asarray(sound, np.float32), m)


def cuts(half: str, voice: str, parts: list[str], sound: np.ndarray, m: whisper.Model) -> Iterator[Point]:
    """The sound cut at the quietest place near each mark (words aligned by the recognizer), and at its end."""
    seconds = len(sound) / RATE
    frames = int(np.ceil(max(4.0, seconds + 1.5) * 50)) * 2
    x = whisper.cross(m, whisper.encode(m, whisper.log_mel(sound, frames)))
    tokens = m.tokenizer.encode(" " + " ".join(parts), add_special_tokens=False).ids
    words = whisper_align.align(m, x, tokens, seconds)
    level = np.sqrt(np.convolve(sound * sound, np.ones(160) / 160, "same"))
    count = 0
    for part in parts[:-1]:
        count += len(part.split())
        if count <= len(words):
            at = words[count - 1].end_s
            low, high = int(max(0.0, at - 0.12) * RATE), int((at + 0.12) * RATE)
            yield Point(half, voice, False, sound[: low + int(np.argmin(level[low:high]))])
    last = np.flatnonzero(level > max(0.03 * float(np.quantile(level, 0.9)), 0.002))[-1]
    yield Point(half, voice, True, sound[:last])


def score(found: list[Point], m: whisper.Model, sound: smart_turn.Model, judge: end_of_words.Judge) -> None:
    """Fill in both heads' scores."""
    kv = decoder.new_kv(judge.model.config)
    for n, point in enumerate(found):
        faint = np.random.default_rng(n).normal(0, 0.0005, RATE // 5).astype(np.float32)
        heard = np.concatenate([point.sound, faint])
        point.audio = smart_turn.predict(sound, heard)
        point.text = whisper_stream.transcribe(m, heard, whisper_stream.Options()).text
        ids, length = end_of_words.prompt(judge, point.text, [], 128)
        if not re.search(r"\w", point.text):
            continue
        decoder.rewind(kv, 0)
        logits = decoder.prefill(judge.model.weights, judge.model.config, kv, ids[:length])
        point.words = end_of_words.probability(judge, logits)


KINDS: dict[str, Callable[[Point], float]] = {
    "audio (smart-turn alone)": lambda p: p.audio,
    "heuristic": lambda p: text_score(p.text),
    "text": lambda p: p.words,
    "fusion, max": lambda p: fuse("max", p.audio, p.words, 0.5),
    "fusion, noisy_or": lambda p: fuse("noisy_or", p.audio, p.words, 0.5),
    "fusion, weighted": lambda p: fuse("weighted", p.audio, p.words, 0.5),
    "fusion, gated (the default)": lambda p: fuse("gated", p.audio, p.words, 0.5),
}


def table(found: list[Point]) -> Iterator[str]:
    """Cut-ins in percent of pauses, and the median delay of ends, by kind, profile and threshold."""
    rng = np.random.default_rng(5)
    lasts = [float(rng.uniform(300, 1500)) for _ in found]
    pauses = sum(not p.ends for p in found)
    yield "| profile | kind | " + " | ".join(f"at {t}" for t in THRESHOLDS) + " |"
    yield "|---" * (2 + len(THRESHOLDS)) + "|"
    for profile, (least, most, silence) in PROFILES.items():
        for kind, of in KINDS.items():
            cells = []
            for t in THRESHOLDS:
                waits = [
                    max(silence, commit_delay_ms(of(p), threshold=t, min_ms=least, max_ms=most, k=12)) for p in found
                ]
                cut = sum(not p.ends and wait < last for p, wait, last in zip(found, waits, lasts, strict=True))
                delay = statistics.median(wait for p, wait in zip(found, waits, strict=True) if p.ends)
                cells.append(f"{100 * cut / pauses:.0f} %, {delay:.0f} ms")
            yield f"| {profile} | {kind} | " + " | ".join(cells) + " |"


def auc(found: list[Point], of: Callable[[Point], float]) -> float:
    """Chance that an end scores above a pause."""
    ends, pauses = ([of(p) for p in found if p.ends is which] for which in (True, False))
    return sum((a > b) + 0.5 * (a == b) for a in ends for b in pauses) / (len(ends) * len(pauses))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--piper-wavs", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=HERE / "TURNS.md")
    args = parser.parse_args()
    m, tts = whisper.load(store.path("whisper-base")), hibari.load(store.path("hibari-heart"))
    folder = store.path("gemma-3-270m")
    kind: chat_prompts.Kind = "transcript"
    judge = end_of_words.judge(decoder.load(folder), load_codec(folder), kind)
    sound = smart_turn.load(store.path("smart-turn-v3"))
    lines = ["# Ends of turns", "", "Made by `python bench/turns.py`, which says how.", ""]
    for half in ("test", "tune"):
        found = list(points(half, m, tts, args.piper_wavs))
        score(found, m, sound, judge)
        voices = sorted({p.voice for p in found})
        lines += [
            f"## The {half} half: {sum(not p.ends for p in found)} pauses, {sum(p.ends for p in found)} ends", "",
            "Cut-ins (percent of pauses), and the median wait after a real end, at four thresholds.", "",
            *table(found), "", "Chance that an end scores above a pause, by voice:", "",
            "| kind | all | " + " | ".join(voices) + " |", "|---" * (2 + len(voices)) + "|",
        ]  # fmt: skip
        for name, of in KINDS.items():
            each = " | ".join(f"{auc([p for p in found if p.voice == v], of):.2f}" for v in voices)
            lines.append(f"| {name} | {auc(found, of):.2f} | {each} |")
        lines.append("")
    args.out.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
