"""Converts the packages of the listening models (VAD, end of turn, speech to text) to the cache's form.

Each `convert_<name>(src, dst)` reads an unpacked package folder and fills an empty folder with model.safetensors,
config.json and, for Whisper, tokenizer.json. Every problem is a WeightsError that names the file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from .errors import WeightsError
from .readers_ct2 import read_ct2
from .readers_onnx import OnnxFile, dequantize, read_onnx

_AGAIN = "fetch it again with `bargein models pull`"


def _find(src: Path, name: str) -> Path:
    """The one file called `name` anywhere under src."""
    found = sorted(src.rglob(name))
    if not found:
        raise WeightsError(src / name, f"not in the package; {_AGAIN}")
    return found[0]


def _write(dst: Path, tensors: dict[str, NDArray[Any]], config: dict[str, Any]) -> None:
    save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, dst / "model.safetensors")
    (dst / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def convert_silero(src: Path, dst: Path) -> None:
    """Silero VAD v6, 16 kHz, from the silero-vad package's ONNX file: float32 as stored (1.2 MB).

    The package's own silero_vad_16k.safetensors is not used: it holds the weights of an earlier training, which
    disagree with every ONNX file beside it by up to 0.7 in probability.
    """
    path = _find(src, "silero_vad_16k_op15.onnx")
    stored = read_onnx(path).initializers
    layers = {f"model.encoder.{i}.reparam_conv": f"conv{i + 1}" for i in range(4)}
    layers["model.decoder.decoder.2"] = "final_conv"
    names = {f"{old}.{part}": f"{new}.{part}" for old, new in layers.items() for part in ("weight", "bias")}
    names |= {f"model.decoder.rnn.{g}": f"lstm_cell.{g}" for g in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    names["model.stft.forward_basis_buffer"] = "stft_conv.weight"
    missing = sorted(set(names) - set(stored))
    if missing:
        raise WeightsError(path, f"lacks {missing[0]}; {_AGAIN}")
    tensors = {new: stored[old] for old, new in names.items()}
    _write(dst, tensors, {"model": "silero-vad", "sample_rate": 16000, "window": 512, "context": 64})


# --- Whisper ----------------------------------------------------------------------------------------------------------


def convert_whisper(src: Path, dst: Path) -> None:
    """Whisper from a folder with CTranslate2's model.bin (whole, or .part1, .part2 ...), config.json, tokenizer.json.

    Weights stay float16, as stored: half the size, and exact.
    """
    whole = sorted(src.rglob("model.bin"))
    parts: Sequence[Path] = whole[:1] or sorted(src.rglob("model.bin.part*"), key=lambda p: p.suffix)
    if not parts:
        raise WeightsError(src / "model.bin", f"not in the package; {_AGAIN}")
    file = read_ct2(parts)
    if file.spec != "WhisperSpec":
        raise WeightsError(parts[0], f"holds a {file.spec}, not a WhisperSpec; choose a Whisper model")
    tokenizer, settings_path = _find(src, "tokenizer.json"), parts[0].with_name("config.json")
    try:
        settings = json.loads(settings_path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise WeightsError(settings_path, f"unreadable ({problem}); {_AGAIN}") from None
    v = file.variables
    scalars = {name: value.item() for name, value in v.items() if value.ndim == 0}
    expected = {"decoder/activation": 3, "decoder/pre_norm": 1, "decoder/alibi": 0, "decoder/scale_embeddings": 0}
    for name, value in expected.items():
        if scalars.get(name) != value:
            raise WeightsError(parts[0], f"{name} is {scalars.get(name)}, not {value}: a variant this cannot run")
    try:
        tensors = {name: t for name, t in v.items() if t.ndim and name not in _NOT_WEIGHTS}
        vocab, width = v["decoder/embeddings/weight"].shape
        config = {
            "model": "whisper",
            "width": width,
            "heads": scalars["encoder/num_heads"],
            "encoder_layers": _count(tensors, "encoder"),
            "decoder_layers": _count(tensors, "decoder"),
            "mels": v["encoder/conv1/weight"].shape[1],
            "audio_positions": v["encoder/position_encodings/encodings"].shape[0],
            "text_positions": v["decoder/position_encodings/encodings"].shape[0],
            "vocab": vocab,
            "suppress": settings["suppress_ids"],
            "suppress_begin": settings["suppress_ids_begin"],
            "alignment_heads": settings["alignment_heads"],
        }
    except KeyError as missing:
        raise WeightsError(parts[0], f"lacks {missing}; {_AGAIN}") from None
    _write(dst, tensors, config)
    shutil.copyfile(tokenizer, dst / "tokenizer.json")


_NOT_WEIGHTS = ("decoder/projection/weight",)  # the tied head: an alias of the embeddings


def _count(tensors: dict[str, NDArray[Any]], side: str) -> int:
    layers = {name.split("/")[1] for name in tensors if name.startswith(f"{side}/layer_")}
    return len(layers - {"layer_norm"})


# --- smart-turn -------------------------------------------------------------------------------------------------------


def convert_smart_turn(src: Path, dst: Path) -> None:
    """smart-turn v3 from pipecat-ai's ONNX file, under the network's own names.

    The file is statically quantized: weights stay the int8 they are (8 MB), each with its `_scale` a channel.
    """
    path = next(iter(sorted(src.rglob("smart-turn-v3*-cpu.onnx"))), src / "smart-turn-v3.2-cpu.onnx")
    file = read_onnx(path)
    stored = file.initializers
    tensors: dict[str, NDArray[Any]] = {}
    try:
        for name, source in _smart_turn_weights(file).items():
            quantized, scale = stored[f"{source}_quantized"], stored[f"{source}_scale"]
            if stored[f"{source}_zero_point"].any():
                raise WeightsError(path, f"{source} isn't quantized symmetrically: a variant this cannot run")
            matmul = not source.startswith("inner.")  # MatMul weights are [in, out]; Conv and Gemm ones [out, in]
            tensors[f"{name}.weight"] = quantized.T if matmul else quantized
            tensors[f"{name}.weight_scale"] = scale.astype(np.float32)
        for name in ("encoder.conv1", "encoder.conv2", "classifier.0", "classifier.4", "classifier.6"):
            bias = f"inner.{name}.bias_quantized"
            tensors[f"{name}.bias"] = dequantize(stored[bias], stored[f"{bias}_scale"], stored[f"{bias}_zero_point"])
        for name, tensor in stored.items():
            if name.startswith("inner.") and tensor.dtype == np.float32 and not name.endswith("_scale"):
                tensors[name.removeprefix("inner.")] = tensor
    except KeyError as missing:
        raise WeightsError(path, f"lacks {missing}: a variant this cannot run") from None
    width = tensors["encoder.conv1.bias"].shape[0]
    layers = len({n.split(".")[2] for n in tensors if n.startswith("encoder.layers.")})
    config = {"model": "smart-turn", "width": width, "heads": width // 64, "layers": layers, "mels": 80, "seconds": 8}
    _write(dst, tensors, config)


def _smart_turn_weights(file: OnnxFile) -> dict[str, str]:
    """Our weight name -> the stem of its initializers, by following the graph from each bias back to its product."""
    made_by = {output: node for node in file.nodes for output in node.outputs}

    def product(name: str) -> tuple[str, str]:  # the (input, weight) of the MatMul behind a quantize/dequantize pair
        node = made_by[name]
        while node.op in ("DequantizeLinear", "QuantizeLinear"):
            node = made_by[node.inputs[0]]
        return node.inputs[0], made_by[node.inputs[1]].inputs[0].removesuffix("_quantized")

    names = {f"encoder.conv{i}": f"inner.encoder.conv{i}.weight" for i in (1, 2)}
    names |= {f"classifier.{i}": f"inner.classifier.{i}.weight" for i in (0, 4, 6)}
    for node in file.nodes:
        bias = next((i for i in node.inputs if i.startswith("inner.") and i.endswith(".bias")), None)
        if node.op == "Add" and bias is not None:
            source, weight = product(next(i for i in node.inputs if i != bias))
            names[bias.removeprefix("inner.").removesuffix(".bias")] = weight
            if bias.endswith("q_proj.bias"):  # the key's projection has no bias: the third product of the same input
                keys = bias.removeprefix("inner.").replace("q_proj.bias", "k_proj")
                for other in file.nodes:
                    if other.op == "MatMul" and other.inputs[0] == source and keys not in names:
                        stem = made_by[other.inputs[1]].inputs[0].removesuffix("_quantized")
                        bare = not any(n.op == "Add" and _weight_behind(made_by, n) == stem for n in file.nodes)
                        if bare:
                            names[keys] = stem
    return names


def _weight_behind(made_by: dict[str, Any], add: Any) -> str | None:
    """The weight stem of the MatMul that an Add gives its bias to, or None."""
    for name in add.inputs:
        node = made_by.get(name)
        while node is not None and node.op in ("DequantizeLinear", "QuantizeLinear"):
            node = made_by.get(node.inputs[0])
        if node is not None and node.op == "MatMul" and node.inputs[1] in made_by:
            return str(made_by[node.inputs[1]].inputs[0].removesuffix("_quantized"))
    return None
