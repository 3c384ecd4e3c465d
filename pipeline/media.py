"""Media files of callers to 16 kHz sound, each in a process that may be killed.

A process without anything of ours in it (media_worker.py) has the decoders loaded and forks one child for each file, which
takes milliseconds where a new interpreter takes half a second of a core. Children run niced: calls come first. What a file
may take is counted in processor time, so that a busy machine is not held against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

FIRST_S = 4.0  # of processor time: a file that gives no sound for so long is not waited for
NEXT_S = 15.0
STUCK_S = 60.0  # and of time
MAX_FRAME = 4 * 16000 * 4
MAX_WORKERS = 8
START_S = 20.0
TICKS = os.sysconf("SC_CLK_TCK")


class NotAudio(Exception):
    """The file cannot be decoded; the message says why."""


class DecoderGone(Exception):
    """The decoding process ended, or does not answer; it is not the file's doing."""


class Media:
    """Decodes files, each in a process of its own."""

    def __init__(self) -> None:
        self._parent: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._room = asyncio.Semaphore(MAX_WORKERS)
        self._starting = asyncio.Lock()

    async def decode(self, path: Path, max_s: float) -> AsyncGenerator[F32, None]:
        """Float32 mono at 16 kHz, about a second at a time. Raises NotAudio, before the first piece or after some, and
        DecoderGone."""
        async with self._room:
            child = await self._fork(path, max_s)
            try:
                async with aclosing(child.pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
            finally:
                child.end()

    async def _fork(self, path: Path, max_s: float) -> _Child:
        ask = json.dumps({"path": str(path), "max_s": max_s}).encode()
        for last in (False, True):
            await self.prepare()
            assert self._control is not None, "prepared"
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    socket.send_fds(self._control, [ask], [theirs.fileno()])
                ours.setblocking(False)
                reader, writer = await asyncio.open_unix_connection(sock=ours)
                async with asyncio.timeout(START_S):
                    (pid,) = struct.unpack("<I", await reader.readexactly(4))
            except (OSError, TimeoutError, asyncio.IncompleteReadError):  # it has died since
                ours.close()
                await self.close()
                if last:
                    raise DecoderGone("the decoder does not start") from None
                continue
            child = _Child(pid, os.pidfd_open(pid), reader, writer)  # it waits for this byte, so the number is still its own
            writer.write(b"1")
            return child
        raise AssertionError("unreachable")

    async def prepare(self) -> None:
        """Have the process that forks; it is started again where it has died."""
        async with self._starting:
            if self._parent is not None and self._parent.returncode is None:
                return
            # Nothing of ours in its environment: no keys, only what finds the interpreter's modules.
            kept = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "HOME", "LANG", "VIRTUAL_ENV")}
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._parent = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "bargein.pipeline.media_worker",
                    stdin=theirs.fileno(), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
                    env={"OPENBLAS_NUM_THREADS": "1", **kept},
                )  # fmt: skip
            if self._control is not None:
                self._control.close()
            self._control = ours

    async def close(self) -> None:
        """End the process; its children end with it."""
        parent, self._parent = self._parent, None
        if self._control is not None:
            self._control.close()
            self._control = None
        if parent is not None:
            with contextlib.suppress(ProcessLookupError):
                parent.kill()
            await parent.wait()


@dataclass(slots=True)
class _Child:
    """The process of one file."""

    pid: int
    fd: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)
        os.close(self.fd)
        self.writer.close()

    async def pieces(self) -> AsyncGenerator[F32, None]:
        """What it sends, until the end. Raises NotAudio, DecoderGone."""
        limit = FIRST_S
        try:
            while True:
                piece = await self._patiently(limit)
                if piece is None:
                    return
                yield piece
                limit = NEXT_S
        except asyncio.IncompleteReadError:
            raise NotAudio("cannot be decoded: it brought its decoder down") from None

    async def _patiently(self, limit_s: float) -> F32 | None:
        """The next piece; NotAudio where the child works at it for longer than that."""
        begun, spent = asyncio.get_running_loop().time(), self._processor_s()
        reading = asyncio.ensure_future(_piece(self.reader))
        try:
            while True:
                done, _ = await asyncio.wait((reading,), timeout=limit_s / 4)
                if done:
                    return reading.result()
                if self._processor_s() - spent > limit_s:
                    raise NotAudio("takes too long to decode")
                if asyncio.get_running_loop().time() - begun > STUCK_S:
                    raise DecoderGone("the decoder gets no time to work in")
        finally:
            reading.cancel()

    def _processor_s(self) -> float:
        """Processor time used so far."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended, and what it wrote last is on its way
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS


async def _piece(out: asyncio.StreamReader) -> F32 | None:
    """One frame; None at the end. Raises NotAudio with the child's own words."""
    (length,) = struct.unpack("<I", await out.readexactly(4))
    if length == 0:
        end = json.loads(await out.readline())
        if "error" in end:
            raise NotAudio(end["error"])
        return None
    if length > MAX_FRAME:
        raise NotAudio("cannot be decoded")
    return np.frombuffer(await out.readexactly(length), np.float32)
