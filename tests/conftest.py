"""One server for all tests that place calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .e2e.conftest import Served, serving
from .e2e.upstream import Upstream


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It records, so that recordings are tested on the way."""
    folder = tmp_path_factory.mktemp("server")
    yield from serving(folder / "log", "--set", f"inspector.session_dir={folder / 'recordings'}")


@pytest.fixture(scope="session")
def storyteller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose chat is a test's upstream: it answers "story" at length, so that there is something to speak over."""
    log = tmp_path_factory.mktemp("storyteller") / "log"
    with Upstream() as upstream:
        yield from serving(log, "--chat-base-url", upstream.url, "--chat-model", "stub")
