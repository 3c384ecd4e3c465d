"""Which version this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """The installed version, "0" in a bare source tree."""
    try:
        return version("bargein")
    except PackageNotFoundError:
        return "0"
