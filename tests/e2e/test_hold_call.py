"""Hold mode on real calls: what `bargein bench hold` measures, one sound of each kind."""

from __future__ import annotations

import json
from pathlib import Path

from bargein.client import bench_hold

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
