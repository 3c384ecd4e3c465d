"""What we hand the driver is what Triton's own launcher hands it, parameter by parameter, through a driver that is fake.

Of some kernels, of every type of argument; with GPU_BUILD=all of every variant of all.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bargein.kernels.gpu.launch import _ELEMENTS, manifest, pack
from bargein.kernels.gpu.specs import SPECS

HERE = Path(__file__).parent

# Triton compiles for what the values are: a multiple of 16 for what we promise, none where we do not.
THEIRS = """
import json, os, sys
from importlib import import_module

class Tensor:
    def __init__(self, address, dtype): self.address, self.dtype = address, dtype
    def data_ptr(self): return self.address

for case in json.loads(sys.stdin.read()):
    os.environ["FAKE_SIZES"] = case["sizes"]
    kernel = getattr(import_module("bargein.kernels.gpu." + case["module"]), case["name"])
    args = [Tensor(value, dtype) if dtype else value for value, dtype in case["args"]]
    kernel[tuple(case["grid"])](*args, **case["constants"], num_warps=case["warps"], num_stages=case["stages"],
                                enable_fp_fusion=True)
"""


class Pointer:
    """What `pack` reads of a CuPy array."""

    def __init__(self, address: int, dtype: str) -> None:
        self.data = type("Memory", (), {"ptr": address})
        self.dtype, self.flags = np.dtype(dtype), type("Flags", (), {"c_contiguous": True})


def values(name: str, variant: str) -> list[Any]:
    """Something else for each argument."""
    out: list[Any] = []
    for i, (_, kind, whole) in enumerate(SPECS[name].typed(variant)):
        if kind[0] == "*":
            out.append(0x7F0000001000 + 0x10000 * i + (0 if whole else 8))
        elif kind[0] == "i":
            out.append(16 * (3 + i) if whole else 16 * (3 + i) + 5)
        else:
            out.append(0.1 + i)
    return out


def sizes(name: str, variant: str) -> str:
    return ",".join([*("8" if kind[0] == "*" else "4" for _, kind, _ in SPECS[name].typed(variant)), "8", "8"])


CASES = [("linear_rows", "bf16_many"), ("linear_grouped", "6g16_mid"), ("rotary_paged", "e4m3"), ("paged_decode", "bf16_128"),
         ("frame_turns", "b512"), ("prepare_rows", "rms"), ("embed_rows", "int8"), ("sample_candidates", "b1024")]  # fmt: skip
if os.environ.get("GPU_BUILD") == "all":
    CASES = [(name, variant) for name, spec in SPECS.items() for variant in spec.variants]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = importlib.util.find_spec("triton")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if found is None or found.origin is None or compiler is None:
        pytest.skip("needs Triton and a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    include = Path(found.origin).parent / "backends" / "nvidia" / "include"
    command = [compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", HERE / "fake_cuda.c", f"-I{include}"]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def theirs(driver: Path) -> list[list[str]]:
    """The fake driver's lines for each case, by Triton's launcher."""
    cases = []
    for name, variant in CASES:
        spec = SPECS[name].variants[variant]
        args = []
        for value, (_, kind, _) in zip(values(name, variant), SPECS[name].typed(variant), strict=True):
            dtype = {"*bf16": "bfloat16"}.get(kind, _ELEMENTS[kind[1:]]) if kind[0] == "*" else None
            args.append((value, dtype))
        cases.append({"name": name, "module": SPECS[name].module, "args": args, "grid": [3, 4, 5],
                      "sizes": sizes(name, variant), "constants": spec.constants,
                      "warps": spec.warps, "stages": spec.stages})  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "LD_LIBRARY_PATH": str(driver), "TRITON_LIBCUDA_PATH": str(driver), "TRITON_CACHE_DIR": str(driver / "cache"),
        "FAKE_CHIP": "80",
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", THEIRS], input=json.dumps(cases), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split(" ") for line in done.stdout.splitlines() if line.startswith("launch")]
    assert len(lines) == len(CASES)
    return lines


def ours(name: str, variant: str, facts: dict[str, Any], swap: bool = False) -> list[str]:
    """The fake driver's line for our packing: each parameter by its own bytes, as CuPy passes NumPy scalars."""
    declared = SPECS[name].typed(variant)
    given = [Pointer(value, _ELEMENTS[kind[1:]]) if kind[0] == "*" else value
             for value, (_, kind, _) in zip(values(name, variant), declared, strict=True)]  # fmt: skip
    packed = pack(declared, given)
    packed = (*packed[-2:], *packed[:-2]) if swap else packed
    told = [f"{int.from_bytes(value.tobytes(), 'little'):x}" for value in packed]
    assert [value.nbytes for value in packed] == [int(n) for n in sizes(name, variant).split(",")] or swap
    head = f"launch 3 4 5 block {32 * facts['warps']} 1 1 shared {facts['shared']}:"
    return [*head.split(" "), *told]


@pytest.mark.parametrize("case", range(len(CASES)), ids=["/".join(case) for case in CASES])
def test_the_driver_is_handed_the_same(case: int, theirs: list[list[str]]) -> None:
    name, variant = CASES[case]
    facts = manifest()["kernels"][f"{name}/{variant}"]["80"]
    assert ours(name, variant, facts) == theirs[case]
    assert ours(name, variant, facts, swap=True) != theirs[case]


def test_cupy_hands_over_what_is_packed(driver: Path) -> None:
    """CuPy's own call into the driver, where CuPy is installed."""
    pytest.importorskip("cupy_backends")
    code = """
import ctypes, io, json, os, zipfile
from cupy_backends.cuda.api import driver
from bargein.kernels.gpu.launch import FOLDER, manifest
from tests.kernels.gpu import test_abi as t
name, variant = "linear_rows", "int8_many"
facts = manifest()["kernels"][name + "/" + variant]["80"]
module = driver.moduleLoadData(zipfile.ZipFile(FOLDER / "sm_80.zip").read(f"{name}-{variant}.cubin"))
function = driver.moduleGetFunction(module, facts["name"])
driver.funcSetAttribute(function, 8, facts["shared"])
declared = t.SPECS[name].typed(variant)
given = [t.Pointer(v, t._ELEMENTS[k[1:]]) if k[0] == "*" else v for v, (_, k, _) in zip(t.values(name, variant), declared)]
held = [ctypes.create_string_buffer(v.tobytes(), v.nbytes) for v in t.pack(declared, given)]
array = (ctypes.c_void_p * len(held))(*[ctypes.addressof(h) for h in held])
os.environ["FAKE_SIZES"] = t.sizes(name, variant)
driver.launchKernel(function, 3, 4, 5, 32 * facts["warps"], 1, 1, facts["shared"], 0, ctypes.addressof(array), 0)
"""
    env = os.environ | {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("launch")]
    facts = manifest()["kernels"]["linear_rows/int8_many"]["80"]
    assert line.split(" ") == ours("linear_rows", "int8_many", facts)

