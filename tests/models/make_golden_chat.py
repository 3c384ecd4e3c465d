"""Writes golden/chat-<name>.npz for a GGUF file, by llama.cpp (llama_cpp_python) and by plain NumPy; both test-only.

    python tests/models/make_golden_chat.py NAME FILE.gguf

`llama.cpp` multiplies the file's own 4- to 8-bit blocks with activations it rounds to 8 bits. `exact` is this script's
own decoder, in float32 on the file's dequantized weights, written from the architectures' papers and sharing nothing
with the project. For each of five prompts: its tokens, greedy continuations by both, and at every position of the
prompt and llama.cpp's continuation the 48 likeliest tokens with their log-probabilities.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

HERE = Path(__file__).parent
TOP, NEW = 48, 32

QUESTIONS = (
    "What is the capital of Italy?",
    "Can you tell me something about dogs?",
    "What is five plus three?",
    "How do I make a cup of tea?",
    "Tell me a joke.",
)
CALL = (
    "A phone call. The caller asks, and a friendly assistant who knows a lot gives a short, correct answer in one "
    "sentence.\n\nCaller: What is the largest ocean on Earth?\nAssistant: The largest ocean on Earth is the Pacific "
    "Ocean.\nCaller: {}\nAssistant:"
)
CHATML = (
    "<|im_start|>system\nYou are a helpful voice assistant.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


def rms(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


class Exact:
    """A decoder without a cache: every forward reads the whole sequence."""

    def __init__(self, path: str) -> None:
        reader = gguf.GGUFReader(path)
        self.w = {}
        for t in reader.tensors:
            shape = tuple(int(n) for n in reversed(t.shape))
            self.w[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        meta = {name: field.contents() for name, field in reader.fields.items()}
        self.kind = kind = meta["general.architecture"]
        self.layers, self.heads = meta[f"{kind}.block_count"], meta[f"{kind}.attention.head_count"]
        self.kv_heads = meta[f"{kind}.attention.head_count_kv"]
        self.size = meta.get(f"{kind}.attention.key_length", meta[f"{kind}.embedding_length"] // self.heads)
        self.eps = meta[f"{kind}.attention.layer_norm_rms_epsilon"]
        self.base = meta.get(f"{kind}.rope.freq_base", 10000.0)
        self.window = meta.get(f"{kind}.attention.sliding_window", 0)
        self.gemma = kind == "gemma3"

    def rotate(self, x: np.ndarray, base: float) -> np.ndarray:
        """x [T, heads, size]; llama's files pair neighbours, gemma's pair halves."""
        half = self.size // 2
        angle = np.arange(len(x))[:, None] / base ** (np.arange(half) * 2 / self.size)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        out = np.empty_like(x)
        a, b = (np.s_[..., :half], np.s_[..., half:]) if self.gemma else (np.s_[..., ::2], np.s_[..., 1::2])
        out[a], out[b] = x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos
        return out

    def logits(self, ids: list[int], first: int) -> np.ndarray:
        """[T - first, vocab] after each token from `first` on."""
        n, w = len(ids), self.w
        x = w["token_embd.weight"][ids]
        if self.gemma:
            x = x * np.float32(np.sqrt(np.float32(x.shape[1])))
        past = np.arange(n)[:, None] - np.arange(n)[None]
        for i in range(self.layers):
            p = f"blk.{i}."
            y = rms(x, w[p + "attn_norm.weight"], self.eps)
            q, k, v = ((y @ w[f"{p}attn_{c}.weight"].T).reshape(n, -1, self.size) for c in "qkv")
            local = self.gemma and (i + 1) % 6 != 0
            if self.gemma:
                q, k = rms(q, w[p + "attn_q_norm.weight"], self.eps), rms(k, w[p + "attn_k_norm.weight"], self.eps)
            base = 10000.0 if local else self.base
            q, k = self.rotate(q, base), self.rotate(k, base)
            seen = (past >= 0) & (past < self.window if local else True)
            mixed = np.empty_like(q)
            for h in range(self.heads):
                g = h * self.kv_heads // self.heads
                s = np.where(seen, q[:, h] @ k[:, g].T / np.sqrt(self.size), -np.inf)
                e = np.exp(s - s.max(1, keepdims=True))
                mixed[:, h] = e / e.sum(1, keepdims=True) @ v[:, g]
            y = mixed.reshape(n, -1) @ w[p + "attn_output.weight"].T
            x = x + (rms(y, w[p + "post_attention_norm.weight"], self.eps) if self.gemma else y)
            y = rms(x, w[p + "ffn_norm.weight"], self.eps)
            gate, up = y @ w[p + "ffn_gate.weight"].T, y @ w[p + "ffn_up.weight"].T
            if self.gemma:
                gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            else:
                gate = gate / (1 + np.exp(-gate))
            y = (gate * up) @ w[p + "ffn_down.weight"].T
            x = x + (rms(y, w[p + "post_ffw_norm.weight"], self.eps) if self.gemma else y)
            x = x.astype(np.float32)
        x = rms(x[first:], w["output_norm.weight"], self.eps)
        return x @ w.get("output.weight", w["token_embd.weight"]).T


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def top(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logp = log_softmax(logits)
    some = np.argpartition(-logp, TOP, axis=1)[:, :TOP]
    order = np.argsort(-np.take_along_axis(logp, some, 1), axis=1)
    ids = np.take_along_axis(some, order, 1)
    return ids.astype(np.int32), np.take_along_axis(logp, ids, 1).astype(np.float32)


def main() -> None:
    name, path = sys.argv[1:3]
    exact = Exact(path)
    llm = llama_cpp.Llama(path, n_ctx=512, n_threads=2, logits_all=True, verbose=False)
    out: dict[str, np.ndarray] = {}
    for i, question in enumerate(QUESTIONS):
        text = (CALL if exact.gemma else CHATML).format(question)
        ids = llm.tokenize(text.encode(), add_bos=exact.gemma, special=True)
        out[f"{i}/prompt"] = np.array(ids, np.int32)
        out[f"{i}/text"] = np.array(text)
        llm.reset()
        llm.eval(ids)
        full = list(ids)
        for _ in range(NEW):
            full.append(int(np.argmax(llm.scores[llm.n_tokens - 1])))
            llm.eval(full[-1:])
        out[f"{i}/llama.cpp/greedy"] = np.array(full[len(ids) :], np.int32)
        out[f"{i}/llama.cpp/ids"], out[f"{i}/llama.cpp/logp"] = top(np.array(llm.scores[: len(full)]))
        scores = exact.logits(full, 0)
        out[f"{i}/exact/ids"], out[f"{i}/exact/logp"] = top(scores)
        wanted = scores[len(ids) - 1 : -1].argmax(1)  # what it would have said wherever llama.cpp said something
        same = int((wanted == full[len(ids) :]).argmin()) if (wanted != full[len(ids) :]).any() else NEW
        greedy = full[: len(ids) + same]
        while len(greedy) < len(full):
            greedy.append(int(np.argmax(exact.logits(greedy, len(greedy) - 1)[0])))
        out[f"{i}/exact/greedy"] = np.array(greedy[len(ids) :], np.int32)
        print(question, llm.detokenize(full[len(ids) :]), f"{same} of {NEW} tokens as exact", flush=True)
    np.savez_compressed(HERE / "golden" / f"chat-{name}.npz", **out)


if __name__ == "__main__":
    main()
