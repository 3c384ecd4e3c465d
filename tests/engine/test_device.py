"""Where an engine runs and why: the driver is a fake library whose answers the test sets, or there is none."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bargein.engine.build import check_threads
from bargein.engine.device import DeviceError, choose, parse, parse_memory

DRIVER = """
#include <stdlib.h>
#include <string.h>
static long told(const char *name, long usual) { const char *t = getenv(name); return t ? atol(t) : usual; }
int cuInit(unsigned flags) { return told("FAKE_INIT", 0); }
int cuDriverGetVersion(int *v) { *v = told("FAKE_VERSION", 12090); return 0; }
int cuDeviceGetCount(int *n) { *n = told("FAKE_COUNT", 1); return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { long c = told("FAKE_CHIP", 90); *v = a == 75 ? c / 10 : c % 10; return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)told("FAKE_MIB", 81920) << 20; return 0; }
int cuDeviceGetName(char *to, int room, int d) { strncpy(to, "Fake 9000", room); return 0; }
"""


@pytest.mark.parametrize(
    ("text", "meant"), [("auto", ("auto", -1)), ("cpu", ("cpu", -1)), ("cuda", ("cuda", -1)), ("cuda:3", ("cuda", 3))]
)
def test_device_names(text: str, meant: tuple[str, int]) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "cpu:0"])
def test_other_device_names_are_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="write auto, cpu, cuda or cuda:N"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "meant"), [("80%", 0.8), ("100%", 1.0), ("12.5 %", 0.125), ("18GiB", 18 << 30), ("500MB", 500_000_000)]
)
def test_memory(text: str, meant: float | int) -> None:
    assert parse_memory(text) == meant and type(parse_memory(text)) is type(meant)


@pytest.mark.parametrize("text", ["", "0%", "101%", "80", "18", "18 GB/s", "-1GiB", "0GiB", "nan%"])
def test_other_memory_is_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="write a share"):
        parse_memory(text)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "fake.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "fake.c"], check=True)
    return folder


def outcome(driver: Path, device: str, memory: str = "80%", cupy: bool = True, **told: int) -> str:
    """What `choose` says in a process that has the fake driver."""
    code = f"""
import importlib.util
from bargein.engine import device
find = importlib.util.find_spec
device.importlib.util.find_spec = lambda name: ({cupy} or None) if name == "cupy" else find(name)
try:
    choice = device.choose({device!r}, {memory!r})
    print(choice.name, choice.budget, choice.why)
except device.DeviceError as problem:
    print("refused:", problem)
"""
    env = os.environ | {"LD_LIBRARY_PATH": str(driver)} | {f"FAKE_{k}": str(v) for k, v in told.items()}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


CASES = {
    "a good one": ({}, "cuda:0 68719476736 on cuda:0 (Fake 9000), with 64.0 GiB of its memory"),
    "no device": ({"INIT": 100}, "the NVIDIA driver shows no GPU (cuInit: error 100)"),
    "none visible": ({"COUNT": 0}, "the NVIDIA driver shows no GPU"),
    "an old driver": ({"VERSION": 12020}, "the NVIDIA driver is for CUDA 12.2; 12.9 or newer is needed"),
    "an old chip": ({"CHIP": 75}, "Fake 9000 has compute capability 7.5; kernels are there for 8.0 to 9.0"),
    "a new chip": ({"CHIP": 120}, "compute capability 12.0"),
    "a small one": ({"MIB": 2000}, "1.6 GiB of Fake 9000 are too little; the models need 2 GiB"),
}


@pytest.mark.parametrize("case", CASES)
def test_auto_falls_back_and_says_why_where_cuda_refuses(driver: Path, case: str) -> None:
    told, why = CASES[case]
    if not told:
        assert outcome(driver, "auto") == outcome(driver, "cuda") == outcome(driver, "cuda:0") == why
        return
    assert outcome(driver, "auto", **told).startswith("cpu 0 on the CPU: ") and why in outcome(driver, "auto", **told)
    assert outcome(driver, "cuda", **told).startswith("refused: device cuda: ") and why in outcome(driver, "cuda", **told)


def test_what_else_is_refused(driver: Path) -> None:
    assert outcome(driver, "cuda:1") == "refused: device cuda:1: there is no cuda:1; the driver shows 1 GPU"
    assert "has 80.0 GiB, less than the 100.0 GiB asked for" in outcome(driver, "cuda", "100GiB")
    assert outcome(driver, "cuda:2", "18GiB", COUNT=3).startswith(f"cuda:2 {18 << 30} ")
    assert outcome(driver, "cuda", cupy=False).endswith("CuPy is not installed: pip install 'bargein[gpu]'")
    assert outcome(driver, "auto", cupy=False).startswith("cpu 0 on the CPU: CuPy is not installed")
    assert outcome(driver, "cpu") == "cpu 0 on the CPU, as told"


@pytest.mark.skipif(bool(os.environ.get("NVIDIA_VISIBLE_DEVICES")) or Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_driver() -> None:
    assert choose("auto").why == "on the CPU: there is no NVIDIA driver (libcuda.so.1 is not found)"
    with pytest.raises(DeviceError, match=r"^device cuda: there is no NVIDIA driver"):
        choose("cuda")


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--device", "cuda"], "bargein: device cuda: there is no NVIDIA driver (libcuda.so.1 is not found)"),
        (["--gpu-memory", "lots", "--device", "auto"], "bargein: gpu memory 'lots': write a share such as 80%"),
        (["--set", "engine.cache_memory=lots"], "bargein: cache memory 'lots': write a share such as 80%"),
    ],
)
def test_serve_says_what_is_missing_in_one_line(flags: list[str], problem: str) -> None:
    command = [sys.executable, "-m", "bargein.http_api.cli", "serve", "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(problem) and done.stderr.count("\n") == 1


def test_check_gpu_without_one_is_a_line() -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "-m", "bargein.kernels.check_gpu"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("bargein: no GPU to check: ") and done.stderr.count("\n") == 1


def test_check_gpu_interpreted(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    command = [sys.executable, "-m", "bargein.kernels.check_gpu", "--interpret", "--cases", "2", "--out", tmp_path / "r.json",
               "--only", "linear_rows", "gated_rows", "bias_gelu"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "all kernels are right" in done.stdout, done.stdout + done.stderr
    assert '"ok": true' in (tmp_path / "r.json").read_text()


def test_an_engine_without_openmp_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba's fallback ends the process when two workers run kernels at a time."""
    check_threads()
    for layer in ("omppool", "tbbpool"):
        monkeypatch.setitem(sys.modules, f"numba.np.ufunc.{layer}", None)
    with pytest.raises(DeviceError, match="libgomp1"):
        check_threads()


WITHOUT_OPENMP = """
import sys, threading
sys.modules["numba.np.ufunc.omppool"] = None
from bargein.engine.build import check_threads
check_threads()
import numba, numpy as np
from bargein.kernels.cpu_int8 import linear_int8
from bargein.kernels.reference_int8 import pack_rows, quantize_rows
w = pack_rows(*quantize_rows(np.random.default_rng(0).normal(size=(4096, 512)).astype(np.float32)))
x = np.ones((16, 512), np.float32)
want = linear_int8(x, w, 2)
same = []
def run():
    same.extend(np.array_equal(linear_int8(x, w, 2), want) for _ in range(50))
threads = [threading.Thread(target=run) for _ in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
print(numba.threading_layer(), len(same), all(same))
"""


@pytest.mark.skipif(not (sys.platform == "linux" and platform.machine() == "x86_64"), reason="TBB is installed on x86-64 Linux")
def test_a_machine_without_openmp_uses_the_tbb_that_was_installed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_OPENMP], capture_output=True, text=True, timeout=300)
    assert done.stdout == "tbb 150 True\n", done.stdout + done.stderr
