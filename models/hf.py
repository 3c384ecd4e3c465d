"""Decoders from a Hugging Face folder (config.json, safetensors, tokenizer.json) or a GGUF file, weights as they are stored.

Families: Llama, Mistral, Qwen 2, Qwen 3, Gemma 3 (text). Weights: bf16, fp16 or float32; 4 bits of AWQ or GPTQ; Q4_K, Q6_K
and Q8_0 of GGUF, which stay packed. `form` "int8" rounds every matrix to int8 with a scale a row instead, which is what a
CPU runs on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from bargein.kernels.gpu.numbers import Packed, Stacked, from_bf16, unpack_groups
from bargein.kernels.gpu.ops import Half
from bargein.kernels.reference import Int8Matrix, pack_rows, quantize_rows

from .decoder import Config, Layer, Model, Weights
from .errors import WeightsError
from .packed import awq, gptq, q4_k, q6_k, q8_0

F32 = NDArray[np.float32]
Form = Literal["kept", "int8"]
AnyMatrix = Half | Packed | Stacked | Int8Matrix

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gemma3"}
_PLAIN = {"float16", "float32"}


# -- configuration ----------------------------------------------------------------------------------------------------


def config_of(raw: dict[str, Any], path: Path) -> Config:
    """A config.json's content as ours. Raises WeightsError for what the graph does not do."""
    raw = raw.get("text_config") or raw
    kind = raw.get("model_type")
    if kind not in _FAMILIES:
        raise WeightsError(path, f"model_type {kind!r} is not supported; use one of {', '.join(sorted(_FAMILIES))}")
    kind = "gemma3" if kind == "gemma3_text" else kind
    try:
        heads, width = raw["num_attention_heads"], raw["hidden_size"]
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        rope_full = rope.get("full_attention", rope)  # by kind of layer, where there are two
        common = {
            "kind": kind, "vocab": raw["vocab_size"], "width": width, "layers": raw["num_hidden_layers"], "heads": heads,
            "kv_heads": raw.get("num_key_value_heads") or heads, "head_size": raw.get("head_dim") or width // heads,
            "hidden": raw["intermediate_size"], "norm_eps": raw["rms_norm_eps"],
            "rope_base": raw.get("rope_theta") or rope_full.get("rope_theta") or 10000.0,
            "context": raw["max_position_embeddings"], "tied": bool(raw.get("tie_word_embeddings", kind == "gemma3")),
            "max_positions": min(raw["max_position_embeddings"], 32768), "rope_scaling": _scaling(rope_full, path),
        }  # fmt: skip
    except KeyError as missing:
        raise WeightsError(path, f"has no {missing}") from None
    if kind == "qwen2":
        common |= {"qkv_bias": True}
    if kind == "qwen3":
        common |= {"qk_norm": True}
    if kind == "mistral" and raw.get("sliding_window"):
        common |= {"window": raw["sliding_window"]}
    if kind == "gemma3":
        local = rope.get("sliding_attention", {}).get("rope_theta") or raw.get("rope_local_base_freq") or 10000.0
        common |= {
            "activation": "gelu_tanh", "qk_norm": True, "post_norms": True, "embedding_scale": float(np.float32(width) ** 0.5),
            "rope_base_local": local, "window": raw["sliding_window"], "global_every": _every(raw, path),
            "query_width": float(raw.get("query_pre_attn_scalar") or 0),
        }  # fmt: skip
    elif common.get("window"):
        common |= {"rope_base_local": common["rope_base"]}
    return Config(**common)


def _every(raw: dict[str, Any], path: Path) -> int:
    """Every how many layers one sees everything."""
    kinds = raw.get("layer_types")
    if not kinds:
        return int(raw.get("sliding_window_pattern", 6))
    full = [i + 1 for i, k in enumerate(kinds) if k == "full_attention"]
    every = full[0] if full else len(kinds) + 1
    if full != list(range(every, len(kinds) + 1, every)):
        raise WeightsError(path, "layer_types is not a regular pattern")
    return every


def _scaling(rope: dict[str, Any], path: Path) -> tuple[float, ...]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ()
    if kind == "linear":
        return (float(rope["factor"]),)
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return tuple(float(rope[name]) for name in names)
    raise WeightsError(path, f"rope scaling {kind!r} is not supported; default, linear and llama3 are")


def rotary_frequencies(head_size: int, base: float, scaling: tuple[float, ...]) -> NDArray[np.float64]:
    """Radians a position of each pair of a head [d / 2].

    scaling: () for none; (factor) divides all; (factor, low, high, original) is Llama 3.1's: divided where the wave is
    longer than original / low, kept where it is shorter than original / high, blended between.
    """
    plain: NDArray[np.float64] = base ** (-np.arange(0, head_size, 2) / head_size)
    if not scaling:
        return plain
    if len(scaling) == 1:
        return plain / scaling[0]
    factor, low, high, original = scaling
    turns = original * plain / (2 * math.pi)  # in the original context
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return plain * keep + plain / factor * (1 - keep)


def rotary_table(positions: int, head_size: int, base: float, scaling: tuple[float, ...] = ()) -> F32:
    """cos and sin of every position, as `kernels.rotary_table` lays them out."""
    angles = np.arange(positions)[:, None] * rotary_frequencies(head_size, base, scaling)[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


# -- tensors ----------------------------------------------------------------------------------------------------------


class _Files:
    """The tensors of all safetensors files of a folder, by name; each may be taken once."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._where: dict[str, Any] = {}
        self.dtypes: dict[str, str] = {}
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise WeightsError(folder, "holds no .safetensors file")
        for file in files:
            try:
                opened = stack.enter_context(safe_open(str(file), framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise WeightsError(file, f"not readable ({error}); fetch it again") from error
            self._where |= dict.fromkeys(opened.keys(), (opened, file))
            self.dtypes |= _dtypes(file)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def take(self, name: str) -> NDArray[Any]:
        """A tensor; bf16 as uint16. Raises WeightsError where it is missing."""
        if name not in self._where:
            raise WeightsError(self.folder, f"tensor {name} is missing")
        opened, file = self._where.pop(name)
        if self.dtypes[name] == "BF16":
            return _raw(file, name)
        result: NDArray[Any] = opened.get_tensor(name)
        return result

    def left(self) -> list[str]:
        return sorted(self._where)


def _header(file: Path) -> tuple[dict[str, Any], int]:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return json.loads(stream.read(size)), 8 + size


def _dtypes(file: Path) -> dict[str, str]:
    return {name: info["dtype"] for name, info in _header(file)[0].items() if name != "__metadata__"}


def _raw(file: Path, name: str) -> NDArray[np.uint16]:
    """A bf16 tensor, which NumPy has no type for."""
    header, start = _header(file)
    first, last = header[name]["data_offsets"]
    data = np.memmap(file, np.uint8, "r", start + first, (last - first,))
    return np.array(data).view(np.uint16).reshape(header[name]["shape"])


def _f32(array: NDArray[Any]) -> F32:
    return from_bf16(array) if array.dtype == np.uint16 else np.ascontiguousarray(array, np.float32)


class _Source(NamedTuple):
    """A checkpoint: its configuration, and its layers' parts by our own names."""

    cfg: Config
    matrices: dict[str, AnyMatrix]
    vectors: dict[str, F32]


def _matrix(files: _Files, name: str, quant: dict[str, Any], rows: int, columns: int) -> AnyMatrix:
    """A linear layer's weights [rows, columns] as they are stored."""
    method = quant.get("quant_method")
    if f"{name}.qweight" in files:
        parts = {p: files.take(f"{name}.{p}") for p in ("qweight", "qzeros", "scales")}
        if f"{name}.g_idx" in files:
            parts["g_idx"] = files.take(f"{name}.g_idx")
        try:
            if method == "awq":
                packed = awq(parts["qweight"], parts["qzeros"], _f32(parts["scales"]), quant["group_size"])
            else:
                packed = gptq(parts["qweight"], parts["qzeros"], _f32(parts["scales"]), quant["group_size"],
                              parts.get("g_idx"), quant.get("checkpoint_format", "gptq"))  # fmt: skip
        except ValueError as problem:
            raise WeightsError(files.folder, f"{name}: {problem}") from None
        found: AnyMatrix = packed
    else:
        weight = files.take(f"{name}.weight")
        if weight.dtype == np.float32:
            weight = weight.astype(np.float16)
        found = Half(weight, *weight.shape)
    if (found.rows, found.columns) != (rows, columns):
        raise WeightsError(files.folder, f"{name} is {found.rows} by {found.columns}, not {rows} by {columns}")
    return found


def _read_folder(folder: Path) -> _Source:
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(path, f"not readable ({error})") from error
    cfg = config_of(raw, path)
    quant = raw.get("quantization_config") or {}
    method = quant.get("quant_method")
    if method not in (None, "awq", "gptq") or (method and int(quant.get("bits", 4)) != 4):
        bits = quant.get("bits")
        raise WeightsError(path, f"quantization {method} with {bits} bits is not supported; awq and gptq with 4 are")
    with ExitStack() as stack:
        files = _Files(folder, stack)
        source = _Source(cfg, dict(_folder_matrices(files, cfg, quant)), dict(_folder_vectors(files, cfg)))
        known = ("rotary_emb.inv_freq", "vision_tower", "multi_modal_projector", "lm_head.weight")
        unknown = [name for name in files.left() if not any(part in name for part in known)]
    if unknown:
        raise WeightsError(folder, f"unknown tensor {unknown[0]}")
    return source


def _prefix(files: _Files) -> str:
    for prefix in ("model.", "language_model.model.", "model.language_model."):
        if f"{prefix}embed_tokens.weight" in files:
            return prefix
    raise WeightsError(files.folder, "tensor model.embed_tokens.weight is missing")


def _folder_matrices(files: _Files, c: Config, quant: dict[str, Any]) -> Iterator[tuple[str, AnyMatrix]]:
    prefix = _prefix(files)
    q, kv = c.heads * c.head_size, c.kv_heads * c.head_size
    for i in range(c.layers):
        p = f"{prefix}layers.{i}."
        parts = [(f"{p}self_attn.{n}_proj", rows) for n, rows in (("q", q), ("k", kv), ("v", kv))]
        yield f"{i}.qkv", _joined([_matrix(files, name, quant, rows, c.width) for name, rows in parts])
        yield f"{i}.attn_output", _matrix(files, f"{p}self_attn.o_proj", quant, c.width, q)
        yield f"{i}.gate_up", _joined([_matrix(files, f"{p}mlp.{n}_proj", quant, c.hidden, c.width) for n in ("gate", "up")])
        yield f"{i}.ffn_down", _matrix(files, f"{p}mlp.down_proj", quant, c.width, c.hidden)
    yield "embedding", _matrix(files, f"{prefix}embed_tokens", {}, c.vocab, c.width)
    if not c.tied:
        yield "head", _matrix(files, "lm_head", quant, c.vocab, c.width)


def _folder_vectors(files: _Files, c: Config) -> Iterator[tuple[str, F32]]:
    prefix = "model."
    for candidate in ("language_model.model.", "model.language_model."):
        prefix = candidate if f"{candidate}norm.weight" in files else prefix
    one = np.float32(1 if c.kind == "gemma3" else 0)  # Gemma stores its norms less one
    yield "output_norm", _f32(files.take(f"{prefix}norm.weight")) + one
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if c.post_norms:
        names |= {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
                  "post_ffw_norm": "post_feedforward_layernorm"}  # fmt: skip
    if c.qk_norm:
        names |= {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
    for i in range(c.layers):
        for ours, theirs in names.items():
            yield f"{i}.{ours}", _f32(files.take(f"{prefix}layers.{i}.{theirs}.weight")) + one
        if c.qkv_bias:
            parts = [_f32(files.take(f"{prefix}layers.{i}.self_attn.{n}_proj.bias")) for n in "qkv"]
            yield f"{i}.qkv_bias", np.concatenate(parts)


def _joined(parts: list[AnyMatrix]) -> AnyMatrix:
    """Matrices one below the other; where their forms differ, side by side in a list."""
    first = parts[0]
    if all(isinstance(p, Half) and p.data.dtype == first.data.dtype for p in parts):  # type: ignore[union-attr]
        return Half(np.concatenate([p.data for p in parts]), sum(p.rows for p in parts), first.columns)  # type: ignore[union-attr]
    if all(isinstance(p, Packed) and (p.bits, p.group) == (first.bits, first.group) for p in parts):  # type: ignore[union-attr]
        arrays = [np.concatenate([getattr(p, n) for p in parts]) for n in ("levels", "top", "scale", "least")]
        if first.bits != 6:  # type: ignore[union-attr]
            arrays[1] = first.top  # type: ignore[union-attr]
        return Packed(first.bits, first.group, *arrays, sum(p.rows for p in parts), first.columns)  # type: ignore[union-attr]
    return Stacked(tuple(parts), sum(p.rows for p in parts), first.columns)


# -- GGUF -------------------------------------------------------------------------------------------------------------


def _read_gguf(path: Path) -> _Source:
    import gguf

    from .convert_mouth import gguf_config
    from .readers_gguf import open_gguf, tensor_f32

    file = open_gguf(path)
    cfg = gguf_config(file)
    packers = {gguf.GGMLQuantizationType.Q4_K: q4_k, gguf.GGMLQuantizationType.Q6_K: q6_k, gguf.GGMLQuantizationType.Q8_0: q8_0}

    def matrix(name: str, turn: bool = False) -> AnyMatrix:
        tensor = file.tensors.get(name)
        if tensor is None:
            raise WeightsError(path, f"has no tensor {name}")
        columns, rows = (int(n) for n in tensor.shape[:2])
        order = _halves(rows, cfg.head_size) if turn else np.arange(rows)
        pack = packers.get(tensor.tensor_type)
        if pack is not None:
            data = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(rows, -1)
            return pack(data[order], columns)
        return Half(tensor_f32(file, name)[order].astype(np.float16), rows, columns)

    turn = cfg.kind == "llama"  # its rows are in the order of interleaved rotary pairs
    matrices: dict[str, AnyMatrix] = {"embedding": matrix("token_embd.weight")}
    if not cfg.tied:
        matrices["head"] = matrix("output.weight")
    vectors = {"output_norm": tensor_f32(file, "output_norm.weight")}
    norms = {"attn_norm", "ffn_norm"} | ({"attn_q_norm", "attn_k_norm"} if cfg.qk_norm else set())
    norms |= {"post_attention_norm", "post_ffw_norm"} if cfg.post_norms else set()
    for i in range(cfg.layers):
        p = f"blk.{i}."
        parts = [matrix(f"{p}attn_{n}.weight", turn and n != "v") for n in "qkv"]
        matrices[f"{i}.qkv"] = _joined(parts)
        matrices[f"{i}.attn_output"] = matrix(f"{p}attn_output.weight")
        matrices[f"{i}.gate_up"] = _joined([matrix(f"{p}ffn_{n}.weight") for n in ("gate", "up")])
        matrices[f"{i}.ffn_down"] = matrix(f"{p}ffn_down.weight")
        for name in norms:
            short = name.removeprefix("attn_") if name.startswith(("attn_q", "attn_k")) else name
            vectors[f"{i}.{short}"] = tensor_f32(file, f"{p}{name}.weight")
        if cfg.qkv_bias:
            vectors[f"{i}.qkv_bias"] = np.concatenate([tensor_f32(file, f"{p}attn_{n}.bias") for n in "qkv"])
    return _Source(cfg, matrices, vectors)


def _halves(rows: int, head_size: int) -> NDArray[np.int64]:
    """The order of rows that turns interleaved rotary pairs of each head into halves."""
    return np.arange(rows).reshape(-1, head_size // 2, 2).transpose(0, 2, 1).reshape(-1)


# -- together ---------------------------------------------------------------------------------------------------------


def plain(m: AnyMatrix) -> F32:
    """The float32 matrix [rows, columns] that any stored form stands for."""
    if isinstance(m, Stacked):
        return np.concatenate([plain(part) for part in m.parts])
    if isinstance(m, Packed):
        return unpack_groups(m)
    if isinstance(m, Half):
        return _f32(m.data)
    raise TypeError(type(m).__name__)


def load(path: Path, form: Form = "kept") -> Model:
    """The model of a Hugging Face folder or a .gguf file, on the host. Raises WeightsError.

    form: "kept" leaves matrices as they are stored (for a GPU), "int8" rounds them (for the CPU, or to save memory).
    """
    source = _read_gguf(path) if path.suffix == ".gguf" else _read_folder(path)
    c = source.cfg
    ready = {name: pack_rows(*quantize_rows(plain(m))) if form == "int8" else m for name, m in source.matrices.items()}

    def layer(i: int) -> Layer:
        names = [f for f in Layer._fields if f != "key_reference"]
        return Layer(**{f: ready.get(f"{i}.{f}", source.vectors.get(f"{i}.{f}")) for f in names})  # type: ignore[arg-type]

    embedding: Any = ready["embedding"]
    weights = Weights(
        embedding, embedding if c.tied else ready["head"], source.vectors["output_norm"],  # type: ignore[arg-type]
        tuple(layer(i) for i in range(c.layers)),
        rotary_table(c.max_positions, c.head_size, c.rope_base, c.rope_scaling),
        rotary_table(c.max_positions, c.head_size, c.rope_base_local),
    )  # fmt: skip
    return Model(c, weights)
