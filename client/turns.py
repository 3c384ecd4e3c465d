"""One spoken turn as a client sees it: play a question in real time, hear the reply, measure."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .audio import FRAME_MS, I16, RATE, first_audible, frames, voiced_span
from .session import RealtimeClient, Seen

SAME_STEP_S = 0.05  # what a server says in one breath has come after this
SILENCE = np.zeros(RATE * FRAME_MS // 1000, np.int16)


class Microphone:
    """Sends 20 ms frames on an absolute schedule for as long as the call lasts: silence, or what `play` was given."""

    def __init__(self, call: RealtimeClient) -> None:
        self._call = call
        self._pending: list[I16] = []
        self._sent_at: list[float] | None = None
        self._done = asyncio.Event()
        self.echo: Callable[[float], I16] | None = None  # what the room adds to the frame that is sent at this time
        self.worst_late_ms = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._send()
        finally:  # whoever waits for the end of what he plays would wait for ever
            self._done.set()

    async def _send(self) -> None:
        start, n = time.monotonic(), 0
        while self._call.closed is None:
            due = start + n * FRAME_MS / 1000
            now = time.monotonic()
            if due > now:
                await asyncio.sleep(due - now)
            else:
                self.worst_late_ms = max(self.worst_late_ms, 1000 * (now - due))
            frame = self._pending.pop(0) if self._pending else SILENCE
            if self.echo is not None:
                frame = np.clip(frame.astype(np.int32) + self.echo(due), -32768, 32767).astype(np.int16)
            try:
                await self._call.append(frame)
            except Exception:  # the call is over
                return
            if self._sent_at is not None:
                self._sent_at.append(time.monotonic())
                if not self._pending:
                    self._sent_at = None
                    self._done.set()
            n += 1

    async def play(self, x: I16) -> tuple[float, float]:
        """Play samples; returns when their first and last voiced frames had been sent (seconds, monotonic). Where the call
        ends meanwhile, that is the end of what was sent."""
        parts = frames(x)
        first, last = voiced_span(parts)
        sent: list[float] = []
        self._done.clear()
        self._pending, self._sent_at = parts, sent
        if not self._task.done():
            await self._done.wait()
        whole = sent or [time.monotonic()]
        return whole[min(first, len(whole) - 1)], whole[min(last, len(whole) - 1)]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@dataclass(slots=True)
class Reply:
    """What came back for one turn. Times are seconds, monotonic; None where it did not happen."""

    user_text: str = ""
    text: str = ""
    status: str = ""
    audio: I16 = field(default_factory=lambda: np.zeros(0, np.int16))
    deltas: list[tuple[float, int]] = field(default_factory=list)  # arrival, samples
    times: dict[str, float] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def audible_at(self) -> float | None:
        """When a player that starts at the first delta plays the first sample louder than silence."""
        lead = first_audible(self.audio)
        if not self.deltas or lead is None:
            return None
        clock, position = self.deltas[0][0], 0.0
        for at, n in self.deltas:
            clock = max(clock, at)
            if position + n / RATE > lead:
                return clock + lead - position
            clock += n / RATE
            position += n / RATE
        return None

    @property
    def gap_ms(self) -> float:
        """How long that player would have stood still for want of audio."""
        if not self.deltas:
            return 0.0
        clock, gap = self.deltas[0][0], 0.0
        for at, n in self.deltas:
            if at > clock:
                gap += at - clock
                clock = at
            clock += n / RATE
        return 1000 * gap


async def converse(
    call: RealtimeClient, mic: Microphone, question: I16, timeout: float, on_delta: Callable[[I16], None] | None = None
) -> Reply:
    """Ask one question aloud and wait for the whole reply. `times` holds the milestones that were seen."""
    mark = len(call.seen)
    _, end = await mic.play(question)

    if await settled(call, mark, timeout):
        await call.wait(lambda s: s.type.endswith("input_audio_transcription.completed"), mark, 5)
    return collect(call, mark, end)


async def settled(call: RealtimeClient, since: int, timeout: float) -> bool:
    """Wait until what was said since index `since` has its whole answer, however many replies the server's own tools make
    of it; or is known to get none. False after `timeout` seconds or at the end."""

    def ends(s: Seen) -> bool:
        done = s.type == "response.done" and s.event["response"]["status"] != "cancelled"
        empty = s.type.endswith("transcription.completed") and not s.event["transcript"].strip()
        return done or (empty and not pending_response(call, since))

    deadline, at = time.monotonic() + timeout, since
    while (last := await call.wait(ends, at, deadline - time.monotonic())) is not None:
        await asyncio.sleep(SAME_STEP_S)
        if not pending_response(call, since) and not open_calls(call, since):
            return True
        at = call.seen.index(last, at) + 1
    return False


def open_calls(call: RealtimeClient, since: int) -> set[str]:
    """Calls of the server's own tools that have no answer yet."""
    items = [s.event["item"] for s in call.of("conversation.item.done", since)]
    theirs = {o["call_id"] for s in call.of("response.done", since) for o in s.event["response"]["output"] if "call_id" in o}
    calls = {i["call_id"] for i in items if i["type"] == "function_call"}
    return calls - theirs - {i["call_id"] for i in items if i["type"] == "function_call_output"}


def pending_response(call: RealtimeClient, since: int) -> bool:
    """Whether a response was announced and has not ended."""
    return len(call.of("response.created", since)) > len(call.of("response.done", since))


def collect(call: RealtimeClient, since: int, speech_end: float) -> Reply:
    """Put together what the events since index `since` say."""
    r = Reply(times={"speech_end": speech_end})
    names = {
        "input_audio_buffer.speech_stopped": "stopped",
        "input_audio_buffer.committed": "committed",
        "conversation.item.input_audio_transcription.completed": "transcript",
        "response.created": "response",
        "response.output_audio.delta": "first_audio",
        "response.done": "done",
    }
    pcm: list[I16] = []
    for s in call.seen[since:]:
        name = names.get(s.type)
        if name in ("first_audio",):
            r.times.setdefault(name, s.at)
        elif name is not None:
            r.times[name] = s.at
        if s.type == "response.output_audio.delta":
            x = np.frombuffer(base64.b64decode(s.event["delta"]), "<i2")
            pcm.append(x)
            r.deltas.append((s.at, len(x)))
        elif s.type == "response.output_audio_transcript.delta":
            r.text += s.event["delta"]
        elif s.type.endswith("input_audio_transcription.completed"):
            r.user_text = (r.user_text + " " + s.event["transcript"]).strip()
        elif s.type == "response.done":
            response = s.event["response"]
            r.status = response["status"]
            timing = response.get("timing") or {}
            created = r.times.get("response")
            if created is not None and timing.get("first_token_ms") is not None:
                r.times["first_token"] = created + timing["first_token_ms"] / 1000
            usage = response.get("usage") or {}
            details = usage.get("input_token_details") or {}
            r.usage = {
                "input": usage.get("input_tokens", 0),
                "cached": details.get("cached_tokens", 0),
                "output": usage.get("output_tokens", 0),
            }
    if pcm:
        r.audio = np.concatenate(pcm)
    if (audible := r.audible_at) is not None:
        r.times["audible"] = audible
    return r
