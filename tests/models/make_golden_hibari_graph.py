"""Writes golden/hibari_graph.npz by ONNX Runtime and the package's own vocoder (test-only).

    python tests/models/make_golden_hibari_graph.py FOLDER     # FOLDER holds hibari-tts unpacked; needs onnxruntime, onnx

For each phoneme string: durations, pitch and a slice of the five spectral parts of the shipped graph with float
activations (its dynamic quantization replaced by the matrices it stands for), and the durations it gives as shipped
(8-bit activations move a few across a rounding edge); for the first, the waveform with the noise branch silenced.
Also the unknown-word net's readings.
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
PHONEMES = [
    "həlˈO ðˈɛɹ, ðˌɪs ɪz ɐ tˈɛst.",
    "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˈOvəɹ ðə lˈAzi dˈɔɡ.",
    "ʃˈʊɹ, ˌI kæn hˈɛlp ju wɪð ðˈæt ɹˈIt əwˈA.",
    "pˈɛɹɪs ɪz ðə kˈæpətᵊl ʌv fɹˈæns?",
]
WORDS = ["zorblaxes", "Kubernetes", "flumph", "Xiaoming", "bargein", "quixotry"]


def float_graph(path: Path) -> onnx.ModelProto:
    model = onnx.load(str(path))
    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    used: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            used.setdefault(name, []).append(node)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    replaced, dropped = {}, set()
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        quantize, cast = made[node.input[0]], used[node.output[0]][0]
        scale = used[cast.output[0]][0]
        weight = (stored[node.input[1]].astype(np.float32) - stored[node.input[3]]) * stored[
            node.input[1].replace("_quantized", "_scale")
        ]
        name = node.input[1] + "_float"
        if name not in stored:
            stored[name] = weight
            graph.initializer.append(numpy_helper.from_array(weight.astype(np.float32), name))
        replaced[cast.name] = helper.make_node("MatMul", [quantize.input[0], name], [scale.output[0]], node.name + "_f")
        both = made[next(i for i in scale.input if i != cast.output[0])]
        dropped |= {node.name, cast.name, scale.name, quantize.name, both.name}
    nodes = [replaced.get(node.name, node) for node in graph.node if node.name in replaced or node.name not in dropped]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


class Silence:
    def standard_normal(self, shape: tuple[int, int], dtype: type) -> np.ndarray:
        return np.zeros(shape, dtype)


def main() -> None:
    folder = Path(sys.argv[1])
    assets = folder / "hibari" / "assets"
    sys.path.insert(0, str(folder))
    from hibari import dsp
    from hibari.g2p.oov import OOV

    vocab = json.loads((assets / "vocab.json").read_text(encoding="utf-8"))
    model = float_graph(assets / "hibari.onnx")
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    model.graph.output.append(helper.make_tensor_value_info("/Clip_output_0", 1, None))
    exact = onnxruntime.InferenceSession(model.SerializeToString(), quiet)
    shipped_model = onnx.load(str(assets / "hibari.onnx"))
    shipped_model.graph.output.append(helper.make_tensor_value_info("/Clip_output_0", 1, None))
    shipped = onnxruntime.InferenceSession(shipped_model.SerializeToString(), quiet)
    out: dict[str, np.ndarray] = {"words": np.array(WORDS)}
    net = OOV(str(assets / "oov.onnx"))
    out["readings"] = np.array([net(word) for word in WORDS])
    for number, phonemes in enumerate(PHONEMES):
        ids = np.array([0, *(vocab[c] for c in phonemes if c in vocab), 0])
        feed = {"ids": ids[None], "speed": np.ones(1, np.float32)}
        parts = dict(zip(("lh", "theta", "ln", "lr", "phi", "f0", "frames"), exact.run(None, feed), strict=True))
        out[f"{number}/ids"] = ids.astype(np.int16)
        out[f"{number}/frames"] = parts["frames"].astype(np.int16)
        out[f"{number}/shipped_frames"] = shipped.run(["/Clip_output_0"], feed)[0].astype(np.int16)
        out[f"{number}/f0"] = parts["f0"][0]
        head = np.concatenate([parts[name][0] for name in ("lh", "theta", "ln", "lr", "phi")]).T
        out[f"{number}/head"] = head[::9, ::13].astype(np.float32)
        if number == 0:
            spectra = [parts[name][0] for name in ("lh", "theta")] + [np.full_like(parts["ln"][0], -80)]
            spectra += [parts[name][0] for name in ("lr", "phi")]
            out["0/audio"] = dsp.synth(*spectra, parts["f0"][0], Silence()).astype(np.float16)
    np.savez_compressed(HERE / "golden" / "hibari_graph.npz", **out)


if __name__ == "__main__":
    main()
