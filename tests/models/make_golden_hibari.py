"""Writes golden/hibari.npz by ONNX Runtime (test-only) and the package's own signal processing.

    python tests/models/make_golden_hibari.py PACKAGE      # the unpacked wheel of hibari-tts 0.2.1

Two answers a sentence: `shipped`, the file as it is, which rounds every activation to 8 bits; and the same graph with
those roundings taken out (a rounded product becomes a product with the dequantized weight), which is the function ours
computes: frames, pitch, slices of the five spectral parts, and the waveform with a noise that both sides draw alike.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

HERE = Path(__file__).parent
PHONEMES = (
    "hˈWdi, ɪts ɐ lˈʌvli dˈA.",
    "ðə mˈitɪŋ wʌz mˈuvd tə ðə θˈɜɹd flˈɔɹ bəkˈʌz ðə hˈitɪŋ ɪz bɹˈOkən.",
    "kæn jˈu tˈɛl mˌi wˌʌt tˈIm ɪt ɪz?",
)
PARTS = ("lh", "theta", "ln", "lr", "phi")


def without_rounding(path: Path) -> bytes:
    model = onnx.load(str(path))
    graph = model.graph
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    nodes, made = [], {}

    def constant(name: str, value: np.ndarray) -> str:
        if name not in made:
            made[name] = numpy_helper.from_array(value, name)
        return name

    for node in graph.node:
        if node.op_type == "DynamicQuantizeLinear":
            plain, scale, _ = node.output
            nodes.append(helper.make_node("Identity", [node.input[0]], [plain]))
            one = constant("one", np.array(1, np.float32))
            nodes.append(helper.make_node("Identity", [one], [scale]))
        elif node.op_type == "MatMulInteger":
            x, weight, _, zero = node.input
            centred = arrays[weight].astype(np.float32) - arrays[zero].astype(np.float32)
            nodes.append(helper.make_node("MatMul", [x, constant(weight + "_f32", centred)], list(node.output)))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(made.values())
    return model.SerializeToString()


def main() -> None:
    package = Path(sys.argv[1])
    sys.path.insert(0, str(package))
    from hibari import dsp

    assets = package / "hibari" / "assets"
    vocab = json.loads((assets / "vocab.json").read_text(encoding="utf-8"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    shipped = onnxruntime.InferenceSession(str(assets / "hibari.onnx"), options, providers)
    plain = onnxruntime.InferenceSession(without_rounding(assets / "hibari.onnx"), options, providers)
    out: dict[str, np.ndarray] = {}
    for i, phonemes in enumerate(PHONEMES):
        ids = [0, *[vocab[c] for c in phonemes if c in vocab], 0]
        feed = {"ids": np.array([ids], np.int64), "speed": np.ones(1, np.float32)}
        out[f"{i}/ids"] = np.array(ids, np.int32)
        for kind, session in (("plain", plain), ("shipped", shipped)):
            *parts, f0 = (a[0] for a in session.run(None, feed))
            out[f"{i}/{kind}/f0"] = f0.astype(np.float32)
            for name, part in zip(PARTS, parts, strict=True):
                out[f"{i}/{kind}/{name}"] = part.T[::5, ::23].astype(np.float32)  # [frames / 5, bins / 23]
            # The package draws noise bin by bin, frames side by side, real and imaginary parts in turn.
            audio = dsp.synth(*parts, f0, np.random.default_rng(i))
            out[f"{i}/{kind}/audio"] = audio[::3].astype(np.float16) if kind == "plain" else audio[:0]
            print(i, kind, len(f0), "frames", len(audio), "samples")
    np.savez_compressed(HERE / "golden" / "hibari.npz", **out)


if __name__ == "__main__":
    main()
