"""A GPU's ops: CuPy's arrays, the shipped kernels, a limit to the memory taken. Imports CuPy: only where a GPU was chosen."""

from __future__ import annotations

import cupy

from .launch import Cubins
from .ops import Ops


def open_gpu(index: int, budget: int) -> Ops:
    """The ops of GPU `index`, all kernels loaded; at most `budget` bytes are taken. Raises what CuPy and the driver raise."""
    cupy.cuda.Device(index).use()
    cupy.get_default_memory_pool().set_limit(size=budget)
    kernels = Cubins(cupy, index)
    kernels.load_all()
    return Ops(cupy, kernels, index)
