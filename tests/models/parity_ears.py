"""Measures how far the listening models are from their oracles' recorded answers (golden/*.npz).

    python tests/models/parity_ears.py        # rewrites golden/parity_ears.json

Each function returns rows (name, oracle, metric, value, tolerance); the tests assert value <= tolerance.
"""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bargein.models import silero, smart_turn, store, whisper, whisper_decode

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
CLIPS = sorted(DATA.glob("austen-*.wav"))


class Row(NamedTuple):
    name: str
    oracle: str
    metric: str
    value: float
    tolerance: float


def read_wav(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / "golden" / f"{name}.npz") as file:
        return dict(file)


def silero_rows() -> list[Row]:
    want, w = golden("silero"), silero.load(store.path("silero-vad"))
    audio = np.concatenate([np.pad(read_wav(p), (0, 8000)) for p in CLIPS])
    state, probs = silero.init_state(1), []
    for at in range(0, len(audio) - 511, 512):
        prob, state = silero.step(w, state, audio[None, at : at + 512])
        probs.append(prob[0])
    oracle, what = "ONNX Runtime 1.32", f"{len(probs)} windows of speech and pauses"
    return [
        Row("silero-vad", oracle, f"probability, largest difference, {what}", _far(probs, want["prob"]), 1e-4),
        Row("silero-vad", oracle, "LSTM output after them, largest difference", _far(state.h[0], want["h"]), 1e-3),
        Row("silero-vad", oracle, "LSTM cell after them, largest difference", _far(state.c[0], want["c"]), 1e-3),
    ]


def smart_turn_rows() -> list[Row]:
    want, m = golden("smart_turn"), smart_turn.load(store.path("smart-turn-v3"))
    sounds = [np.pad(read_wav(p), (0, 6400)) for p in CLIPS]
    probs = np.array([smart_turn.predict(m, sounds[clip][:end]) for clip, end in want["cuts"]])
    n = len(probs)
    return [
        Row(
            "smart-turn-v3", "ONNX Runtime 1.32, activation rounding taken out",
            f"probability, largest difference, {n} cuts", _far(probs, want["prob"]), 0.005,
        ),
        Row(
            "smart-turn-v3", "ONNX Runtime 1.32, file as shipped (activations rounded to 8 bits)",
            f"probability, mean difference, {n} cuts (for information)",
            float(np.abs(probs - want["shipped"]).mean()), 0.25,
        ),
    ]  # fmt: skip


def whisper_rows(name: str, clips: list[Path] = CLIPS) -> list[Row]:
    """The float32 graph, token by token, in the full 30 s window."""
    want, m = golden(f"whisper-{name}"), whisper.load(store.path(f"whisper-{name.replace('.', '-')}"), int8=())
    far = {"mel": 0.0, "encoded": 0.0, "logits": 0.0, "no_speech": 0.0, "score": 0.0}
    wrong = {(mode, beam): 0 for mode in ("plain", "stamps") for beam in (1, 5)}
    languages = 0
    for path in clips:
        key = path.stem
        mel = whisper.log_mel(read_wav(path), 3000)
        encoded = whisper.encode(m, mel)
        x = whisper.cross(m, encoded)
        far["mel"] = max(far["mel"], _far(mel.T[::9, :800:37], want[f"{key}/mel"]))
        far["encoded"] = max(far["encoded"], _far(encoded[::50, ::7], want[f"{key}/encoded"]))
        prompt = np.array(whisper_decode.prompt_tokens(m, whisper_decode.Options(language="en")), np.int64)
        cache, at = whisper.init_cache(m, 1), np.arange(len(prompt))
        hidden = whisper.decoder_hidden(m, x, cache, prompt, np.zeros_like(prompt), at)
        logits, oracle = whisper.logits(m, hidden[-1:])[0, ::101], want[f"{key}/logits"]
        possible = oracle > -1e30  # the oracle's come after suppression
        far["logits"] = max(far["logits"], _far(logits[possible], oracle[possible]))
        for mode, beam in wrong:
            options = whisper_decode.Options(beam=beam, language="en", timestamps=mode == "stamps")
            r = whisper_decode.decode(m, x, options)
            score, no_speech = want[f"{key}/{mode}/beam{beam}/score"]
            wrong[mode, beam] += list(r.tokens) != want[f"{key}/{mode}/beam{beam}"].tolist()
            mine = r.avg_logprob * (len(r.tokens) + 1) / max(1, len(r.tokens))
            far["score"] = max(far["score"], abs(mine - float(score)))
            far["no_speech"] = max(far["no_speech"], abs(r.no_speech_prob - float(no_speech)))
        if m.special.languages:
            languages += whisper_decode.detect_language(m, x)[0] != want[f"{key}/language"][0]
    label, oracle_name = f"whisper-{name}, float32", "CTranslate2 4.8 float32"
    rows = [
        Row(label, "faster-whisper 1.2 front end", "log-mel, largest difference", far["mel"], 1e-5),
        Row(label, oracle_name, "encoder output, largest difference (values to 24)", far["encoded"], 1e-3),
        Row(label, oracle_name, "first logits, largest difference", far["logits"], 1e-3),
        Row(label, oracle_name, "no-speech probability, largest difference", far["no_speech"], 1e-4),
        Row(label, oracle_name, "score of the best hypothesis, largest difference", far["score"], 1e-3),
    ]
    for (mode, beam), count in wrong.items():
        search = f"{'greedy' if beam == 1 else 'beam 5'}, {'with timestamps' if mode == 'stamps' else 'text only'}"
        rows.append(Row(label, oracle_name, f"transcripts with any other token, of {len(clips)}: {search}", count, 0))
    if m.special.languages:
        rows.append(Row(label, oracle_name, f"languages detected otherwise, of {len(clips)}", languages, 0))
    return rows


def _far(a: object, b: object) -> float:
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def main() -> None:
    rows = [*silero_rows(), *smart_turn_rows(), *whisper_rows("tiny.en"), *whisper_rows("base")]
    for row in rows:
        print(f"{'ok ' if row.value <= row.tolerance else 'BAD'} {row}")
    text = json.dumps([{**r._asdict(), "value": float(f"{r.value:.3g}")} for r in rows], indent=1)
    (HERE / "golden" / "parity_ears.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
