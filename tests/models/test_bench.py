"""`bargein bench models`: sides take turns, and what is kept says under which conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from bargein.models import bench


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    item = bench.Item("x", lambda: order.append("ours"), {"other": lambda: order.append("other")})
    ((_, ours, theirs),) = bench.measure([item], 3)
    assert order == ["ours", "other"] * 4 and ours >= 0 and set(theirs) == {"other"}


def test_a_rate_is_compared_with_the_other_side_s_own_amount() -> None:
    item = bench.Item("tokens", lambda: None, {}, rate=128, unit="tokens/s", other_rate=64)
    (row,) = bench._rows(item, 1000.0, {"llama": 1000.0})
    assert row == "| tokens | 128.0 tokens/s | llama | 64.0 tokens/s | 2.00 |"
    assert bench._rows(item._replace(rate=0), 10.0, {})[0].split("|")[2:4] == [" 10 ms ", " not installed "]


def test_the_table_is_kept_with_its_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Calls\n")
    assert bench.run_models(["silero", "--rounds", "1", "--results", str(page)]) == 0
    first, _, title, _, *table = page.read_text().splitlines()
    assert first == "# Calls" and title.startswith("# Models: ") and "medians of 1 rounds in turns" in title
    titles = [row.split("|")[1].strip() for row in table]
    assert titles == ["", "---", "Silero, 1 session, a window", "Silero, 64 sessions, a window"]
    kept = page.read_text()
    assert bench.run_models(["nothing", "--results", str(page)]) == 2 and page.read_text() == kept
    assert "no group 'nothing'" in capsys.readouterr().err
