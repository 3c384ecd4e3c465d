"""Writes golden/chat-served-<name>.npz by llama.cpp (test-only; llama-cpp-python, gguf).

    python tests/models/make_golden_chat_served.py NAME FILE.gguf

The weights that are served, int8 with one scale a row, written out in float32 as a GGUF of their own, so that llama.cpp
rounds nothing: what is left to differ is the graph. Greedy answers of 32 tokens to the prompts of golden/chat-<name>.npz,
and the likeliest tokens along them. FILE is the model's own GGUF; only its metadata is used.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from llama_cpp import Llama

from bargein.kernels.reference import unpack_rows
from bargein.models import decoder, store

HERE = Path(__file__).parent
STORED = {"smollm2": "smollm2-135m", "gemma3": "gemma-3-270m"}
COUNT = 32


def interleaved(weight: np.ndarray, head_size: int) -> np.ndarray:
    """llama's q and k rows back from halves to the file's rotary pairs."""
    rows, columns = weight.shape
    halves = weight.reshape(rows // head_size, 2, head_size // 2, columns)
    return np.ascontiguousarray(halves.transpose(0, 2, 1, 3).reshape(rows, columns))


def tensors(model: decoder.Model) -> dict[str, np.ndarray]:
    """The file's tensors by name, float32, of the weights as served."""
    cfg, w = model.config, model.weights
    out = {"token_embd.weight": unpack_rows(w.embedding), "output_norm.weight": w.output_norm}
    if not cfg.tied:
        out["output.weight"] = unpack_rows(w.head)
    for i, layer in enumerate(w.layers):
        q_rows, k_rows = cfg.heads * cfg.head_size, cfg.kv_heads * cfg.head_size
        q, k, v = np.split(unpack_rows(layer.qkv), [q_rows, q_rows + k_rows])
        if cfg.kind == "llama":
            q, k = interleaved(q, cfg.head_size), interleaved(k, cfg.head_size)
        gate, up = np.split(unpack_rows(layer.gate_up), 2)
        parts = {
            "attn_q": q, "attn_k": k, "attn_v": v, "attn_output": unpack_rows(layer.attn_output), "ffn_gate": gate,
            "ffn_up": up, "ffn_down": unpack_rows(layer.ffn_down), "attn_norm": layer.attn_norm,
            "ffn_norm": layer.ffn_norm, "attn_q_norm": layer.q_norm, "attn_k_norm": layer.k_norm,
            "post_attention_norm": layer.post_attention_norm, "post_ffw_norm": layer.post_ffw_norm,
        }  # fmt: skip
        out |= {f"blk.{i}.{name}.weight": part for name, part in parts.items() if part is not None}
    return out


def write_gguf(source: Path, weights: dict[str, np.ndarray], to: Path) -> None:
    """A float32 GGUF with the metadata of `source`."""
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(to), str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    writer.add_file_type(0)
    for tensor in reader.tensors:
        if tensor.name in weights:
            writer.add_tensor(tensor.name, np.ascontiguousarray(weights[tensor.name], np.float32))
        else:  # rotary factors and the like
            writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    name, source = sys.argv[1], Path(sys.argv[2])
    model = decoder.load(store.path(STORED[name]))
    prompts = np.load(HERE / "golden" / f"chat-{name}.npz")
    out: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "served.gguf"
        write_gguf(source, tensors(model), path)
        # Its cache in float32 too; by default it rounds keys and values to float16.
        llama = Llama(str(path), n_ctx=1024, logits_all=True, type_k=0, type_v=0, verbose=False)
        for i in range(5):
            prompt = prompts[f"{i}/prompt"].tolist()
            llama.reset()
            llama.eval(prompt)
            said: list[int] = []
            while len(said) < COUNT:
                said.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
                llama.eval(said[-1:])
            logits = np.array(llama.scores[: llama.n_tokens], np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
            best = np.argsort(-logits, axis=1)[:, :10]
            out |= {
                f"{i}/greedy": np.array(said, np.int32), f"{i}/ids": best.astype(np.int32),
                f"{i}/logp": np.take_along_axis(logits, best, 1).astype(np.float32),
            }  # fmt: skip
    np.savez_compressed(HERE / "golden" / f"chat-served-{name}.npz", **out)


if __name__ == "__main__":
    main()
