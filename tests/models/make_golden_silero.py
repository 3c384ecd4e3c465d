"""Writes golden/silero.npz: speech probabilities by ONNX Runtime (test-only) for the Austen clips joined together.

python tests/models/make_golden_silero.py PATH/silero_vad_16k_op15.onnx
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import onnxruntime

HERE = Path(__file__).parent
DATA = HERE.parent / "data"


def read_wav(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def main() -> None:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    audio = np.concatenate([np.pad(read_wav(p), (0, 8000)) for p in sorted(DATA.glob("austen-*.wav"))])
    probs, state, context = [], np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32)
    for at in range(0, len(audio) - 511, 512):
        x = np.concatenate([context, audio[None, at : at + 512]], axis=1)
        prob, state = session.run(None, {"input": x, "state": state, "sr": np.array(16000, np.int64)})
        context = x[:, -64:]
        probs.append(prob[0, 0])
    np.savez_compressed(HERE / "golden" / "silero.npz", prob=np.array(probs, np.float32), h=state[0, 0], c=state[1, 0])
    print(len(probs), "windows")


if __name__ == "__main__":
    main()
