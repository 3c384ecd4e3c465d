"""Who is at work on a file, of all processes: a lock that is held while it is open, and ends with whoever holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def hold(file: IO[Any] | int) -> None:
    """Have it for oneself until it is closed, once nobody else has it. Where the file system knows no locks, nobody has."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


def try_hold(file: IO[Any]) -> bool:
    """The same without waiting; False: another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_held(path: Path) -> bool:
    """Whether anybody has a file for itself now."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def held_folder(path: Path) -> Iterator[None]:
    """Have a folder for oneself, as one who tidies it."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        hold(file)
        yield
    finally:
        os.close(file)
