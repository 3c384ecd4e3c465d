"""Where converted weights live, and whether they are whole.

The cache is `$BARGEIN_HOME/models/<name>/`, by default under the user's cache folder. A model's folder appears by one
rename when it is complete; its manifest lists every file with its size, so that a truncated one is noticed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from .catalogue import catalogue
from .errors import WeightsError

State = Literal["ready", "missing", "outdated", "damaged"]


class Manifest(msgspec.Struct, frozen=True):
    """`files`: relative path to size in bytes."""

    name: str
    form: int
    sources: tuple[str, ...]
    files: dict[str, int]


def home() -> Path:
    """The cache folder: BARGEIN_HOME, else the user's cache."""
    if given := os.environ.get("BARGEIN_HOME"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "bargein"


def folder(name: str) -> Path:
    """The folder of a model, whether or not it exists."""
    return home() / "models" / name


def state(name: str) -> State:
    """What `models list` shows of a catalogue entry."""
    where = folder(name)
    try:
        manifest = msgspec.json.decode((where / "manifest.json").read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "missing"
    except (msgspec.DecodeError, OSError):
        return "damaged"
    if manifest.form != catalogue()[name].form:
        return "outdated"
    for relative, size in manifest.files.items():
        file = where / relative
        if not file.is_file() or file.stat().st_size != size:
            return "damaged"
    return "ready"


def path(name: str) -> Path:
    """The folder of a model that is ready. Raises WeightsError for any other state, saying what to do."""
    if name not in catalogue():
        known = ", ".join(catalogue())
        raise WeightsError(name, f"no such model; the catalogue has {known}")
    found = state(name)
    if found != "ready":
        raise WeightsError(folder(name), f"the weights are {found}; run `bargein models pull {name}`")
    for file in sorted(folder(name).iterdir()):
        if not os.access(file, os.R_OK):  # else it would be told as missing
            raise WeightsError(file, "this user may not read it; give it the right, as by chmod a+r")
    return folder(name)
