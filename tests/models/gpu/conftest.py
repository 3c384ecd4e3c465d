"""These tests run kernels in Triton's interpreter; where Triton is missing they are left out."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

# What takes ten seconds and more in the interpreter is left to the whole run, GPU_SHAPES=20 (see tests/kernels/gpu).
long = pytest.mark.skipif(int(os.environ.get("GPU_SHAPES", "5")) < 20, reason="of the whole run: GPU_SHAPES=20")

collect_ignore = [] if importlib.util.find_spec("triton") else [p.name for p in Path(__file__).parent.glob("test_*.py")]
