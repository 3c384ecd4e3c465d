"""Writes golden/smart_turn.npz: probabilities by ONNX Runtime (test-only) at many cuts of the Austen clips.

    python tests/models/make_golden_smart_turn.py PATH/smart-turn-v3.2-cpu.onnx

Two answers a cut: `shipped`, the file as it is, whose activations are rounded to 8 bits at every step; and `prob`, the
same graph with those roundings taken out (a quantize/dequantize pair becomes a wire) and run without fusions, which is
the function our graph computes.

The features are this file's own float64 computation of Whisper's front end, so that the front end is checked too.
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

HERE = Path(__file__).parent
DATA = HERE.parent / "data"


def read_wav(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def slaney(n_mels: int = 80) -> np.ndarray:
    def hz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))

    edges = hz(np.linspace(0, 15 + 27 * np.log(8) / np.log(6.4), n_mels + 2))
    f = np.linspace(0, 8000, 201)
    rows = [np.interp(f, edges[i : i + 3], [0, 2 / (edges[i + 2] - edges[i]), 0]) for i in range(n_mels)]
    return np.array(rows)


def features(audio: np.ndarray) -> np.ndarray:
    x = np.pad(audio[-128000:], (128000 - min(len(audio), 128000), 0)).astype(np.float64)
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-7)
    x = np.pad(x, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    power = np.array([np.abs(np.fft.rfft(x[t * 160 : t * 160 + 400] * window)) ** 2 for t in range(800)])
    log = np.log10(np.maximum(slaney() @ power.T, 1e-10))
    return ((np.maximum(log, log.max() - 8) + 4) / 4).astype(np.float32)


def without_rounding(path: str) -> bytes:
    model = onnx.load(path)
    made = {output: node for node in model.graph.node for output in node.output}
    wire = {
        node.output[0]: made[node.input[0]].input[0]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and getattr(made.get(node.input[0]), "op_type", "") == "QuantizeLinear"
    }
    kept = [n for n in model.graph.node if n.op_type != "QuantizeLinear" and n.output[0] not in wire]
    for node in kept:
        for i, name in enumerate(node.input):
            while name in wire:
                name = wire[name]
            node.input[i] = name
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model.SerializeToString()


def main() -> None:
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    sessions = {
        "prob": onnxruntime.InferenceSession(without_rounding(sys.argv[1]), plain, providers),
        "shipped": onnxruntime.InferenceSession(sys.argv[1], providers=providers),
    }
    cuts: list[tuple[int, int]] = []
    answers: dict[str, list[float]] = {name: [] for name in sessions}
    for i, path in enumerate(sorted(DATA.glob("austen-*.wav"))):
        audio = read_wav(path)
        for end in [*range(16000, len(audio), 8000), len(audio), len(audio) + 6400]:
            mel = features(np.pad(audio, (0, 6400))[:end])[None]
            cuts.append((i, end))
            for name, session in sessions.items():
                answers[name].append(session.run(None, {"input_features": mel})[0].item())
    arrays = {name: np.array(a, np.float32) for name, a in answers.items()}
    np.savez_compressed(HERE / "golden" / "smart_turn.npz", cuts=np.array(cuts), **arrays)
    print(len(cuts), "cuts")


if __name__ == "__main__":
    main()
