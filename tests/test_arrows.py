"""The import arrows of the layers: http_api -> pipeline -> {realtime, engine}; engine -> models -> kernels."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent

MAY_IMPORT = {
    "realtime": set(),
    "kernels": set(),
    "models": {"kernels"},
    "engine": {"models", "kernels"},
    "pipeline": {"realtime", "engine"},
    "agent": {"realtime"},
    "client": {"realtime"},
    "conformance": {"realtime"},
    "http_api": {"agent", "pipeline", "realtime", "engine", "models", "client", "conformance"},
}


def imported(file: Path) -> set[str]:
    """The layers that a file imports, other than its own."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module] if node.module != "bargein" else [f"bargein.{a.name}" for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("bargein.")}
    return found


def test_layers_import_only_downward() -> None:
    wrong = []
    for layer, allowed in MAY_IMPORT.items():
        for file in sorted((ROOT / layer).rglob("*.py")):
            wrong += [f"{file.relative_to(ROOT)} imports {x}" for x in imported(file) - allowed - {layer}]
    assert wrong == []


def test_realtime_is_pure() -> None:
    banned = {"asyncio", "time", "random", "secrets", "uuid", "threading", "numpy", "logging", "os", "socket"}
    for file in (ROOT / "realtime").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            assert not {n.split(".")[0] for n in names} & banned, file


def test_the_serving_path_knows_no_foreign_runtime() -> None:
    banned = {"torch", "onnxruntime", "ctranslate2", "faster_whisper", "llama_cpp", "transformers"}
    bench = {ROOT / "models" / "bench.py"}  # measures against them
    for layer in MAY_IMPORT:
        for file in (ROOT / layer).rglob("*.py"):
            if file not in bench:
                for node in ast.walk(ast.parse(file.read_text())):
                    names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                    if isinstance(node, ast.ImportFrom):
                        names = [node.module or ""]
                    assert not {n.split(".")[0] for n in names} & banned, file


def test_generators_are_closed_where_they_are_read() -> None:
    """`async for … in made(…)` that is left in the middle leaves what `made` holds open until the garbage collector comes:
    it is made by `async with aclosing(made(…)) as …`."""
    wrong = []
    for layer in ("http_api", "pipeline", "agent"):
        for file in sorted((ROOT / layer).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.AsyncFor) and isinstance(node.iter, ast.Call):
                    name = node.iter.func.attr if isinstance(node.iter.func, ast.Attribute) else ""
                    if name != "iter_any":  # aiohttp's, which holds nothing
                        wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert wrong == []
