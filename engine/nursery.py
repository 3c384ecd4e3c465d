"""Engines by fork: the models are loaded once, and each engine is a copy that shares their memory.

Reading weights, vocabularies and the kernels' compiler takes ten seconds and more; a forked engine has them, and only
wakes its threads. So an engine that was killed is replaced in a few seconds. The process that forks runs no kernel
(threads do not survive a fork) and serves nobody; where it dies, the engine that it made goes on.

It reads one path a line from its stdin, ends the engine before, and forks one that listens there. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("bargein.engine")

POLL_S = 0.5
ENDING_S = 3.0


def run(engine: Callable[[Path, bool], int]) -> int:
    """Fork until stdin ends. `engine` serves at a path until it is told to end (SIGTERM) -> exit status; it is told whether
    it is the first."""
    child = 0

    def on_term(number: int, frame: object) -> None:
        _end(child)
        os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    gc.collect()
    gc.freeze()  # what is loaded stays shared: the collector does not write to it
    for number, line in enumerate(sys.stdin):
        _end(child)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(_whole(engine, Path(line.rstrip("\n")), number == 0))
    _end(child)
    return 0


def _whole(engine: Callable[[Path, bool], int], path: Path, is_first: bool) -> int:
    """The whole life of a forked engine -> its exit status."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        return engine(path, is_first)
    except BaseException:
        log.exception("the engine ends")
        return 1
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()


def _end(child: int) -> None:
    """End an engine, kindly at first, and collect it."""
    if child == 0:
        return
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            log.info("the engine (process %d) had ended with %d", child, os.waitstatus_to_exitcode(status))
            return
        os.kill(child, signal.SIGTERM)
        until = time.monotonic() + ENDING_S
        while time.monotonic() < until:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def follow(pid: int) -> None:
    """End this process when another one ends; on a thread of its own."""

    def watch() -> None:
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(ProcessLookupError):
                ended = select.poll()
                ended.register(os.pidfd_open(pid), select.POLLIN)
                ended.poll()
        else:
            with contextlib.suppress(ProcessLookupError):
                while True:
                    os.kill(pid, 0)
                    time.sleep(POLL_S)
        os._exit(0)

    threading.Thread(target=watch, name="follow", daemon=True).start()
