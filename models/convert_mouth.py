"""Importers of the speaking models: a package's files in, safetensors plus JSON out.

Each `convert_x(src, dst)` reads the unpacked package `src` and fills the empty folder `dst`; a source that cannot be
used raises WeightsError naming the file.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save_file

from .errors import WeightsError


def _read_onnx(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(str(path))
    except FileNotFoundError:
        raise WeightsError(path, "not there; reinstall the model's package") from None
    except Exception as error:
        raise WeightsError(path, f"not a readable ONNX file ({type(error).__name__}); fetch it again") from error


def _find(src: Path, name: str) -> Path:
    """The one file called `name` anywhere below src."""
    found = sorted(src.rglob(name))
    if not found:
        raise WeightsError(src / name, "not there; fetch the model's package again")
    return found[0]


def named_onnx_weights(path: Path) -> dict[str, NDArray[Any]]:
    """Initializers of an ONNX export under the checkpoint's own names.

    The exporter drops the names of matrices that it transposed; each is found again by the bias added to its product:
    `x.bias` -> `x.weight`, `x_bias` -> `x_weight`. Matrices keep the export's layout, [in, out]. A dynamically quantized
    one stays uint8 with `.scale` (float32) and `.zero_point` (uint8) beside it.
    """
    graph = _read_onnx(path).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}

    def product_of(name: str) -> onnx.NodeProto | None:
        """The matrix product an Add's operand comes from, through the casts and scalings of quantization."""
        while name in makers:
            node = makers[name]
            if node.op_type in ("MatMul", "MatMulInteger"):
                return node
            if node.op_type not in ("Cast", "Mul"):
                return None
            name = node.input[0]
        return None

    weights = {name: array for name, array in arrays.items() if name[:1] not in ("/", "o") and "." in name}
    weights |= {name: array for name, array in arrays.items() if name.endswith(".pos")}
    for node in graph.node:
        if node.op_type != "Add":
            continue
        bias = next((name for name in node.input if name.endswith("bias") and name in arrays), None)
        product = None if bias is None else product_of(next(name for name in node.input if name != bias))
        if bias is None or product is None:
            continue
        name = bias[: -len("bias")] + "weight"
        weights[name] = arrays[product.input[1]]
        if product.op_type == "MatMulInteger":
            base = product.input[1].removesuffix("_quantized")
            weights[name + ".scale"] = arrays[base + "_scale"].reshape(1)
            weights[name + ".zero_point"] = arrays[product.input[3]].reshape(1)
    return weights


def _repeats(path: Path, bias: str) -> int:
    """How often the graph applies the layer with this bias (layers of an encoder may share weights)."""
    return sum(bias in node.input for node in _read_onnx(path).graph.node)


def convert_hibari(src: Path, dst: Path) -> None:
    """hibari-tts (Apache-2.0) -> model.safetensors, oov.safetensors, config.json and the package's G2P.

    The acoustic model stays in the uint8 of its ONNX file (8 MB); so nothing is lost and loading dequantizes once.
    The G2P's Python and its lexicon are copied as they are; its out-of-vocabulary net becomes safetensors.
    """
    graph_path = _find(src, "hibari.onnx")
    assets = graph_path.parent
    weights = named_onnx_weights(graph_path)
    config = {
        "model": "hibari",
        "sample_rate": 24000,
        "hop": 300,
        "n_fft": 1200,
        "heads": 2,
        "acoustic_attention_passes": _repeats(graph_path, "m.text.attn.self_attn.in_proj_bias"),
        "prosody_attention_passes": _repeats(graph_path, "pn.text.attn.self_attn.in_proj_bias"),
        "vocab": json.loads((assets / "vocab.json").read_text(encoding="utf-8")),
    }
    if config["acoustic_attention_passes"] == 0:
        raise WeightsError(graph_path, "not the hibari graph this importer knows; use hibari-tts 0.2.1")
    oov_path = _find(src, "oov.onnx")
    oov = {name.removeprefix("m."): array for name, array in named_onnx_weights(oov_path).items()}
    meta = json.loads((assets / "oov.json").read_text(encoding="utf-8"))
    config["oov"] = {"heads": 4, "chars": meta["in"], "phonemes": meta["out"], "max_chars": meta["maxlen"]}
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, str(dst / "model.safetensors"))
    save_file({name: np.ascontiguousarray(array) for name, array in oov.items()}, str(dst / "oov.safetensors"))
    (dst / "config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
    g2p = assets.parent / "g2p"
    if not (g2p / "__init__.py").is_file():
        raise WeightsError(g2p, "the package's G2P is not there; fetch hibari-tts again")
    shutil.copytree(g2p, dst / "g2p", ignore=shutil.ignore_patterns("__pycache__"))
    (dst / "assets").mkdir()
    for name in (
        "lexicon_us_gold.json.gz", "lexicon_us_silver.json.gz", "normalize.json", "tagger.json.gz",
        "tokenizer_exceptions.json",
    ):
        shutil.copyfile(_find(assets, name), dst / "assets" / name)
