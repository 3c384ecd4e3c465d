"""Softmax and the best k of a large vocabulary in two passes over the logits."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cpu_dense import exp_f32
from .cpu_max import largest

F32 = NDArray[np.float32]

_f = np.float32
_NO_NAN = {"nsz", "arcp", "contract", "afn", "reassoc"}  # fastmath, but -inf keeps its meaning


@njit(cache=True, nogil=True, fastmath=_NO_NAN)
def _top_log_probs(logits, values, ids):  # type: ignore[no-untyped-def]
    k = values.shape[1]
    for i in range(logits.shape[0]):
        row = logits[i]
        n = row.shape[0]
        for j in range(k):
            values[i, j] = -np.inf
            ids[i, j] = -1
        for start in range(0, n, 64):
            end = min(start + 64, n)
            if largest(row[start:end]) <= values[i, k - 1] and ids[i, k - 1] >= 0:
                continue
            for j in range(start, end):
                x = row[j]
                if x > values[i, k - 1] or ids[i, k - 1] < 0:
                    at = k - 1
                    while at > 0 and (ids[i, at - 1] < 0 or x > values[i, at - 1]):
                        values[i, at] = values[i, at - 1]
                        ids[i, at] = ids[i, at - 1]
                        at -= 1
                    values[i, at] = x
                    ids[i, at] = j
        best = values[i, 0]
        total = _f(0.0)
        for j in range(n):
            total += exp_f32(row[j] - best)
        shift = best + np.log(total)
        for j in range(k):
            values[i, j] -= shift


def top_log_probs(logits: F32, k: int) -> tuple[F32, NDArray[np.int64]]:
    """See `reference.top_log_probs`."""
    values = np.empty((logits.shape[0], k), np.float32)
    ids = np.empty((logits.shape[0], k), np.int64)
    _top_log_probs(logits, values, ids)
    return values, ids
