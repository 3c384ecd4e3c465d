"""Writes golden/whisper-<model>.npz by CTranslate2 and faster-whisper (test-only, float32) for the Austen clips.

    python tests/models/make_golden_whisper.py NAME FOLDER     # FOLDER holds model.bin, config.json, tokenizer.json

Every clip is padded with silence to the full 30 s, then: slices of the encoder output, the logits of the first two
positions, tokens and scores of greedy and beam-5 search with and without timestamps, and faster-whisper's transcript.
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import ctranslate2
import numpy as np
from faster_whisper import WhisperModel

HERE = Path(__file__).parent
DATA = HERE.parent / "data"


def read_wav(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def main() -> None:
    name, folder = sys.argv[1:3]
    fw = WhisperModel(folder, device="cpu", compute_type="float32", cpu_threads=2)
    model: ctranslate2.models.Whisper = fw.model
    hf = fw.hf_tokenizer
    sot, eot = hf.token_to_id("<|startoftranscript|>"), hf.token_to_id("<|endoftext|>")
    prompt = [sot]
    if model.is_multilingual:
        prompt += [hf.token_to_id("<|en|>"), hf.token_to_id("<|transcribe|>")]
    no_timestamps = hf.token_to_id("<|notimestamps|>")
    out: dict[str, np.ndarray] = {}
    for path in sorted(DATA.glob("austen-*.wav")):
        key = path.stem
        audio = np.pad(read_wav(path), (0, 480000))[:480000]
        features = fw.feature_extractor(audio, padding=0)[:, :3000]
        encoded = model.encode(ctranslate2.StorageView.from_array(np.ascontiguousarray(features[None])))
        out[f"{key}/mel"] = features[::9, :800:37].astype(np.float32)
        out[f"{key}/encoded"] = np.array(encoded)[0, ::50, ::7]
        for mode, start in (("plain", [*prompt, no_timestamps]), ("stamps", prompt)):
            for beam in (1, 5):
                r = model.generate(
                    encoded, [start], beam_size=beam, return_scores=True, return_no_speech_prob=True, max_length=224,
                    suppress_blank=True, suppress_tokens=[-1], max_initial_timestamp_index=50,
                    return_logits_vocab=beam == 1 and mode == "plain",
                )[0]  # fmt: skip
                tokens = [t for t in r.sequences_ids[0] if t != eot]
                out[f"{key}/{mode}/beam{beam}"] = np.array(tokens, np.int32)
                out[f"{key}/{mode}/beam{beam}/score"] = np.array([r.scores[0], r.no_speech_prob], np.float32)
                if r.logits:
                    first = np.array(r.logits[0][0]).reshape(-1)
                    out[f"{key}/logits"] = first[::101].astype(np.float32)
        if model.is_multilingual:
            best = model.detect_language(encoded)[0][0]
            out[f"{key}/language"] = np.array([best[0].strip("<|>"), f"{best[1]:.6f}"])
        for beam in (1, 5):
            segments, _ = fw.transcribe(audio[: len(read_wav(path))], language="en", beam_size=beam)
            out[f"{key}/text{beam}"] = np.array(" ".join(s.text.strip() for s in segments))
            print(key, beam, out[f"{key}/text{beam}"])
    np.savez_compressed(HERE / "golden" / f"whisper-{name}.npz", **out)


if __name__ == "__main__":
    main()
