"""smart-turn v3: has the speaker finished? A Whisper-tiny encoder over the last 8 s, attention pooling, a classifier.

Owns the graph and its input's preparation. It refuses to know what a turn is or what's done with the answer.
Source: smart-turn-v3.2-cpu.onnx (BSD-2). Its int8 weights are used as they are. The file also rounds every activation
to 8 bits; here they keep 13 to 15 in products and are float32 elsewhere. On 52 cuts of five recordings the file's
rounding moves the answer by 0.17 on average: it takes mid-sentence cuts for ends (0.97 against 0.30) and misses a
finished sentence (0.26 against 0.97).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bargein.kernels import cpu
from bargein.kernels.cpu import Int8Matrix

from .errors import WeightsError
from .weights_io import read_config
from .whisper import HOP, N_FFT, SAMPLE_RATE, filters, scale_log_mel

F32 = NDArray[np.float32]

_AGAIN = "delete the folder and run `bargein models pull`"


@dataclass(frozen=True, slots=True)
class Config:
    """Hyperparameters, read from the checkpoint."""

    width: int
    heads: int
    layers: int
    mels: int
    seconds: int


class Model(NamedTuple):
    """A loaded checkpoint; q/k/v of a layer are stacked as `qkv`."""

    cfg: Config
    w: dict[str, F32]
    q: dict[str, Int8Matrix]  # weights of linear layers, as the int8 they are stored in


def _shapes(c: Config) -> dict[str, tuple[int, ...]]:
    d = c.width
    out: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (d, c.mels, 3),
        "encoder.conv2.weight": (d, d, 3),
        "encoder.embed_positions.weight": (c.seconds * 50, d),
        "pool_attention.0.weight": (256, d),
        "pool_attention.2.weight": (1, 256),
        "classifier.0.weight": (256, d),
        "classifier.4.weight": (64, 256),
        "classifier.6.weight": (1, 64),
    }
    for i in range(c.layers):
        p = f"encoder.layers.{i}"
        out |= {f"{p}.self_attn.{n}_proj.weight": (d, d) for n in ("q", "k", "v", "out")}
        out |= {f"{p}.fc1.weight": (4 * d, d), f"{p}.fc2.weight": (d, 4 * d)}
        norms = (f"{p}.self_attn_layer_norm", f"{p}.final_layer_norm")
        out |= {f"{n}.{part}": (d,) for n in norms for part in ("weight", "bias")}
    out |= {f"{n}.{part}": (d,) for n in ("encoder.layer_norm",) for part in ("weight", "bias")}
    out |= {f"classifier.1.{part}": (256,) for part in ("weight", "bias")}
    for name in [n for n, shape in out.items() if n.endswith(".weight") and len(shape) > 1]:
        if "embed_positions" not in name:
            out[f"{name}_scale"] = (out[name][0],)
            if "k_proj" not in name:
                out[name.replace(".weight", ".bias")] = (out[name][0],)
    return out


def load(folder: Path) -> Model:
    """Read a converted folder. Raises WeightsError naming what's missing, unknown or misshapen."""
    raw = read_config(folder)
    path = folder / "model.safetensors"
    try:
        cfg = Config(**{k: v for k, v in raw.items() if k != "model"})
        stored: dict[str, NDArray[Any]] = load_file(path)
    except TypeError as problem:
        raise WeightsError(folder / "config.json", f"not a smart-turn configuration ({problem}); {_AGAIN}") from None
    except (SafetensorError, OSError) as problem:
        raise WeightsError(path, f"missing or damaged ({problem}); {_AGAIN}") from None
    shapes = _shapes(cfg)
    for name in sorted(set(shapes) ^ set(stored)):
        raise WeightsError(path, f"tensor {name} is {'missing' if name in shapes else 'unknown'}; {_AGAIN}")
    for name, tensor in stored.items():
        if tensor.shape != shapes[name]:
            raise WeightsError(path, f"tensor {name} is {list(tensor.shape)}, not {list(shapes[name])}; {_AGAIN}")
    kept = [n for n, t in stored.items() if t.dtype == np.float32 and not n.endswith("_scale")]
    w = {n: np.ascontiguousarray(stored[n], np.float32) for n in kept}
    q: dict[str, Int8Matrix] = {}

    def pack(name: str, *sources: str) -> None:
        weights = [stored[f"{s}.weight"] for s in sources]
        if weights[0].ndim == 3:  # a convolution, [O, C, k], is a linear layer over windows, [O, k * C]
            weights = [t.transpose(0, 2, 1).reshape(t.shape[0], -1) for t in weights]
        q[name] = cpu.pack_rows(np.concatenate(weights), np.concatenate([stored[f"{s}.weight_scale"] for s in sources]))

    for name in (n.removesuffix(".weight") for n, t in stored.items() if t.dtype == np.int8):
        if not name.endswith(("q_proj", "k_proj", "v_proj")):
            pack(name, name)
    for i in range(cfg.layers):
        p = f"encoder.layers.{i}.self_attn"
        pack(f"{p}.qkv", *(f"{p}.{n}_proj" for n in "qkv"))
        zero = np.zeros(cfg.width, np.float32)  # keys have no bias
        w[f"{p}.qkv.bias"] = np.concatenate([w.pop(f"{p}.q_proj.bias"), zero, w.pop(f"{p}.v_proj.bias")])
    return Model(cfg, w, q)


def features(audio: F32, seconds: int = 8, mels: int = 80, ops: ModuleType = cpu) -> F32:
    """Log-mel features [seconds * 100, mels] of the last `seconds` of float32 audio [n] at 16 kHz.

    Shorter audio is preceded by silence. The whole window is brought to mean 0 and variance 1 before the transform.
    """
    size = seconds * SAMPLE_RATE
    window = np.zeros(size, np.float32)
    n = min(len(audio), size)
    if n:
        window[size - n :] = audio[len(audio) - n :]
    window = (window - window.mean()) / np.sqrt(window.var() + np.float32(1e-7))
    padded = np.pad(window, N_FFT // 2, mode="reflect")
    return scale_log_mel(ops.log_mel_frames(padded, filters(mels), N_FFT, HOP)[: seconds * 100])


def classify_steps(m: Model, mel: F32, ops: ModuleType = cpu) -> Generator[None, None, float]:
    """`classify` in bounded steps (half a layer at most); the generator returns the probability."""
    c, w = m.cfg, m.w

    def norm(x: F32, name: str) -> F32:
        return ops.layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x: F32, name: str) -> F32:
        y: F32 = ops.linear_int8(ops.contiguous(x), m.q[name])
        y += w[f"{name}.bias"]
        return y

    d, scale = c.width, float((c.width // c.heads) ** -0.5)
    x = ops.gelu(linear(ops.windows(mel, 3, 1, 1), "encoder.conv1"))  # [T, D]
    yield
    x = ops.gelu(linear(ops.windows(x, 3, 2, 1), "encoder.conv2"))  # [T / 2, D]
    x += w["encoder.embed_positions.weight"][: x.shape[0]]
    for i in range(c.layers):
        yield
        p = f"encoder.layers.{i}"
        qkv = linear(norm(x, f"{p}.self_attn_layer_norm"), f"{p}.self_attn.qkv")
        y = ops.attention(qkv[:, :d], qkv[:, d : 2 * d], qkv[:, 2 * d :], c.heads, scale)
        x += linear(y, f"{p}.self_attn.out_proj")
        yield
        x += linear(ops.gelu(linear(norm(x, f"{p}.final_layer_norm"), f"{p}.fc1")), f"{p}.fc2")
    yield
    x = norm(x, "encoder.layer_norm")
    weights = ops.softmax(linear(np.tanh(linear(x, "pool_attention.0")), "pool_attention.2").T)  # [1, T / 2]
    y = ops.gelu(norm(linear(ops.product(weights, x), "classifier.0"), "classifier.1"))
    y = linear(ops.gelu(linear(y, "classifier.4")), "classifier.6")
    return float(ops.to_host(ops.sigmoid(y))[0, 0])


def classify(m: Model, mel: F32, ops: ModuleType = cpu) -> float:
    """Probability that the turn is complete, from features [T, mels], T even and at most seconds * 100."""
    return _run(classify_steps(m, mel, ops))


def _run(steps: Generator[None, None, float]) -> float:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return float(stop.value)


def predict_steps(m: Model, audio: F32, ops: ModuleType = cpu) -> Generator[None, None, float]:
    """`predict` in bounded steps; the generator returns the probability."""
    mel = features(audio, m.cfg.seconds, m.cfg.mels, ops)
    yield
    return (yield from classify_steps(m, mel, ops))


def predict(m: Model, audio: F32, ops: ModuleType = cpu) -> float:
    """Probability that the speaker of float32 audio [n] at 16 kHz has finished; only the last 8 s count."""
    return _run(predict_steps(m, audio, ops))


def predict_batch(m: Model, audio: list[F32], ops: ModuleType = cpu) -> list[float]:
    """`predict` for several speakers; each one's result is independent of the others."""
    return [predict(m, a, ops) for a in audio]
