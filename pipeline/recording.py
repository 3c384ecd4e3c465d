"""Recordings of sessions on disk: a folder for each call, named by the session's id, with everything on one time axis.

`journal.jsonl`, as it comes: a header line, then `{"in": …, "fx": …}` (inputs of the turn machine and a digest of what
    each led to, `journal.py`) and `{"rec": …}` (inspector records);
`audio.wav`, as it comes: 24 kHz stereo, the caller left, the agent right as the caller heard it: what was cut is silent,
    a pause is a pause;
`transcript.json`: who said what, words with their times (ms of `audio.wav`); the caller's get theirs after the call
    (`alignment.py`);
`tools.jsonl`: a line for every tool call;
`turns.json`: the latency of every turn, stage by stage.

A session hands over and goes on; one thread writes. The last three files come when the call ends. Old calls go by age
and by total size. Several processes may record to one folder: whoever writes a call holds its journal (`claims.py`), and
the others leave it alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import soxr

from bargein.realtime import effects as f
from bargein.realtime import events as e

from .audio import F32, IN_RATE, OUT_RATE
from .claims import held_folder, hold, is_held
from .inspect import Record, Summary
from .journal import digest, encode
from .minutes import Minutes
from .stereo import LEFT, RIGHT, StereoFile

log = logging.getLogger("bargein.recording")

BACKLOG = 50_000  # jobs that may wait for the disk; more are dropped and counted
MIC_SLACK_MS = 120  # audio that comes this late is not moved on the time axis
OUT_SLACK_MS = 40  # nor is a frame that is to be heard so much off the one before
FLUSH_S = 0.5
FILES = ("journal.jsonl", "audio.wav", "transcript.json", "tools.jsonl", "turns.json")
NAME = re.compile(r"sess_\w+")


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    part.replace(path)


class Recorder:
    """The folder of recordings and the thread that writes to it. `tidy_now`: remove old calls at once, not only after one."""

    def __init__(self, folder: Path, keep_days: float, keep_mb: int, *, tidy_now: bool = True) -> None:
        self.folder, self._keep_days, self._keep_mb = folder, keep_days, keep_mb
        folder.mkdir(parents=True, exist_ok=True)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._open: set[str] = set()
        self._claims: dict[str, int] = {}  # what holds the journals of those, closed or not; the writing thread's own
        self.written: Callable[[Path], None] = lambda folder: None  # whom `finished` tells
        self._journals: dict[str, IO[bytes]] = {}  # the writing thread's own
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        if tidy_now:
            self.do(self.tidy)

    def do(self, job: Callable[[], None], *, always: bool = False) -> bool:
        """Hand over work for the disk; False where too much is waiting, unless it has to be done `always`."""
        if not always and self._jobs.qsize() >= BACKLOG:
            return False
        self._jobs.put(job)
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
        journal = (self.folder / session_id / "journal.jsonl").open("wb", buffering=1 << 16)
        self._journals[session_id] = journal
        hold(journal)
        self._claims[session_id] = os.dup(journal.fileno())
        return journal

    def shut(self, session_id: str) -> None:
        """Close a journal, on the writing thread."""
        if journal := self._journals.pop(session_id, None):
            journal.close()

    def start(self, session_id: str, transport: str) -> Recording:
        """Begin a recording; it is on disk from the first moment."""
        self._open.add(session_id)
        return Recording(self, session_id, transport)

    def finished(self, folder: Path) -> None:
        """A call's folder is whole; told on the writing thread."""
        self._open.discard(folder.name)
        if (claim := self._claims.pop(folder.name, None)) is not None:
            os.close(claim)
        self.written(folder)
        self.tidy()

    def _calls(self) -> list[Path]:
        """The folders of recorded calls; whatever else lies here is not ours."""
        return [x for x in self.folder.iterdir() if x.is_dir() and NAME.fullmatch(x.name)]

    def tidy(self) -> None:
        """Remove what is too old, then the oldest while all is too large. Live recordings stay."""
        with held_folder(self.folder):
            self._tidy()

    def _tidy(self) -> None:
        held = {call: _held(call) for call in self._calls()}
        total = sum(size for size, _ in held.values())
        for call in sorted(held, key=lambda c: held[c][1]):
            size, changed = held[call]
            too_much = time.time() - changed > self._keep_days * 86400 or total > self._keep_mb * 1_000_000
            if too_much and not self.is_live(call.name):
                total -= size
                shutil.rmtree(call, ignore_errors=True)

    def file(self, session_id: str, name: str) -> Path | None:
        """A file of a recorded call, if there is one."""
        if name not in FILES or not NAME.fullmatch(session_id):
            return None
        path = self.folder / session_id / name
        return path if path.is_file() and not path.parent.is_symlink() else None

    def is_live(self, session_id: str) -> bool:
        """Whether a call is being recorded, here or by another process."""
        if not NAME.fullmatch(session_id):
            return False
        return session_id in self._open or is_held(self.folder / session_id / FILES[0])

    def delete(self, session_id: str) -> bool:
        """Remove a recorded call that is over; False: there is none."""
        folder = self.folder / session_id
        if not NAME.fullmatch(session_id) or self.is_live(session_id) or not folder.is_dir() or folder.is_symlink():
            return False
        shutil.rmtree(folder)
        return True

    def unaligned(self) -> list[Path]:
        """Calls whose caller's words have no times yet: those that ended with the server."""
        out = []
        for call in self._calls():
            with contextlib.suppress(OSError, msgspec.DecodeError, TypeError, AttributeError):
                told = msgspec.json.decode((call / "transcript.json").read_bytes())
                if not self.is_live(call.name) and told.get("aligned") is False:
                    out.append(call)
        return out

    def list(self) -> list[dict[str, Any]]:
        """Recordings, the newest first."""
        out = []
        for call in self._calls():
            try:
                with (call / "journal.jsonl").open("rb") as lines:
                    head = msgspec.json.decode(lines.readline())
                    started, transport = float(head["started"]), str(head["transport"])
                    seconds = round(os.fstat(lines.fileno()).st_mtime - started, 1)
            except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
                continue
            out.append({"session_id": call.name, "live": self.is_live(call.name), "started": started,
                        "transport": transport, "seconds": seconds, "recorded": True})  # fmt: skip
        return sorted(out, key=lambda r: -r["started"])

    def close(self) -> None:
        """Write what is waiting, then stop."""
        self._jobs.put(None)
        self._thread.join(10)


def _held(call: Path) -> tuple[int, float]:
    """Bytes in a call's folder, and when it last changed."""
    size, changed = 0, 0.0
    for file in call.iterdir():
        with contextlib.suppress(FileNotFoundError):
            stat = file.stat()
            size, changed = size + stat.st_size, max(changed, stat.st_mtime)
    return size, changed or call.stat().st_mtime


@dataclass(slots=True)
class Run:
    """Audio without a break: `num` samples, of which the first is `first` of its source and lies at `place`."""

    first: int
    place: int
    num: int = 0


class Axis:
    """Where in the recording the samples of a source lie."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.num = 0

    def add(self, num: int, place: int) -> None:
        last = self.runs[-1] if self.runs else None
        if last is None or last.place + last.num != place:
            last = Run(self.num, place)
            self.runs.append(last)
        last.num += num
        self.num += num

    def at(self, sample: float) -> float | None:
        """Where a sample of the source lies; None before there is any."""
        found = next((r for r in reversed(self.runs) if r.first <= sample), None)
        return None if found is None else found.place + min(sample - found.first, found.num)


class Sides:
    """The writing thread's side of `audio.wav`: the caller's 16 kHz become the file's rate on the way."""

    def __init__(self, path: Path) -> None:
        self._file = StereoFile(path, OUT_RATE)
        self._up: soxr.ResampleStream | None = None
        self._at = 0

    def mic(self, x: F32, place: int | None) -> None:
        """16 kHz samples; `place` (at 16 kHz) where they do not follow on."""
        if place is not None:
            self._flush()
            self._up = soxr.ResampleStream(IN_RATE, OUT_RATE, 1, dtype="float32")
            self._at = place * OUT_RATE // IN_RATE
        if self._up is not None:
            self._put(self._up.resample_chunk(x))

    def out(self, pcm: bytes, place: int) -> None:
        self._file.put(RIGHT, place, np.frombuffer(pcm, "<i2"))

    def cut(self, start: int, end: int) -> None:
        self._file.silence(RIGHT, start, end)

    def _put(self, y: F32) -> None:
        self._file.put(LEFT, self._at, np.rint(np.clip(y, -1, 1) * 32767).astype("<i2"))
        self._at += len(y)

    def _flush(self) -> None:
        if self._up is not None:
            self._put(self._up.resample_chunk(np.zeros(0, np.float32), last=True))

    def close(self) -> None:
        self._flush()
        self._file.close()


class Recording:
    """One session's recording; every call returns at once."""

    def __init__(self, recorder: Recorder, session_id: str, transport: str) -> None:
        self._recorder, self._id = recorder, session_id
        self._folder = recorder.folder / session_id
        self._origin_ms = time.monotonic() * 1000
        self._started = time.time()
        self._transport = transport
        self._dropped = 0
        self._journal: IO[bytes] | None = None
        self._sides: Sides | None = None
        self._minutes = Minutes()
        self._mic = Axis()  # at 16 kHz
        self._out: dict[str, Axis] = {}  # by reply
        self._out_end = 0
        head = {"journal": 1, "session": session_id, "started": self._started, "mono0_ms": self._origin_ms,
                "transport": transport}  # fmt: skip
        recorder.do(lambda: self._start(head))

    def _start(self, head: dict[str, Any]) -> None:
        self._folder.mkdir(mode=0o750, exist_ok=True)
        self._journal = self._recorder.open(self._id)
        self._journal.write(msgspec.json.encode(head) + b"\n")
        self._journal.flush()
        self._sides = Sides(self._folder / "audio.wav")

    def _do(self, job: Callable[[], None]) -> None:
        if not self._recorder.do(job):
            self._dropped += 1

    def _to_sides(self, job: Callable[[Sides], None]) -> None:
        self._do(lambda: job(self._sides) if self._sides is not None else None)

    def input(self, ev: e.Input, effects: tuple[f.Effect, ...]) -> None:
        def write() -> None:
            if self._journal is not None:
                self._journal.write(msgspec.json.encode({"in": encode(ev), "fx": digest(effects)}) + b"\n")

        self._do(write)
        if (settled := self._minutes.take(ev, effects)) is not None:
            self._cut(settled)

    def record(self, record: Record) -> None:
        def write() -> None:
            if self._journal is not None:
                self._journal.write(msgspec.json.encode({"rec": record}) + b"\n")

        self._do(write)

    def mic(self, x: F32, at_ms: float) -> None:
        """16 kHz samples that have arrived by `at_ms`."""
        end = self._mic.runs[-1].place + self._mic.runs[-1].num if self._mic.runs else 0
        start = max(0, int((at_ms - self._origin_ms) * IN_RATE / 1000) - len(x))
        moved = not self._mic.runs or start - end > MIC_SLACK_MS * IN_RATE // 1000
        place = start if moved else end
        self._mic.add(len(x), place)
        self._to_sides(lambda sides: sides.mic(x, place if moved else None))

    def out(self, pcm: bytes, at_ms: float, item_id: str) -> None:
        """24 kHz samples of a reply that the listener hears from `at_ms` on."""
        due = round((at_ms - self._origin_ms) * OUT_RATE / 1000)
        axis = self._out.get(item_id)
        slack = OUT_SLACK_MS * OUT_RATE // 1000 if axis is not None else 0
        place = due if due - self._out_end > slack else self._out_end
        self._out.setdefault(item_id, Axis()).add(len(pcm) // 2, place)
        self._out_end = place + len(pcm) // 2
        self._to_sides(lambda sides: sides.out(pcm, place))

    def _cut(self, item_id: str) -> None:
        """A reply is over: what of it was not heard is silence."""
        axis = self._out.get(item_id)
        heard = self._minutes.heard_ms(item_id) * OUT_RATE // 1000
        if axis is None or not axis.runs or heard >= axis.num:
            return
        start, end = axis.at(heard), axis.runs[-1].place + axis.runs[-1].num
        assert start is not None
        first = int(start)
        self._out_end = first if self._out_end == end else self._out_end
        self._to_sides(lambda sides: sides.cut(first, end))

    def close(self, summary: Summary) -> None:
        """The session is over: write what there is to say of it as a whole."""

        def end() -> None:
            try:
                self._end(summary)
            finally:
                self._recorder.finished(self._folder)

        self._recorder.do(end, always=True)

    def _end(self, summary: Summary) -> None:
        if self._journal is not None:
            self._journal.write(msgspec.json.encode({"end": time.time(), "dropped": self._dropped}) + b"\n")
            self._recorder.shut(self._id)
        if self._sides is not None:
            self._sides.close()
        self._journal = self._sides = None
        items = self._minutes.transcript(self._origin_ms, self._mic_at, self._out_at)
        told = {
            "session_id": self._id, "started": self._started, "seconds": round(summary.seconds, 3),
            "transport": self._transport, "answered_by": summary.answered_by, "end_reason": summary.end_reason,
            "aligned": not any(x["words"] is None for x in items), "items": items,
        }  # fmt: skip
        tools = b"".join(msgspec.json.encode(x) + b"\n" for x in self._minutes.tools(self._origin_ms))
        (self._folder / "tools.jsonl").write_bytes(tools)
        write_json(self._folder / "turns.json", [t.row(self._origin_ms) for t in summary.turns])
        write_json(self._folder / "transcript.json", told)

    def _mic_at(self, ms: float) -> float | None:
        place = self._mic.at(ms * IN_RATE / 1000)
        return None if place is None else place * 1000 / IN_RATE

    def _out_at(self, item_id: str, ms: float) -> float | None:
        axis = self._out.get(item_id)
        place = None if axis is None else axis.at(ms * OUT_RATE / 1000)
        return None if place is None else place * 1000 / OUT_RATE
