"""Where arrays live, for implementations that work in the host's memory: nowhere else. `gpu.ops` has the same names.

A model's glue (joining, padding, adding) is NumPy's functions, which CuPy's arrays take too; what must know the place
(a new array, small integers, a result that Python looks at) goes through these.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def to_device(x: Any, dtype: Any = None) -> Any:
    """An array where the ops want it."""
    return np.asarray(x, dtype)


def to_host(x: Any) -> Any:
    """An array as NumPy's. On a device this waits for what computes it."""
    return x


def place(weights: Any) -> Any:
    """A model's weights, in whatever tuples and dictionaries they come, where the ops want them."""
    return weights


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
