"""`bargein call --mic`: the machine's own microphone and speaker (extra `mic`)."""

from __future__ import annotations

import asyncio
import base64

import numpy as np

from .audio import FRAME_MS, RATE
from .session import ConnectFailed, RealtimeClient, Seen


async def talk(call: RealtimeClient) -> None:
    """Talk until Ctrl-C. Raises ConnectFailed where there is no sound device."""
    try:
        import sounddevice as sd
    except (ImportError, OSError) as problem:
        raise ConnectFailed(f"--mic needs a sound device and `pip install bargein[mic]` ({problem})") from None
    loop = asyncio.get_running_loop()
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    to_play = bytearray()

    def capture(data: object, n: int, time: object, status: object) -> None:
        loop.call_soon_threadsafe(heard.put_nowait, bytes(data))  # type: ignore[call-overload]

    def play(out: bytearray, n: int, time: object, status: object) -> None:
        chunk = bytes(to_play[: 2 * n])
        del to_play[: 2 * n]
        out[:] = chunk + b"\0" * (2 * n - len(chunk))

    printed = call.on_event

    def on_event(s: Seen) -> None:
        if s.type == "response.output_audio.delta":
            to_play.extend(base64.b64decode(s.event["delta"]))
        elif s.type in ("output_audio_buffer.cleared", "conversation.item.assistant_truncated"):
            to_play.clear()
        if printed is not None:
            printed(s)

    call.on_event = on_event
    block = RATE * FRAME_MS // 1000
    print("Talk; wear headphones, or the reply will interrupt itself. Ctrl-C ends the call.")
    try:
        with (
            sd.RawInputStream(RATE, block, channels=1, dtype="int16", callback=capture),
            sd.RawOutputStream(RATE, block, channels=1, dtype="int16", callback=play),
        ):
            while call.closed is None:
                await call.append(np.frombuffer(await heard.get(), np.int16))
    except sd.PortAudioError as problem:
        raise ConnectFailed(f"no usable sound device: {problem}") from None
