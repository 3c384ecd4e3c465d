"""What the server does once its models are there."""

from __future__ import annotations

import subprocess
import sys

READY = """
import gc
from types import SimpleNamespace
from bargein.http_api import app

class Call: ...

services = SimpleNamespace(engine=SimpleNamespace(ready=False, models={"stt": "whisper-base"}, clients=[1], serving=[1]))
app._say_ready(services, "here")
before = gc.get_freeze_count()
services.engine.ready = True
app._say_ready(services, "here")
made_of = gc.get_freeze_count()
call = Call()
app._say_ready(services, "here")  # the engine was lost and is back: the calls of now will end some day
print(before == 0, made_of > 10_000, gc.get_freeze_count() == made_of, any(x is call for x in gc.get_objects()))
"""


def test_the_collector_passes_over_the_calls_alone() -> None:
    ran = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True)
    assert ran.stdout.split() == ["True"] * 4, ran.stderr
