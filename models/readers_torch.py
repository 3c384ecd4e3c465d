"""Reads the tensors of a PyTorch checkpoint of the old, unzipped form without PyTorch, and without running its code.

The file is five pickles and then the raw storages. Its pickles may name classes to call; only the handful that describe
tensors are known here, as plain records, and anything else is refused.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import WeightsError

_DTYPES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8", "IntStorage": "<i4"}
_AGAIN = "fetch it again with `bargein models pull`"


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _rebuild(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *rest: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(stride))


class _Unpickler(pickle.Unpickler):
    """Knows tensors and dictionaries, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch" and name in _DTYPES:
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is not a tensor")

    def persistent_load(self, pid: Any) -> _Storage:
        return _Storage(_DTYPES[pid[1]], pid[2])


def read_torch(path: Path, group: str) -> dict[str, NDArray[Any]]:
    """The tensors of the checkpoint's dictionary `group` ("model_state") by name. Raises WeightsError."""
    try:
        file = io.BytesIO(path.read_bytes())
        if _Unpickler(file).load() != 0x1950A86A20F9469CFC6C:
            raise WeightsError(path, f"is no PyTorch checkpoint of the old form; {_AGAIN}")
        for _ in range(2):  # protocol version, the machine it was written on
            _Unpickler(file).load()
        tensors: dict[str, Any] = _Unpickler(file).load()[group]
        keys: list[str] = _Unpickler(file).load()
        wanted = {t.storage.key: t.storage.dtype for t in tensors.values() if isinstance(t, _Tensor)}
        storages: dict[str, NDArray[Any]] = {}
        # Every storage is its length and its values; those of the optimizer come between, of unknown width.
        sizes = _sizes(file, keys, path, group)
        for key in keys:
            (count,) = struct.unpack("<q", file.read(8))
            raw = file.read(count * sizes[key])
            if key in wanted:
                storages[key] = np.frombuffer(raw, wanted[key])
        return {name: _view(storages[t.storage.key], t) for name, t in tensors.items() if isinstance(t, _Tensor)}
    except (pickle.UnpicklingError, KeyError, ValueError, EOFError, IndexError, TypeError, struct.error) as problem:
        raise WeightsError(path, f"not readable ({problem}); {_AGAIN}") from None
    except OSError as problem:
        raise WeightsError(path, f"{problem.strerror}; {_AGAIN}") from None


def _sizes(file: io.BytesIO, keys: list[str], path: Path, group: str) -> dict[str, int]:
    """Bytes a value of every storage: read from the tensors' records, all groups of them."""
    here = file.tell()
    file.seek(0)
    for _ in range(3):
        _Unpickler(file).load()
    found: dict[str, int] = {}

    def walk(node: Any) -> None:
        if isinstance(node, _Tensor):
            found[node.storage.key] = np.dtype(node.storage.dtype).itemsize
        elif isinstance(node, dict):
            for value in node.values():
                walk(value)
        elif isinstance(node, list | tuple):
            for value in node:
                walk(value)

    walk(_Unpickler(file).load())
    file.seek(here)
    missing = [k for k in keys if k not in found]
    if missing:
        raise WeightsError(path, f"storage {missing[0]} has no tensor; {_AGAIN}")
    return found


def _view(storage: NDArray[Any], t: _Tensor) -> NDArray[Any]:
    width = storage.itemsize
    end = t.offset + sum((n - 1) * s for n, s in zip(t.shape, t.stride, strict=True)) + 1
    if end > len(storage):
        raise ValueError("a tensor reaches beyond its storage")
    strides = [s * width for s in t.stride]
    return np.lib.stride_tricks.as_strided(storage[t.offset :], t.shape, strides).copy()
