"""A real server, as `bargein serve` starts it, shared by the tests of this folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anthropic
import openai
import pytest

DATA = Path(__file__).parent.parent / "data"
READY_S = 300  # the first start compiles the kernels


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, key: str = "none", **options: object) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.base}/v1", api_key=key, max_retries=0, timeout=120, **options)

    def anthropic(self, key: str = "none") -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.base, api_key=key, max_retries=0, timeout=120)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base}/health/ready", timeout=5) as r:
                return r.status == 200
        except (OSError, urllib.error.HTTPError):
            return False


def start(log: Path, *args: str, wait: bool = True) -> Served:
    """Start a server; `wait`: until its engine is ready."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    command = [sys.executable, "-m", "bargein.http_api.cli", "serve", "--port", str(port), *args]
    process = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, env=os.environ.copy())
    served = Served(process, port, log)
    deadline = time.monotonic() + READY_S
    while wait and not served.is_ready():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    return served


def stop(served: Served) -> int:
    """End a server as an operator does; its exit status."""
    served.process.send_signal(signal.SIGTERM)
    try:
        return served.process.wait(20)
    except subprocess.TimeoutExpired:
        served.process.kill()
        raise


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = start(tmp_path_factory.mktemp("http") / "log")
    yield served
    stop(served)


@pytest.fixture(scope="session")
def client(server: Served) -> openai.OpenAI:
    return server.openai()
