"""Calls come and go; what they used goes with them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bargein.client.audio import read_wav
from bargein.client.session import RealtimeClient
from bargein.client.turns import Microphone, converse

from .conftest import DATA, Served


def usage(pid: int) -> dict[str, int]:
    """Threads, descriptors and resident MB of a process."""
    status = dict(x.split(":", 1) for x in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in x)
    return {
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "rss_mb": int(status["VmRSS"].split()[0]) // 1024,
    }


async def one_call(server: Served, n: int) -> None:
    async with RealtimeClient(server.url) as call:
        await call.update(profile="fast")
        mic = Microphone(call)
        if n % 3 == 2:  # leave in the middle of a reply, without a goodbye
            await call.send("response.create", response={"instructions": "Tell a story.", "max_output_tokens": 80})
            await call.wait("response.output_audio.delta", 0, 20)
        else:
            reply = await converse(call, mic, read_wav(DATA / "questions" / "bees.wav"), 40)
            assert reply.status == "completed"
        await mic.stop()


def test_ten_calls_leave_nothing_behind(server: Served) -> None:
    pids = {"front": server.pid, **server.processes()}
    after: dict[int, dict[str, dict[str, int]]] = {}
    for n in range(1, 11):
        asyncio.run(one_call(server, n))
        if n in (3, 10):
            asyncio.run(asyncio.sleep(1.5))  # let the last one's end be seen
            after[n] = {name: usage(pid) for name, pid in pids.items()}
    for name in pids:
        third, tenth = after[3][name], after[10][name]
        assert tenth["threads"] <= third["threads"], after
        assert tenth["descriptors"] <= third["descriptors"], after
        assert tenth["rss_mb"] <= third["rss_mb"] + 30, after
