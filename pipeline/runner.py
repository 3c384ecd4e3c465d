"""The driver of one session: inputs in, `step`, effects out. The only place where the turn machine meets the clock.

`tell` is synchronous: an input is stepped and its effects are done before it returns (or, told from within an effect,
right after the running one). So nothing can come between a barge-in and its consequences.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bargein.engine.fleet import Engine
from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.dialects import Dialect, of_first_update
from bargein.realtime.invariants import check_state, check_step
from bargein.realtime.machine import step
from bargein.realtime.settings import Limits, Settings
from bargein.realtime.state import Active, Session, Terminated
from bargein.realtime.wire import Append, Encoder, read

from .audio import F32
from .channel import Epochs
from .graphs import Call, call_graph
from .inspect import Watch
from .nodes.chat import ChatSource
from .nodes.hearing import Hearing
from .nodes.playout import Playout
from .nodes.speech import Mouth

log = logging.getLogger("bargein.session")


class Transport(Protocol):
    """How a session reaches its client. Nothing blocks.

    `carries_audio`: audio has a way of its own, both ways; reply frames go to `send_audio` and not into events. With an
    `own_clock` the transport asks for each (24 kHz, 16 bits) when it is to be played, every 20 ms; without they come in the
    session's format, a little ahead. `lag_ms`: by how much the listener hears later than that.
    """

    @property
    def carries_audio(self) -> bool: ...
    @property
    def own_clock(self) -> bool: ...
    def lag_ms(self) -> float: ...
    def send(self, text: str) -> None: ...
    def send_audio(self, pcm: bytes) -> None: ...
    def close(self, code: int, reason: str) -> None: ...


class Hands(Protocol):
    """What runs the tools of the server's own for one session (SPEC section 16). Answers come as `ToolDone`."""

    def bind(self, runner: SessionRunner) -> None: ...
    def run(self, effect: f.RunTool) -> None: ...
    def cancel(self, call_id: str) -> None: ...
    def key(self, key: str) -> bool: ...
    def close(self) -> None: ...


class SessionRunner:
    """One call. Create, `open`, feed with `receive` (or `append`), await `run`.

    `dialect`: None leaves the choice to the first `session.update`; until then it is GA's. `models`: what `model` may name.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        source: ChatSource,
        transport: Transport,
        settings: Settings,
        dialect: Dialect | None,
        model_used: str,
        limits: Limits | None = None,
        inspections: Callable[[str], Watch] | None = None,
        hands: Hands | None = None,
        models: tuple[str, ...] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport, self._source = transport, source
        self._chosen = dialect is not None
        self._encoder = Encoder(dialect or "ga", model_used, playback=transport.carries_audio)
        self._settings, self._models = settings, models
        self._inspections = inspections
        self._hands = hands
        if hands is not None:
            hands.bind(self)
        self._watch: Watch | None = None  # made when the session has its id
        self.limits = limits or Limits()
        self.state = Session()
        self._inputs: deque[e.Input] = deque()
        self._stepping = False
        self._said_full = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ended = asyncio.Event()
        self.epochs = Epochs()
        self.hearing = Hearing(
            engine, self.tell, self.now, settings.input_format,
            partials=dialect == "extended", chat_is_local=source.is_local,
        )  # fmt: skip
        self.mouth = Mouth(engine)
        self.playout = Playout(
            self.epochs,
            self.tell,
            lambda: self.state.settings.pacer.lead_ms,
            lambda: "pcm16" if transport.own_clock else self.state.settings.output_format,
            burst=not transport.own_clock,
            lag_ms=transport.lag_ms,
        )
        self._call: Call = call_graph(
            source=source, mouth=self.mouth, playout=self.playout, epochs=self.epochs, tell=self.tell, now=self.now
        )

    def now(self) -> float:
        """Wall time in ms, monotonic."""
        return self._loop.time() * 1000

    # --- life ---

    def open(self) -> None:
        """Announce the session and open the ears. Raises EngineUnavailable."""
        self._set_input(self._settings)
        self.hearing.open()
        self.hearing.tap = self._tap
        self.tell(e.Opened(self.now(), secrets.token_hex(8), self._settings, self.limits, self._models))

    async def run(self) -> None:
        """Run the graph until the session ends. A node that dies ends the session, loudly."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = self._call.graph.start(group)
                await self._ended.wait()
                for task in tasks:
                    task.cancel()
        except* asyncio.CancelledError:
            self.tell(e.TransportClosed(self.now()))
            raise
        except* Exception as problems:
            log.exception("a node failed", exc_info=problems)
            if isinstance(self.state.phase, Active):
                self.tell(e.NodeFailed(self.now(), "internal_state_error", str(problems.exceptions[0])))
        finally:
            log.info("%s ended: %s, after %.1f s of input", self.state.id, self._end_reason, self.heard_s)
            await self._release()

    async def _release(self) -> None:
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        self.hearing.close()
        self.mouth.close()
        if self._watch is not None:
            self._watch.end()
        if self._hands is not None:
            self._hands.close()
        await self._source.close()

    # --- the client's side ---

    def receive(self, raw: str | bytes) -> None:
        """One client event."""
        if self._watch is not None:
            self._watch.client_event(raw)
        message = read(raw, self.now(), self.state.settings.input_format)
        if isinstance(message, Append):
            if self._transport.carries_audio:
                told = "audio comes over the call's own track"
                self.tell(e.ClientFault(self.now(), "invalid_event", told, "audio", message.event_id))
            else:
                self.append(message.audio, message.event_id)
        else:
            if isinstance(message, e.UpdateSession) and not self._chosen:
                self._choose(raw)
            self.tell(message)

    def _choose(self, raw: str | bytes) -> None:
        """The first update that is accepted says which dialect this client speaks."""
        self._chosen = True
        dialect = of_first_update(json.loads(raw)["session"])
        self._encoder.dialect = dialect
        self.hearing.show_partials(dialect == "extended")

    def append(self, audio: bytes, event_id: str | None = None) -> None:
        """Input audio in the session's input format."""
        if self._room_for_audio(event_id):
            self.hearing.append(audio)

    def told_load(self, is_busy: bool) -> None:
        """How busy the server is, from time to time."""
        if isinstance(self.state.phase, Active) and is_busy != self.state.is_busy:
            self.tell(e.LoadChanged(self.now(), is_busy))

    def key(self, key: str) -> None:
        """A key of the caller's telephone; a tool that waits for keys gets it."""
        taken = self._hands is not None and self._hands.key(key)
        self.tell(e.KeyPressed(self.now(), key, int(time.time()), taken))

    def append_samples(self, x: F32) -> None:
        """Input audio from a track: 16 kHz float32. A track does not stop when the buffer is full: said once."""
        if self._room_for_audio(None, say=not self._said_full):
            self._said_full = False
            self.hearing.append_samples(x)
        else:
            self._said_full = True

    def _room_for_audio(self, event_id: str | None, say: bool = True) -> bool:
        """Whether input can be taken; that the buffer is full is an error event where `say` is set."""
        s = self.state
        full = s.settings.turn_detection is None and s.audio_ms - s.buffer_start_ms > s.settings.max_manual_ms
        if full and say:
            message = f"the input buffer is limited to {s.settings.max_manual_ms} ms; commit or clear it"
            self.tell(e.ClientFault(self.now(), "input_audio_buffer_full", message, "audio", event_id))
        return not full and isinstance(s.phase, Active)

    def describe(self) -> str:
        """A `session.created` of the session as it is now, for who joins later."""
        text = self._encoder.encode(a.SessionCreated(self.state.id, self.state.settings))
        assert text is not None
        return text

    @property
    def session_id(self) -> str:
        return self.state.id

    @property
    def heard_s(self) -> float:
        """Input audio taken so far, in seconds."""
        return self.state.audio_ms / 1000

    @property
    def _end_reason(self) -> str:
        return self.state.phase.reason if isinstance(self.state.phase, Terminated) else "internal_state_error"

    @property
    def is_over(self) -> bool:
        return isinstance(self.state.phase, Terminated)

    # --- the machine ---

    def tell(self, ev: e.Input) -> None:
        """Hand an input to the machine and do what follows from it."""
        self._inputs.append(ev)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs:
                self._step(self._inputs.popleft())
        finally:
            self._stepping = False

    def _step(self, ev: e.Input) -> None:
        try:
            state, effects = step(self.state, ev)
            check_state(state)
            check_step(self.state, state)
        except Exception:  # our bug: it ends this session and no other
            log.exception("internal state error on %s in state %r", type(ev).__name__, self.state)
            self._collapse()
            return
        self.state = state
        if self._watch is None and self._inspections is not None:
            self._watch = self._inspections(state.id)
        if self._watch is not None:
            self._watch.step(ev, state, effects)
        for effect in effects:
            self._do(effect)

    def _collapse(self) -> None:
        """The machine cannot go on: say so on the wire and end."""
        self._inputs.clear()
        if isinstance(self.state.phase, Terminated):
            return
        self._emit(a.ErrorEvent("internal_state_error", "the session's state is damaged; it ends here"))
        self._emit(a.SessionDone("internal_state_error"))
        self._close(1011, "internal_state_error")

    def _do(self, effect: f.Effect) -> None:
        match effect:
            case f.Emit(event):
                self._emit(event)
            case f.Inspect(lane, kind, payload):
                log.debug("%s %s.%s %s", self.state.id, lane, kind, payload)
            case f.StartTimer(key, due, token):
                self._cancel_timer(key)
                self._timers[key] = self._loop.call_at(due / 1000, self._fire, key, token)
            case f.CancelTimer(key):
                self._cancel_timer(key)
            case f.StartStt():
                self.hearing.start(effect)
            case f.PrepareStt():
                self.hearing.prepare(effect)
            case f.FlushStt():
                self.hearing.flush(effect)
            case f.AskPartial(item_id):
                self.hearing.ask_partial(item_id)
            case f.StopStt(item_id):
                self.hearing.stop(item_id)
            case f.SealBuffer():
                self.hearing.seal(effect)
                self.hearing.drop(effect.end_ms)
            case f.DropAudio(before_ms):
                self.hearing.drop(before_ms)
            case f.FeedSilence(ms):
                self.hearing.fill(ms)
            case f.PrepareEou():
                self.hearing.finished.prepare_sound(effect)
            case f.AskEou():
                self.hearing.finished.ask_sound(effect)
            case f.PrepareEouText():
                self.hearing.finished.prepare_context(effect)
            case f.AskEouText():
                self.hearing.finished.ask_words(effect)
            case f.StartChat() | f.SayLine():
                self.epochs.admit(effect.epoch)
                self._call.prompts.send_nowait(effect)
            case f.HoldOutput(epoch):
                self.playout.hold(epoch)
            case f.ReleaseOutput(epoch):
                self.playout.release(epoch)
            case f.PrimeChat():
                self._source.prime(effect)
            case f.RunTool(call_id, name):
                if self._hands is not None:
                    self._hands.run(effect)
                else:
                    self.tell(e.ToolDone(self.now(), call_id, f"there is no tool {name}", "failed"))
            case f.CancelTool(call_id):
                if self._hands is not None:
                    self._hands.cancel(call_id)
            case f.RetireEpoch(epoch):
                self.epochs.retire(epoch)
            case f.FlushOutput(epoch):
                self.playout.flush(epoch)
            case f.Close(code, reason):
                self._close(code, reason)

    def _emit(self, event: a.ServerEvent) -> None:
        audio = self.playout.frame if isinstance(event, a.AudioDelta) else b""
        if self._watch is not None and isinstance(event, a.AudioDelta):
            self._watch.spoke(self.playout.pcm, self.playout.frame_at, event.item_id)
        if audio and self._transport.carries_audio:
            self._transport.send_audio(audio)
            return
        if isinstance(event, a.SessionUpdated):
            self._set_input(event.settings)
        text = self._encoder.encode(event, audio)
        if text is not None:
            if self._watch is not None and not isinstance(event, a.AudioDelta):
                self._watch.server_event(text)
            self._transport.send(text)

    def _tap(self, x: F32) -> None:
        if self._watch is not None:
            self._watch.heard(x, self.now())

    def _set_input(self, settings: Settings) -> None:
        self.hearing.set_format(settings.input_format)
        reduction = settings.noise_reduction
        self.hearing.set_noise_reduction(None if reduction is None else reduction["type"])

    def _close(self, code: int, reason: str) -> None:
        self._transport.close(code, reason)
        self._ended.set()

    def _fire(self, key: str, token: int) -> None:
        self._timers.pop(key, None)
        self.tell(e.TimerFired(self.now(), key, token))

    def _cancel_timer(self, key: str) -> None:
        if (handle := self._timers.pop(key, None)) is not None:
            handle.cancel()
