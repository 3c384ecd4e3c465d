"""`bargein bench load`: what it makes of the server's counters, and a short run of it."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from bargein.client import bench_load, counters
from bargein.client.audio import read_wav, write_wav
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


def test_two_seeds_ask_the_same_mixture_in_another_order() -> None:
    questions = {name: np.zeros(1, np.int16) for name in "abcde"}
    one, other = ([name for name, _ in islice(bench_load._deck(random.Random(seed), questions), 15)] for seed in (1, 2))
    assert sorted(one) == sorted(other) == sorted("abcde" * 3) and one != other
    assert sorted(one[:5]) == sorted("abcde")


def test_a_difference_is_told_with_what_chance_alone_makes() -> None:
    a, b = [float(x) for x in range(400, 600)], [float(x) for x in range(440, 660)]
    assert bench_load.difference(a, b, 0.5, "median").startswith("median: +10 % (9 of 10 draws: +")
    same = bench_load.difference(a, a, 0.95, "p95")
    assert same.startswith("p95: +0 % (9 of 10 draws: -") and " to +" in same


def test_the_worst_caller_is_not_hidden_by_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [
        bench_load.Turn(float(n), ms, "sky", caller) for n, (caller, ms) in enumerate([(0, 400), (1, 900), (0, 500), (1, 700)])
    ]
    assert {caller: of["median"] for caller, of in bench_load.by_caller(turns).items()} == {0: 450, 1: 800}
    assert "of caller 1, the worst" in capsys.readouterr().out
    assert bench_load.by_caller([]) == {}


def test_a_row_goes_to_the_end_of_its_table_whatever_follows() -> None:
    page = bench_load.with_row("", "| 1 |\n")
    assert page == bench_load.HEADING + "| 1 |\n"
    page = bench_load.with_row(page + "\n# Models\n\n| a |\n", "| 2 |\n")
    assert page == bench_load.HEADING + "| 1 |\n| 2 |\n\n# Models\n\n| a |\n"
    assert bench_load.with_row("# Other\n", "| 3 |\n") == "# Other\n\n" + bench_load.HEADING + "| 3 |\n"


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
    assert main(["bench", "load", "--wavs", wavs, "--pairs", "2"]) == 2, "a recording is needed to compare with"
    assert main(["bench", "load", "--wavs", wavs, "--pairs", "-1"]) == 2
    assert main(["bench", "load", "--wavs", wavs, "--file", str(tmp_path / "none.wav")]) == 2


def test_calls_beside_a_recording_are_compared_with_calls_alone(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, wavs = tmp_path / "pairs.jsonl", DATA / "questions"
    recording = tmp_path / "long.wav"
    write_wav(recording, np.concatenate([read_wav(path) for path in sorted(wavs.glob("*.wav"))] * 3))
    argv = ["bench", "load", "--url", server.url, "--calls", "1", "--seconds", "5", "--interrupt", "0", "--pause", "0.2"]
    assert main([*argv, "--wavs", str(wavs), "--pairs", "1", "--file", str(recording), "--json", str(out)]) == 0
    alone, beside = (json.loads(line) for line in out.read_text().splitlines())
    assert "words_transcribed" not in alone and beside["words_transcribed"] > 0
    assert [len(run["turns"]) for run in (alone, beside)] == [alone["answered"], beside["answered"]]
    assert "| 1 beside a recording |" in bench_load.row(beside) and "| 1 |" in bench_load.row(alone)
    assert alone["turns"][0][2] == beside["turns"][0][2], "one seed: the same questions"
    assert "1 pairs of 1 calls" in (told := capsys.readouterr().out) and "p95: " in told


def test_delays_and_memory_by_slices(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [(1.0, 500.0), (9.0, 700.0), (12.0, 900.0)]
    held = [(10.0, {"process_resident_memory_bytes": 2e8, "bargein_engine_streams": 9.0}), (20.0, {"process_open_fds": 30.0})]
    first, second = bench_load.over_time(turns, held, 10.0)
    assert (first["turns"], first["median"], first["front_mb"], first["streams"]) == (2, 600, 200, 9)
    assert (second["turns"], second["p95"], second["descriptors"], second["until_s"]) == (1, 900, 30, 20)
    assert len(capsys.readouterr().out.splitlines()) == 2
