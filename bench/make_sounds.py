"""Makes what `bargein bench hold` plays over replies, into $BARGEIN_HOME/bench/sounds.

    python bench/make_sounds.py

Four kinds, told apart by their names: `backchannel-*` (listening sounds), `noise-*` (coughs and throat sounds from shaped
noise, clicks, typing, breath, a thump), `interrupt-*` (real interruptions) and `answer-*` (one-word answers). Speech comes
from espeak-ng and flite (Debian) and from this project's own voice. One that isn't installed is left out, and said.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import soxr

from bargein.models import hibari, store

RATE = 24000
SEED = 5

BACKCHANNELS = ("Mm-hm.", "Yeah.", "Right.", "Uh-huh.", "Okay.", "I see.", "Yeah, right.")
# What an engine would spell out ("em em aitch em") is given to it as phonemes.
PHONEMES = {"Mm-hm.": "[[m,@mh'm]]", "Uh-huh.": "[[,Vh'V]]"}  # of espeak-ng
PHONES = {"Mm-hm.": "ah m hh ah m"}  # of flite
INTERRUPTIONS = (
    "Stop.", "Wait a second.", "No, that's wrong.", "What about Italy?", "Hold on, please.", "Can you say that again?",
    "I meant the other one.", "That's enough, thank you.", "Tell me something else instead.", "Sorry, who was that?",
)  # fmt: skip
ANSWERS = ("Yes.", "No.", "Two.")
VOICES = ("espeak-ng en-us+m3", "espeak-ng en-us+f3", "flite slt", "flite rms", "own heart")


def write(path: Path, sound: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


def speak(voice: str, text: str, own: hibari.Model) -> np.ndarray:
    """The text said by a voice, float32 at 24 kHz, peak 0.5."""
    engine, name = voice.split()
    if engine == "own":
        sound = hibari.synthesize(own, text).audio
    else:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "said.wav"
            if engine == "flite":
                said = ["-p", PHONES[text]] if text in PHONES else ["-t", text]
                subprocess.run(["flite", "-voice", name, *said, "-o", str(out)], check=True)
            else:
                subprocess.run(["espeak-ng", "-v", name, "-s", "150", "-w", str(out), PHONEMES.get(text, text)], check=True)
            with wave.open(str(out)) as file:
                pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
                sound = soxr.resample(pcm, file.getframerate(), RATE)
    return sound * (0.5 / max(1e-9, float(np.abs(sound).max())))


def band(rng: np.random.Generator, ms: int, low: float, high: float) -> np.ndarray:
    """Noise of `ms` between two frequencies, peak 1."""
    n = RATE * ms // 1000
    spectrum = np.fft.rfft(rng.normal(size=n))
    f = np.fft.rfftfreq(n, 1 / RATE)
    spectrum[(f < low) | (f > high)] = 0
    x = np.fft.irfft(spectrum, n)
    return x / np.abs(x).max()


def noises(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Shaped noise, peak 0.5."""

    def cough(ms: int, low: float, high: float) -> np.ndarray:
        x = band(rng, ms, low, high)
        t = np.arange(len(x)) / RATE
        return x * np.minimum(t / 0.008, 1) * np.exp(-t / (ms / 4000))

    def gap(ms: int) -> np.ndarray:
        return np.zeros(RATE * ms // 1000)

    def click() -> np.ndarray:
        return np.concatenate([np.exp(-np.arange(72) / 12.0) * rng.choice([-1, 1], 72), gap(10)])

    throat = band(rng, 420, 90, 900)
    throat *= 0.6 + 0.4 * np.sign(np.sin(2 * np.pi * 38 * np.arange(len(throat)) / RATE))
    breath = band(rng, 700, 400, 5000) * np.hanning(RATE * 700 // 1000) * 0.3
    thump = np.sin(2 * np.pi * 70 * np.arange(RATE // 5) / RATE) * np.exp(-np.arange(RATE // 5) / (RATE * 0.04))
    keys = [np.concatenate([click() * rng.uniform(0.4, 1), gap(int(rng.integers(70, 200)))]) for _ in range(12)]
    typing = np.concatenate(keys)
    made = {
        "cough-a": np.concatenate([cough(260, 250, 3200), gap(90), cough(320, 250, 2600)]),
        "cough-b": cough(380, 300, 4500),
        "cough-c": np.concatenate([cough(180, 180, 2000), gap(60), cough(180, 180, 2000), gap(60), cough(240, 180, 1800)]),
        "throat": throat * np.hanning(len(throat)),
        "throat-long": np.concatenate([throat * np.hanning(len(throat)), gap(80), throat * np.hanning(len(throat))]),
        "click": click(),
        "clicks": np.concatenate([click(), gap(150), click(), gap(80), click()]),
        "typing": typing,
        "breath": breath,
        "thump": thump,
    }
    return {name: x * (0.5 / np.abs(x).max()) for name, x in made.items()}


def hum(f0: float, ms: tuple[int, int]) -> np.ndarray:
    """"Mm-hm" with closed lips: a low hum, a breath, a higher hum."""
    parts = []
    for length, start, end in ((ms[0], f0, f0 * 0.95), (60, 0, 0), (ms[1], f0 * 1.25, f0 * 1.1)):
        n = RATE * length // 1000
        if not start:
            parts.append(np.random.default_rng(1).normal(0, 0.03, n))
            continue
        phase = 2 * np.pi * np.cumsum(np.linspace(start, end, n)) / RATE
        tone = sum(np.sin(k * phase) / k**1.5 for k in range(1, 9))
        edge = np.minimum(1, np.minimum(np.arange(n), np.arange(n)[::-1]) / (RATE * 0.02))
        parts.append(tone * edge * (0.7 if start == f0 else 1.0))
    x = np.concatenate(parts)
    return x * (0.5 / np.abs(x).max())


def main() -> None:
    home = Path(os.environ.get("BARGEIN_HOME") or Path.home() / ".cache" / "bargein").expanduser()
    out = home / "bench" / "sounds"
    out.mkdir(parents=True, exist_ok=True)
    own = hibari.load(store.path("hibari-heart"))
    missing = {x for x in ("espeak-ng", "flite") if shutil.which(x) is None}
    for engine in sorted(missing):
        print(f"{engine} is not here: its voices are left out")
    voices = [v for v in VOICES if v.split()[0] not in missing]
    count = 0
    kinds = (("backchannel", BACKCHANNELS, 3), ("interrupt", INTERRUPTIONS, 2), ("answer", ANSWERS, 5))
    for kind, texts, num_voices in kinds:
        for i, text in enumerate(texts):
            for j in range(min(num_voices, len(voices))):
                voice = voices[(i + 2 * j) % len(voices)] if num_voices < 5 else voices[j]
                name = "".join(c for c in text.lower().replace(" ", "_") if c.isalnum() or c == "_")
                write(out / f"{kind}-{name}-{voice.replace(' ', '_')}.wav", speak(voice, text, own))
                count += 1
    for f0 in (115.0, 150.0, 205.0):
        write(out / f"backchannel-hum-{f0:.0f}_hz.wav", hum(f0, (170, 230)))
        count += 1
    for name, sound in noises(np.random.default_rng(SEED)).items():
        write(out / f"noise-{name}.wav", sound)
        count += 1
    print(count, "sounds in", out)


if __name__ == "__main__":
    main()
