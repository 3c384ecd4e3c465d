"""Errors of the model loaders and importers."""

from __future__ import annotations

from pathlib import Path


class WeightsError(Exception):
    """A weight file or model folder that cannot be used; the message is one line: FILE: problem; what to do."""

    def __init__(self, path: Path | str, problem: str) -> None:
        self.path = Path(path)
        self.problem = problem
        super().__init__(f"{path}: {problem}")
