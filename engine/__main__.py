"""`python -m bargein.engine`: the engine process. Ends when its parent does."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from bargein.models.errors import WeightsError

from .device import DeviceError


def main() -> int:
    parser = argparse.ArgumentParser(prog="bargein.engine")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--stt", default="")
    parser.add_argument("--chat", default="")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--gpu-memory", default="80%", help="how much of a GPU's memory to use")
    parser.add_argument("--threads", type=int, default=0, help="threads of the device loop; 0: the cores")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_follow_parent, args=(os.getppid(),), name="parent", daemon=True).start()
    sys.setswitchinterval(0.001)
    try:
        asyncio.run(_serve(args))
    except (WeightsError, DeviceError) as problem:
        print(f"bargein: {problem}", file=sys.stderr)
        return 2
    return 0


def _follow_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


async def _serve(args: argparse.Namespace) -> None:
    from .build import build  # here: it imports the models and their compiler, which takes seconds
    from .server import Server

    core, models = await asyncio.to_thread(
        build, stt=args.stt, chat=args.chat, threads=args.threads, device=args.device, gpu_memory=args.gpu_memory
    )
    server = Server(core, models)
    listener = await server.listen(args.socket)
    await asyncio.to_thread(core.warm)
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
