"""That what a call took goes back to the system when it is over."""

from __future__ import annotations

import contextlib
import ctypes

LARGE = 1 << 17  # bytes
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's mallopt


def give_back() -> None:
    """Have the C library return what is large as soon as it is freed, for the rest of this process' life.

    Left to itself glibc takes a freed large block as a sign that others will be wanted, keeps such blocks among small ones
    from then on, and can return none that a small one lies behind: a hundred short calls left 60 MB. Where the C library is
    another, nothing is done.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((_MMAP_THRESHOLD, LARGE), (_TRIM_THRESHOLD, LARGE), (_ARENA_MAX, 2)):
            mallopt(parameter, value)
