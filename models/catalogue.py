"""The catalogue of embedded models: `catalogue.toml` as typed entries."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

Task = Literal["vad", "turn", "stt", "chat", "tts", "embed", "voice"]


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wheel on the Python package index. `sha256` and `bytes` are of the file."""

    name: str
    version: str
    bytes: int
    sha256: str
    wheel: str = ""  # the file's name where it isn't the usual one

    @property
    def filename(self) -> str:
        return self.wheel or f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task: Task
    title: str
    licence: str
    languages: tuple[str, ...]
    memory_mb: int
    convert: str
    form: int
    packages: tuple[Package, ...]

    @property
    def download_bytes(self) -> int:
        return sum(p.bytes for p in self.packages)


@cache
def catalogue() -> dict[str, Entry]:
    """All entries by name, in the file's order."""
    raw = Path(__file__).with_name("catalogue.toml").read_bytes()
    return msgspec.toml.decode(raw, type=dict[str, Entry])
