"""A soak: calls that redial, beside a recording that is transcribed over and over. A minute by default, SOAK_S=300 in CI, an
hour by hand (`bargein bench load --seconds 3600 --redial 1200 --file …`)."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from bargein.client.audio import read_wav, write_wav
from bargein.http_api.cli import main

from .conftest import DATA, Served
from .test_call_folder import aligned
from .test_leaks import usage

SOAK_S = int(os.environ.get("SOAK_S", "60"))


def held(server: Served) -> tuple[float, float]:
    """Sessions, and streams of the engine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as reply:
        found = {f.name: f.samples[0].value for f in text_string_to_metric_families(reply.read().decode()) if f.samples}
    return found["bargein_realtime_sessions"], found["bargein_engine_streams"]


def test_calls_that_redial_beside_long_recordings(server: Served, tmp_path: Path) -> None:
    questions = [read_wav(path) for path in sorted((DATA / "questions").glob("*.wav"))]
    recording, told = tmp_path / "long.wav", tmp_path / "told.json"
    write_wav(recording, np.concatenate(questions * 3))
    sessions, streams = held(server)
    threads = usage(server.pid)["threads"]
    argv = ["bench", "load", "--url", server.url, "--calls", "4", "--seconds", str(SOAK_S), "--redial", str(SOAK_S // 3)]
    assert main([*argv, "--wavs", str(DATA / "questions"), "--file", str(recording), "--json", str(told)]) == 0
    figures = json.loads(told.read_text())
    assert figures["problems"] == [] and figures["refused"] == 0 and figures["unanswered"] == 0, figures
    assert figures["files_transcribed"] >= 1, "calls go first, but recordings get on"
    early, late = figures["over_time"][2], figures["over_time"][-1]
    assert late["front_mb"] <= early["front_mb"] + 40 and late["engine_mb"] <= early["engine_mb"] + 100, figures["over_time"]
    assert late["descriptors"] <= early["descriptors"] + 4, figures["over_time"]
    for call in server.get("/v1/inspect")[1]["data"]:
        if call.get("recorded"):
            aligned(server, call["session_id"])  # until then the caller's words are looked for, behind all other work
    deadline = time.monotonic() + 10
    while held(server) > (sessions, streams) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert held(server) <= (sessions, streams), "sessions or streams are left"
    assert usage(server.pid)["threads"] <= threads
