"""What was compiled of other sources is not used: a function holds what it calls, also of other files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bargein.kernels.compiled import NAME, folder_for, keep_apart

CALLS = """
import os, sys
sys.path.insert(0, {root!r})
{early}
import kernels_of_mine.outer as outer
print(outer.f(1.0), os.environ["NUMBA_CACHE_DIR"])
"""
OUTER = "import numba as nb\nfrom .inner import g\n\n@nb.njit(cache=True)\ndef f(x):\n    return g(x) + 1.0\n"
INNER = "import numba as nb\n\n@nb.njit(cache=True)\ndef g(x):\n    return x * {by}\n"


def run(root: Path, early: str = "") -> tuple[float, str]:
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    code = CALLS.format(root=str(root), early=early)
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    value, folder = ran.stdout.split()
    return float(value), folder


def test_a_change_to_what_is_called_is_seen_in_who_calls_it(tmp_path: Path) -> None:
    package = tmp_path / "kernels_of_mine"
    package.mkdir()
    source = Path(sys.modules["bargein.kernels.compiled"].__file__ or "").read_text()
    (package / "compiled.py").write_text(source)
    start = "from pathlib import Path\nfrom .compiled import keep_apart\nkeep_apart(Path(__file__).parent)\n"
    (package / "__init__.py").write_text(start)
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(by=2.0))
    assert run(tmp_path)[0] == 3.0
    first = run(tmp_path, early="import numba")  # which has read its settings before
    assert first[0] == 3.0 and any(Path(first[1]).rglob("*.nbi"))
    (package / "inner.py").write_text(INNER.format(by=5.0))
    value, folder = run(tmp_path)
    assert value == 6.0 and folder != first[1]
    assert [x.name for x in Path(folder).parent.glob(f"{NAME}*")] == [Path(folder).name], "the old one has gone"


def test_whoever_is_started_has_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    folder = folder_for(tmp_path, "")
    assert folder.parent == tmp_path / "__pycache__" and folder_for(tmp_path, str(folder)) == folder
    given = folder_for(tmp_path, str(tmp_path / "given"))
    assert given.parent == tmp_path / "given" and given.name == folder.name and folder_for(tmp_path, str(given)) == given


def test_where_nothing_can_be_written_it_is_left_to_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    (tmp_path / "__pycache__").write_text("a file")
    keep_apart(tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ
