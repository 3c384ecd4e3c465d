"""Reads CTranslate2's `model.bin` (binary versions 5 and 6): named arrays and aliases, nothing else.

Layout, little-endian: u32 binary version, string spec name, u32 spec revision, u32 number of variables; per variable
a string name, u8 rank, u32 per dimension, u8 element type, u32 byte count, the bytes; then u32 number of aliases, each
two strings (alias, variable). A string is u16 length (its closing NUL counted) and that many bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import WeightsError

_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_AGAIN = "fetch it again with `bargein models pull`"


class Ct2File(NamedTuple):
    """The contents of a model.bin: the spec it was written for, and its variables (aliases resolved, not copied)."""

    spec: str
    revision: int
    variables: dict[str, NDArray[np.generic]]


class _Cursor:
    """A position in the bytes that refuses to run past their end."""

    def __init__(self, data: bytes, name: Path) -> None:
        self.data, self.name, self.at = data, name, 0

    def take(self, count: int) -> memoryview:
        if self.at + count > len(self.data):
            raise WeightsError(self.name, f"truncated at byte {len(self.data)}; {_AGAIN}")
        view = memoryview(self.data)[self.at : self.at + count]
        self.at += count
        return view

    def uint(self, fmt: str) -> int:
        return int(struct.unpack("<" + fmt, self.take(struct.calcsize(fmt)))[0])

    def string(self) -> str:
        raw = bytes(self.take(self.uint("H")))
        if not raw.endswith(b"\0"):
            raise WeightsError(self.name, f"damaged near byte {self.at}; {_AGAIN}")
        return raw[:-1].decode("utf-8", "replace")


def read_ct2(parts: Sequence[Path]) -> Ct2File:
    """Read a model.bin that may be split over several files, joined in the order given.

    Raises WeightsError when a file is missing, truncated, damaged or of another binary version.
    """
    for part in parts:
        if not part.is_file():
            raise WeightsError(part, f"missing; {_AGAIN}")
    cursor = _Cursor(b"".join(part.read_bytes() for part in parts), parts[-1])
    version = cursor.uint("I")
    if version not in (5, 6):
        raise WeightsError(parts[0], f"not a CTranslate2 model of binary version 5 or 6 (found {version})")
    spec, revision = cursor.string(), cursor.uint("I")
    variables: dict[str, NDArray[np.generic]] = {}
    for _ in range(cursor.uint("I")):
        name = cursor.string()
        shape = tuple(cursor.uint("I") for _ in range(cursor.uint("B")))
        kind, num_bytes = cursor.uint("B"), cursor.uint("I")
        if kind not in _DTYPES:
            raise WeightsError(parts[0], f"{name} has element type {kind}, unsupported; convert with float16 weights")
        dtype = np.dtype(_DTYPES[kind])
        if int(np.prod(shape, dtype=np.int64)) * dtype.itemsize != num_bytes:
            raise WeightsError(parts[0], f"damaged: {name} holds {num_bytes} bytes for shape {shape}; {_AGAIN}")
        variables[name] = np.frombuffer(cursor.take(num_bytes), dtype).reshape(shape)
    for _ in range(cursor.uint("I")):
        alias, target = cursor.string(), cursor.string()
        variables[alias] = variables[target]
    if cursor.at != len(cursor.data):
        raise WeightsError(parts[-1], f"{len(cursor.data) - cursor.at} bytes after its end; {_AGAIN}")
    return Ct2File(spec, revision, variables)
