"""`bargein bench`: what can be measured, and where it is."""

from __future__ import annotations

import os


def run(what: str, argv: list[str]) -> int:
    """Run a benchmark by name; returns the exit status."""
    if what in ("call", "barge"):
        from bargein.client import bench_call

        return bench_call.run(what, argv)
    if what == "schedule":
        from bargein.engine import schedule

        return schedule.run(argv)
    if what == "costs":
        from bargein.engine import fit_costs

        return fit_costs.run(argv)
    if what == "load":
        from bargein.client import bench_load

        return bench_load.run(argv)
    if what == "hold":
        from bargein.client import bench_hold

        return bench_hold.run(argv)
    if what == "noise":
        from bargein.client import bench_noise

        return bench_noise.run(argv)
    if what == "predicted":
        from bargein.client import bench_predicted

        return bench_predicted.run(argv)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the engine is started; it counts when NumPy is loaded first here
    from bargein.models import bench

    return bench.run(what, argv)
