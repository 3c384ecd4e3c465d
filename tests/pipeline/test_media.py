"""Decoding in processes of their own: they may die, be starved or be left, and the next file is decoded."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from bargein.pipeline import media
from bargein.pipeline.media import Media, NotAudio

DATA = Path(__file__).parent.parent / "data"
CLIP = DATA / "austen-0870.wav"


async def seconds(m: Media, path: Path) -> float:
    pieces = [piece async for piece in m.decode(path, 3600)]
    return len(np.concatenate(pieces)) / 16000


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_files_are_decoded_side_by_side_and_no_process_is_left(tmp_path: Path) -> None:
    async def run() -> None:
        m = Media()
        whole = await seconds(m, CLIP)
        assert await asyncio.gather(*(seconds(m, CLIP) for _ in range(12))) == [whole] * 12
        assert m._parent is not None
        async with asyncio.timeout(5):
            while children(m._parent.pid):
                await asyncio.sleep(0.01)
        descriptors = len(os.listdir("/proc/self/fd"))
        (tmp_path / "bad.wav").write_bytes(b"RIFF nothing")
        for _ in range(3):
            with pytest.raises(NotAudio):
                await seconds(m, tmp_path / "bad.wav")
        async with asyncio.timeout(5):
            while len(os.listdir("/proc/self/fd")) > descriptors:
                await asyncio.sleep(0.01)
        await m.close()

    asyncio.run(run())


def test_the_decoders_are_started_again_where_they_died() -> None:
    async def run() -> None:
        m = Media()
        whole = await seconds(m, CLIP)
        assert m._parent is not None
        m._parent.kill()
        assert await seconds(m, CLIP) == whole
        await m.close()

    asyncio.run(run())


def test_a_machine_that_is_busy_is_not_held_against_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "FIRST_S", 0.2)

    async def run() -> None:
        m = Media()
        whole = await seconds(m, CLIP)
        fork = m._fork

        async def starved(path: Path, max_s: float) -> media._Child:
            child = await fork(path, max_s)
            os.kill(child.pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(1, os.kill, child.pid, signal.SIGCONT)
            return child

        monkeypatch.setattr(m, "_fork", starved)
        assert await seconds(m, CLIP) == whole
        monkeypatch.setattr(media, "STUCK_S", 0.3)
        with pytest.raises(media.DecoderGone):
            await seconds(m, CLIP)
        await m.close()

    asyncio.run(run())


def test_what_is_left_in_the_middle_ends_its_process() -> None:
    async def run() -> None:
        m = Media()
        sound = m.decode(CLIP, 3600)
        await anext(sound)
        assert m._parent is not None and len(children(m._parent.pid)) <= 1
        await sound.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            while children(m._parent.pid):
                await asyncio.sleep(0.01)
        await m.close()

    asyncio.run(run())
