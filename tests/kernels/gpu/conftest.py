"""These tests need Triton (`make setup-gpu-dev`, and `make test`); where it is missing they are skipped, not failed.

This process interprets. What compiles runs in processes of its own: Triton does one or the other.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

collect_ignore = [] if importlib.util.find_spec("triton") else ["test_parity.py", "test_build.py", "test_abi.py"]

SHAPES = int(os.environ.get("GPU_SHAPES", "5"))  # of every kernel; the bar is 20, which takes a minute


@pytest.fixture(scope="session")
def launcher():  # type: ignore[no-untyped-def]
    from bargein.kernels.gpu.interpret import Interpreter

    return Interpreter()
