"""What calls took goes back: large blocks freed among small ones that stay."""

from __future__ import annotations

import subprocess
import sys

CALLS = """
import sys
import numpy as np
from pathlib import Path
from bargein.http_api.memory import give_back

def mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

if sys.argv[1] == "set":
    give_back()
stay = []
rng = np.random.default_rng(0)
before = mb()
for call in range(60):
    sounds = []
    for _ in range(40):  # what a call hears and says, and small things that outlive it
        sounds.append(np.ones(int(rng.integers(40_000, 250_000)), np.float32))
        stay.append(bytes(2000))
    del sounds
print(mb() - before - 2000 * len(stay) / 1e6)
"""


def left_mb(how: str) -> float:
    ran = subprocess.run([sys.executable, "-c", CALLS, how], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def test_what_calls_took_goes_back_to_the_system() -> None:
    assert left_mb("set") < 4
    assert left_mb("unset") > 8, "what this is for"
