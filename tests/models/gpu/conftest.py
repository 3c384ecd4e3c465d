"""These tests run kernels in Triton's interpreter; where Triton is missing they are left out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

collect_ignore = [] if importlib.util.find_spec("triton") else [p.name for p in Path(__file__).parent.glob("test_*.py")]
