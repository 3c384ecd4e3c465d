"""The shipped cubins are what the sources compile to, and what the table says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile

import pytest

from bargein.kernels.gpu.launch import FOLDER, architecture, manifest
from bargein.kernels.gpu.specs import ARCHS, SHARED_MAX, SPECS

KEYS = [f"{name}/{variant}" for name, spec in SPECS.items() for variant in spec.variants]


def test_every_variant_ships_for_every_architecture_within_its_limits() -> None:
    facts = manifest()["kernels"]
    assert sorted(facts) == sorted(KEYS)
    for arch in ARCHS:
        with zipfile.ZipFile(FOLDER / f"sm_{arch}.zip") as archive:
            assert sorted(archive.namelist()) == sorted(key.replace("/", "-") + ".cubin" for key in KEYS)
            for key in KEYS:
                cubin = archive.read(key.replace("/", "-") + ".cubin")
                fact = facts[key][str(arch)]
                assert hashlib.sha256(cubin).hexdigest() == fact["sha256"]
                assert cubin[:4] == b"\x7fELF" and cubin[8] == 7  # the form that drivers of CUDA 12 load
                assert fact["shared"] <= SHARED_MAX[arch]


def test_no_hot_kernel_spills() -> None:
    spills = {
        f"{key} sm_{arch}": fact["stack"]
        for key, of in manifest()["kernels"].items() if SPECS[key.split("/")[0]].hot
        for arch, fact in of.items() if fact["stack"]
    }  # fmt: skip
    assert spills == {}


def test_compiling_again_gives_the_shipped_bytes(tmp_path: object) -> None:
    """A variant of every third kernel, the architectures in turn; all of all with GPU_BUILD=all (four minutes)."""
    if os.environ.get("GPU_BUILD") == "all":
        chosen = [f"{key}/{arch}" for key in KEYS for arch in ARCHS]
    else:
        some = list(SPECS.items())[::3]
        chosen = [f"{name}/{next(iter(spec.variants))}/{ARCHS[i % 4]}" for i, (name, spec) in enumerate(some)]
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "bargein.kernels.gpu.build", "--hashes", *chosen]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = manifest()["kernels"]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(chosen)
    for told in lines:
        name, variant, arch = told["key"].split("/")
        assert told["sha256"] == facts[f"{name}/{variant}"][arch]["sha256"], told["key"]


def test_the_table_is_of_this_build() -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = "from bargein.kernels.gpu import build, launch; print(build.table(launch.manifest()), end='')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == (FOLDER.parent / "TABLE.md").read_text("utf-8")


@pytest.mark.parametrize(("chip", "arch"), [(80, 80), (86, 86), (87, 86), (89, 89), (90, 90), (75, None), (100, None)])
def test_which_cubins_a_chip_runs(chip: int, arch: int | None) -> None:
    assert architecture(chip) == arch
