"""The inspector's side of a session (SPEC section 14): what happened and why, as a bounded stream beside the wire.

A session tells its `Watch`, which keeps plain tuples in rings; whoever looks pays for turning them into JSON. A reader
that falls behind loses the oldest and is told how many. Nothing here can slow or fail the session.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import Message
from bargein.realtime.state import Session

from .audio import F32
from .turns import Turn, Turns, Work

log = logging.getLogger("bargein.inspect")

FAST = frozenset({"vad", "audio_level", "tts_pacer"})  # lanes with a ring of their own, lest they crowd out the rest
PACER_EVERY = 5  # frames
LEVEL_EVERY_MS = 100
LOAD_EVERY = 32  # windows of 32 ms
ENDED_KEPT = 8
MAX_TEXT = 4000

Corr = dict[str, str]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened. `span_id` joins the records of one piece of work."""

    session_id: str
    seq: int
    ts_mono_ns: int
    ts_wall: float
    lane: str
    kind: str
    corr: Corr
    span_id: str
    payload: Any


_JSON = msgspec.json.Encoder()


def to_line(record: Record) -> bytes:
    """One JSON line."""
    return _JSON.encode(record) + b"\n"


@dataclass(frozen=True, slots=True)
class Summary:
    """A session that is over, without its content. `mono0_ms`: its start on the clock of its turns."""

    session_id: str
    transport: str
    answered_by: str
    started: float  # wall time, s
    mono0_ms: float
    seconds: float
    end_reason: str
    turns: list[Turn]
    loose: list[Work]  # belongs to no turn: a greeting's


class Sink(Protocol):
    """A recording: takes what happens as it happens, without waiting."""

    def input(self, ev: e.Input, effects: tuple[f.Effect, ...]) -> None: ...
    def record(self, record: Record) -> None: ...
    def mic(self, x: F32, at_ms: float) -> None: ...
    def out(self, pcm: bytes, at_ms: float, item_id: str) -> None: ...
    def close(self, summary: Summary) -> None: ...


class Reader:
    """One who follows a session."""

    def __init__(self, relay: Relay, cap: int) -> None:
        self._relay, self._cap = relay, cap
        self._queue: deque[Record] = deque()
        self._wake = asyncio.Event()
        self._ended = False
        self._dropped = 0

    def offer(self, record: Record) -> None:
        if len(self._queue) >= self._cap:
            self._queue.popleft()
            self._dropped += 1
        self._queue.append(record)
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def next(self) -> bytes:
        """What has come since, as JSON lines; empty: the session is over."""
        while not self._queue and not self._ended:
            self._wake.clear()
            await self._wake.wait()
        lines: list[bytes] = []
        if self._dropped:
            payload = {"count": self._dropped}
            self._dropped = 0
            lines.append(to_line(self._relay.make("error", "records_dropped", payload)))
        while self._queue and len(lines) < 256:
            lines.append(to_line(self._queue.popleft()))
        return b"".join(lines)


class Relay:
    """A session's records: two rings, and the readers that follow."""

    def __init__(self, session_id: str, cap: int) -> None:
        self.session_id = session_id
        self._cap = cap
        self._slow: deque[Record] = deque(maxlen=cap)
        self._fast: deque[Record] = deque(maxlen=cap)
        self._readers: set[Reader] = set()
        self._seq = 0
        self.ended = False

    def make(self, lane: str, kind: str, payload: Any, corr: Corr | None = None, span: str = "") -> Record:
        self._seq += 1
        return Record(self.session_id, self._seq, time.monotonic_ns(), time.time(), lane, kind, corr or {}, span, payload)

    def add(self, record: Record) -> None:
        (self._fast if record.lane in FAST else self._slow).append(record)
        for reader in self._readers:
            reader.offer(record)

    @property
    def is_watched(self) -> bool:
        return bool(self._readers)

    def history(self) -> Iterator[Record]:
        """What the rings still hold, in order."""
        return iter(sorted((*self._slow, *self._fast), key=lambda r: r.seq))

    def follow(self) -> Reader:
        """A reader that begins with the history."""
        reader = Reader(self, 2 * self._cap)
        for record in self.history():
            reader.offer(record)
        if self.ended:
            reader.end()
        else:
            self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def end(self) -> None:
        self.ended = True
        for reader in self._readers:
            reader.end()
        self._readers.clear()


class Watch:
    """What a session runner calls. `sink`: where it is recorded, if it is; `answered_by`: an agent's or a model's name;
    `on_end` is told once, when the session is over."""

    def __init__(
        self, relay: Relay, transport: str, sink: Sink | None = None, load: Callable[[], dict[str, Any]] | None = None,
        *, answered_by: str = "", on_end: Callable[[Summary], None] = lambda summary: None,
    ) -> None:  # fmt: skip
        self._load, self._num_windows = load, 0
        self.relay, self.transport, self._sink = relay, transport, sink
        self.started, self._mono0_ms = time.time(), time.monotonic() * 1000
        self._answered_by, self._on_end = answered_by, on_end
        self._turns = Turns()
        self._end_reason = "internal_state_error"  # unless the machine gives another
        self._epochs: dict[int, str] = {}
        self._turn = ""
        self._phases = ("", "", "")
        self._num_frames = 0
        self._phrase = 0
        self._out_at = 0.0
        self._out_peak = 0.0
        self._flushed: dict[int, float] = {}
        self.num_turns = 0

    # --- what the runner tells ---

    def step(self, ev: e.Input, state: Session, effects: tuple[f.Effect, ...]) -> None:
        """One step of the machine: its input, the state after it, its effects."""
        try:
            if self._sink is not None:
                self._sink.input(ev, effects)
            self._input(ev)
            for effect in effects:
                self._effect(effect, ev.at)
            phases = (type(state.phase).__name__, type(state.vad).__name__, type(state.resp).__name__)
            if phases != self._phases:
                self._phases = phases
                names = dict(zip(("session", "vad", "resp"), phases, strict=True))
                self._note("state", "phase", names | {"epoch": int(state.epoch), "parked": state.parked is not None})
        except Exception:  # the inspector's fault must not be the session's
            log.exception("not inspected: %s", type(ev).__name__)

    def client_event(self, raw: str | bytes) -> None:
        """A client event as it came; audio is left out."""
        text = raw if isinstance(raw, str) else raw[:MAX_TEXT].decode("utf-8", "replace")
        if "input_audio_buffer.append" not in text[:200]:
            self._note("wire", "in", text[:MAX_TEXT])

    def server_event(self, text: str) -> None:
        """A server event as it goes out; audio is left out."""
        if '"response.output_audio.delta"' not in text[:120]:
            self._note("wire", "out", msgspec.Raw(text.encode()) if len(text) <= MAX_TEXT else text[:MAX_TEXT])

    def heard(self, x: F32, at_ms: float) -> None:
        """Input audio, 16 kHz."""
        if self._sink is not None:
            self._sink.mic(x, at_ms)

    def spoke(self, pcm: bytes, at_ms: float, item_id: str) -> None:
        """Reply audio, 24 kHz, 16 bits, heard from `at_ms` on."""
        if self._sink is not None:
            self._sink.out(pcm, at_ms, item_id)
        if self._sink is None and not self.relay.is_watched:
            return
        x = np.frombuffer(pcm, np.int16)
        self._out_peak = max(self._out_peak, float(np.abs(x.astype(np.int32)).max(initial=0)) / 32768)
        if at_ms - self._out_at >= LEVEL_EVERY_MS:
            self._note("audio_level", "out", {"peak": round(self._out_peak, 3)})
            self._out_at, self._out_peak = at_ms, 0.0

    def end(self) -> None:
        self.relay.end()
        summary = Summary(
            self.relay.session_id, self.transport, self._answered_by, self.started, self._mono0_ms,
            time.monotonic() - self._mono0_ms / 1000, self._end_reason, self._turns.turns, self._turns.loose(),
        )  # fmt: skip
        try:
            if self._sink is not None:
                self._sink.close(summary)
            self._on_end(summary)
        except Exception:  # what comes after a call must not be its fault
            log.exception("%s: what was to follow its end", self.relay.session_id)

    # --- to records ---

    def _note(self, lane: str, kind: str, payload: Any, corr: Corr | None = None, span: str = "") -> None:
        whole = {"turn_id": self._turn} if self._turn else {}
        record = self.relay.make(lane, kind, payload, whole | (corr or {}), span)
        self.relay.add(record)
        if lane not in FAST:
            self._turns.take(record)
        if self._sink is not None and lane not in ("vad", "tts_pacer"):  # those are in the journal's inputs
            self._sink.record(record)

    def _of(self, epoch: int) -> Corr:
        response = self._epochs.get(epoch)
        return {"response_id": response} if response else {}

    def _input(self, ev: e.Input) -> None:
        match ev:
            case e.VadWindow(_, end_ms, prob, level_db):
                self._note("vad", "window", {"audio_ms": end_ms, "p": round(prob, 3), "db": round(level_db, 1)})
                self._num_windows += 1
                if self._load is not None and self._num_windows % LOAD_EVERY == 0:
                    self._note("engine", "load", self._load())
            case e.FrameDue(_, epoch, written_ms, played_ms):
                self._num_frames += 1
                if self._num_frames % PACER_EVERY == 1 or written_ms <= 20:
                    self._note("tts_pacer", "frame", {"written_ms": written_ms, "played_ms": played_ms}, self._of(epoch))
            case e.PlayoutDrained(_, epoch, played_ms):
                self._note("tts_pacer", "drained", {"played_ms": played_ms}, self._of(epoch))
                self._num_frames = 0
            case e.SttPartial(_, item_id, text, stable):
                self._note("stt", "partial", {"text": text, "stable_chars": stable}, {"item_id": item_id})
            case e.WordsAhead(_, item_id, _, transcript, p):
                self._note("stt", "words_ahead", {"text": transcript.text, "p": p}, {"item_id": item_id})
            case e.SttStopTranscript(at, item_id, flush, transcript):
                took = at - self._flushed.pop(flush, at)
                payload = msgspec.to_builtins(transcript) | {"took_ms": round(took)}
                self._note("stt", "transcript", payload, {"item_id": item_id}, f"stt:{flush}")
            case e.SttFailed(_, item_id, flush, message):
                self._note("error", "stt_failed", {"message": message}, {"item_id": item_id}, f"stt:{flush}")
            case e.ChatDelta(_, epoch, text):
                self._note("llm", "token", {"text": text}, self._of(epoch), f"llm:{epoch}")
            case e.ChatDone(_, epoch, calls, limited, given, made, cached):
                payload = {"input_tokens": given, "output_tokens": made, "cached_tokens": cached, "limited": limited}
                self._note("llm", "done", payload, self._of(epoch), f"llm:{epoch}")
                for call in calls:
                    called = {"name": call.name, "arguments": call.arguments[:MAX_TEXT]}
                    self._note("tool", "call", called, self._of(epoch), call.call_id)
            case e.ToolDone(_, call_id, output, outcome):
                self._note("tool", "answer", {"outcome": outcome, "output": output[:MAX_TEXT]}, span=call_id)
            case e.KeyPressed(_, key):
                self._note("wire", "key", {"key": key})
            case e.ChatFailed(_, epoch, message) | e.SpeechFailed(_, epoch, message):
                self._note("error", type(ev).__name__, {"message": message}, self._of(epoch))
            case e.PhrasePlanned(_, epoch, words, planned_ms):
                self._phrase += 1
                said = "".join(w.text for w in words)
                times = [[w.text, w.start_ms, w.end_ms] for w in words]
                corr = self._of(epoch) | {"phrase_id": f"phrase_{self._phrase}"}
                payload = {"text": said, "words": times, "planned_ms": planned_ms}
                self._note("tts_chunk", "planned", payload, corr, f"tts:{epoch}")
            case e.SpeechDone(_, epoch):
                self._note("tts_req", "done", {}, self._of(epoch), f"tts:{epoch}")
            case e.CreateItem(item=Message(role="user")):  # a typed turn
                self.num_turns += 1
                self._turn = f"typed_{self.num_turns}"
            case e.TimerFired(_, key):
                self._note("state", "timer_fired", {"key": key})
            case e.EngineLost() | e.EngineBack():
                self._note("engine", type(ev).__name__, {})
            case e.NodeFailed(_, code, message):
                self._note("error", code, {"message": message})

    def _effect(self, effect: f.Effect, at: float) -> None:
        match effect:
            case f.Inspect(lane, kind, payload):
                corr = {k: str(v) for k, v in payload.items() if k in ("item_id", "response_id")}
                self._note(lane, kind, payload, corr)
            case f.StartTimer(key, due):
                self._note("state", "timer", {"key": key, "in_ms": round(due - at)})
            case f.StartStt(item_id, start_ms):
                self._turn = item_id
                self.num_turns += 1
                self._note("stt", "start", {"audio_ms": start_ms}, {"item_id": item_id})
            case f.FlushStt(item_id, flush, end_ms, voiced_ms):
                self._flushed[flush] = at
                payload = {"audio_ms": end_ms, "voiced_ms": voiced_ms}
                self._note("stt", "flush", payload, {"item_id": item_id}, f"stt:{flush}")
            case f.AskEou(item_id, ask):
                self._note("eou", "ask", {}, {"item_id": item_id}, f"eou:{ask}")
            case f.StartChat():
                self._epochs[int(effect.epoch)] = effect.response_id
                if len(self._epochs) > 64:
                    del self._epochs[next(iter(self._epochs))]
                last = effect.messages[-1].content[:400] if effect.messages else ""
                payload = {"messages": len(effect.messages), "last": last}
                self._note("llm", "ask", payload, self._of(effect.epoch), f"llm:{effect.epoch}")
            case f.SayLine(epoch, response_id, text):
                self._epochs[int(epoch)] = response_id
                self._note("llm", "line", {"text": text}, self._of(epoch), f"llm:{epoch}")
            case f.RunTool(call_id, name, arguments):
                self._note("tool", "run", {"name": name, "arguments": arguments[:MAX_TEXT]}, span=call_id)
            case f.CancelTool(call_id):
                self._note("tool", "cancel", {}, span=call_id)
            case f.Close(_, reason):
                self._end_reason = reason
            case f.RetireEpoch(epoch):
                self._note("response", "retired", {"epoch": int(epoch)}, self._of(epoch))
            case f.HoldOutput(epoch) | f.ReleaseOutput(epoch) | f.FlushOutput(epoch):
                self._note("response", type(effect).__name__, {"epoch": int(epoch)}, self._of(epoch))


class Inspections:
    """All sessions that can be looked at: the live ones, and the last few that ended."""

    def __init__(self, cap: int, load: Callable[[], dict[str, Any]] | None = None) -> None:
        self._cap, self._load = cap, load
        self._watches: dict[str, Watch] = {}

    def open(
        self, session_id: str, transport: str, sink: Sink | None, *, answered_by: str = "",
        on_end: Callable[[Summary], None] = lambda summary: None,
    ) -> Watch:  # fmt: skip
        """Begin to watch a session; the oldest ended one is forgotten where there are many."""
        ended = [name for name, w in self._watches.items() if w.relay.ended]
        for name in ended[: max(0, len(ended) - ENDED_KEPT)]:
            del self._watches[name]
        relay = Relay(session_id, self._cap)
        watch = Watch(relay, transport, sink, self._load, answered_by=answered_by, on_end=on_end)
        self._watches[session_id] = watch
        return watch

    def forget(self, session_id: str) -> bool:
        """Let go of a session that is over; False: there is none."""
        watch = self._watches.get(session_id)
        if watch is None or not watch.relay.ended:
            return False
        del self._watches[session_id]
        return True

    def get(self, session_id: str) -> Watch | None:
        return self._watches.get(session_id)

    def list(self) -> list[dict[str, Any]]:
        """The newest first."""
        return [
            {"session_id": name, "live": not w.relay.ended, "started": w.started, "transport": w.transport,
             "turns": w.num_turns, "recorded": False}
            for name, w in reversed(self._watches.items())
        ]  # fmt: skip
