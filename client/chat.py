"""`bargein chat`: an agent in text, in the terminal; its tools are shown as they run."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from .session import RealtimeClient, Seen, with_model
from .turns import settled

GREETING_S = 1.0


class _Printer:
    """The agent's words as they come; a line for each call of a tool and its answer."""

    def __init__(self) -> None:
        self._open = False

    def __call__(self, s: Seen) -> None:
        ev = s.event
        match s.type:
            case "response.output_text.delta" | "response.output_audio_transcript.delta":
                print(("" if self._open else "agent: ") + ev["delta"], end="", flush=True)
                self._open = True
            case "conversation.item.done" if ev["item"]["type"] == "function_call":
                self._line(f"  [{ev['item']['name']} {ev['item']['arguments']}]")
            case "conversation.item.done" if ev["item"]["type"] == "function_call_output":
                self._line(f"  [-> {ev['item']['output'][:200]}]")
            case "response.done":
                self.end()
                if ev["response"]["status"] == "failed":
                    self._line(f"  [the reply failed: {json.dumps(ev['response']['status_details'])}]")
            case "error":
                self._line(f"  [{ev['error']['code']}: {ev['error']['message']}]")

    def _line(self, text: str) -> None:
        self.end()
        print(text, flush=True)

    def end(self) -> None:
        """Close the line that is being written."""
        if self._open:
            print(flush=True)
        self._open = False


async def chat(args: argparse.Namespace) -> None:
    """Read lines until the input or the call ends. Raises ConnectFailed."""
    printer = _Printer()
    async with RealtimeClient(with_model(args.url, args.model), args.key, on_event=printer) as call:
        await call.update(output_modalities=["text"])
        if await call.wait("response.created", 0, GREETING_S) is not None:
            await settled(call, 0, args.timeout)
        while call.closed is None:
            line = await _read_line()
            if line is None:
                break
            if not line.strip():
                continue
            mark = len(call.seen)
            part = {"type": "input_text", "text": line.strip()}
            await call.send("conversation.item.create", item={"type": "message", "role": "user", "content": [part]})
            await call.send("response.create")
            if not await settled(call, mark, args.timeout) and call.closed is None:
                print("  [no reply in time]")
        printer.end()
        if call.closed is not None:
            print(f"  [the call has ended: {call.closed}]")


async def _read_line() -> str | None:
    """A line that was typed; None: no more."""
    if sys.stdin.isatty():
        print("you: ", end="", flush=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    return line.rstrip("\n") if line else None
