"""The engine killed again and again while calls go on. It starts a server of its own; run it from the repository:

    python bench/kill.py [--kills 20] [--calls 4] [--seed 1]

Each call asks question after question. At random moments `kill -9` ends the engine. Counted: calls that dropped, responses
without a `response.done`, how long until the server was ready again, and what the processes hold before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".ns")]

from bargein.client.audio import read_wav  # noqa: E402
from bargein.client.session import RealtimeClient  # noqa: E402
from bargein.client.turns import Microphone, converse  # noqa: E402
from tests.e2e.conftest import Served, serving  # noqa: E402
from tests.e2e.test_leaks import usage  # noqa: E402

QUESTIONS = ("bees", "planet", "sky", "morning", "capital")
STORY = {"instructions": "Tell a long story.", "max_output_tokens": 120}


async def talk(server: Served, n: int, over: asyncio.Event, told: dict[str, list[str]]) -> None:
    """A call until it is over: spoken questions, and a story now and then so that replies are long enough to be hit."""
    async with RealtimeClient(server.url) as call:
        await call.update(profile="fast")
        mic = Microphone(call)
        while not over.is_set() and call.closed is None:
            n += 1
            if n % 3 == 0:
                mark = len(call.seen)
                await call.send("response.create", response=STORY)
                await call.wait("response.done", mark, 20)
            else:
                reply = await converse(call, mic, read_wav(ROOT / "tests/data/questions" / f"{QUESTIONS[n % 5]}.wav"), 20)
                told["status"].append(reply.status or "none")
        await asyncio.sleep(3)  # what is open ends
        await mic.stop()
        if call.closed is not None:
            told["dropped"].append(call.closed)
        made = {s.event["response"]["id"] for s in call.seen if s.type == "response.created"}
        done = {s.event["response"]["id"]: s.event["response"]["status"] for s in call.seen if s.type == "response.done"}
        told["left"] += sorted(made - set(done))
        told["responses"] += done.values()


def ready(server: Served) -> bool:
    try:
        return server.get("/health/ready")[0] == 200
    except OSError:
        return False


async def kill(server: Served, kills: int, num_calls: int, rng: random.Random) -> int:
    told: dict[str, list[str]] = {"status": [], "dropped": [], "left": [], "responses": []}
    over = asyncio.Event()
    calls = [asyncio.create_task(talk(server, n, over, told)) for n in range(num_calls)]
    await asyncio.sleep(10)
    before = {"front": usage(server.pid), **{name: usage(pid) for name, pid in server.processes().items()}}
    back = []
    for n in range(kills):
        await asyncio.sleep(rng.uniform(2, 8))
        start = time.monotonic()
        os.kill(server.processes()["engine"], signal.SIGKILL)
        while await asyncio.to_thread(ready, server) and time.monotonic() - start < 1:
            await asyncio.sleep(0.02)
        while not await asyncio.to_thread(ready, server):
            await asyncio.sleep(0.02)
        back.append(time.monotonic() - start)
        print(f"kill {n + 1}: ready again after {back[-1]:.1f} s", flush=True)
    await asyncio.sleep(10)
    over.set()
    await asyncio.gather(*calls)
    await asyncio.sleep(2)
    after = {"front": usage(server.pid), **{name: usage(pid) for name, pid in server.processes().items()}}
    statuses = {s: told["responses"].count(s) for s in sorted(set(told["responses"]))}
    print(f"{kills} kills during {num_calls} calls: ready again after {statistics.median(back):.1f} s (median), "
          f"{max(back):.1f} (worst); {len(told['dropped'])} calls dropped; "
          f"{len(told['left'])} of {len(told['responses'])} responses without their end; {statuses}")  # fmt: skip
    for name in before:
        print(f"{name}: before {before[name]}, after {after.get(name)}")
    return int(bool(told["dropped"] or told["left"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        running = serving(Path(folder) / "log")
        server = next(running)
        try:
            return asyncio.run(kill(server, args.kills, args.calls, random.Random(args.seed)))
        finally:
            next(running, None)


if __name__ == "__main__":
    sys.exit(main())
