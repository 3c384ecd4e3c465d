"""Hold mode on real calls: what `bargein bench hold` measures, one sound of each kind."""

from __future__ import annotations

import json
from pathlib import Path

from bargein.client import bench_hold, bench_noise

from .conftest import DATA, Served


def test_a_reply_survives_what_is_no_interruption_and_gives_way_to_what_is(server: Served, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    options = ["--url", server.url, "--sounds", str(DATA / "sounds"), "--each", "1", "--json", str(out), "--verbose"]
    assert bench_hold.run(options) == 0
    figures = json.loads(out.read_text())
    for kind in ("backchannel", "noise"):
        assert (figures[kind]["kept"], figures[kind]["as_if_never_paused"]) == (1, 1), kind
    assert figures["backchannel"]["pauses"] == 1
    assert figures["interrupt"]["cut"] == 1 and figures["interrupt"]["silent_ms"]["max"] < 400
    assert figures["answer"]["answered"] == 1


def test_no_words_and_no_reply_in_what_is_nobodys_speech(server: Served) -> None:
    """The first ten seconds of what `bargein bench noise` plays for a minute."""
    assert bench_noise.run(["--url", server.url, "--seconds", "10", "--over-s", "0", "--profile", "fast"]) == 0


def test_the_replys_own_echo_is_no_interruption_and_speech_over_it_is(server: Served, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    options = ["--url", server.url, "--sounds", str(DATA / "sounds"), "--kinds", "nothing,interrupt", "--each", "1"]
    assert bench_hold.run([*options, "--echo=-20:80", "--json", str(out), "--verbose"]) == 0
    figures = json.loads(out.read_text())
    assert figures["nothing"]["kept"] == 1 and figures["interrupt"]["cut"] == 1
