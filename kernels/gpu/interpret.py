"""Runs the kernels in Triton's interpreter on host memory: how they are proved where there is no GPU. Slow.

A process interprets or compiles, never both: Triton decides when its own functions are defined. Import this before
anything else imports Triton.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"

import triton.language as tl
import triton.runtime.interpreter as inner

from .launch import LaunchError, pack
from .specs import SPECS

_NAMES = {"bf16": "bfloat16"}


class _Once:
    """Patches Triton's language once a launch. The interpreter does it again in every helper that a kernel calls, which
    takes nearly half of its time and changes nothing."""

    def __init__(self) -> None:
        self._patch, self.done = inner._patch_lang, False
        self.__globals__ = {"tl": tl, "core": tl.core}  # all modules that kernels and Triton's own helpers see

    def __call__(self, function: Any) -> Any:
        if self.done:
            return None  # the caller, a helper, has no use for it
        self.done = True
        return self._patch(self)


_once = inner._patch_lang = _Once()


class _Tensor:
    """The few methods that the interpreter asks of a tensor, over NumPy memory. It is read and written in place."""

    def __init__(self, array: Any, kind: str) -> None:
        self.array, self.dtype = array, _NAMES.get(kind, array.dtype.name)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> _Tensor:
        return self

    def cpu(self) -> _Tensor:
        return self

    def new_empty(self, *_: Any, **__: Any) -> _Tensor:
        return self

    def set_(self, *_: Any) -> _Tensor:
        return self

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def copy_(self, other: Any) -> _Tensor:
        return self


class HostArray:
    """A NumPy array that `pack` takes for a device's."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.flags = array, array.dtype, array.flags
        self.data = type("Pointer", (), {"ptr": array.ctypes.data})


class Interpreter:
    """`launch.Cubins` for NumPy arrays, `HostArray`s and whatever else has `.array`."""

    arch = 0

    def launch(self, name: str, variant: str, grid: tuple[int, ...], *args: Any) -> None:
        """Run a kernel to its end, after the checks of a real launch. Raises LaunchError."""
        declared = SPECS[name].typed(variant)
        pack(declared, [HostArray(a) if isinstance(a, np.ndarray) else a for a in args])
        if 0 in grid:
            return
        ready: list[Any] = []
        for value, (_, kind, _) in zip(args, declared, strict=True):
            if kind[0] == "*":
                ready.append(_Tensor(value if isinstance(value, np.ndarray) else value.array, kind[1:]))
            else:
                ready.append(int(value) if kind[0] == "i" else float(np.float32(value)))
        module = import_module(f".{SPECS[name].module}", __package__)
        constants = SPECS[name].variants[variant].constants
        _once.done = False
        with np.errstate(all="ignore"):  # lanes that nothing is stored of
            getattr(module, name)[(*grid, 1, 1)[:3]](*ready, **constants)

    def load_all(self) -> int:
        """Nothing to load."""
        return sum(len(spec.variants) for spec in SPECS.values())


__all__ = ["HostArray", "Interpreter", "LaunchError"]
