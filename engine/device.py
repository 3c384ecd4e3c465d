"""Which device an engine runs on, and how much of its memory it may take: decided from the driver alone, with reasons.

Asks libcuda itself, so that what is missing (a driver, a GPU, a version, CuPy) is a sentence before anything is loaded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from dataclasses import dataclass

from bargein.kernels.gpu.launch import architecture

# Ours are compiled by CUDA 12.9's assembler, which drivers since 575 load; 12.x's minor versions promise no more.
LEAST_DRIVER = 12090
MOST_ENGINES = 16
LEAST_MEMORY = 2 << 30  # bytes: the embedded models, their caches and the CUDA context
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


class DeviceError(Exception):
    """A device that was asked for cannot be used; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the driver tells of one GPU. capability: 89 is 8.9; memory in bytes."""

    index: int
    name: str
    capability: int
    memory: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`gpu` None is the CPU. why: what is said at start. budget: bytes for weights, caches and workspace; 0 on the CPU."""

    gpu: Gpu | None
    why: str
    budget: int = 0

    @property
    def name(self) -> str:
        return "cpu" if self.gpu is None else f"cuda:{self.gpu.index}"


def parse(text: str) -> tuple[str, int]:
    """(auto, cpu or cuda; the number of the GPU, -1 where none is named). Raises DeviceError."""
    found = re.fullmatch(r"(auto|cpu)|cuda(?::(\d{1,3}))?", text)
    if found is None:
        raise DeviceError(f"device {text!r}: write auto, cpu, cuda or cuda:N")
    if found.group(1):
        return found.group(1), -1
    return "cuda", int(found.group(2)) if found.group(2) else -1


def parse_memory(text: str, what: str = "gpu memory") -> float | int:
    """A part of the memory (0.8 of "80%") or bytes (of "18GiB"). Raises DeviceError, which names `what`."""
    percent = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*%", text)
    if percent and 0 < float(percent.group(1)) <= 100:
        return float(percent.group(1)) / 100
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(MiB|GiB|MB|GB)", text)
    if size and float(size.group(1)) > 0:
        unit = {"MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}[size.group(2)]
        return int(float(size.group(1)) * unit)
    raise DeviceError(f"{what} {text!r}: write a share such as 80% (at most 100%) or a size such as 18GiB")


def cache_room(text: str) -> int:
    """Bytes of this machine's memory that `engine.cache_memory` comes to. Raises DeviceError."""
    share = parse_memory(text, "cache memory")
    return share if isinstance(share, int) else int(share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def gpus() -> list[Gpu]:
    """The GPUs that the driver shows. Raises DeviceError where there is no usable driver or no GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceError("there is no NVIDIA driver (libcuda.so.1 is not found)") from None
    version, count = ctypes.c_int(), ctypes.c_int()
    if status := cuda.cuInit(0):
        raise DeviceError(f"the NVIDIA driver shows no GPU (cuInit: error {status})")
    if cuda.cuDriverGetVersion(ctypes.byref(version)) or version.value < LEAST_DRIVER:
        have = f"{version.value // 1000}.{version.value % 1000 // 10}"
        raise DeviceError(f"the NVIDIA driver is for CUDA {have}; 12.9 or newer is needed (driver 575 or newer)")
    if cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        raise DeviceError("the NVIDIA driver shows no GPU")
    return [_gpu(cuda, index) for index in range(count.value)]


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    memory, name = ctypes.c_size_t(), ctypes.create_string_buffer(100)
    failed = (
        cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        or cuda.cuDeviceGetName(name, len(name), device)
    )
    if failed:
        raise DeviceError(f"GPU {index} does not answer (error {failed})")
    return Gpu(index, name.value.decode("utf-8", "replace"), 10 * major.value + minor.value, memory.value)


def _problem(gpu: Gpu, budget: int) -> str:
    """Why a GPU cannot be used; empty where it can."""
    if architecture(gpu.capability) is None:
        return f"{gpu.name} has compute capability {gpu.capability / 10}; kernels are there for 8.0 to 9.0"
    if budget > gpu.memory:
        return f"{gpu.name} has {gpu.memory / 2**30:.1f} GiB, less than the {budget / 2**30:.1f} GiB asked for"
    if budget < LEAST_MEMORY:
        return f"{budget / 2**30:.1f} GiB of {gpu.name} are too little; the models need {LEAST_MEMORY / 2**30:.0f} GiB"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: pip install 'bargein[gpu]'"
    return ""


def choose_all(devices: str, memory: str = "80%") -> list[Choice]:
    """`choose` for each of several devices, "cuda:0,cuda:1": an engine runs on each. Raises DeviceError."""
    names = [name.strip() for name in devices.split(",")]
    choices = [choose(name, memory) for name in names]
    used = [choice.name for choice in choices if choice.gpu is not None]
    if twice := next((name for name in used if used.count(name) > 1), None):
        raise DeviceError(f"device {devices!r}: {twice} is named twice")
    if len(names) > MOST_ENGINES:
        raise DeviceError(f"device {devices!r}: at most {MOST_ENGINES} engines")
    return choices


def choose(device: str, memory: str = "80%") -> Choice:
    """What `--device` and `--gpu-memory` come to here. Raises DeviceError: always for nonsense, and where "cuda" cannot be."""
    kind, index = parse(device)
    share = parse_memory(memory)
    if kind == "cpu":
        return Choice(None, "on the CPU, as told")
    try:
        found = gpus()
        if index >= len(found):
            raise DeviceError(f"there is no cuda:{index}; the driver shows {len(found)} GPU{'s' if len(found) > 1 else ''}")
        problems = []
        for gpu in found if index < 0 else found[index : index + 1]:
            budget = int(share * gpu.memory) if isinstance(share, float) else share
            if problem := _problem(gpu, budget):
                problems.append(problem)
                continue
            return Choice(gpu, f"on cuda:{gpu.index} ({gpu.name}), with {budget / 2**30:.1f} GiB of its memory", budget)
        raise DeviceError(problems[0])
    except DeviceError as problem:
        if kind == "cuda":
            raise DeviceError(f"device {device}: {problem}") from None
        return Choice(None, f"on the CPU: {problem}")

