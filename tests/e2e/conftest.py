"""A real server, as `bargein serve` starts it."""

from __future__ import annotations

import json
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

DATA = Path(__file__).parent.parent / "data"
READY_S = 300  # the first start compiles the kernels


@dataclass(frozen=True)
class Served:
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    def get(self, path: str) -> tuple[int, dict]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())

    def processes(self) -> dict[str, int]:
        """The process that loads the models, and the engine that it forked."""
        loader = next((c for c in children(self.pid) if "bargein.engine" in Path(f"/proc/{c}/cmdline").read_text()), None)
        forked = [] if loader is None else children(loader)
        return ({} if loader is None else {"loader": loader}) | ({"engine": forked[0]} if forked else {})


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start(*args: str, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    command = [sys.executable, "-m", "bargein.http_api.cli", "serve", "--port", str(port), *args]
    return subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, env=os.environ.copy()), port


def serving(log: Path, *args: str) -> Iterator[Served]:
    """Start a server, wait until it is ready, and end it afterwards."""
    process, port = start(*args, log=log)
    served = Served(port, process.pid)
    deadline = time.monotonic() + READY_S
    try:
        while True:
            try:
                if served.get("/health/ready")[0] == 200:
                    break
            except OSError:
                pass
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield served
    finally:
        process.send_signal(signal.SIGINT)  # at once: what is left of a failed test's calls is not waited for
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
