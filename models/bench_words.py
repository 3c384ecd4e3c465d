"""`bargein bench words`: word error of speech recognition, by model, beam and window; and what it hears in no speech.

The speech is the repository's test recordings and whatever `bench/make_speech.py` has put into the cache. Owns the
scorer: texts are compared as lower-case words, numbers spelled out, abbreviations and British spellings made one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import wave
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import store, whisper, whisper_stream
from .errors import WeightsError

F32 = NDArray[np.float32]

ROOT = Path(__file__).resolve().parent.parent


class Clip(NamedTuple):
    """Speech and what was said. `group`: who speaks and how noisy it is."""

    name: str
    group: str
    words: str
    sound: F32  # float32 [n], 16 kHz


# -- scoring ---------------------------------------------------------------------------------------------------------

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_SAME = {
    "mr": "mister", "mrs": "missus", "dr": "doctor", "st": "saint", "ok": "okay", "colour": "color",
    "colours": "colors",
    "favourite": "favorite", "metres": "meters", "metre": "meter", "grey": "gray", "theatre": "theater",
    "centre": "center", "neighbour": "neighbor", "wanna": "want to", "gonna": "going to", "vs": "versus",
    "goodbye": "good bye", "its": "it's", "alright": "all right", "cannot": "can not",
}  # fmt: skip


def _number(n: int) -> str:
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10] + (f" {_ONES[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{_ONES[n // 100]} hundred" + (f" {_number(n % 100)}" if n % 100 else "")
    if n < 1_000_000:
        return f"{_number(n // 1000)} thousand" + (f" {_number(n % 1000)}" if n % 1000 else "")
    return " ".join(_ONES[int(c)] for c in str(n))


def _ordinal(n: int) -> str:
    words = _number(n).split()
    last = words[-1]
    words[-1] = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return " ".join(words)


def normal_words(text: str) -> list[str]:
    """Words as they are compared: "Mr. Smith's 2 dogs, 3rd-rate" -> mister smith's two dogs third rate."""
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)", " ", text.lower().replace("’", "'"))
    text = re.sub(r"\$(\d[\d,]*)", r"\1 dollars", text).replace("%", " percent").replace("&", " and ")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"(\d+)(?:st|nd|rd|th)\b", lambda m: f" {_ordinal(int(m[1]))} ", text)
    text = re.sub(r"(\d+)\.(\d+)", lambda m: f"{m[1]} point " + " ".join(m[2]), text)
    text = re.sub(r"\d+", lambda m: f" {_number(int(m[0]))} ", text)
    words = re.sub(r"[^a-z' ]", " ", text).split()
    return " ".join(_SAME.get(w, w) for w in (w.strip("'") for w in words) if w).split()


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest words to replace, leave out or put in to make one of the other (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, a in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


# -- speech ----------------------------------------------------------------------------------------------------------


def read_wav(path: Path) -> F32:
    """float32 [n] in [-1, 1] of a 16-bit mono WAV at 16 kHz."""
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def _table(readme: Path) -> Iterable[tuple[str, ...]]:
    for line in readme.read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip("| ").split("|")]
        if cells[0].endswith(".wav"):
            yield tuple(cells)


def clips() -> list[Clip]:
    """The repository's recordings, then the made ones; empty where there are neither."""
    out: list[Clip] = []
    data = ROOT / "tests" / "data"
    for folder, group in ((data, "Austen, person"), (data / "questions", "questions")):
        if (folder / "README.md").is_file():
            out += [Clip(c[0], group, c[2], read_wav(folder / c[0])) for c in _table(folder / "README.md")]
    made = store.home() / "bench" / "speech"
    if (made / "manifest.json").is_file():
        for entry in json.loads((made / "manifest.json").read_text(encoding="utf-8")):
            group = f"{entry['voice'].split()[0]}, {entry['noise']}"
            out.append(Clip(entry["file"], group, entry["words"], read_wav(made / entry["file"])))
    return out


# -- measuring -------------------------------------------------------------------------------------------------------


class Policy(NamedTuple):
    """A model and how utterances are decoded with it."""

    model: str
    options: whisper_stream.Options

    @property
    def title(self) -> str:
        o = self.options
        window = "30 s" if o.full_window else f"at least {o.min_window_s:g} s, {o.tail_s:g} s after"
        beam = "5 where unsure" if o.beam > 1 and o.sure_logprob is not None else str(o.beam)
        return f"{self.model.removeprefix('whisper-')} | {beam} | {window}"


class Score(NamedTuple):
    """Errors and words by group, CPU seconds, and the transcripts."""

    errors: dict[str, int]
    words: dict[str, int]
    cpu_s: float
    wall_s: float
    heard: list[tuple[str, str, str, int]]  # clip, said, heard, errors

    @property
    def percent(self) -> float:
        return 100 * sum(self.errors.values()) / max(1, sum(self.words.values()))


def score(m: whisper.Model, options: whisper_stream.Options, speech: Sequence[Clip]) -> Score:
    """Transcribe each clip as the final of one utterance."""
    errors: dict[str, int] = defaultdict(int)
    words: dict[str, int] = defaultdict(int)
    heard = []
    cpu, wall = time.process_time(), time.perf_counter()
    for clip in speech:
        text = whisper_stream.transcribe(m, clip.sound, options).text
        said, got = normal_words(clip.words), normal_words(text)
        wrong = word_errors(said, got)
        errors[clip.group] += wrong
        words[clip.group] += len(said)
        heard.append((clip.name, clip.words, text, wrong))
    return Score(errors, words, time.process_time() - cpu, time.perf_counter() - wall, heard)


def policies(models: Sequence[str], full: bool) -> list[Policy]:
    """The shipped policy for each model, greedy and with the beam always; `full`: the other windows too."""
    base = whisper_stream.Options()
    out = []
    for model in models:
        out += [
            Policy(model, base), Policy(model, replace(base, beam=1)), Policy(model, replace(base, sure_logprob=None)),
        ]  # fmt: skip
        if full:
            out.append(Policy(model, replace(base, full_window=True)))
            for window, tail in ((3.0, 1.0), (5.0, 2.0), (8.0, 2.0)):
                out.append(Policy(model, replace(base, min_window_s=window, tail_s=tail)))
    return out


def no_speech() -> dict[str, F32]:
    """Sounds that hold no speech: float32 [n] at 16 kHz."""
    rng = np.random.default_rng(3)
    sounds: dict[str, F32] = {}
    for seconds in (2, 5):
        n = seconds * 16000
        t = np.arange(n) / 16000
        clicks = np.zeros(n)
        clicks[rng.integers(0, n, 3 * seconds)] = 0.8
        knocks = np.convolve(clicks, np.exp(-np.arange(400) / 60) * np.sin(np.arange(400) * 0.4))[:n]
        hum = 0.05 * sum(np.sin(2 * np.pi * 50 * k * t) / k for k in (1, 2, 3, 5))
        cases = {
            "silence": np.zeros(n), "quiet white noise": rng.normal(0, 0.003, n), "white noise": rng.normal(0, 0.05, n),
            "mains hum": hum, "clicks": clicks, "knocks": knocks,
        }  # fmt: skip
        sounds |= {f"{name}, {seconds} s": x.astype(np.float32) for name, x in cases.items()}
    return sounds


def _print_no_speech(models: Sequence[str], loaded: dict[str, whisper.Model]) -> list[str]:
    lines = [
        "| sound | model | text | mean log-probability | no-speech probability | dropped |",
        "|---|---|---|---|---|---|",
    ]
    for model in models:
        for name, sound in no_speech().items():
            t = whisper_stream.transcribe(loaded[model], sound, whisper_stream.Options())
            dropped = not t.text or t.no_speech_prob > 0.6 or t.avg_logprob < -1.0
            lines.append(
                f"| {name} | {model.removeprefix('whisper-')} | {t.text} | {t.avg_logprob:.2f} "
                f"| {t.no_speech_prob:.2f} | {'yes' if dropped else 'NO'} |"
            )
    return lines


def _tables(done: Sequence[tuple[Policy, Score]], speech: Sequence[Clip]) -> list[str]:
    seconds = sum(len(c.sound) for c in speech) / 16000
    groups = list(dict.fromkeys(c.group for c in speech))
    words = {g: sum(len(normal_words(c.words)) for c in speech if c.group == g) for g in groups}
    lines = [
        f"{len(speech)} clips, {sum(words.values())} words, {seconds:.0f} s. Word error in percent; CPU milliseconds a "
        "second of speech.",
        "",
        "| model | beam | window | all | CPU | " + " | ".join(f"{g} ({n})" for g, n in words.items()) + " |",
        "|---" * (5 + len(groups)) + "|",
    ]
    for policy, s in done:
        parts = " | ".join(f"{100 * s.errors[g] / words[g]:.1f}" for g in groups)
        lines.append(f"| {policy.title} | {s.percent:.2f} | {1000 * s.cpu_s / seconds:.0f} | {parts} |")
    return lines


def run(argv: list[str]) -> int:
    """`bargein bench words [--full] [--out FILE]`; returns the exit status (2: something is missing)."""
    parser = argparse.ArgumentParser(prog="bargein bench words", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["whisper-tiny-en", "whisper-base"], metavar="NAME")
    parser.add_argument("--full", action="store_true", help="other windows too (takes half an hour)")
    parser.add_argument("--no-speech", action="store_true", help="also: what is heard in noises without speech")
    parser.add_argument("--errors", action="store_true", help="print every clip that was heard wrongly")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables there too (Markdown)")
    args = parser.parse_args(argv)
    try:
        loaded = {name: whisper.load(store.path(name)) for name in args.models}
    except WeightsError as problem:
        print(f"bargein: {problem}", file=sys.stderr)
        return 2
    speech = clips()
    if not speech:
        print("bargein: no speech: run this in the repository, after bench/make_speech.py", file=sys.stderr)
        return 2
    for m in loaded.values():
        whisper_stream.transcribe(m, speech[0].sound, whisper_stream.Options())  # compiles
    done = []
    for policy in policies(args.models, args.full):
        s = score(loaded[policy.model], policy.options, speech)
        done.append((policy, s))
        print(f"{policy.title}: {s.percent:.2f}% ({s.wall_s:.0f} s)", file=sys.stderr, flush=True)
        if args.errors:
            for name, said, heard, wrong in s.heard:
                if wrong:
                    print(f"   {name} [{wrong}] {said!r} -> {heard!r}", file=sys.stderr)
    lines = _tables(done, speech)
    if args.no_speech:
        lines += ["", *_print_no_speech(args.models, loaded)]
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0
