"""Kernels hand addresses around: what lies there must stay until the last of them has been used.

Numba frees an array of its own after the last mention of it, and an address is none. What is freed is often still there, so
that nothing is noticed; here it is not.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent.parent.parent / "kernels"


def compiled(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions that Numba compiles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("njit" in ast.unparse(d) for d in node.decorator_list):
            yield node


def too_short(function: ast.FunctionDef) -> list[str]:
    """Arrays made in a function of which the last that is seen is an address."""
    own: set[str] = set()
    mentions: dict[str, list[tuple[int, bool]]] = {}
    addresses = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == "ctypes"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and "np." in ast.unparse(node.value) and isinstance(node.targets[0], ast.Name):
            own.add(node.targets[0].id)
        if isinstance(node, ast.Name):
            mentions.setdefault(node.id, []).append((node.lineno, id(node) in addresses))
    return [name for name in sorted(own) if max(mentions[name])[1]]


def test_no_kernel_of_its_own_array_keeps_only_an_address() -> None:
    found = {}
    for file in sorted(KERNELS.glob("cpu*.py")):
        for function in compiled(ast.parse(file.read_text())):
            if names := too_short(function):
                found[f"{file.name}: {function.name}"] = names
    assert found == {}


FREED = """
@njit
def f(x):
    a = np.empty(3)
    b = np.empty(3)
    g(a.ctypes.data,
      b.ctypes.data)
    return b[0]
"""


def test_the_rule_sees_what_it_is_for() -> None:
    [function] = compiled(ast.parse(FREED))
    assert too_short(function) == ["a"]


RUN = """
import numpy as np
import numba
from bargein.kernels import cpu, reference
from bargein.kernels.reference_int8 import pack_rows, quantize_rows
numba.set_num_threads(int({threads}))
rng = np.random.default_rng(0)
def f32(*shape):
    return rng.normal(0, 1, shape).astype(np.float32)
def near(a, b, eps):
    assert np.abs(a - b).max() <= eps * np.abs(b).max(), np.abs(a - b).max()
q, k, v = f32(1500, 384), f32(1500, 384), f32(1500, 384)
for rows in (1500, 100, 7):  # scores of 144 KB, 10 KB and less
    near(cpu.attention(q, k[:rows], v[:rows], 6, 0.125), reference.attention(q, k[:rows], v[:rows], 6, 0.125), 1e-4)
weight = pack_rows(*quantize_rows(f32(4096, 256)))
sketch = cpu.sketch_of(weight)
for rows in (1, 3, 16):
    x = f32(rows, 256)
    near(cpu.linear_int8(x, weight), reference.linear_int8(x, weight), 1e-6)
    near(cpu.sketch_scores(x, sketch, 256), reference.sketch_scores(x, sketch, 256), 1e-6)
print("whole")
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_freed_too_soon_is_noticed(threads: int) -> None:
    """Blocks from 4 KB on go back to the system as soon as they are freed, smaller ones are overwritten."""
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_PERTURB_": "165"}
    code = RUN.replace("{threads}", str(threads))
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout == "whole\n", ran.stderr[-2000:]
