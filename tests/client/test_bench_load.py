"""`bargein bench load`: what it makes of the server's counters, and a short run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bargein.client import bench_load, counters
from bargein.http_api.cli import main

from ..e2e.conftest import DATA, Served

VAD = "bargein_engine_vad_seconds_bucket:"


def test_the_99th_percentile_is_of_the_run_not_of_the_past() -> None:
    before = {VAD + "0.005": 10.0, VAD + "0.02": 900.0, VAD + "+Inf": 1000.0}
    after = {VAD + "0.005": 990.0, VAD + "0.02": 1899.0, VAD + "+Inf": 2000.0}
    assert counters.vad_p99(before, after) == 20.0
    assert counters.vad_p99(before, after | {VAD + "0.005": 1005.0}) == 5.0
    assert counters.vad_p99(before, before | {VAD + "+Inf": 1100.0}) is None
    assert counters.vad_p99({}, {}) is None
    assert counters.vad_late(before, after) == (1000, 1) and counters.vad_late({}, {}) == (0, 0)


def test_a_plot_holds_every_turn() -> None:
    svg = bench_load.plot([(1.0, 500.0), (2.0, 3000.0)], 10, "2 calls")
    assert svg.count("<circle") == 2 and "3.0 s" in svg


def test_two_callers(server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, table, plot = tmp_path / "load.jsonl", tmp_path / "RESULTS.md", tmp_path / "load.svg"
    argv = ["bench", "load", "--url", server.url, "--calls", "2", "--seconds", "6", "--interrupt", "0", "--pause", "0.2"]
    wavs = str(DATA / "questions")
    assert main([*argv, "--wavs", wavs, "--json", str(out), "--results", str(table), "--plot", str(plot)]) == 0
    figures = json.loads(out.read_text())
    assert figures["answered"] >= 2 and figures["gap_ms"]["n"] == figures["answered"] and figures["problems"] == []
    assert figures["server"]["lanes"]["stt"]["busy"] > 0 and figures["server"]["cpu_s_per_call_min"] > 0
    assert plot.read_text().count("<circle") == figures["answered"]
    heading, row = table.read_text().splitlines()[4::2]
    assert heading.count("|") == row.count("|") == len(bench_load.COLUMNS) + 1 and "| 2 |" in row
    assert "2 calls for" in capsys.readouterr().out
    assert main(["bench", "load", "--url", "ws://127.0.0.1:9/v1/realtime", "--wavs", wavs]) == 2
    assert main(["bench", "load", "--wavs", str(tmp_path)]) == 2


def test_delays_and_memory_by_slices(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [(1.0, 500.0), (9.0, 700.0), (12.0, 900.0)]
    held = [(10.0, {"process_resident_memory_bytes": 2e8, "bargein_engine_streams": 9.0}), (20.0, {"process_open_fds": 30.0})]
    first, second = bench_load.over_time(turns, held, 10.0)
    assert (first["turns"], first["median"], first["front_mb"], first["streams"]) == (2, 600, 200, 9)
    assert (second["turns"], second["p95"], second["descriptors"], second["until_s"]) == (1, 900, 30, 20)
    assert len(capsys.readouterr().out.splitlines()) == 2
