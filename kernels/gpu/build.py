"""Compiles the kernels of `specs` for every architecture: `python -m bargein.kernels.gpu.build`. Needs Triton, no GPU.

Writes cubin/sm_*.zip, cubin/kernels.json (arguments, resources, hashes) and TABLE.md. The same sources and the same
Triton give the same bytes, so a test compiles again and compares.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")  # a fourth of the size, and no path of the checkout inside

import triton

_NVIDIA = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
os.environ.setdefault("TRITON_PTXAS_BLACKWELL_PATH", str(_NVIDIA / "ptxas"))  # sm_90 too for drivers of CUDA 12

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from .launch import FOLDER  # noqa: E402
from .specs import ARCHS, SHARED_MAX, SPECS  # noqa: E402

_PTX = {"*": "u64", "i32": "u32", "i64": "u64", "fp32": "f32"}
_EPOCH = (1980, 1, 1, 0, 0, 0)


class BuildError(Exception):
    """A kernel that cannot be shipped, and why."""


def compile_one(name: str, variant: str, arch: int) -> tuple[bytes, dict[str, Any]]:
    """(cubin, facts) of one variant for one architecture. Raises BuildError where `launch` could not run it."""
    spec, chosen = SPECS[name], SPECS[name].variants[variant]
    function = getattr(import_module(f".{spec.module}", __package__), name)
    declared = spec.typed(variant)
    signature = {arg: kind for arg, kind, _ in declared} | dict.fromkeys(chosen.constants, "constexpr")
    if list(signature) != list(function.arg_names):
        raise BuildError(f"{name}: the table has {list(signature)}, the kernel {function.arg_names}")
    attrs = {(i,): [["tt.divisibility", 16]] for i, (_, _, whole) in enumerate(declared) if whole}
    options = {"num_warps": chosen.warps, "num_stages": chosen.stages, "enable_fp_fusion": True}
    source = ASTSource(function, signature, chosen.constants, attrs)
    kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    meta, ptx, cubin = kernel.metadata, kernel.asm["ptx"], kernel.asm["cubin"]
    found = re.search(r"\.entry[^(]*\((.*?)\)", ptx, re.S)
    params = re.findall(r"\.param \.(\w+)", found.group(1)) if found else []
    wanted = [_PTX["*" if kind[0] == "*" else kind] for _, kind, _ in declared] + ["u64", "u64"]
    problems = {
        f"parameters {params}, not {wanted}": params == wanted,
        f"threads: no .reqntid {32 * meta.num_warps}": f".reqntid {32 * meta.num_warps}" in ptx,
        "it wants scratch memory": meta.global_scratch_size == 0 and meta.profile_scratch_size == 0,
        "it wants a cluster": meta.num_ctas == 1,
        f"{meta.shared} bytes of shared memory": meta.shared <= SHARED_MAX[arch],
    }
    for problem, fine in problems.items():
        if not fine:
            raise BuildError(f"{name}/{variant} sm_{arch}: {problem}")
    facts = {"name": meta.name, "warps": meta.num_warps, "shared": meta.shared, "bytes": len(cubin)}
    return cubin, facts | _resources(cubin) | {"sha256": hashlib.sha256(cubin).hexdigest()}


def _resources(cubin: bytes) -> dict[str, int]:
    """Registers a thread and bytes of spills, as cuobjdump reads them from a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([_NVIDIA / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True)
    numbers = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told.stdout + told.stderr))
    return {"registers": int(numbers["REG"]), "stack": int(numbers["STACK"])}


def build(folder: Path = FOLDER, names: list[str] | None = None) -> dict[str, Any]:
    """Compile everything into a folder; returns what kernels.json holds."""
    folder.mkdir(exist_ok=True)
    names = names or list(SPECS)
    kernels: dict[str, dict[str, Any]] = {}
    cubins: dict[int, dict[str, bytes]] = {arch: {} for arch in ARCHS}
    for name in names:
        for variant in SPECS[name].variants:
            for arch in ARCHS:
                cubin, facts = compile_one(name, variant, arch)
                cubins[arch][f"{name}-{variant}.cubin"] = cubin
                kernels.setdefault(f"{name}/{variant}", {})[str(arch)] = facts
        print(f"{name}: {len(SPECS[name].variants)} variants", flush=True)
    for arch, files in cubins.items():
        with zipfile.ZipFile(folder / f"sm_{arch}.zip", "w") as archive:
            for file, content in sorted(files.items()):
                info = zipfile.ZipInfo(file, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, content, compresslevel=9)
    result = {"triton": triton.__version__, "kernels": dict(sorted(kernels.items()))}
    (folder / "kernels.json").write_text(json.dumps(result, indent=0, sort_keys=True) + "\n", "utf-8")
    return result


def table(facts: dict[str, Any]) -> str:
    """TABLE.md: registers, spills and shared memory of every kernel."""
    lines = [
        "# The kernels, as compiled", "",
        f"Written by `python -m bargein.kernels.gpu.build` with Triton {facts['triton']}. For each architecture: registers a "
        "thread / bytes of stack a thread (spills) / KB of shared memory a block. Bold: a hot kernel that spills.", "",
        "| kernel | " + " | ".join(f"sm_{arch}" for arch in ARCHS) + " |", "|---|" + "---|" * len(ARCHS),
    ]  # fmt: skip
    for name in facts["kernels"]:
        cells = []
        for arch in ARCHS:
            f = facts["kernels"][name][str(arch)]
            cell = f"{f['registers']} / {f['stack']} / {f['shared'] / 1024:.1f}"
            cells.append(f"**{cell}**" if f["stack"] and SPECS[name.split("/")[0]].hot else cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bargein.kernels.gpu.build", description=__doc__)
    parser.add_argument("--out", type=Path, help="another folder than the package's")
    parser.add_argument("--only", nargs="+", metavar="KERNEL", help="try these; nothing of the package is changed")
    parser.add_argument("--hashes", nargs="+", metavar="KERNEL/VARIANT/ARCH", help="compile these and print their hashes")
    args = parser.parse_args()
    if args.hashes:
        for key in args.hashes:
            name, variant, arch = key.split("/")
            print(json.dumps({"key": key} | compile_one(name, variant, int(arch))[1]), flush=True)
        return 0
    if args.only:
        with tempfile.TemporaryDirectory() as folder:
            print(table(build(Path(folder), args.only)))
        return 0
    facts = build(args.out or FOLDER)
    if args.out is None:
        (FOLDER.parent / "TABLE.md").write_text(table(facts), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
