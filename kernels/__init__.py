"""The maths: `reference` defines each op in NumPy, `cpu` runs it fast. Imports nothing of the others."""

import os
from pathlib import Path

from .compiled import keep_apart

# BLAS has its own threads beside Numba's. An OpenMP thread that spins while it waits keeps a core from BLAS (on two
# cores the encoders ran ten times slower), so it must sleep; this is read once, when the OpenMP library loads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
keep_apart(Path(__file__).parent)
