"""Drives the turn machine: time is a number, sound is a list of windows, effects are compared as data."""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from bargein.realtime import alphabet as a
from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import Message, Part, SpokenWord
from bargein.realtime.ids import Epoch, ItemId
from bargein.realtime.invariants import check_state, check_step
from bargein.realtime.machine import step
from bargein.realtime.settings import Agent, Limits, Settings, apply, parse
from bargein.realtime.state import Active, Session, Silent, Stopped


def phases(s: Session) -> str:
    """The state as its variants: "Speaking.Idle", or "Pending", "Terminated"."""
    if not isinstance(s.phase, Active):
        return type(s.phase).__name__
    return f"{type(s.vad).__name__}.{type(s.resp).__name__}"


class Play:
    """A session played by hand. `at` is the wall clock (ms); input audio runs with it."""

    def __init__(self, *, limits: Limits | None = None, agent: Agent | None = None, **settings: Any) -> None:
        self.state = Session()
        self.pairs: set[tuple[str, str]] = set()  # (phases, input) that were met
        self.at = 1000.0
        self.audio_ms = 0
        self.filled_ms = 0
        self.effects: list[f.Effect] = []
        self.timers: dict[str, tuple[float, int]] = {}
        # One head, answered by hand, unless a test is about the others.
        start = apply(Settings(), parse({"eou": {"kind": "audio"}}))
        start = replace(apply(start, parse(settings)), agent=agent or Agent())
        self.tell(e.Opened(self.at, "seed", start, limits or Limits()))

    # --- inputs ---

    def tell(self, ev: e.Input) -> list[f.Effect]:
        before = self.state
        self.pairs.add((phases(before), type(ev).__name__))
        self.state, effects = step(before, ev)
        check_state(self.state)
        check_step(before, self.state)
        fill = 0
        for x in effects:
            if isinstance(x, f.FeedSilence):
                fill += x.ms
            if isinstance(x, f.StartTimer):
                self.timers[x.key] = (x.due, x.token)
            elif isinstance(x, f.CancelTimer):
                self.timers.pop(x.key, None)
        self.effects += effects
        if fill:
            self._fill(fill)
        return list(effects)

    def _fill(self, ms: int) -> None:
        """Silence in place of input, as the ears put it there: VAD hears every whole window of it."""
        self.filled_ms += ms
        while self.filled_ms >= 32:
            self.filled_ms -= 32
            self.audio_ms += 32
            self.tell(e.AudioAppended(self.at, self.audio_ms, True))
            self.tell(e.VadWindow(self.at, self.audio_ms, 0.01, -90.0))

    def advance(self, ms: float) -> None:
        """Let time pass; timers fire when they are due."""
        end = self.at + ms
        while True:
            due = min(((d, k) for k, (d, _) in self.timers.items()), default=(float("inf"), ""))
            if due[0] > end:
                break
            self.at = max(self.at, due[0])
            _, token = self.timers.pop(due[1])
            self.tell(e.TimerFired(self.at, due[1], token))
        self.at = end

    def sound(self, ms: int, prob: float, level_db: float = -20.0) -> None:
        """`ms` of input at one speech probability, in windows of 32 ms."""
        for _ in range(ms // 32):
            self.advance(32)
            self.audio_ms += 32
            self.tell(e.AudioAppended(self.at, self.audio_ms))
            self.tell(e.VadWindow(self.at, self.audio_ms, prob, level_db))

    def speech(self, ms: int) -> None:
        self.sound(ms, 0.95)

    def silence(self, ms: int) -> None:
        self.sound(ms, 0.01, -70.0)

    def words(self, text: str, *, item_id: str | None = None, flush: int | None = None, **scores: float) -> None:
        """Answer the newest flush."""
        asked = [x for x in self.effects if isinstance(x, f.FlushStt)][-1]
        transcript = e.Transcript(text, scores.get("avg_logprob", -0.2), scores.get("no_speech_prob", 0.01))
        self.tell(e.SttStopTranscript(self.at, ItemId(item_id or asked.item_id), flush or asked.flush, transcript))

    def load(self, is_busy: bool) -> None:
        """The server has become busy, or no longer is."""
        self.tell(e.LoadChanged(self.at, is_busy))

    def ahead(self, text: str, p: float | None = 1.0, **scores: float) -> None:
        """Answer the newest `PrepareStt`: the words up to a silence that is no stop yet."""
        asked = [x for x in self.effects if isinstance(x, f.PrepareStt)][-1]
        transcript = e.Transcript(text, scores.get("avg_logprob", -0.2), scores.get("no_speech_prob", 0.01))
        self.tell(e.WordsAhead(self.at, asked.item_id, asked.voiced_ms, transcript, p))

    def fail_words(self, flush: f.FlushStt) -> None:
        """The flush was not answered but failed."""
        self.tell(e.SttFailed(self.at, flush.item_id, flush.flush, "broken"))

    def partial(self, text: str, stable: int | None = None, **scores: float) -> None:
        """STT says what the open utterance holds so far; all of it is stable unless told."""
        vad = self.state.vad
        assert not isinstance(vad, Silent)
        n = len(text) if stable is None else stable
        gate = (scores.get("avg_logprob"), scores.get("no_speech_prob"))
        self.tell(e.SttPartial(self.at, vad.item_id, text, n, self.audio_ms, *gate))

    def verdict(self, p: float | None, head: Literal["audio", "words"] = "audio") -> None:
        """Answer the newest question to the classifier of the sound, or of the words."""
        kind = f.AskEou if head == "audio" else f.AskEouText
        asked = [x for x in self.effects if isinstance(x, kind)][-1]
        self.tell(e.EouVerdict(self.at, asked.item_id, asked.ask, p, head))

    def turn(self, text: str, *, ms: int = 960, p: float = 1.0) -> None:
        """One whole user turn, up to its transcript."""
        self.speech(ms)
        self.silence(500)
        if isinstance(self.state.vad, Stopped):
            self.words(text)
            self.verdict(p)
            self.advance(1000)
        else:
            self.words(text)

    @property
    def epoch(self) -> Epoch:
        asked = [x for x in self.effects if isinstance(x, f.StartChat | f.SayLine)]
        return asked[-1].epoch if asked else self.state.epoch

    @property
    def prompt(self) -> list[tuple[str, str]]:
        """Role and content of what chat was last given."""
        return [(m.role, m.content) for m in [x for x in self.effects if isinstance(x, f.StartChat)][-1].messages]

    def line(self, *, word_ms: int = 200) -> str:
        """The agent's own line that was last begun, as the chat node and TTS bring it; returns its text."""
        text = [x for x in self.effects if isinstance(x, f.SayLine)][-1].text
        self.reply(text, word_ms=word_ms)
        return text

    def reply(self, text: str, *, word_ms: int = 200, done: bool = True) -> None:
        """Chat writes `text`, TTS plans it at `word_ms` a word."""
        self.tell(e.ChatDelta(self.at, self.epoch, text))
        pieces = [w if n == 0 else " " + w for n, w in enumerate(text.split(" "))]
        words = tuple(SpokenWord(w, n * word_ms, (n + 1) * word_ms) for n, w in enumerate(pieces))
        self.tell(e.PhrasePlanned(self.at, self.epoch, words, len(words) * word_ms))
        if done:
            self.tell(e.ChatDone(self.at, self.epoch, (), False, 10, len(words), 0))
            self.tell(e.SpeechDone(self.at, self.epoch))

    def play(self, ms: int, *, start_ms: int = 0, mic_silence: bool = False) -> None:
        """The pacer writes and plays `ms` of the reply in frames of 20 ms, with no lead."""
        epoch = self.epoch
        for n in range(start_ms // 20, (start_ms + ms) // 20):
            self.tell(e.FrameDue(self.at, epoch, (n + 1) * 20, n * 20))
            self.advance(20)

    def drained(self, ms: int) -> None:
        self.tell(e.PlayoutDrained(self.at, self.epoch, ms))

    # --- what came out ---

    def events(self) -> list[a.ServerEvent]:
        return [x.event for x in self.effects if isinstance(x, f.Emit)]

    def names(self) -> list[str]:
        """Event types in order, runs of deltas folded."""
        out: list[str] = []
        for x in self.events():
            name = type(x).__name__
            if not (out and out[-1] == name and name.endswith("Delta")):
                out.append(name)
        return out

    def of(self, kind: type) -> list[Any]:
        return [x for x in self.events() if isinstance(x, kind)]

    def mark(self) -> None:
        """Forget the effects so far."""
        self.effects.clear()


def user(text: str, item_id: str = "") -> Message:
    return Message(ItemId(item_id), "user", (Part("input_text", text),))
