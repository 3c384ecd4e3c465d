"""Reads a converted model folder strictly: every tensor expected is there with its shape, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from .errors import WeightsError

_AGAIN = "delete the folder and run `bargein models pull`"


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises WeightsError when it's missing or not a JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise WeightsError(path, f"missing; {_AGAIN}") from None
    except ValueError as problem:
        raise WeightsError(path, f"not JSON ({problem}); {_AGAIN}") from None
    if not isinstance(config, dict):
        raise WeightsError(path, f"not a JSON object; {_AGAIN}")
    return config


def read_tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """The folder's model.safetensors as float32 arrays, checked against `shapes` name by name.

    Raises WeightsError naming the first tensor that's missing, unknown, of another shape or not floating point.
    """
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise WeightsError(path, f"missing; {_AGAIN}") from None
    except (SafetensorError, OSError) as problem:
        raise WeightsError(path, f"damaged ({problem}); {_AGAIN}") from None
    out: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        if name not in tensors:
            raise WeightsError(path, f"tensor {name} is missing; {_AGAIN}")
        tensor = tensors.pop(name)
        if tensor.shape != shape or tensor.dtype.kind != "f":
            found = f"{tensor.dtype}{list(tensor.shape)}"
            raise WeightsError(path, f"tensor {name} is {found}, not float{list(shape)}; {_AGAIN}")
        out[name] = np.ascontiguousarray(tensor, np.float32)
    if tensors:
        raise WeightsError(path, f"tensor {min(tensors)} is unknown; {_AGAIN}")
    return out
