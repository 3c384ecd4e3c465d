"""Where arrays live, for implementations that work in the host's memory: nowhere else. `gpu.ops` has the same names.

A model's glue (joining, padding, adding) is NumPy's functions, which CuPy's arrays take too; what must know the place
(a new array, small integers, a result that Python looks at) goes through these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALL = 4096  # bytes: what is no longer than this is left where it is


class Arena:
    """One allocation that many arrays are copied into, at 64-byte addresses.

    Weights are read from end to end: in small pages that is a miss of the address cache every 4 KB, where the processor's
    prefetcher stops too. NumPy asks the system for huge pages for an allocation of 4 MB and more, and only for that.
    """

    def __init__(self, num_bytes: int) -> None:
        self._free = np.empty(num_bytes + 64, np.uint8)
        self._free = self._free[-self._free.ctypes.data % 64 :]

    @staticmethod
    def room(num_bytes: int) -> int:
        """What an array of so many bytes takes."""
        return -(-num_bytes // 64) * 64

    def keep(self, array: NDArray[Any]) -> NDArray[Any]:
        """A copy of the array, in here."""
        place, self._free = self._free[: array.nbytes], self._free[self.room(array.nbytes) :]
        copy = place.view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy


def to_device(x: Any, dtype: Any = None) -> Any:
    """An array where the ops want it."""
    return np.asarray(x, dtype)


def to_host(x: Any) -> Any:
    """An array as NumPy's. On a device this waits for what computes it."""
    return x


def place(weights: Any) -> Any:
    """A model's weights, in whatever tuples and dictionaries they come, where the ops want them: here in one arena."""
    found: dict[int, NDArray[Any]] = {}

    def look(x: Any) -> None:
        if isinstance(x, np.ndarray):
            if x.nbytes > SMALL and x.flags.c_contiguous:
                found[id(x)] = x
        elif isinstance(x, Mapping | tuple | list):
            for part in x.values() if isinstance(x, Mapping) else x:
                look(part)

    look(weights)
    arena = Arena(sum(Arena.room(x.nbytes) for x in found.values()))
    kept = {key: arena.keep(x) for key, x in found.items()}

    def moved(x: Any) -> Any:
        match x:
            case np.ndarray():
                return kept.get(id(x), x)
            case Mapping():
                return {key: moved(part) for key, part in x.items()}
            case tuple() if hasattr(x, "_fields"):
                return type(x)(*(moved(part) for part in x))
            case tuple() | list():
                return type(x)(moved(part) for part in x)
        return x

    return moved(weights)


def empty(shape: Any, dtype: Any = np.float32) -> Any:
    """A new array, not filled."""
    return np.empty(shape, dtype)


def zeros(shape: Any, dtype: Any = np.float32) -> Any:
    """A new array of zeros."""
    return np.zeros(shape, dtype)


def contiguous(x: Any) -> Any:
    """The array, row after row in memory."""
    return np.ascontiguousarray(x)


def enter() -> None:
    """Make this thread work on the device."""


def on_host(ops: Any) -> Any:
    """The ops for what is small and wanted on the host: a device's companion, or the ops themselves."""
    return getattr(ops, "companion", ops)


def product(x: Any, w: Any) -> Any:
    """x [M, K] @ w [K, N]."""
    return x @ w
