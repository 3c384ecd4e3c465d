"""What the inspector costs: frames a second over an hour's recording, and the frames of a live call while it is watched.

Needs a running server with `inspector.session_dir` set; run it from the repository:

    python bench/inspector.py smooth [--url http://127.0.0.1:8000]             # pan and zoom, headless Chromium
    python bench/inspector.py beside [--url …] [--turns 8]                     # a call alone, followed, and in the page

`smooth` records one turn, repeats it to an hour and drives the page as its test does. `beside` takes turns between a call that
nobody watches, one whose stream another process reads, and one that Chromium shows. Chromium runs niced: it stands for
a browser elsewhere, whose processor is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".ns")]

from playwright.sync_api import sync_playwright  # noqa: E402

from bargein.client.audio import RATE, read_wav  # noqa: E402
from bargein.client.session import RealtimeClient  # noqa: E402
from bargein.client.turns import Microphone, converse  # noqa: E402
from tests.browser.conftest import FLAGS, chromium_path  # noqa: E402
from tests.browser.test_inspector_page import HOUR_MS, PAN_AND_ZOOM, lengthened  # noqa: E402

READER = """
import asyncio, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as s, s.get(sys.argv[1], timeout=None) as stream:
        async for _ in stream.content.iter_any():
            pass
asyncio.run(main())
"""
AHEAD = 10  # frames that are sent at once, as a reply begins: the pacer's lead
WAYS = ("nobody", "a reader", "the page")


def smooth(url: str) -> None:
    """Pan and zoom over an hour, three times."""
    session, _ = asyncio.run(_call(url, "bees", 1, "nobody"))
    with urllib.request.urlopen(f"{url}/v1/inspect/{session}/journal") as reply:
        journal = reply.read().decode().splitlines()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        hour = Path(folder) / "hour.jsonl"
        hour.write_text(lengthened(journal, HOUR_MS))
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}/inspector")
        page.set_input_files("#file", str(hour))
        page.wait_for_function(f"() => window.inspector.session?.end > {HOUR_MS}", timeout=90_000)
        turns = page.evaluate("window.inspector.session.turns.length")
        for _ in range(3):
            got = page.evaluate(PAN_AND_ZOOM)
            print(f"an hour, {turns} turns: {got['fps']:.0f} frames a second, {got['ms']:.1f} ms to draw one", flush=True)
        browser.close()


class Watched:
    """Someone who looks at a session, as one of WAYS, until `stop`."""

    def __init__(self, url: str, session: str, way: str) -> None:
        self._over = threading.Event()
        self._shown = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        if way == "a reader":
            self._process = subprocess.Popen([sys.executable, "-c", READER, f"{url}/v1/inspect/{session}"])
        elif way == "the page":
            self._thread = threading.Thread(target=self._show, args=(f"{url}/inspector",), daemon=True)
            self._thread.start()
            self._shown.wait(30)

    def _show(self, address: str) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # and what it starts
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium_path(), args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(address)
            page.locator("#sessions button:has(.live)").first.click()
            page.wait_for_function("() => window.inspector.session?.end > 0")
            self._shown.set()
            self._over.wait()
            browser.close()

    def stop(self) -> None:
        self._over.set()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._thread is not None:
            self._thread.join(20)


async def _call(url: str, question: str, turns: int, way: str) -> tuple[str, list[float]]:
    """A call; how many milliseconds each frame of its replies came off the even pace of their first, and its id."""
    off: list[float] = []
    async with RealtimeClient(url.replace("http", "ws", 1) + "/v1/realtime") as call:
        created = await call.wait("session.created", 0, 15)
        assert created is not None
        session = str(created.event["session"]["id"])
        await call.update(profile="fast")
        watched = await asyncio.to_thread(Watched, url, session, way)
        mic = Microphone(call)
        await asyncio.sleep(2)  # what starting a browser costs is over
        for _ in range(turns):
            reply = await converse(call, mic, read_wav(ROOT / "tests/data/questions" / f"{question}.wav"), 40)
            at, position = [], 0
            for arrived, samples in reply.deltas:
                at.append(1000 * (arrived - position / RATE))
                position += samples
            steady = at[AHEAD:]
            off += [a - float(np.median(steady)) for a in steady]
        await mic.stop()
        await asyncio.to_thread(watched.stop)
    return session, off


def beside(url: str, turns: int) -> None:
    """The even pace of a call's frames, watched in each way, call by call."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for n in range(turns):
        for way in WAYS if n % 2 == 0 else reversed(WAYS):
            found[way] += asyncio.run(_call(url, ("bees", "capital", "planet", "sky")[n % 4], 2, way))[1]
    for way, off in found.items():
        p50, p99, worst = (float(np.percentile(np.abs(off), q)) for q in (50, 99, 100))
        print(f"watched by {way:10} {len(off):5} frames, off their pace by {p50:.2f} ms (median), "
              f"{p99:.1f} (p99), {worst:.1f} (worst)")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("smooth", "beside"))
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    started = time.monotonic()
    if args.what == "smooth":
        smooth(args.url)
    else:
        beside(args.url, args.turns)
    print(f"({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
