"""Launches the shipped kernels on CuPy arrays: needs CuPy only, no Triton, no compiler.

A kernel's parameters are its run-time arguments in order, then two pointers to scratch memory that no kernel of ours
uses. `pack` is the only place where arguments become bytes, and refuses whatever a kernel was not compiled for.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .specs import ARCHS, SPECS

FOLDER = Path(__file__).parent / "cubin"
_SCALARS = {"i32": np.int32, "i64": np.int64, "fp32": np.float32, "fp64": np.float64}
_ELEMENTS = {
    "fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "uint16", "i8": "int8", "u8": "uint8",
    "i32": "int32", "i64": "int64",
}  # fmt: skip
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

Args = Sequence[tuple[str, str, bool]]


class LaunchError(ValueError):
    """An argument that the kernel was not compiled for: said with its name."""


def pack(declared: Args, args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments of the exact widths that the kernel reads. declared: (name, type, promised multiple of 16).

    Raises LaunchError for a wrong count, type, stride, alignment or divisibility: each would corrupt silently.
    """
    if len(args) != len(declared):
        raise LaunchError(f"{len(args)} arguments for {len(declared)}: {', '.join(name for name, _, _ in declared)}")
    packed: list[Any] = []
    for value, (name, kind, whole) in zip(args, declared, strict=True):
        if kind[0] == "*":
            if value.dtype.name != _ELEMENTS[kind[1:]]:
                raise LaunchError(f"{name} is {value.dtype.name}, the kernel reads {kind[1:]}")
            if not value.flags.c_contiguous:
                raise LaunchError(f"{name} is not contiguous")
            address = int(value.data.ptr)
            if whole and address % 16:
                raise LaunchError(f"{name} lies at {address:#x}, not at a multiple of 16")
            packed.append(np.uint64(address))
        else:
            if whole and value % 16:
                raise LaunchError(f"{name} is {value}, not a multiple of 16")
            if kind[0] == "i" and not -(2**31) <= value < 2**31:
                raise LaunchError(f"{name} is {value}, beyond 32 bits")
            packed.append(_SCALARS[kind](value))
    return (*packed, np.uint64(0), np.uint64(0))


def architecture(capability: int) -> int | None:
    """The newest shipped architecture that a device of this compute capability (89: 8.9) runs; None: there is none."""
    fit = [arch for arch in ARCHS if arch // 10 == capability // 10 and arch <= capability]
    return max(fit) if fit else None


def manifest() -> dict[str, Any]:
    """What `build` wrote about the shipped cubins: "kernel/variant" -> architecture -> facts."""
    result: dict[str, Any] = json.loads((FOLDER / "kernels.json").read_text("utf-8"))
    return result


class Cubins:
    """The kernels of one device, loaded as they are first used. Launches go to CuPy's current stream."""

    def __init__(self, cupy: Any, device: int) -> None:
        from cupy_backends.cuda.api import driver  # with CuPy

        self._cupy, self._driver = cupy, driver
        arch = architecture(int(cupy.cuda.Device(device).compute_capability))
        if arch is None:
            raise LaunchError(f"no kernels for compute capability {cupy.cuda.Device(device).compute_capability}")
        self.arch = arch
        self._facts = manifest()["kernels"]
        self._zip = zipfile.ZipFile(io.BytesIO((FOLDER / f"sm_{arch}.zip").read_bytes()))
        self._loaded: dict[tuple[str, str], tuple[Any, Any, Args, int, int]] = {}

    def _load(self, name: str, variant: str) -> tuple[Any, Any, Args, int, int]:
        facts = self._facts[f"{name}/{variant}"][str(self.arch)]
        module = self._cupy.cuda.function.Module()
        module.load(self._zip.read(f"{name}-{variant}.cubin"))
        function = module.get_function(facts["name"])
        if facts["shared"] > 48 * 1024:
            self._driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, facts["shared"])
        return module, function, SPECS[name].typed(variant), 32 * facts["warps"], facts["shared"]

    def load_all(self) -> int:
        """Load every kernel, so that none loads under a call; how many there are."""
        for key in self._facts:
            name, variant = key.split("/")
            self._loaded.setdefault((name, variant), self._load(name, variant))
        return len(self._loaded)

    def launch(self, name: str, variant: str, grid: tuple[int, ...], *args: Any) -> None:
        """Start a kernel; an empty grid starts nothing. Raises LaunchError."""
        if 0 in grid:
            return
        key = (name, variant)
        if key not in self._loaded:
            self._loaded[key] = self._load(name, variant)
        _, function, declared, threads, shared = self._loaded[key]
        function(tuple(int(n) for n in grid), (threads,), pack(declared, args), shared_mem=shared)
