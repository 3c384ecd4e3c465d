"""Reading GGUF files: metadata and tensors, dequantized to float32. Block formats are decoded by the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from .errors import WeightsError


class GgufFile(NamedTuple):
    """An opened file: its path, metadata reader and tensors by name (memory-mapped, still quantized)."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Any]


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file; WeightsError when it is missing, foreign or shorter than its tensor table says."""
    try:
        reader = gguf.GGUFReader(str(path))
    except FileNotFoundError:
        raise WeightsError(path, "not there; fetch the model's package again") from None
    except Exception as error:  # the reader fails in many ways on a damaged file
        raise WeightsError(path, f"not a readable GGUF file ({error}); fetch it again") from error
    size = path.stat().st_size
    for tensor in reader.tensors:
        if int(tensor.data_offset) + int(tensor.n_bytes) > size:
            raise WeightsError(path, f"cut short (tensor {tensor.name} lies beyond its end); fetch it again")
    return GgufFile(path, dict(reader.fields), {tensor.name: tensor for tensor in reader.tensors})


def field(file: GgufFile, name: str, default: Any = None) -> Any:
    """One metadata value (scalar, string or list); WeightsError when it is missing and there is no default."""
    found = file.fields.get(name)
    if found is None:
        if default is None:
            raise WeightsError(file.path, f"has no metadata field {name}; this kind of model is not supported")
        return default
    return found.contents()


def tensor_f32(file: GgufFile, name: str) -> NDArray[np.float32]:
    """A tensor as float32 in row-major order, [outputs, inputs] for a matrix; WeightsError when it is missing."""
    tensor = file.tensors.get(name)
    if tensor is None:
        raise WeightsError(file.path, f"has no tensor {name}; this kind of model is not supported")
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise WeightsError(file.path, f"tensor {name} is in an unsupported format ({error})") from error
    shape = tuple(int(n) for n in reversed(tensor.shape))
    return np.ascontiguousarray(values, np.float32).reshape(shape)
