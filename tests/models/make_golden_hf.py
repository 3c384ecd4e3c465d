"""Writes golden/hf/<name>/ for every family: a tiny random checkpoint as transformers saves it, tokens, and its logits.

    python tests/models/make_golden_hf.py        (needs torch and transformers)

The 4-bit folders are the Llama one with its layers packed here, from the formats' descriptions; their logits are those of
transformers on the numbers that the packed ones stand for.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers as t
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent / "golden" / "hf"
COMMON = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.1)  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
FAMILIES = {
    "llama": (t.LlamaConfig, t.LlamaForCausalLM, dict(rope_parameters=LLAMA3, tie_word_embeddings=False)),
    "mistral": (t.MistralConfig, t.MistralForCausalLM, dict(sliding_window=7, head_dim=16)),
    "qwen2": (t.Qwen2Config, t.Qwen2ForCausalLM, dict(tie_word_embeddings=True)),
    "qwen3": (t.Qwen3Config, t.Qwen3ForCausalLM, dict(head_dim=32, tie_word_embeddings=True)),
    "gemma3": (t.Gemma3TextConfig, t.Gemma3ForCausalLM, dict(
        head_dim=16, sliding_window=7, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=24)),
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(3, 96, 20)
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GROUP = 32


def model_of(name: str) -> torch.nn.Module:
    config_type, model_type, extra = FAMILIES[name]
    torch.manual_seed(len(name))
    model = model_type(config_type(**COMMON, **extra)).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.ndim == 1:  # norms and biases that do something
                p.add_(0.3 * torch.randn_like(p))
            elif "embed" in key:
                p.mul_(4)
    return model


def logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model.float()(torch.tensor(TOKENS)[None]).logits[0].numpy()


def write(name: str, model: torch.nn.Module, tensors: dict[str, torch.Tensor] | None, quant: dict | None) -> None:
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    if tensors is None:
        model.to(torch.bfloat16).save_pretrained(folder)
    else:
        folder.mkdir(parents=True)
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        model.config.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | ({"quantization_config": quant} if quant else {})
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    np.savez_compressed(folder / "golden.npz", tokens=TOKENS, logits=logits(model).astype(np.float32))


def quantized(weight: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[out, in] -> levels [out, in], zeros and scales [out, in / GROUP]."""
    parts = weight.float().numpy().reshape(weight.shape[0], -1, GROUP)
    low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
    scale = ((high - low) / 15).astype(np.float16).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 1, 15)
    levels = np.clip(np.rint(parts / scale[..., None]) + zero[..., None], 0, 15)
    return levels.reshape(weight.shape).astype(np.int64), zero.astype(np.int64), scale


def eights(x: np.ndarray, order: list[int]) -> torch.Tensor:
    """Along the last axis, eight 4-bit numbers in an int32; number order[i] at bits 4 i."""
    parts = x.reshape(*x.shape[:-1], -1, 8).astype(np.uint32)
    word = sum((parts[..., n] << np.uint32(4 * i)) for i, n in enumerate(order))
    return torch.from_numpy(np.ascontiguousarray(word.astype(np.uint32)).view(np.int32))


def packed(name: str) -> None:
    model = model_of("llama").to(torch.bfloat16)
    tensors = {}
    with torch.no_grad():
        for key, weight in dict(model.state_dict()).items():
            base = key.removesuffix(".weight")
            if base.split(".")[-1] not in LINEAR:
                tensors[key] = weight.contiguous()
                continue
            levels, zero, scale = quantized(weight)
            real = (levels.reshape(len(levels), -1, GROUP) - zero[..., None]) * scale[..., None]
            model.get_parameter(key).data = torch.tensor(real.reshape(levels.shape), dtype=torch.float32)
            if name == "awq":
                order = [0, 2, 4, 6, 1, 3, 5, 7]
                tensors[f"{base}.qweight"] = eights(levels.T, order)
                tensors[f"{base}.qzeros"] = eights(zero.T, order)
            else:
                tensors[f"{base}.qweight"] = eights(levels, list(range(8))).T.contiguous()
                tensors[f"{base}.qzeros"] = eights(zero.T - 1, list(range(8)))
                tensors[f"{base}.g_idx"] = torch.arange(levels.shape[1], dtype=torch.int32) // GROUP
            tensors[f"{base}.scales"] = torch.tensor(np.ascontiguousarray(scale.T), dtype=torch.float16)
    quant = {"quant_method": name, "bits": 4, "group_size": GROUP}
    write(name, model, tensors, quant | ({"desc_act": False} if name == "gptq" else {"version": "gemm", "zero_point": True}))


if __name__ == "__main__":
    for family in FAMILIES:
        model = model_of(family).to(torch.bfloat16)
        write(family, model, None, None)
        assert load_file(str(HERE / family / "model.safetensors"))
    packed("awq")
    packed("gptq")
