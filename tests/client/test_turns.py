"""A call that breaks off while somebody speaks."""

from __future__ import annotations

import asyncio

import numpy as np
import websockets

from bargein.client.session import RealtimeClient
from bargein.client.turns import Microphone, converse


def test_a_server_that_goes_away_ends_what_is_being_said() -> None:
    async def leave(ws: websockets.ServerConnection) -> None:
        for _ in range(5):
            await ws.recv()
        ws.transport.abort()

    async def run() -> None:
        async with websockets.serve(leave, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with RealtimeClient(f"ws://127.0.0.1:{port}") as call:
                mic = Microphone(call)
                speech = np.full(24000 * 5, 8000, np.int16)
                async with asyncio.timeout(3):
                    reply = await converse(call, mic, speech, 1)
                    first, last = await mic.play(speech)  # and whoever speaks after that
                assert call.closed is not None and reply.text == "" and first <= last
                await mic.stop()

    asyncio.run(run())
