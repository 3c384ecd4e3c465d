"""What a load cost the server, from two readings of its /metrics: processor time and lateness by lane, how long voice
windows waited, memory."""

from __future__ import annotations

import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from .recognizer import http_root

Counts = dict[str, float]
VAD_DUE_MS = 20  # how long a voice window may wait


def read(url: str, key: str) -> Counts:
    """The server's counters and gauges by name (and lane or bound), empty where it does not tell."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(http_root(url) + "/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            text = reply.read().decode()
    except OSError:
        return {}
    return {
        ":".join([s.name, *(s.labels[k] for k in ("lane", "le") if k in s.labels)]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def cost(before: Counts, after: Counts, seconds: float, calls: int) -> dict[str, Any]:
    """What it cost, from the difference of two readings."""

    def grew(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    lanes = {}
    for key in sorted(k for k in after if k.startswith("bargein_engine_device_seconds_total:")):
        lane = key.split(":")[1]
        answered, late = (grew(f"bargein_engine_{what}_total:{lane}") for what in ("answered", "late"))
        steps, job_steps = (grew(f"bargein_engine_{what}_total:{lane}") for what in ("steps", "job_steps"))
        busy = grew(key)
        lanes[lane] = {"busy": round(busy / seconds, 3), "answered": answered, "late": late,
                       "batch": round(job_steps / steps, 2) if steps else 0}  # fmt: skip
        due = f"late {late:.0f} of {answered:.0f}   " if answered else ""
        print(f"  {lane:6} device {100 * busy / seconds:5.1f} %   {due}"
              f"jobs a step {job_steps / max(steps, 1):.2f}")  # fmt: skip
    cpu = grew("process_cpu_seconds_total") + grew("bargein_engine_cpu_seconds_total")
    memory = after.get("process_resident_memory_bytes", 0.0) + after.get("bargein_engine_resident_bytes", 0.0)
    vad, (windows, late) = vad_p99(before, after), vad_late(before, after)
    print(f"  server: {cpu / seconds * 60 / max(calls, 1):.1f} CPU seconds a call minute, {memory / 1e6:.0f} MB; "
          f"{windows} voice windows: p99 at most {vad} ms, {late} later than {VAD_DUE_MS}")  # fmt: skip
    engine = grew("bargein_engine_cpu_seconds_total")
    return {"cpu_s_per_call_min": round(cpu / seconds * 60 / max(calls, 1), 2), "memory_mb": round(memory / 1e6),
            "front_cores": round((cpu - engine) / seconds, 3), "engine_cores": round(engine / seconds, 3),
            "vad_p99_ms": vad, "vad_windows": windows, "vad_late": late, "lanes": lanes}  # fmt: skip


def vad_p99(before: Counts, after: Counts) -> float | None:
    """The bound under which 99 of 100 windows' waits were, in ms; None: above the last bound, or no windows."""
    counts = vad_waits(before, after)
    total = max(counts.values(), default=0.0)
    found = next((b for b, n in counts.items() if total and n >= 0.99 * total), float("inf"))
    return None if found == float("inf") else 1000 * found


def vad_late(before: Counts, after: Counts) -> tuple[int, int]:
    """How many windows there were, and how many of them waited longer than they may."""
    counts = vad_waits(before, after)
    total = max(counts.values(), default=0.0)
    return round(total), round(total - counts.get(VAD_DUE_MS / 1000, total))


def vad_waits(before: Counts, after: Counts) -> dict[float, float]:
    """How many windows waited at most so many seconds; the bounds rise."""
    name = "bargein_engine_vad_seconds_bucket:"
    bounds = sorted(float(k[len(name) :]) for k in after if k.startswith(name))
    return {b: after[f"{name}{_le(b)}"] - before.get(f"{name}{_le(b)}", 0.0) for b in bounds}


def _le(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)
