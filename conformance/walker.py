"""A seeded walker: every kind of input in every phase, at random; the same seed walks the same way."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Literal

from bargein.realtime import effects as f
from bargein.realtime import events as e
from bargein.realtime.conversation import FunctionOutput, SpokenWord
from bargein.realtime.detector import Voiced
from bargein.realtime.ids import Epoch, ItemId
from bargein.realtime.settings import Agent, Limits, parse
from bargein.realtime.state import Candidate, Held, Speaking, Stopped, Terminated, live
from bargein.realtime.wire import Encoder

from .play import Play, user

UPDATES = [
    {"turn_detection": None},
    {"turn_detection": {"type": "server_vad"}},
    {"turn_detection": {"type": "semantic_vad", "barge_in_delay_ms": 200}},
    {"turn_detection": {"type": "semantic_vad", "barge_in_delay_ms": 0, "interrupt_response": False}},
    {"turn_detection": {"type": "semantic_vad", "interrupt_response": True, "create_response": True}},
    {"eou": {"kind": "fusion", "fusion_rule": "gated"}},
    {"eou": {"kind": "text"}},
    {"eou": {"kind": "heuristic", "stack_silence": True}},
    {"barge_in": {"mode": "off"}},
    {"barge_in": {"mode": "cancel"}},
    {"barge_in": {"mode": "hold"}},
    {"barge_in": {"mode": "hold", "min_words": 2, "unworded_ms": 300}},
    {"barge_in": {"hold_cap_ms": 400, "boundary_ms": 0}},
    {"turn_detection": {"type": "semantic_vad", "min_speech_duration_ms": 500}},
    {"turn_detection": {"type": "semantic_vad", "min_speech_duration_ms": 0}},
    {"barge_in": {"backchannels": ["so far"]}},
    {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5000}},
    {"truncation": {"type": "retention_ratio", "retention_ratio": 0.5}},
    {"truncation": "disabled"},
    {"output_modalities": ["text"]},
    {"output_modalities": ["audio"]},
    {"output_modalities": ["audio"]},
    {"output_modalities": ["audio"]},
    {"min_speech_ms": 400},
    {"max_utterance_ms": 2000},
    {"instructions": "x"},
    {"profile": "fast"},
    {"eou": {"kind": "vad", "stack_silence": True}},
    {"barge_in": {"mode": "cancel"}, "turn_detection": {"type": "semantic_vad", "barge_in_delay_ms": 1000}},
]


TIMERS = ["commit", "hard_cap", "drain_cap", "barge_in", "hold_cap", "partial", "input_gap", "idle",
          "greeting", "filler", "first_token", "keys"]  # fmt: skip


class Walker:
    """Plays the client, the sound, the engine and the pacer, all at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        limits = Limits(session_idle_timeout_s=self.rng.choice([None, None, 600]), context_tokens=700)
        agent = Agent(
            greeting=self.rng.choice(["", "", "Hello there."]),
            tools=({"type": "function", "name": "work", "cancel_on_barge_in": self.rng.random() < 0.5},),
            filler="One moment.", apology="Sorry.", farewell="Bye.",
            say_on_failure=self.rng.choice(["", "Once more?"]),
        )  # fmt: skip
        self.p = Play(limits=limits, agent=agent)
        self.played: dict[int, int] = {}
        for _ in range(self.rng.randrange(4)):  # walks begin in different places, or many settings are never met
            self.p.tell(e.UpdateSession(self.p.at, parse(self.rng.choice(UPDATES))))

    def epoch(self) -> Epoch:
        """Mostly the living one, sometimes a stale or an unknown one."""
        return Epoch(max(0, self.p.state.epoch - self.rng.choice([0, 0, 0, 0, 1, 2, -1])))

    def item(self) -> str:
        items = self.p.state.conversation.items
        return self.rng.choice(items).id if items and self.rng.random() < 0.8 else "item_nowhere"

    def step(self) -> None:
        p, rng = self.p, self.rng
        at, epoch = p.at, self.epoch()
        asked = [x for x in p.effects if isinstance(x, f.FlushStt)][-3:]
        eou = [x for x in p.effects if isinstance(x, f.AskEou | f.AskEouText)][-3:]
        resp = live(p.state.resp)
        moves: list[Callable[[], object]] = [
            lambda: p.speech(rng.choice([32, 96, 320, 960])),
            lambda: p.silence(rng.choice([32, 96, 400, 800])),
            lambda: p.advance(rng.choice([1, 20, 300, 6000])),
            lambda: p.tell(e.UpdateSession(at, parse(rng.choice(UPDATES)))),
            lambda: p.tell(e.CommitBuffer(at, "evt_c")),
            lambda: p.tell(e.ClearBuffer(at)),
            lambda: p.tell(e.CreateItem(at, user("hi"), rng.choice([None, None, "root", self.item()]))),
            lambda: p.tell(e.CreateItem(at, FunctionOutput(ItemId(""), "call_1", "42"))),
            lambda: p.tell(e.RetrieveItem(at, self.item())),
            lambda: p.tell(e.DeleteItem(at, self.item())),
            lambda: p.tell(e.TruncateItem(at, self.item(), 0, rng.randrange(3000))),
            lambda: p.tell(e.CreateResponse(at, e.ResponseParams(text_only=rng.choice([None, None, None, True])))),
            lambda: p.tell(e.CreateResponse(at, e.ResponseParams(out_of_band=True, text_only=True))),
            lambda: p.tell(e.CreateResponse(at, e.ResponseParams(input=(e.ItemReference(self.item()), user("x"))))),
            lambda: p.tell(e.CancelResponse(at, rng.choice([None, None, "resp_x"]))),
            lambda: p.tell(e.ClearOutput(at)),
            lambda: p.tell(e.ClientFault(at, "invalid_event", "bad")),
            lambda: p.tell(e.ChatFailed(at, epoch, "x")) if rng.random() < 0.1 else None,
            lambda: p.tell(e.SpeechFailed(at, epoch, "x")) if rng.random() < 0.1 else None,
            lambda: p.tell(e.EngineLost(at)) if rng.random() < 0.03 else None,
            lambda: p.tell(e.EngineBack(at)),
            lambda: p.tell(e.SettingsRefused(at, "session.x", "unknown", "session_update_invalid", "evt_s")),
            lambda: p.tell(e.NodeFailed(at, "client_too_slow", "x")) if rng.random() < 0.01 else None,
            lambda: p.tell(e.DrainRequested(at)) if rng.random() < 0.01 else None,
            lambda: p.tell(e.TransportClosed(at)) if rng.random() < 0.01 else None,
            lambda: p.tell(e.TimerFired(at, rng.choice(TIMERS), 1)),
            lambda: p.tell(e.CloseSession(at)) if rng.random() < 0.01 else None,
            lambda: p.tell(e.Say(at, "A line.")),
            lambda: p.tell(e.ToolDone(at, self.work(), "42", self.outcome())),
            lambda: p.tell(e.KeyPressed(at, rng.choice("12#"), 1700000000, rng.random() < 0.2)),
        ]
        chat: list[Callable[[], object]] = [
            lambda: p.tell(e.ChatDelta(at, epoch, " word")),
            lambda: p.tell(e.ToolDelta(at, epoch, rng.choice(("call_x", "call_y")), rng.choice(("look", "work")), '{"a":')),
            lambda: p.tell(e.ChatDone(at, epoch, self.calls(), rng.random() < 0.1, 5, 5, 0)),
            lambda: self.plan(epoch),
            lambda: p.tell(e.SpeechDone(at, epoch)),
            lambda: self.frames(epoch),
            lambda: p.tell(e.PlayoutDrained(at, epoch, self.played.get(epoch, 0))),
        ]
        moves += chat * (8 if resp else 1)
        moves += [moves[0], moves[1]] * 4
        if asked:
            x = rng.choice(asked)
            text = rng.choice(["", "Yes.", "What time is it?"])
            words = e.Transcript(text, -0.2, rng.choice([0.0, 0.9]))
            moves += [lambda: p.tell(e.SttStopTranscript(at, x.item_id, x.flush, words))] * 4
            moves += [lambda: p.tell(e.SttFailed(at, x.item_id, x.flush, "no"))]
        vad = p.state.vad
        if isinstance(vad, Candidate | Speaking | Stopped):
            text = rng.choice(["", "Mm-hm.", "so far", "Stop that now."])
            stable, gate = rng.choice([0, len(text)]), (-0.2, rng.choice([0.0, 0.9]))
            moves += [lambda: p.tell(e.SttPartial(at, vad.item_id, text, stable, p.audio_ms, *gate))] * 3
            moves += [lambda: self.ahead(vad.item_id)] * 3
        moves += [lambda: p.tell(e.LoadChanged(at, rng.random() < 0.3))]
        if eou:
            y = rng.choice(eou)
            head: Literal["audio", "words"] = "audio" if isinstance(y, f.AskEou) else "words"
            moves += [lambda: p.tell(e.EouVerdict(at, y.item_id, y.ask, rng.choice([None, 0.1, 0.9, 2.0]), head))] * 3
        rng.choice(moves)()

    def ahead(self, item_id: ItemId) -> None:
        """The words of a silence that is no stop yet, of this one mostly."""
        phase, rng = self.p.state.detector.phase, self.rng
        voiced_ms = phase.last_voiced_ms if isinstance(phase, Voiced) and rng.random() < 0.8 else 32
        words = e.Transcript(rng.choice(["", "Yes.", "What time is it?"]), -0.2, rng.choice([0.0, 0.0, 0.9]))
        self.p.tell(e.WordsAhead(self.p.at, item_id, voiced_ms, words, rng.choice([None, 0.1, 0.9, 0.9, 2.0])))

    def work(self) -> str:
        """A call that runs at the server, mostly."""
        running = self.p.state.work
        return self.rng.choice(running).call_id if running and self.rng.random() < 0.9 else "call_nowhere"

    def outcome(self) -> Literal["answered", "failed", "quiet", "ended"]:
        return "ended" if self.rng.random() < 0.02 else self.rng.choice(("answered", "failed", "quiet"))

    def calls(self) -> tuple[e.ToolCall, ...]:
        names = self.rng.choice([(), (), (), ("look",), ("work",), ("work", "work"), ("look", "work")])
        ids = (self.rng.choice(("call_x", f"call_{self.rng.random()}")), f"call_{self.rng.random()}")
        return tuple(e.ToolCall(i, name, '{"a":1}') for i, name in zip(ids, names, strict=False))

    def plan(self, epoch: Epoch) -> None:
        resp = live(self.p.state.resp)
        start = resp.voice.planned_ms if resp is not None else 0
        words = tuple(SpokenWord(f" w{n}", start + 200 * n, start + 200 * (n + 1)) for n in range(3))
        self.p.tell(e.PhrasePlanned(self.p.at, epoch, words, start + 600))

    def frames(self, epoch: Epoch) -> None:
        resp = live(self.p.state.resp)
        if resp is None or not resp.plan.spoken:
            return
        for _ in range(self.rng.randrange(1, 20)):
            resp = live(self.p.state.resp)
            if resp is None or resp.plan.epoch != epoch or resp.voice.written_ms >= resp.voice.planned_ms:
                return
            if isinstance(self.p.state.resp, Held):  # the pacer waits
                return
            written = resp.voice.written_ms + 20
            self.played[epoch] = written
            self.p.tell(e.FrameDue(self.p.at, epoch, written, written - 20, self.rng.uniform(-60, -10)))
            self.p.advance(20)


def walk(seed: int, steps: int) -> Walker:
    """A session of `steps` random moves, its state checked after each. Raises what the machine raises."""
    w = Walker(seed)
    for _ in range(steps):
        w.step()
        if isinstance(w.p.state.phase, Terminated):
            break
    if not isinstance(w.p.state.phase, Terminated):
        w.p.tell(e.CloseSession(w.p.at))
    return w


def trace(w: Walker) -> list[dict[str, Any]]:
    """What a walk put on the wire."""
    encoder = Encoder("extended")
    return [json.loads(encoder.encode(ev, b"\0" * 960) or "{}") for ev in w.p.events()]
