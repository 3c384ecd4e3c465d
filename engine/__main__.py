"""`python -m bargein.engine`: the process that owns the models. Told on stdin where to listen; ends with who started it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from bargein.models.errors import WeightsError

from . import nursery
from .core import Core
from .device import DeviceError
from .server import Server


def main() -> int:
    parser = argparse.ArgumentParser(prog="bargein.engine")
    parser.add_argument("--stt", default="")
    parser.add_argument("--chat", default="")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--gpu-memory", default="80%", help="how much of a GPU's memory to use")
    parser.add_argument("--cache-memory", default="25%", help="how much memory the chat model's caches may take on the CPU")
    parser.add_argument("--threads", type=int, default=0, help="threads of the device loop; 0: the cores")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    front = os.getppid()
    nursery.follow(front)
    try:
        from .build import build  # here: it imports the models and their compiler, which takes seconds

        built = build(
            stt=args.stt, chat=args.chat, threads=args.threads, device=args.device, gpu_memory=args.gpu_memory,
            cache_memory=args.cache_memory,
        )  # fmt: skip
    except (WeightsError, DeviceError) as problem:
        print(f"bargein: {problem}", file=sys.stderr)
        return 2

    def engine(socket: Path, is_first: bool) -> int:
        nursery.follow(front)  # a fork has none of its parent's threads
        sys.setswitchinterval(0.001)
        uvloop.run(_serve(built.core, built.models, socket, is_first))
        return 0

    if built.forks:
        return nursery.run(engine)
    return engine(Path(sys.stdin.readline().rstrip("\n")), True)


async def _serve(core: Core, models: dict[str, str], socket: Path, is_first: bool) -> None:
    server = Server(core, models)
    listener = await server.listen(socket)
    await asyncio.to_thread(core.warm)
    if is_first:  # one that replaces another is waited for
        await asyncio.to_thread(core.try_out)
    core.start()
    server.announce()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    reporting = asyncio.create_task(server.report(), name="report")
    async with listener:
        await stop.wait()
    reporting.cancel()
    core.stop()


if __name__ == "__main__":
    sys.exit(main())
