"""Every kernel against float64 in Triton's interpreter: drawn shapes, guarded memory, poisoned outputs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bargein.kernels.gpu import checks
from bargein.kernels.gpu.launch import LaunchError
from bargein.kernels.gpu.numbers import from_bf16, from_e4m3, quantize_groups, to_bf16, to_e4m3, unpack_groups
from bargein.kernels.gpu.specs import SPECS

from .conftest import SHAPES

FOLDER = Path(checks.__file__).parent


def kernels_defined() -> set[str]:
    """Functions marked @triton.jit that are no helpers of others: those whose arguments are pointers to outputs."""
    found = set()
    for module in {spec.module for spec in SPECS.values()}:
        for node in ast.parse((FOLDER / f"{module}.py").read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(d) == "triton.jit" for d in node.decorator_list):
                found |= {node.name} - {"to_e4m3", "from_e4m3"} if not node.name.startswith("_") else set()
    return found


def test_every_kernel_has_a_row_and_a_check_and_nothing_else_has() -> None:
    assert kernels_defined() == set(SPECS) == set(checks.MAKERS)


@pytest.mark.parametrize("name", SPECS)
def test_kernel_is_its_definition(name: str, launcher: Any) -> None:
    variants = list(SPECS[name].variants)
    for number in range(max(SHAPES, len(variants)) if SHAPES >= 20 else SHAPES):
        variant = variants[number % len(variants)]
        error, sizes = checks.run_on_host(launcher, name, variant, number)
        assert error <= SPECS[name].tolerance, f"{variant} case {number}, sizes {sizes}: {error:.1e} from float64"


class Careless:
    """A launcher that breaks a result after the kernel; the check must see each way."""

    def __init__(self, launcher: Any, harm: str) -> None:
        self.launcher, self.harm = launcher, harm

    def launch(self, name: str, variant: str, grid: tuple[int, ...], *args: Any) -> None:
        self.launcher.launch(name, variant, grid, *args)
        out = args[1]
        match self.harm:
            case "beyond the end":
                address = out.ctypes.data + out.nbytes
                (np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 4).from_address(address)))[:] = 0
            case "left out":
                out.reshape(-1)[-1] = np.nan
            case "an input":
                args[0].reshape(-1)[0] += 1
            case "a wrong value":
                out *= 1.001


@pytest.mark.parametrize("harm", ["beyond the end", "left out", "an input", "a wrong value"])
def test_the_check_sees_harm(harm: str, launcher: Any) -> None:
    try:
        error, _ = checks.run_on_host(Careless(launcher, harm), "gated_rows", "silu", 3)
    except AssertionError as found:
        assert "wrote" in str(found)
    else:
        assert harm in ("left out", "a wrong value") and error > SPECS["gated_rows"].tolerance


def test_arguments_that_a_kernel_was_not_compiled_for_are_refused(launcher: Any) -> None:
    x, y = np.zeros((4, 32), np.float32), np.zeros((4, 16), np.float32)
    for args, problem in {
        "count": ((x, y), "2 arguments for 3"),
        "type": ((x.astype(np.float64), y, 16), "x_ptr is float64"),
        "stride": ((x[:, ::2], y, 16), "x_ptr is not contiguous"),
        "alignment": ((x.reshape(-1)[1:33], y, 16), "not at a multiple of 16"),
        "range": ((x, y, 2**31), "beyond 32 bits"),
    }.values():
        with pytest.raises(LaunchError, match=problem):
            launcher.launch("gated_rows", "silu", (4, 1), *args)
    launcher.launch("gated_rows", "silu", (0, 1), x, y, 16)  # nothing to do is nothing


def test_small_numbers() -> None:
    """The host's conversions against ml_dtypes', for every byte and for what lies between."""
    types = pytest.importorskip("ml_dtypes")
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(from_e4m3(codes), codes.view(types.float8_e4m3fn).astype(np.float32))
    x = np.random.default_rng(0).standard_normal(20000).astype(np.float32) * np.float32(10) ** np.arange(-3, 1).repeat(5000)
    steps = from_e4m3(codes[:127])
    x = np.concatenate([x, (steps[:-1] + steps[1:]) / 2, -(steps[:-1] + steps[1:]) / 2]).astype(np.float32)
    np.testing.assert_array_equal(to_e4m3(x), x.astype(types.float8_e4m3fn).view(np.uint8))
    np.testing.assert_array_equal(to_bf16(x), x.astype(types.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(from_bf16(to_bf16(x)), x.astype(types.bfloat16).astype(np.float32))


@pytest.mark.parametrize(("bits", "group", "steps"), [(4, 32, 15), (4, 128, 15), (6, 16, 63), (8, 32, 254)])
def test_packing_keeps_what_its_bits_allow(bits: int, group: int, steps: int) -> None:
    w = np.random.default_rng(1).standard_normal((7, 200)).astype(np.float32)
    packed = quantize_groups(w, bits, group)
    assert packed.levels.nbytes + (packed.top.nbytes if bits == 6 else 0) == 7 * packed.scale.shape[1] * group * bits // 8
    step = packed.scale.astype(np.float32).max()
    assert np.abs(unpack_groups(packed) - w).max() < 0.51 * step + 2e-3
    assert step < 2 * np.abs(w).max() / steps * 1.01
