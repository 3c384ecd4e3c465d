"""JavaScript packages that tests load: a folder's `package-lock.json`, fetched once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def packages(folder: Path) -> Path:
    """`node_modules` of a folder, fetched when it is not there or older than the lock."""
    modules, lock = folder / "node_modules", folder / "package-lock.json"
    stamp = modules / ".package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
        if shutil.which("npm") is None:
            pytest.fail(f"these tests load JavaScript packages: run `npm ci --ignore-scripts` in {folder} (needs npm)")
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    return modules
