"""A damaged or foreign weight folder is refused in words that name the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bargein.models import decoder, hibari, silero, smart_turn, store, whisper
from bargein.models.errors import WeightsError

LOADERS: dict[str, Callable[[Path], Any]] = {
    "silero-vad": silero.load,
    "smart-turn-v3": smart_turn.load,
    "whisper-tiny-en": whisper.load,
    "smollm2-135m": decoder.load,
    "hibari-heart": hibari.load,
}


@pytest.fixture(params=LOADERS)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[Path], Any], Path]:
    """A loader and a copy of its folder, without the tensors."""
    name = str(request.param)
    folder = tmp_path / name
    shutil.copytree(store.path(name), folder, ignore=shutil.ignore_patterns("model.safetensors"))
    return LOADERS[name], folder


def test_missing_tensors(broken: tuple[Callable[[Path], Any], Path]) -> None:
    load, folder = broken
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        load(folder)


def test_truncated_tensors(broken: tuple[Callable[[Path], Any], Path]) -> None:
    load, folder = broken
    with (store.path(folder.name) / "model.safetensors").open("rb") as whole:
        (folder / "model.safetensors").write_bytes(whole.read(20000))
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        load(folder)


def test_foreign_config(broken: tuple[Callable[[Path], Any], Path]) -> None:
    load, folder = broken
    (folder / "config.json").write_text('{"model": "another", "width": "wide"}')
    with pytest.raises(WeightsError):
        load(folder)


def test_a_file_that_another_user_keeps_to_himself_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda file, mode: file.name != "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.safetensors: this user may not read it"):
        store.path("silero-vad")
