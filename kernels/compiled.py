"""Where compiled kernels are kept: a folder for each state of the sources.

Numba looks at the file that a function is in, not at those of the functions it calls, which are part of what was compiled:
after a change to one file, those that use it would go on with what it was before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from pathlib import Path

NAME = "bargein-"


def folder_for(sources: Path, given: str) -> Path:
    """The folder for the Python files of `sources`: inside of the one that is `given`, or of theirs; that folder itself where
    it is such a one already."""
    digest = hashlib.sha256()
    for file in sorted(sources.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    name = NAME + digest.hexdigest()[:16]
    root = Path(given) if given else sources / "__pycache__"
    if root.name.startswith(NAME):  # of who started this process
        root = root.parent
    return root / name


def keep_apart(sources: Path) -> None:
    """Have Numba keep what it compiles there, in this process and in those it starts. Folders of other states go, where nobody
    else can have made them. Where nothing can be written it is left to Numba."""
    folder = folder_for(sources, os.environ.get("NUMBA_CACHE_DIR", ""))
    with contextlib.suppress(OSError):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            for other in (sources / "__pycache__").glob(f"{NAME}*"):
                if other != folder:
                    shutil.rmtree(other, ignore_errors=True)
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
        if (numba := sys.modules.get("numba")) is not None:  # it has read its settings
            numba.config.CACHE_DIR = str(folder)
