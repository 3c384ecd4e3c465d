"""Errors of weights and model files, worded for the person who has to act on them."""

from __future__ import annotations

from pathlib import Path


class WeightsError(Exception):
    """A weight file that's missing, damaged or of a kind this version cannot run: "FILE: problem; what to do"."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem
