"""The runner of version 3's corpora."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bargein.conformance import corpus
from bargein.http_api.cli import main

CORPUS = Path(__file__).parent / "corpus"


def test_a_corpus_runs_and_the_last_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "run", "--corpus", str(CORPUS)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 passed, 0 failed"


def edited(tmp_path: Path, number: int, **fields: object) -> str | None:
    """What the runner says when one expected event holds something else."""
    folder = tmp_path / "story_interrupted"
    shutil.copytree(CORPUS / folder.name, folder, dirs_exist_ok=True)
    path = folder / "expected.jsonl"
    rows = [json.loads(x) for x in path.read_text().splitlines()]
    rows[number] |= fields
    path.write_text("\n".join(map(json.dumps, rows)))
    return corpus.run(folder)


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (2, {"audio_end_ms": 1025}),
        (3, {"item_id": "U2"}),  # U2 is still to come: another item then
        (8, {"response": {"id": "R1", "status": "completed"}}),
        (8, {"response": {"id": "R1", "audio_end_ms": 300}}),
        (9, {"item_id": "U1"}),
        (6, {"audio": {"audio_bytes": 1}}),
        (4, {"type": "no.such.event"}),
    ],
)
def test_what_does_not_come_is_named(tmp_path: Path, number: int, fields: dict[str, object]) -> None:
    problem = edited(tmp_path, number, **fields)
    assert problem is not None and "does not come" in problem


def test_fewer_fields_and_fewer_events_are_enough(tmp_path: Path) -> None:
    assert edited(tmp_path, 0) is None
    path = tmp_path / "story_interrupted" / "expected.jsonl"
    rows = path.read_text().splitlines()
    path.write_text("// a note\n\n" + "\n".join([rows[1], rows[5], rows[15]]))
    assert corpus.run(path.parent) is None
    path.write_text("\n".join([rows[5], rows[1]]))
    assert corpus.run(path.parent) is not None, "their order counts"


@pytest.mark.parametrize("line", ['{"op": "fly"}', '{"op": "audio_delta"}', "{", "[]"])
def test_operations_that_cannot_be_played_fail_their_folder(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "one"
    shutil.copytree(CORPUS / "pause_then_reply", folder)
    (folder / "input.jsonl").write_text(line)
    assert corpus.run(folder) is not None
    assert main(["conformance", "run", "--corpus", str(tmp_path)]) == 1
