"""all-MiniLM-L6-v2: sentences to vectors (Reimers & Gurevych 2019; a BERT of six layers, mean-pooled).

Owns the graph. A text is cut to the model's 256 tokens; its vector is the mean of its tokens' last states, of unit
length. Cutting a vector to fewer dimensions, where a caller wants that, is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bargein.kernels import cpu

from .errors import WeightsError
from .weights_io import read_config, read_tensors

F32 = NDArray[np.float32]

MAX_TOKENS = 256


class Config(NamedTuple):
    """Hyperparameters."""

    width: int
    layers: int
    heads: int
    hidden: int
    vocab: int
    positions: int
    norm_eps: float


class Model(NamedTuple):
    """A loaded checkpoint; `cls` and `sep` stand around every text."""

    cfg: Config
    w: dict[str, F32]
    tokenizer: Tokenizer
    cls: int
    sep: int


def expected_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Name to shape, as the checkpoint names them."""
    d = c.width
    out: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (c.vocab, d),
        "embeddings.position_embeddings.weight": (c.positions, d),
        "embeddings.token_type_embeddings.weight": (2, d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    for i in range(c.layers):
        p = f"encoder.layer.{i}."
        linear = {f"attention.self.{x}": (d, d) for x in ("query", "key", "value")} | {
            "attention.output.dense": (d, d), "intermediate.dense": (c.hidden, d), "output.dense": (d, c.hidden),
        }  # fmt: skip
        for name, shape in linear.items():
            out[f"{p}{name}.weight"], out[f"{p}{name}.bias"] = shape, shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            out[f"{p}{name}.weight"] = out[f"{p}{name}.bias"] = (d,)
    return out


def load(folder: Path) -> Model:
    """Read a converted folder. Raises WeightsError."""
    raw = read_config(folder)
    try:
        cfg = Config(**{k: v for k, v in raw.items() if k != "model"})
    except TypeError as problem:
        raise WeightsError(folder / "config.json", f"not a MiniLM configuration ({problem}); convert anew") from None
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as problem:  # the tokenizers library raises bare Exception
        raise WeightsError(path, f"unreadable ({problem}); delete the folder and run `bargein models pull`") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    return Model(cfg, read_tensors(folder, expected_shapes(cfg)), tokenizer, cls, sep)


def encode(m: Model, text: str | Sequence[int]) -> tuple[list[int], int]:
    """Token ids as the model reads them, and how many the whole text has. ValueError for ids beyond the vocabulary."""
    ids = m.tokenizer.encode(text, add_special_tokens=False).ids if isinstance(text, str) else list(text)
    if any(not 0 <= i < m.cfg.vocab for i in ids):
        raise ValueError(f"input: a token id is not in the vocabulary of {m.cfg.vocab}")
    return [m.cls, *ids[: MAX_TOKENS - 2], m.sep], len(ids)


def embed(m: Model, ids: Sequence[int], ops: ModuleType = cpu) -> F32:
    """The vector [width] of one text's token ids, of unit length."""
    c, w = m.cfg, m.w
    x = w["embeddings.word_embeddings.weight"][ops.to_device(ids, np.int64)]  # [T, D]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)] + w["embeddings.token_type_embeddings.weight"][0]
    x = _norm(m, "embeddings.LayerNorm", x, ops)
    scale = float((c.width // c.heads) ** -0.5)
    for i in range(c.layers):
        p = f"encoder.layer.{i}."
        q, k, v = (_linear(m, f"{p}attention.self.{name}", x, ops) for name in ("query", "key", "value"))
        y = ops.attention(q, k, v, c.heads, scale)
        x = _norm(m, f"{p}attention.output.LayerNorm", x + _linear(m, f"{p}attention.output.dense", y, ops), ops)
        y = ops.gelu(_linear(m, f"{p}intermediate.dense", x, ops))
        x = _norm(m, f"{p}output.LayerNorm", x + _linear(m, f"{p}output.dense", y, ops), ops)
    mean = ops.to_host(x.mean(0))
    return mean / np.float32(max(float(np.linalg.norm(mean)), 1e-9))


def _linear(m: Model, name: str, x: F32, ops: ModuleType) -> F32:
    return ops.linear(x, m.w[f"{name}.weight"], m.w[f"{name}.bias"])


def _norm(m: Model, name: str, x: F32, ops: ModuleType) -> F32:
    return ops.layer_norm(x, m.w[f"{name}.weight"], m.w[f"{name}.bias"], m.cfg.norm_eps)
