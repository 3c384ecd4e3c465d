"""`bargein test`: plays scenarios against a server in real time and says which fail, and why."""

from __future__ import annotations

import argparse
import asyncio
import base64
import html
import json
import re
import shutil
import subprocess
import time
import urllib.request
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import soxr

from .audio import FRAME_MS, I16, RATE
from .scenario import Hear, Interrupt, Scenario, ScenarioError, Step, Voice, load
from .session import ConnectFailed, RealtimeClient, Seen, with_model
from .turns import Microphone, collect, settled

SETTLE_MS = 300  # a caller begins to speak so long after the agent has finished


@dataclass(slots=True)
class Result:
    """What came of a scenario. `failures`: step number and reason; `lines`: who said what, for the report."""

    scenario: Scenario
    failures: list[tuple[int, str]] = field(default_factory=list)
    lines: list[tuple[float, str, str]] = field(default_factory=list)
    seconds: float = 0.0
    audio: str = ""


class CallerVoice:
    """Says a caller's lines; each text once."""

    def __init__(self, url: str, key: str, voice: Voice) -> None:
        self._base = re.sub(r"^ws", "http", url.split("?")[0]).removesuffix("/realtime")
        self._key, self._voice = key, voice
        self._said: dict[str, I16] = {}

    async def say(self, text: str) -> I16:
        """24 kHz samples. Raises ScenarioError where nobody can say it."""
        if text not in self._said:
            make = self._espeak if self._voice.engine == "espeak" else self._server
            samples = await asyncio.to_thread(make, text)
            self._said[text] = _shifted(samples, self._voice.pitch)
        return self._said[text]

    def _server(self, text: str) -> I16:
        body = json.dumps({"model": "tts-1", "voice": "alloy", "input": text, "response_format": "pcm",
                           "speed": self._voice.speed}).encode()  # fmt: skip
        head = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        try:
            with urllib.request.urlopen(urllib.request.Request(self._base + "/audio/speech", body, head), timeout=60) as r:
                return np.frombuffer(r.read(), "<i2")
        except OSError as problem:
            raise ScenarioError(f"{self._base}/audio/speech: {problem}") from None

    def _espeak(self, text: str) -> I16:
        program = shutil.which("espeak-ng")
        if program is None:
            raise ScenarioError("voice.engine espeak: espeak-ng is not installed")
        rate = str(round(165 * self._voice.speed))
        done = subprocess.run([program, "-v", self._voice.variant, "-s", rate, "--stdout", text], capture_output=True)
        if done.returncode:
            raise ScenarioError(f"espeak-ng: {done.stderr.decode(errors='replace')[:200]}")
        pcm = np.frombuffer(done.stdout[44:], "<i2").astype(np.float32)
        samples: I16 = np.rint(soxr.resample(pcm, 22050, RATE)).astype(np.int16)
        return samples


def _shifted(x: I16, pitch: float) -> I16:
    if pitch == 1.0:
        return x
    y: I16 = np.rint(soxr.resample(x.astype(np.float32), RATE * pitch, RATE)).astype(np.int16)
    return y


class Player:
    """One scenario's call."""

    def __init__(self, scenario: Scenario, url: str, key: str) -> None:
        self.scenario = scenario
        address = with_model(url, scenario.agent)
        if scenario.variables:
            address = with_model(address, "", variables=json.dumps(scenario.variables))
        self.call = RealtimeClient(address, key)
        self.voice = CallerVoice(url, key, scenario.voice)
        self.mic: Microphone | None = None
        self.result = Result(scenario)
        self.mark = 0  # events of this exchange begin here
        self.spoke_at = 0.0  # when the caller's last voiced sample had been sent
        self.spoken: list[tuple[float, I16]] = []
        self.begun = 0.0

    def fail(self, step: int, why: str) -> None:
        self.result.failures.append((step, why))

    def note(self, who: str, what: str) -> None:
        self.result.lines.append((time.monotonic() - self.begun, who, what))

    async def run(self) -> Result:
        """Play every step; one that fails ends the call, as what follows would mean nothing."""
        for step in self.scenario.steps:  # nobody waits for a voice in the middle of a call
            for text in _texts(step):
                await self.voice.say(text)
        async with self.call:
            self.begun = self.spoke_at = time.monotonic()
            if self.scenario.session:
                await self.call.update(**self.scenario.session)
            self.mic = Microphone(self.call)
            if self.scenario.noise_db is not None:
                self.mic.echo = _noise(self.scenario.noise_db)
            for number, step in enumerate(self.scenario.steps, 1):
                await self.step(number, step)
                if self.result.failures:
                    break
            await self.mic.stop()
        self.result.seconds = time.monotonic() - self.begun
        return self.result

    async def step(self, number: int, step: Step) -> None:
        if step.say is not None:
            await self.say(step.say)
        elif step.type is not None:
            self.mark, self.spoke_at = len(self.call.seen), time.monotonic()
            self.note("caller (typed)", step.type)
            part = {"type": "input_text", "text": step.type}
            await self.call.send("conversation.item.create", item={"type": "message", "role": "user", "content": [part]})
            await self.call.send("response.create")
        elif step.hear is not None:
            await self.hear(number, step.hear)
        elif step.interrupt is not None:
            await self.interrupt(number, step.interrupt)
        elif step.wait_ms is not None:
            await asyncio.sleep(step.wait_ms / 1000)
        elif step.ends is not None and await self.call.wait("session.done", 0, step.ends) is None:
            self.fail(number, f"the agent did not end the call within {step.ends:g} s")

    async def say(self, said: str | list[str | float]) -> None:
        assert self.mic is not None
        await asyncio.sleep(SETTLE_MS / 1000)
        self.mark = len(self.call.seen)
        parts = [said] if isinstance(said, str) else said
        sound = [np.zeros(round(RATE * p / 1000), np.int16) if isinstance(p, int | float) else await self.voice.say(p)
                 for p in parts]  # fmt: skip
        self.note("caller", " ".join(str(p) if isinstance(p, str) else f"({p:g} ms)" for p in parts))
        whole = np.concatenate(sound)
        self.spoken.append((time.monotonic(), whole))
        _, self.spoke_at = await self.mic.play(whole)

    async def interrupt(self, number: int, what: Interrupt) -> None:
        """Speak over what the agent says from `mark` on."""
        assert self.mic is not None
        first = await self.call.wait(_is_audio, self.mark, 20)
        if first is None:
            self.fail(number, "the agent said nothing that could be interrupted")
            return
        await asyncio.sleep(max(0.0, first.at + what.after_ms / 1000 - time.monotonic()))
        before = len(self.call.seen)
        responses = [s for s in self.call.seen[self.mark:] if s.type == "response.created"]
        running = responses[-1].event["response"]["id"]
        sound = await self.voice.say(what.say)
        self.note("caller (over it)", what.say)
        self.spoken.append((time.monotonic(), sound))
        began, self.spoke_at = await self.mic.play(sound)

        def is_end(s: Seen) -> bool:
            return s.type == "response.done" and s.event["response"]["id"] == running

        done = await self.call.wait(is_end, before, 30)
        status = done.event["response"]["status"] if done is not None else "still speaking"
        audio = [s.at for s in self.call.seen[self.mark:] if _is_audio(s) and s.event["response_id"] == running]
        took = 1000 * (audio[-1] - began)
        if what.goes_on and status != "completed":
            self.fail(number, f"the agent was to go on when {what.say!r} was said over it, but stopped ({status})")
        if not what.goes_on and status != "cancelled":
            self.fail(number, f"the agent was to stop when {what.say!r} was said over it, but did not ({status})")
        elif what.stops_within_ms is not None and took > what.stops_within_ms:
            self.fail(number, f"the agent stopped {took:.0f} ms after it was spoken over, allowed: {what.stops_within_ms:g}")
        self.note("agent", f"({status}, last audio {took:.0f} ms after the caller began)")
        self.mark = before

    async def hear(self, number: int, what: Hear) -> None:
        heard = await settled(self.call, self.mark, what.timeout_s)
        reply = collect(self.call, self.mark, self.spoke_at)
        tools = _tools(self.call, self.mark)
        for name, arguments, output in tools:
            self.note("tool", f"{name} {json.dumps(arguments)} -> {output[:200]}")
        text = " ".join(reply.text.split())
        self.note("agent", text or "(nothing)")
        if reply.user_text:
            self.note("understood", reply.user_text)
        if not heard:
            self.fail(number, f"no whole answer within {what.timeout_s:g} s; so far: {text!r}")
            return
        for why in _judge(what, text, reply.user_text, tools):
            self.fail(number, why)
        if what.within_ms is not None:
            audible = reply.times.get("audible")
            took = None if audible is None else 1000 * (audible - self.spoke_at)
            if took is None:
                self.fail(number, "nothing audible was said")
            elif took > what.within_ms:
                self.fail(number, f"the answer came after {took:.0f} ms, allowed: {what.within_ms:g} ms")
        self.mark = len(self.call.seen)

    def audio(self) -> I16:
        """The call as two columns, caller and agent, 24 kHz."""
        end = self.begun + self.result.seconds
        out = np.zeros((round((end - self.begun) * RATE) + RATE, 2), np.int16)
        for at, x in self.spoken:
            _put(out[:, 0], round((at - self.begun) * RATE), x)
        clock = 0.0
        for s in self.call.seen:
            if _is_audio(s):
                x = np.frombuffer(base64.b64decode(s.event["delta"]), "<i2")
                clock = max(clock, s.at - self.begun)
                _put(out[:, 1], round(clock * RATE), x)
                clock += len(x) / RATE
        return out


def _put(track: I16, at: int, x: I16) -> None:
    n = max(0, min(len(x), len(track) - at))
    track[at : at + n] = x[:n]


def _texts(step: Step) -> list[str]:
    said = [step.interrupt.say] if step.interrupt is not None else step.say
    return [said] if isinstance(said, str) else [p for p in said or [] if isinstance(p, str)]


def _is_audio(s: Seen) -> bool:
    return s.type == "response.output_audio.delta"


def _noise(level_db: float) -> Callable[[float], I16]:
    rng = np.random.default_rng(1)
    scale = 32768 * 10 ** (level_db / 20)
    return lambda _: np.clip(rng.normal(0, scale, RATE * FRAME_MS // 1000), -32768, 32767).astype(np.int16)


def _tools(call: RealtimeClient, since: int) -> list[tuple[str, dict[str, Any], str]]:
    """Name, arguments and answer of every tool that was called."""
    items = [s.event["item"] for s in call.of("conversation.item.done", since)]
    outputs = {i["call_id"]: i["output"] for i in items if i["type"] == "function_call_output"}
    out = []
    for item in items:
        if item["type"] == "function_call":
            try:
                arguments = json.loads(item["arguments"] or "{}")
            except ValueError:
                arguments = {"": item["arguments"]}
            out.append((item["name"], arguments, outputs.get(item["call_id"], "(no answer)")))
    return out


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s']", " ", text.lower()).split())


def _judge(what: Hear, text: str, user: str, tools: list[tuple[str, dict[str, Any], str]]) -> list[str]:
    """What an answer lacks, in words."""
    bad = []
    for wanted in [what.contains] if isinstance(what.contains, str) else what.contains:
        if _plain(wanted) not in _plain(text):
            bad.append(f"the answer does not hold {wanted!r}: {text!r}")
    for unwanted in [what.lacks] if isinstance(what.lacks, str) else what.lacks:
        if _plain(unwanted) in _plain(text):
            bad.append(f"the answer holds {unwanted!r}: {text!r}")
    if what.matches and not re.search(what.matches, text, re.IGNORECASE):
        bad.append(f"the answer does not match {what.matches!r}: {text!r}")
    if what.user_said and _plain(what.user_said) not in _plain(user):
        bad.append(f"the caller was misunderstood: {user!r} does not hold {what.user_said!r}")
    called = ", ".join(f"{name}({json.dumps(given)})" for name, given, _ in tools) or "none"
    if what.tool is not None:
        wanted_items = what.tool.arguments.items()
        if not any(name == what.tool.name and wanted_items <= given.items() for name, given, _ in tools):
            bad.append(f"the tool {what.tool.name}({json.dumps(what.tool.arguments)}) was not called; called: {called}")
    if what.no_tool and tools:
        bad.append(f"no tool was to be called; called: {called}")
    return bad


# --- all of them ---------------------------------------------------------------------------------------------------


async def run(args: argparse.Namespace) -> int:
    """Play the scenarios that the command line names; 0: all passed. Raises ScenarioError, ConnectFailed, OSError."""
    scenarios = [load(file) for file in args.files]
    args.out.mkdir(parents=True, exist_ok=True)
    gate = asyncio.Semaphore(max(1, args.jobs))

    async def play(scenario: Scenario) -> Result:
        async with gate:
            player = Player(scenario, args.url, args.key)
            try:
                result = await player.run()
            except ConnectFailed as problem:
                result = player.result
                result.failures.append((0, str(problem)))
                return result
            result.audio = f"{scenario.name}.wav"
            await asyncio.to_thread(_write_stereo, args.out / result.audio, player.audio())
            return result

    results = await asyncio.gather(*(play(s) for s in scenarios))
    for r in results:
        print(f"{'FAILED' if r.failures else 'passed'}  {r.scenario.name}  ({r.seconds:.1f} s)")
        for number, why in r.failures:
            print(f"        step {number}: {why}")
    failed = sum(bool(r.failures) for r in results)
    print(f"{len(results) - failed} of {len(results)} passed; report: {args.out / 'index.html'}")
    (args.out / "index.html").write_text(page(results))
    if args.junit is not None:
        args.junit.write_bytes(junit(results))
    return 1 if failed else 0


def _write_stereo(path: Path, x: I16) -> None:
    with wave.open(str(path), "wb") as w:
        w.setnchannels(2)
        w.setsampwidth(2)
        w.setframerate(RATE)
        w.writeframes(x.astype("<i2").tobytes())


def junit(results: list[Result]) -> bytes:
    """JUnit XML: a test case per scenario."""
    failed = str(sum(bool(r.failures) for r in results))
    suite = ElementTree.Element("testsuite", name="bargein", tests=str(len(results)), failures=failed)
    for r in results:
        case = ElementTree.SubElement(suite, "testcase", classname="scenario", name=r.scenario.name, time=f"{r.seconds:.2f}")
        for number, why in r.failures:
            ElementTree.SubElement(case, "failure", message=f"step {number}: {why}").text = _story(r)
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text


def _story(r: Result) -> str:
    return "\n".join(f"{at:6.2f}  {who}: {what}" for at, who, what in r.lines)


def page(results: list[Result]) -> str:
    """The report: one section per scenario, with what was said and the audio."""
    style = "body{font:15px sans-serif;max-width:60em;margin:2em auto}.bad{color:#b00020}td{padding:.1em .6em}"
    parts = [f"<!doctype html><meta charset=utf-8><title>bargein test</title><style>{style}</style><h1>Scenarios</h1>"]
    for r in results:
        s = r.scenario
        mark, outcome = (" class=bad", "failed") if r.failures else ("", "passed")
        parts.append(f"<h2{mark}>{html.escape(s.name)}: {outcome}</h2>")
        parts.append(f"<p>{html.escape(s.about)}</p>")
        parts += [f"<p class=bad>step {n}: {html.escape(why)}</p>" for n, why in r.failures]
        if r.audio:
            parts.append(f"<audio controls src='{html.escape(r.audio)}'></audio>")
        rows = [f"<tr><td>{at:.2f}<td>{html.escape(who)}<td>{html.escape(what)}" for at, who, what in r.lines]
        parts.append(f"<table>{''.join(rows)}</table>")
    return "".join(parts)
