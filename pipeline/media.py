"""Media files of callers to 16 kHz sound, by processes that may be killed (media_worker.py). One is kept ready."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

log = logging.getLogger("bargein.media")

F32 = npt.NDArray[np.float32]

FIRST_S = 4.0  # a file that gives no sound for so long is not waited for
NEXT_S = 15.0
MAX_FRAME = 4 * 16000 * 4
MAX_WORKERS = 8


class NotAudio(Exception):
    """The file cannot be decoded; the message says why."""


class Media:
    """Decodes files, each in a process of its own."""

    def __init__(self) -> None:
        self._spare: asyncio.subprocess.Process | None = None
        self._room = asyncio.Semaphore(MAX_WORKERS)
        self._refill: asyncio.Task[None] | None = None

    async def decode(self, path: Path, max_s: float) -> AsyncIterator[F32]:
        """Float32 mono at 16 kHz, about a second at a time. Raises NotAudio, before the first piece or after some."""
        async with self._room:
            process = await self._take()
            try:
                assert process.stdin is not None and process.stdout is not None, "started with pipes"
                process.stdin.write(json.dumps({"path": str(path), "max_s": max_s}).encode() + b"\n")
                async for piece in _pieces(process.stdout):
                    yield piece
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _take(self) -> asyncio.subprocess.Process:
        spare, self._spare = self._spare, None
        if self._refill is None or self._refill.done():
            self._refill = asyncio.create_task(self.prepare())
        return spare if spare is not None and spare.returncode is None else await _start()

    async def prepare(self) -> None:
        """Have a process ready: its imports take longer than most files."""
        if self._spare is None:
            process = await _start()
            if self._spare is None:
                self._spare = process

    async def close(self) -> None:
        """End what waits."""
        if self._refill is not None:
            self._refill.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refill
        if self._spare is not None:
            with contextlib.suppress(ProcessLookupError):
                self._spare.kill()
            await self._spare.wait()


async def _start() -> asyncio.subprocess.Process:
    # Nothing of ours in its environment: no keys, only what finds the interpreter's modules.
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "HOME", "LANG", "VIRTUAL_ENV")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bargein.pipeline.media_worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={"OPENBLAS_NUM_THREADS": "1", **kept},
    )  # fmt: skip


async def _pieces(out: asyncio.StreamReader) -> AsyncIterator[F32]:
    limit = FIRST_S
    try:
        while True:
            async with asyncio.timeout(limit):
                (length,) = struct.unpack("<I", await out.readexactly(4))
                if length == 0:
                    end = json.loads(await out.readline())
                    if "error" in end:
                        raise NotAudio(end["error"])
                    return
                if length > MAX_FRAME:
                    raise NotAudio("cannot be decoded")
                data = await out.readexactly(length)
            limit = NEXT_S
            yield np.frombuffer(data, np.float32)
    except TimeoutError:
        raise NotAudio("takes too long to decode") from None
    except asyncio.IncompleteReadError:
        raise NotAudio("cannot be decoded: it brought its decoder down") from None
