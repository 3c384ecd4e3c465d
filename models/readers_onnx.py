"""Reads the weights of an ONNX file: initializers, and the integers that a quantizer left with scale and zero point.

Uses the `onnx` package as a file reader only; no graph is run. A quantized initializer `x_quantized` comes with
`x_scale` and `x_zero_point`; its value is (x_quantized - x_zero_point) * x_scale, along the axis that the node which
dequantizes it names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from .errors import WeightsError


class OnnxFile(NamedTuple):
    """Initializers by name, as stored, and the graph's nodes (op, inputs, outputs, attributes) in order."""

    initializers: dict[str, NDArray[np.generic]]
    nodes: list[OnnxNode]


class OnnxNode(NamedTuple):
    """One node of the graph; only ints are kept of its attributes."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ints: dict[str, int]


def read_onnx(path: Path) -> OnnxFile:
    """Read a file's initializers and nodes. Raises WeightsError when it's missing or no ONNX file."""
    if not path.is_file():
        raise WeightsError(path, "missing; fetch it again with `bargein models pull`")
    try:
        graph = onnx.load(str(path)).graph
        tensors = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    except (DecodeError, ValueError, TypeError, OSError) as problem:
        raise WeightsError(path, f"not an ONNX file ({problem}); fetch it again with `bargein models pull`") from None
    if not tensors:
        raise WeightsError(path, "holds no weights; fetch it again with `bargein models pull`")
    nodes = [
        OnnxNode(n.op_type, tuple(n.input), tuple(n.output), {a.name: int(a.i) for a in n.attribute if a.type == 2})
        for n in graph.node
    ]
    return OnnxFile(tensors, nodes)


def dequantize(
    quantized: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any], axis: int = 0
) -> NDArray[np.float32]:
    """(quantized - zero_point) * scale in float32; a vector scale runs along `axis`."""
    if scale.ndim == 1 and scale.shape[0] > 1:
        shape = [1] * quantized.ndim
        shape[axis] = scale.shape[0]
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    return ((quantized.astype(np.int32) - zero_point.astype(np.int32)) * scale.astype(np.float32)).astype(np.float32)
