"""The ears of a session: input audio to the engine's vad and stt lanes, and their answers to the machine.

Keeps the recent audio, so that an utterance can be transcribed from before its onset and a new engine can go on where
the old one was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bargein.engine import protocol as p
from bargein.engine.client import EngineStream, EngineUnavailable
from bargein.engine.fleet import Engine
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.ids import ItemId

from ..audio import F32, IN_RATE, Decoder, InputStore, NoiseReducer
from .finished import Finished

log = logging.getLogger("bargein.hearing")

Tell = Callable[[e.Input], None]
Now = Callable[[], float]

PER_MS = IN_RATE // 1000
WINDOW = 512  # samples that the vad lane takes at once
# Words are shown while they are spoken, but on a busy machine what decides when a reply begins goes before: the next
# are asked for when five times as long has passed as they take to come.
PARTIAL_EVERY_MS, PARTIAL_SHARE, PARTIAL_RARELY_MS = 600, 5, 3000
SHOWN_DUE_MS = 800
RETRY_S = 0.1
# An utterance's audio is sent along with what is asked about it, and each second: every message wakes another process.
FEED_EVERY = IN_RATE
PARTIAL_TAG, AHEAD_TAG = -1, -2  # of what the machine did not ask for by number; from the second on downwards


@dataclass(slots=True)
class Utterance:
    """One stretch of speech on its way to words. `asked`: the flushes that are waiting, by number."""

    item_id: ItemId
    start: int  # sample position
    params: dict[str, object]
    stream: EngineStream | None = None
    fed: int = 0  # position up to which the stream has audio
    sealed_at: int | None = None
    asked: dict[int, p.Transcribe] = field(default_factory=dict)
    last_partial_at: int = 0
    prepared: dict[int, int] = field(default_factory=dict)  # words asked for ahead: tag -> end of the voice, ms
    partial_end: int | None = None  # where the partial that is asked for ends
    partial_again: bool = False  # and one more is wanted after it


class Hearing:
    """Driven by `append` (audio from the transport) and by the machine's effects; answers through `tell`."""

    def __init__(
        self, engine: Engine, tell: Tell, now: Now, input_format: str, *, partials: bool, chat_is_local: bool = True
    ) -> None:
        self._engine, self._tell, self._now, self._partials = engine, tell, now, partials
        self._partial_took_ms = 0
        self._decoder = Decoder(input_format)
        self._reducer: NoiseReducer | None = None
        self.store = InputStore()
        self._vad: EngineStream | None = None
        self._vad_base = 0  # position of the vad stream's first sample
        self._vad_fed = 0  # and up to which it has audio
        self._utterances: dict[ItemId, Utterance] = {}
        self._lost = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.tap: Callable[[F32], None] = lambda x: None  # hears everything, for the inspector
        self.finished = Finished(engine, self.store, tell, now, self._on_lost, chat_is_local=chat_is_local)

    def open(self) -> None:
        """Open the vad stream. Raises EngineUnavailable."""
        self._vad_base = self._vad_fed = self.store.end
        self._vad = self._engine.open("vad", {}, on_result=self._windows, on_failed=self._vad_failed, on_lost=self._on_lost)

    def close(self) -> None:
        self._closed = True
        for utterance in list(self._utterances.values()):
            self._end(utterance)
        self.finished.close()
        if self._vad is not None:
            self._vad.close()
        for task in self._tasks:
            task.cancel()

    # --- audio ---

    def show_partials(self, wanted: bool) -> None:
        """Whether words are asked for while somebody speaks, for the client to see."""
        self._partials = wanted

    def set_format(self, input_format: str) -> None:
        if input_format != self._decoder.fmt:
            self._decoder = Decoder(input_format)

    def set_noise_reduction(self, kind: str | None) -> None:
        """`near_field`, `far_field` or None; from the next audio on."""
        if kind != (self._reducer.kind if self._reducer else None):
            self._reducer = None if kind is None else NoiseReducer(kind)

    def append(self, data: bytes) -> None:
        """Take bytes in the session's input format."""
        self.append_samples(self._decoder.decode(data))

    def append_samples(self, x: F32) -> None:
        """Take 16 kHz samples in [-1, 1]."""
        if self._reducer is not None:
            x = self._reducer.process(x)
        if len(x) == 0:
            return
        self._take(x, filled=False)

    def fill(self, ms: int) -> None:
        """Silence in place of input that did not come."""
        self._take(np.zeros(ms * PER_MS, np.float32), filled=True)

    def _take(self, x: F32, *, filled: bool) -> None:
        self.tap(x)
        self.store.append(x)
        self._tell(e.AudioAppended(self._now(), self.store.end // PER_MS, filled))
        self._feed_vad()
        for utterance in self._utterances.values():
            if utterance.sealed_at is None:
                if self.store.end - utterance.fed >= FEED_EVERY:
                    self._feed(utterance, self.store.end)
                self._maybe_partial(utterance)

    # --- vad ---

    def _feed_vad(self) -> None:
        """Whole windows: less is of no use to it."""
        end = self.store.end - (self.store.end - self._vad_base) % WINDOW
        if self._vad is not None and end > self._vad_fed:
            self._vad.feed(0, p.Audio(self.store.read(self._vad_fed, end).tobytes()))
            self._vad_fed = end

    def _windows(self, tag: int, body: p.Answer) -> None:
        assert isinstance(body, p.Windows)
        end = self._vad_base + body.end_sample
        n = len(body.probs)
        for k, (prob, level) in enumerate(zip(body.probs, body.levels_db, strict=True)):
            at_sample = end - (n - 1 - k) * WINDOW
            self._tell(e.VadWindow(self._now(), at_sample // PER_MS, prob, level))

    def _vad_failed(self, tag: int | None, message: str) -> None:
        self._tell(e.NodeFailed(self._now(), "vad_failed", message))

    # --- stt ---

    def start(self, effect: f.StartStt) -> None:
        params: dict[str, object] = {"language": effect.language, "prompt": effect.prompt}
        utterance = Utterance(effect.item_id, effect.start_ms * PER_MS, params)
        utterance.start = max(utterance.start, self.store.start)
        utterance.last_partial_at = self.store.end
        self._partial_took_ms = self._partial_took_ms * 3 // 4  # what is slow may have become faster
        self._utterances[effect.item_id] = utterance
        self._connect(utterance)

    def _connect(self, utterance: Utterance) -> None:
        """Open the utterance's stream and bring it up to date."""
        item_id = utterance.item_id
        utterance.fed, utterance.partial_end = utterance.start, None
        try:
            utterance.stream = self._engine.open(
                "stt",
                utterance.params,
                on_result=lambda tag, body: self._words(item_id, tag, body),
                on_failed=lambda tag, message: self._stt_failed(item_id, tag, message),
                on_lost=self._on_lost,
            )
        except EngineUnavailable:
            utterance.stream = None
            self._on_lost()
            return
        end = self.store.end if utterance.sealed_at is None else utterance.sealed_at
        self._feed(utterance, end)
        for tag, body in utterance.asked.items():
            utterance.stream.feed(tag, body)

    def _feed(self, utterance: Utterance, end: int) -> None:
        if utterance.stream is not None and end > utterance.fed:
            utterance.stream.feed(0, p.Audio(self.store.read(utterance.fed, end).tobytes()))
            utterance.fed = end

    def prepare(self, effect: f.PrepareStt) -> None:
        utterance = self._utterances.get(effect.item_id)
        if utterance is not None:
            tag = AHEAD_TAG - len(utterance.prepared)
            utterance.prepared[tag] = effect.voiced_ms
            self._ask(effect.item_id, tag, effect.end_ms, effect.voiced_ms, "prepare")

    def flush(self, effect: f.FlushStt) -> None:
        self._ask(effect.item_id, effect.flush, effect.end_ms, effect.voiced_ms, "final")

    def _ask(self, item_id: ItemId, tag: int, end_ms: int, voiced_ms: int, kind: str) -> None:
        utterance = self._utterances.get(item_id)
        if utterance is None:
            return
        end, voiced = (max(ms * PER_MS - utterance.start, 0) for ms in (end_ms, voiced_ms))
        if kind == "final":
            body = p.Transcribe(end, voiced, "final")
            utterance.asked[tag] = body
        else:
            body = p.Transcribe(end, voiced, "prepare")
        utterance.partial_end, utterance.partial_again = None, False  # an open partial gives way
        if utterance.stream is not None:
            self._feed(utterance, self.store.end if utterance.sealed_at is None else utterance.sealed_at)
            utterance.stream.feed(tag, body)

    def _maybe_partial(self, utterance: Utterance) -> None:
        """What the client sees while somebody speaks; it may wait."""
        every_ms = min(max(PARTIAL_EVERY_MS, PARTIAL_SHARE * self._partial_took_ms), PARTIAL_RARELY_MS)
        due = self.store.end - utterance.last_partial_at >= every_ms * PER_MS
        if self._partials and due and utterance.partial_end is None:
            self._partial(utterance, SHOWN_DUE_MS)

    def ask_partial(self, item_id: ItemId) -> None:
        """What decides whether a reply goes on; it is urgent."""
        utterance = self._utterances.get(item_id)
        if utterance is None:
            return
        if utterance.partial_end is not None:
            utterance.partial_again = True
        else:
            self._partial(utterance, due_ms=0)

    def _partial(self, utterance: Utterance, due_ms: float) -> None:
        if utterance.stream is None:
            return
        utterance.last_partial_at = utterance.partial_end = self.store.end
        num = self.store.end - utterance.start
        self._feed(utterance, self.store.end)
        utterance.stream.feed(PARTIAL_TAG, p.Transcribe(num, num, "partial"), due_ms)

    def _words(self, item_id: ItemId, tag: int, body: p.Answer) -> None:
        utterance = self._utterances.get(item_id)
        if utterance is None or not isinstance(body, p.Words):
            return
        if tag == PARTIAL_TAG:
            end, again = utterance.partial_end, utterance.partial_again
            utterance.partial_end, utterance.partial_again = None, False
            if end is None:  # a final was asked for meanwhile
                return
            self._partial_took_ms = (self.store.end - end) // PER_MS
            if again:
                self._partial(utterance, due_ms=0)
            scores = (body.avg_logprob, body.no_speech_prob)
            self._tell(e.SttPartial(self._now(), item_id, body.text, body.stable_chars, end // PER_MS, *scores))
            return
        transcript = e.Transcript(body.text, body.avg_logprob, body.no_speech_prob, body.near)
        if tag <= AHEAD_TAG:
            if utterance.sealed_at is None:
                voiced_ms = utterance.prepared[tag]
                self.finished.prepare_words(
                    body.text, lambda p: self._tell(e.WordsAhead(self._now(), item_id, voiced_ms, transcript, p))
                )
            return
        utterance.asked.pop(tag, None)
        self._tell(e.SttStopTranscript(self._now(), item_id, tag, transcript))
        self._finish(utterance)

    def _stt_failed(self, item_id: ItemId, tag: int | None, message: str) -> None:
        utterance = self._utterances.get(item_id)
        if utterance is None:
            return
        log.warning("transcription failed: %s", message)
        utterance.partial_end, utterance.partial_again = None, False
        for flush in list(utterance.asked) if tag is None else [tag]:
            if utterance.asked.pop(flush, None) is not None:
                self._tell(e.SttFailed(self._now(), item_id, flush, message))
        self._finish(utterance)

    def _finish(self, utterance: Utterance) -> None:
        """A sealed utterance with nothing left to answer is over."""
        if utterance.sealed_at is not None and not utterance.asked:
            self._end(utterance)

    def _end(self, utterance: Utterance) -> None:
        self._utterances.pop(utterance.item_id, None)
        if utterance.stream is not None:
            utterance.stream.close()

    def seal(self, effect: f.SealBuffer) -> None:
        """The utterance's audio is complete."""
        self.finished.settle()
        utterance = self._utterances.get(effect.item_id)
        if utterance is not None:
            utterance.sealed_at = effect.end_ms * PER_MS
            self._finish(utterance)

    def stop(self, item_id: ItemId) -> None:
        utterance = self._utterances.get(item_id)
        if utterance is not None:
            self._end(utterance)

    def drop(self, before_ms: int) -> None:
        """Audio before this is needed only by utterances that are not done."""
        oldest = min((u.start for u in self._utterances.values()), default=self.store.end)
        self.store.drop(min(before_ms * PER_MS, oldest))

    # --- losing the engine ---

    def _on_lost(self) -> None:
        if self._lost or self._closed:
            return
        self._lost = True
        self._tell(e.EngineLost(self._now()))
        task = asyncio.get_running_loop().create_task(self._reconnect(), name="reconnect")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reconnect(self) -> None:
        """Wait for an engine, then go on: vad from the audio that came meanwhile, transcripts from their start."""
        resume = self.store.end
        while not self._engine.ready:
            await asyncio.sleep(RETRY_S)
        self._lost = False
        try:
            self.open()
        except EngineUnavailable:
            return
        self._vad_base = self._vad_fed = max(resume, self.store.start)
        self._feed_vad()
        for utterance in list(self._utterances.values()):
            self._connect(utterance)
        self._tell(e.EngineBack(self._now()))
