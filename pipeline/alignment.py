"""When the caller's words were said: after a call its utterances are aligned with the recording, behind everything else.

The words are the transcript's; the engine is only asked where they lie (`models/whisper_window.py`), as `bulk` work. An
utterance longer than the model's window is heard once more in windows, whose words' times the transcript's words get.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import soxr

from bargein.engine import protocol as p
from bargein.engine.client import EngineUnavailable
from bargein.engine.fleet import Engine

from .audio import F32, IN_RATE
from .claims import try_hold
from .oneshot import Use, WorkFailed, WorkRefused
from .recording import write_json
from .recordings import Tally, Wish, transcribe
from .stereo import LEFT, read_side

log = logging.getLogger("bargein.recording")

WINDOW_MS = 28_000
AFTER_MS = 200  # of what follows an utterance, so that its last word is not at the edge
AGAIN_S = 5.0  # after an engine that was not there

Timed = tuple[str, float, float]  # a word, its start and end, ms


class Aligner:
    """Call folders wait in line and are done one after another, each once, however many processes have it in theirs; what
    cannot be done is left as it is."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._folders: asyncio.Queue[Path] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def put(self, folder: Path) -> None:
        """To be called on the event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="aligner")
        self._folders.put_nowait(folder)

    async def _run(self) -> None:
        while True:
            folder = await self._folders.get()
            try:
                await self._patiently(folder)
            except (OSError, ValueError, WorkFailed, WorkRefused, msgspec.DecodeError) as problem:
                log.warning("%s: the caller's words get no times: %s", folder.name, problem)
            except Exception:  # one call's folder is not another's
                log.exception("%s: the caller's words get no times", folder.name)

    async def _patiently(self, folder: Path) -> None:
        while folder.is_dir():
            try:
                return await align(self._engine, folder)
            except EngineUnavailable:
                await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def align(engine: Engine, folder: Path) -> None:
    """Give the caller's words in a call's folder their times. Raises EngineUnavailable, WorkFailed, WorkRefused, OSError,
    ValueError."""
    with (folder / "audio.wav").open("rb") as audio:
        if try_hold(audio):  # or another process is at it
            await _align(engine, folder)


async def _align(engine: Engine, folder: Path) -> None:
    file = folder / "transcript.json"
    told = msgspec.json.decode(await asyncio.to_thread(file.read_bytes))
    if told.get("aligned"):  # another process was sooner
        return
    for item in told["items"]:
        if item["words"] is None:
            words = await _item(engine, folder / "audio.wav", item) if item["text"] else []
            item["words"] = [{"word": w, "start_ms": round(start), "end_ms": round(end)} for w, start, end in words]
    told["aligned"] = True
    await asyncio.to_thread(write_json, file, told)


async def _item(engine: Engine, audio: Path, item: dict[str, Any]) -> list[Timed]:
    start, end = item["start_ms"], item["end_ms"]
    if start is None or end is None:
        return []
    sound = await asyncio.to_thread(_sound, audio, start, end + AFTER_MS)
    if len(sound) == 0:
        return []
    language = item.get("language") or ""
    if end + AFTER_MS - start <= WINDOW_MS:
        async with Use(engine, "stt", "bulk") as stt:
            heard: p.Heard = await stt.one(p.Hear(sound.tobytes(), language, words=True, text=item["text"]))
        return [(w.text, start + 1000 * w.start_s, start + 1000 * w.end_s) for w in heard.words]
    found: list[Timed] = []
    async with aclosing(transcribe(engine, _pieces(sound), Wish(language, words=True), Tally())) as parts:
        async for part in parts:
            zero = start + 1000 * part.start_s
            found += [(w.text, zero + 1000 * w.start_s, zero + 1000 * w.end_s) for w in part.heard.words]
    return matched(item["text"].split(), found)


def _sound(audio: Path, start_ms: float, end_ms: float) -> F32:
    """The caller's side between two moments, at 16 kHz."""
    x, rate = read_side(audio, LEFT, start_ms, end_ms)
    y: F32 = soxr.resample(x.astype(np.float32) / 32768, rate, IN_RATE).astype(np.float32)
    return y


async def _pieces(sound: F32) -> AsyncGenerator[F32, None]:
    for n in range(0, len(sound), IN_RATE):
        yield sound[n : n + IN_RATE]


def matched(words: list[str], found: list[Timed]) -> list[Timed]:
    """Words with the times of the same words in `found`; those between share the time that is left between them."""

    def plain(text: str) -> str:
        return re.sub(r"\W", "", text.lower())

    if not found:
        return []
    same = difflib.SequenceMatcher(None, [plain(w) for w in words], [plain(w) for w, *_ in found], autojunk=False)
    times: list[tuple[float, float] | None] = [None] * len(words)
    for block in same.get_matching_blocks():
        for n in range(block.size):
            times[block.a + n] = found[block.b + n][1:]
    out: list[Timed] = []
    for n, word in enumerate(words):
        if (known := times[n]) is None:
            after = next((k for k in range(n, len(words)) if times[k] is not None), len(words))
            following = times[after] if after < len(words) else None
            left = out[-1][2] if out else found[0][1]
            right = max(left, following[0] if following is not None else found[-1][2])
            known = (left, left + (right - left) / (after - n))
        out.append((word, *known))
    return out
