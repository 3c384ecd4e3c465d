"""Each family from its own folder against transformers (golden/hf, by make_golden_hf.py), and each packed form."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from bargein.kernels.gpu.interpret import Interpreter
from bargein.kernels.gpu.numbers import Packed, unpack_groups
from bargein.kernels.gpu.ops import Half, Ops
from bargein.kernels.gpu.standin import StandIn
from bargein.models import decoder, hf
from bargein.models.decoder_gpu import DeviceDecoder, DevicePool
from bargein.models.errors import WeightsError
from bargein.models.packed import q4_k, q6_k, q8_0

from .conftest import long

GOLDEN = Path(__file__).parent.parent / "golden" / "hf"
NAMES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "awq", "gptq")
RNG = np.random.default_rng(5)


def on_device(model: decoder.Model, tokens: list[int], first: int) -> np.ndarray:
    """Logits after a prompt of `first` tokens and after each token that follows."""
    ops = Ops(StandIn(), Interpreter())
    c, w = model.config, ops.place(model.weights)
    device = DeviceDecoder(ops, DevicePool(c, ops, 8, "fp32"))
    kv = device.new_kv(c)
    rows = [device.forward(w, c, kv, tokens[:first])]
    return np.stack(rows + [device.forward(w, c, kv, [token]) for token in tokens[first:]])


def distance(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("name", NAMES)
def test_family_agrees_with_transformers(name: str) -> None:
    golden = np.load(GOLDEN / name / "golden.npz")
    tokens = [int(t) for t in golden["tokens"]]
    model = hf.load(GOLDEN / name)
    assert isinstance(model.weights.layers[0].ffn_down, Packed if name in ("awq", "gptq") else Half)
    got = on_device(model, tokens[:10], 9)
    assert distance(got, golden["logits"][8:10]) < 4e-3  # rows as fp16 with a scale


@pytest.mark.parametrize("name", NAMES)
def test_family_rounded_to_int8_runs_on_the_cpu(name: str) -> None:
    golden = np.load(GOLDEN / name / "golden.npz")
    cfg, w = hf.load(GOLDEN / name, "int8")
    kv = decoder.new_kv(cfg)
    got = np.stack([decoder.forward(w, cfg, kv, [int(token)]) for token in golden["tokens"]])
    assert distance(got, golden["logits"]) < 0.06  # of weights of two random layers, which int8 rounds
    assert (got.argmax(1) == golden["logits"].argmax(1)).mean() >= 0.85


def blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random blocks, every bit pattern but for scales that are small numbers."""
    size, width, scales = {"Q4_K": (144, 256, (0, 2)), "Q6_K": (210, 256, (208,)), "Q8_0": (34, 32, (0,))}[kind]
    data = RNG.integers(0, 256, (rows, columns // width, size), dtype=np.uint8)
    for at in scales:
        d = (RNG.uniform(0.5, 1, data.shape[:2]) * (1e-4 if kind == "Q6_K" else 1e-3)).astype(np.float16)
        data[:, :, at : at + 2] = d[..., None].view(np.uint8)
    return data.reshape(rows, -1)


PACKERS = {"Q4_K": q4_k, "Q6_K": q6_k, "Q8_0": q8_0}


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_blocks_mean_what_the_format_says(kind: str) -> None:
    data = blocks(kind, 6, 512)
    packed = PACKERS[kind](data, 512)
    want = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    np.testing.assert_allclose(unpack_groups(packed), want, rtol=2e-3, atol=2e-3 * np.abs(want).max())
    assert packed.levels.nbytes + (packed.top.nbytes if packed.bits == 6 else 0) == 6 * 512 * packed.bits // 8


@pytest.mark.parametrize("kind", ["Q4_K", pytest.param("Q6_K", marks=long), pytest.param("Q8_0", marks=long)])
def test_gguf_file_stays_packed_and_agrees_with_its_dequantized_self(kind: str, tmp_path: Path) -> None:
    path, width, heads = tmp_path / "tiny.gguf", 256, 4
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(256)
    writer.add_head_count(heads)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"t{i}" for i in range(64)])
    shapes = {"token_embd": 64, "output": 64, "blk.0.attn_q": 256, "blk.0.attn_k": 128, "blk.0.attn_v": 128,
              "blk.0.attn_output": 256, "blk.0.ffn_gate": 256, "blk.0.ffn_up": 256, "blk.0.ffn_down": 256}  # fmt: skip
    for name, rows in shapes.items():
        own = "Q6_K" if kind == "Q4_K" and name == "blk.0.attn_v" else kind  # as mixed files are
        writer.add_tensor(f"{name}.weight", blocks(own, rows, width), raw_dtype=gguf.GGMLQuantizationType[own])
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", 1 + 0.1 * RNG.standard_normal(width).astype(np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    kept = hf.load(path)
    # The same, in float32 of the file's own dequantization rounded to fp16.
    def plain(m):  # type: ignore[no-untyped-def]
        return Half(hf.plain(m).astype(np.float16), m.rows, m.columns)

    layer = kept.weights.layers[0]
    assert type(layer.qkv).__name__ == ("Stacked" if kind == "Q4_K" else "Packed")
    wide = layer._replace(qkv=plain(layer.qkv), attn_output=plain(layer.attn_output), gate_up=plain(layer.gate_up),
                          ffn_down=plain(layer.ffn_down))  # fmt: skip
    weights = kept.weights._replace(embedding=plain(kept.weights.embedding), head=plain(kept.weights.head), layers=(wide,))
    tokens = [1, 9, 33]
    assert distance(on_device(kept, tokens, 2), on_device(decoder.Model(kept.config, weights), tokens, 2)) < 2e-3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization bitsandbytes"),
        ({"hidden_size": 48, "head_dim": 16}, "is 96 by 64, not 96 by 48|not 64 by 48"),
        ({"num_hidden_layers": 3}, "layers.2.*is missing"),
        ({"num_hidden_layers": 1}, "unknown tensor"),
    ],
)
def test_what_does_not_fit_is_one_line_that_says_so(change: dict, problem: str, tmp_path: Path) -> None:
    config = json.loads((GOLDEN / "llama" / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((GOLDEN / "llama" / "model.safetensors").read_bytes())
    with pytest.raises(WeightsError, match=problem):
        hf.load(tmp_path)
