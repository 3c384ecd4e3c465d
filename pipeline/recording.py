"""Recordings of sessions on disk: a journal (JSON lines) and one WAV for each side, all on one time axis.

A session hands over and goes on; one thread writes. `<session>.jsonl` begins with a header line, then has `{"in": …,
"fx": …}` lines (inputs of the turn machine and a digest of what each led to, `journal.py`) and `{"rec": …}` lines
(inspector records). `<session>.mic.wav` is 16 kHz, `<session>.out.wav` 24 kHz; both begin with the session. Old
recordings go by age and by total size.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from bargein.realtime import effects as f
from bargein.realtime import events as e

from .audio import F32, IN_RATE, OUT_RATE
from .inspect import Record
from .journal import digest, encode

log = logging.getLogger("bargein.recording")

BACKLOG = 50_000  # jobs that may wait for the disk; more are dropped and counted
SLACK_MS = 120  # audio that comes this late is not moved on the time axis
FLUSH_S = 0.5
PARTS = (".jsonl", ".mic.wav", ".out.wav")


def _header(rate: int, num_bytes: int) -> bytes:
    size = min(num_bytes, 0xFFFFFFFF - 36)
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + form + b"data" + struct.pack("<I", size)


class WavFile:
    """16-bit mono; what is written for a later moment leaves silence before it."""

    def __init__(self, path: Path, rate: int) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._rate, self._num = rate, 0
        self._file.write(_header(rate, 0))

    def write(self, pcm: bytes, start_ms: float) -> None:
        """Samples that belong at `start_ms`, or after what is there already."""
        behind = int(start_ms * self._rate / 1000) - self._num
        if behind > SLACK_MS * self._rate // 1000:
            self._file.write(bytes(2 * behind))
            self._num += behind
        self._file.write(pcm)
        self._num += len(pcm) // 2

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(_header(self._rate, 2 * self._num))
        self._file.close()


class Recorder:
    """The folder of recordings and the thread that writes to it."""

    def __init__(self, folder: Path, keep_days: float, keep_mb: int) -> None:
        self.folder, self._keep_days, self._keep_mb = folder, keep_days, keep_mb
        folder.mkdir(parents=True, exist_ok=True)
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(BACKLOG)
        self._open: set[str] = set()
        self._journals: dict[str, IO[bytes]] = {}  # the writing thread's own
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        self.do(self.tidy)

    def do(self, job: Callable[[], None]) -> bool:
        """Hand over work for the disk; False where too much is waiting."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def _run(self) -> None:
        flushed = time.monotonic()
        while True:
            try:
                job = self._jobs.get(timeout=FLUSH_S)
                if job is None:
                    return
                job()
            except queue.Empty:
                pass
            except Exception:  # a full disk ends a recording, not the server
                log.exception("recording failed")
            if time.monotonic() - flushed > FLUSH_S:  # a killed process loses no more than that, idle or not
                flushed = time.monotonic()
                for journal in self._journals.values():
                    with contextlib.suppress(OSError):
                        journal.flush()

    def open(self, session_id: str) -> IO[bytes]:
        """The journal to write to, on the writing thread."""
        journal = (self.folder / f"{session_id}.jsonl").open("wb", buffering=1 << 16)
        self._journals[session_id] = journal
        return journal

    def shut(self, session_id: str) -> None:
        """Close a journal, on the writing thread."""
        if journal := self._journals.pop(session_id, None):
            journal.close()

    def start(self, session_id: str, transport: str) -> Recording:
        """Begin a recording; it is on disk from the first moment."""
        self._open.add(session_id)
        return Recording(self, session_id, transport)

    def finished(self, session_id: str) -> None:
        self._open.discard(session_id)
        self.do(self.tidy)

    def tidy(self) -> None:
        """Remove what is too old, then the oldest while all is too large. Live recordings stay."""
        by_name: dict[str, list[Path]] = {}
        for file in self.folder.iterdir():
            name = file.name.split(".")[0]
            if file.name.endswith(PARTS) and name not in self._open:
                by_name.setdefault(name, []).append(file)
        age = {name: max(f.stat().st_mtime for f in files) for name, files in by_name.items()}
        total = sum(f.stat().st_size for f in self.folder.iterdir() if f.is_file())
        for name in sorted(by_name, key=lambda n: age[n]):
            if time.time() - age[name] > self._keep_days * 86400 or total > self._keep_mb * 1_000_000:
                total -= sum(f.stat().st_size for f in by_name[name])
                for file in by_name[name]:
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()

    def list(self) -> list[dict[str, Any]]:
        """Recordings, the newest first."""
        out = []
        for file in self.folder.glob("*.jsonl"):
            with file.open("rb") as lines:
                try:
                    head = msgspec.json.decode(lines.readline())
                    started, transport = float(head["started"]), str(head["transport"])
                except (msgspec.DecodeError, KeyError, TypeError, ValueError):
                    continue
            name = file.name.removesuffix(".jsonl")
            out.append({"session_id": name, "live": name in self._open, "started": started, "transport": transport,
                        "seconds": round(file.stat().st_mtime - started, 1), "recorded": True})  # fmt: skip
        return sorted(out, key=lambda r: -r["started"])

    def close(self) -> None:
        """Write what is waiting, then stop."""
        self._jobs.put(None)
        self._thread.join(10)


class Recording:
    """One session's recording; every call returns at once."""

    def __init__(self, recorder: Recorder, session_id: str, transport: str) -> None:
        self._recorder, self._id = recorder, session_id
        self._origin_ms = time.monotonic() * 1000
        self._dropped = 0
        self._journal: IO[bytes] | None = None
        self._mic: WavFile | None = None
        self._out: WavFile | None = None
        head = {"journal": 1, "session": session_id, "started": time.time(), "mono0_ms": self._origin_ms,
                "transport": transport}  # fmt: skip
        recorder.do(lambda: self._start(head))

    def _start(self, head: dict[str, Any]) -> None:
        base = self._recorder.folder / self._id
        self._journal = self._recorder.open(self._id)
        self._journal.write(msgspec.json.encode(head) + b"\n")
        self._journal.flush()
        self._mic = WavFile(base.with_name(self._id + ".mic.wav"), IN_RATE)
        self._out = WavFile(base.with_name(self._id + ".out.wav"), OUT_RATE)

    def _do(self, job: Callable[[], None]) -> None:
        if not self._recorder.do(job):
            self._dropped += 1

    def input(self, ev: e.Input, effects: tuple[f.Effect, ...]) -> None:
        def write() -> None:
            if self._journal is not None:
                self._journal.write(msgspec.json.encode({"in": encode(ev), "fx": digest(effects)}) + b"\n")

        self._do(write)

    def record(self, record: Record) -> None:
        def write() -> None:
            if self._journal is not None:
                self._journal.write(msgspec.json.encode({"rec": record}) + b"\n")

        self._do(write)

    def mic(self, x: F32, at_ms: float) -> None:
        """16 kHz samples that have arrived by `at_ms`."""
        start = at_ms - self._origin_ms - len(x) * 1000 / IN_RATE

        def write() -> None:
            if self._mic is not None:
                self._mic.write(np.rint(np.clip(x, -1, 1) * 32767).astype("<i2").tobytes(), start)

        self._do(write)

    def out(self, pcm: bytes, at_ms: float) -> None:
        """24 kHz samples that the listener hears from `at_ms` on."""
        start = at_ms - self._origin_ms
        self._do(lambda: self._out.write(pcm, start) if self._out is not None else None)

    def close(self) -> None:
        def end() -> None:
            if self._journal is not None:
                self._journal.write(msgspec.json.encode({"end": time.time(), "dropped": self._dropped}) + b"\n")
                self._recorder.shut(self._id)
            for wav in (self._mic, self._out):
                if wav is not None:
                    wav.close()
            self._journal = self._mic = self._out = None

        self._do(end)
        self._recorder.finished(self._id)
