"""One server for all tests that place calls; the others beside them, out of their way.

`make test` has two workers: one places calls, which mostly wait for real time to pass, the other computes, at the lowest
priority. `pytest` alone runs everything one after the other.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .e2e.conftest import Served, serving
from .e2e.upstream import Upstream

CALLS = ("browser", "client", "e2e", "http")  # folders whose tests share servers


def places_calls(nodeid: str) -> bool:
    return nodeid.split("/")[1] in CALLS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Purposes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "calls" if places_calls(nodeid) else "computing"

    return Purposes(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ and not places_calls(item.nodeid) and os.nice(0) == 0:
        os.nice(15)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests that place calls are callers as well: a full pass of the collector over all that the suite imports took them
    270 ms, in which no sound arrives. Now it passes over what the tests make."""
    gc.collect()
    gc.freeze()


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


def readme_agent() -> str:
    """The agent of the README, as it stands there."""
    blocks = (Path(__file__).parent.parent / "README.md").read_text().split("```python\n")[1:]
    return next(code for code in (b.split("```")[0] for b in blocks) if "import Agent" in code)


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Upstream]]:
    """A server with the agents of `tests/agent/desk.py`, its chat an upstream that calls tools. It records, and tells the
    upstream of its calls, by webhooks and traces."""
    folder = tmp_path_factory.mktemp("desk")
    with Upstream() as upstream:
        porter = folder / "porter.py"  # the README's own
        porter.write_text(readme_agent())
        args = ["--agent", str(Path(__file__).parent / "agent" / "desk.py"), "--agent", str(porter)]
        args += ["--chat-base-url", upstream.url]
        args += ["--chat-model", "stub", "--set", f"inspector.session_dir={folder / 'recordings'}"]
        base = upstream.url.removesuffix("/v1")
        args += ["--set", f"webhooks.urls={base}/hooks", "--set", "webhooks.secret=whsec_c2VjcmV0"]
        args += ["--set", f"otel.endpoint={base}"]
        for served in serving(folder / "log", *args, "--set", "telephony.tokens=phone-key"):
            yield served, upstream
