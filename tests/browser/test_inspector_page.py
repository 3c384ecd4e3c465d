"""The inspector in a real browser: a live call, a recording of it, and a recording an hour long."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from playwright.sync_api import Page, expect

from bargein.client.audio import read_wav
from bargein.client.session import RealtimeClient
from bargein.client.turns import Microphone, converse

from ..e2e.conftest import DATA, Served
from ..e2e.upstream import Upstream
from .conftest import Open

HOUR_MS = 3_600_000


class Call:
    """A spoken turn on a thread of its own, held open until `hang_up`."""

    def __init__(self, server: Served) -> None:
        self.session_id = ""
        self.answered = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(server)), daemon=True)
        self._thread.start()

    async def _run(self, server: Served) -> None:
        async with RealtimeClient(server.url) as call:
            created = await call.wait("session.created", 0, 10)
            assert created is not None
            self.session_id = created.event["session"]["id"]
            await call.update(profile="fast", eou={"inference_timeout_ms": 5000})  # however busy the machine is
            mic = Microphone(call)
            await converse(call, mic, read_wav(DATA / "questions" / "bees.wav"), 40)
            self.answered.set()
            while not self._over.is_set():
                await asyncio.sleep(0.05)
            await mic.stop()

    def hang_up(self) -> None:
        self._over.set()
        self._thread.join(10)


@pytest.fixture(scope="module")
def recorded(server: Served) -> str:
    """The id of a session that was recorded."""
    call = Call(server)
    assert call.answered.wait(60)
    call.hang_up()
    return call.session_id


def base(server: Served) -> str:
    return f"http://localhost:{server.port}/inspector"


def choose(page: Page, server: Served, session_id: str) -> None:
    """Open a session by its place in the list."""
    expect(page.locator("#sessions button").first).to_be_visible(timeout=15_000)
    ids = [s["session_id"] for s in server.get("/v1/inspect")[1]["data"]]
    page.locator("#sessions button").nth(ids.index(session_id)).click()


def test_a_live_call_is_followed_and_its_turn_explained(server: Served, open_page: Open) -> None:
    call = Call(server)
    page = open_page(base(server))
    try:
        page.wait_for_function("() => document.querySelector('#sessions .live')", timeout=15_000)
        page.locator("#sessions button:has(.live)").first.click()
        expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
        first = page.evaluate("window.inspector.session.end")
        assert call.answered.wait(60)
        page.wait_for_timeout(1500)
        assert page.evaluate("window.inspector.session.end") > first + 1000, "it goes on while we look"
        assert page.evaluate("window.inspector.timeline.to >= window.inspector.session.end"), "the view goes with it"
        page.locator("#turns button").first.click()
        story = page.locator("#story")
        expect(story).to_contain_text("What do bees make?")
        expect(story).to_contain_text("end-of-turn score was")
        expect(story.locator(".waterfall .bar")).to_have_count(7)
        assert page.evaluate("window.inspector.session.marks.reply.length") > 0
    finally:
        call.hang_up()
    expect(page.get_by_role("button", name="Follow")).to_be_hidden(timeout=10_000)


def test_a_recording_is_explained_played_and_exported(server: Served, open_page: Open, recorded: str, tmp_path: Path) -> None:
    page = open_page(base(server))
    choose(page, server, recorded)
    expect(page.locator("#turns button")).to_contain_text(["What do bees make?"])
    page.locator("#turns button").first.click()
    expect(page.locator("#story")).to_contain_text("It was heard to its end")
    page.locator("#lanes").click(position={"x": 200, "y": 60})
    page.get_by_role("button", name="Play").click()
    page.wait_for_timeout(1200)
    played, cursor = page.evaluate("[document.getElementById('audio').currentTime, window.inspector.timeline.cursor / 1000]")
    assert played > 0.5 and abs(played - cursor) < 0.15
    page.get_by_role("button", name="Pause").click()
    page.locator("#export summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON lines").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert json.loads(lines[0])["journal"] == 1 and len(lines) > 100
    page.wait_for_function("() => location.hash.includes('session=')")
    here = page.url
    view = page.evaluate("[window.inspector.timeline.from, window.inspector.timeline.to]")
    again = open_page(here)
    again.wait_for_function("() => window.inspector.session?.turns.length === 1", timeout=15_000)
    assert again.evaluate("[window.inspector.timeline.from, window.inspector.timeline.to]") == pytest.approx(view, abs=2)


def spans(upstream: Upstream, session_id: str) -> list[Any]:
    """The spans of a call, once its `session` span, the last, has come."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        found = []
        for body in list(upstream.traces):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                found += [x for s in resource.scope_spans for x in s.spans if attributes(x)["session_id"] == session_id]
        if any(x.name == "session" for x in found):
            return found
        time.sleep(0.1)
    raise AssertionError("no trace has come")


def attributes(span: Any) -> dict[str, Any]:
    return {x.key.removeprefix("bargein."): getattr(x.value, x.value.WhichOneof("value")) for x in span.attributes}


def test_a_trace_shows_the_waterfall_of_the_page(desk: tuple[Served, Upstream], open_page: Open) -> None:
    """The stages put together from the spans that a collector got are those that the page makes of its records."""
    served, upstream = desk
    call = Call(served)
    assert call.answered.wait(60)
    call.hang_up()
    found = spans(upstream, call.session_id)
    session = next(x for x in found if x.name == "session")
    turns = [x for x in found if x.name == "turn"]
    assert {x.trace_id for x in found} == {session.trace_id} and all(x.parent_span_id == session.span_id for x in turns)
    page = open_page(base(served))
    choose(page, served, call.session_id)
    page.wait_for_function("() => window.inspector.session?.turns.at(-1)?.done")
    shown = page.evaluate(
        "async () => { const { stages } = await import('/pages/story.js');"
        " const s = window.inspector.session; return s.turns.map((t) => [t.id, stages(t), s.zero]); }"
    )
    assert len(shown) == len(turns) == 1
    (_, stages, _), turn = shown[0], turns[0]
    at = {x.name: x.time_unix_nano / 1e6 for x in turn.events}
    below = [x for x in found if x.parent_span_id == turn.span_id]
    work = {x.name: (x.start_time_unix_nano / 1e6, x.end_time_unix_nano / 1e6) for x in below}
    first = {x.name: {y.name: y.time_unix_nano / 1e6 for y in x.events} for x in below}
    traced = {
        "Silence until a stop": (at["voice_end"], work["stt"][0]), "Transcript": work["stt"],
        "End-of-turn score": (at["stop"], work["eou"][1]), "Waiting for more": (work["eou"][1], at["commit"]),
        "First token": (work["chat"][0], first["chat"]["first_token"]),
        "First speech": (at["first_token"], first["tts"]["first_chunk"]),
        "Held, then sent": (first["tts"]["first_chunk"], at["first_frame"]),
    }  # fmt: skip
    zero = stages[0][1] - traced["Silence until a stop"][0]  # both count from somewhere of their own
    for name, start, end in stages:
        assert traced[name][0] + zero == pytest.approx(start, abs=5), name
        assert traced[name][1] + zero == pytest.approx(end, abs=5), name
    assert {attributes(x)["span_id"].split(":")[0] for x in below} >= {"stt", "eou", "llm", "tts"}
    assert attributes(turn)["status"] == "completed" and attributes(session)["end_reason"] == "client_closed"


def lengthened(journal: list[str], target_ms: float) -> str:
    """A journal repeated on a running clock until it is this long."""
    head, *entries = (json.loads(line) for line in journal)
    entries = [x for x in entries if "in" in x or "rec" in x]
    zero = head["mono0_ms"]
    last = max(x["in"]["at"] if "in" in x else x["rec"]["ts_mono_ns"] / 1e6 for x in entries)
    out, shift = [json.dumps(head)], 0.0
    while shift < target_ms + 1000:  # the last repeat ends before the shift that follows it
        for n, x in enumerate(entries):
            if "in" in x:
                out.append(json.dumps({"in": x["in"] | {"at": x["in"]["at"] + shift}}))
            else:
                corr = {k: f"{v}_{shift:.0f}" for k, v in x["rec"]["corr"].items()}
                moved = {"ts_mono_ns": int(x["rec"]["ts_mono_ns"] + shift * 1e6), "corr": corr, "seq": n}
                out.append(json.dumps({"rec": x["rec"] | moved}))
        shift += last - zero + 500
    return "\n".join(out) + "\n"


PAN_AND_ZOOM = """async () => {
  const t = window.inspector.timeline;
  const start = performance.now();
  const first = t.frames;
  const drawn = t.drawMs;
  let ticks = 0;
  while (performance.now() - start < 4000) {
    await new Promise(requestAnimationFrame);
    ticks++;
    const phase = (performance.now() - start) / 4000;
    if (phase < 0.5) t.zoom(phase < 0.25 ? 0.94 : 1.064, 1.8e6);
    else t.pan((t.to - t.from) * 0.01);
  }
  const frames = t.frames - first;
  return { fps: ticks / ((performance.now() - start) / 1000), drawn: frames, ms: (t.drawMs - drawn) / frames };
}"""


def test_an_hour_is_as_smooth_as_a_minute(server: Served, open_page: Open, recorded: str, tmp_path: Path) -> None:
    with urllib.request.urlopen(f"http://localhost:{server.port}/v1/inspect/{recorded}/journal") as reply:
        journal = reply.read().decode().splitlines()
    long = tmp_path / "hour.jsonl"
    long.write_text(lengthened(journal, HOUR_MS))
    page = open_page(base(server))
    page.set_input_files("#file", str(long))
    page.wait_for_function(f"() => window.inspector.session?.end > {HOUR_MS}", timeout=90_000)
    turns = page.evaluate("window.inspector.session.turns.length")
    assert turns > 100
    figures = page.evaluate(PAN_AND_ZOOM)
    print(f"an hour, {turns} turns: {figures['fps']:.0f} frames a second, {figures['ms']:.1f} ms to draw one")
    assert figures["drawn"] > 20 and figures["ms"] < 20, "drawing leaves room for 50 frames a second"


def test_what_is_no_journal_is_said(server: Served, open_page: Open, tmp_path: Path) -> None:
    page = open_page(base(server))
    for name, text, said in (("a.txt", "x", "no journal"), ("b.jsonl", "{nonsense\n", "is not a journal")):
        file = tmp_path / name
        file.write_text(text)
        page.set_input_files("#file", str(file))
        expect(page.locator("#title")).to_contain_text(said)
        page.wait_for_timeout(200)
        expect(page.locator("#title")).to_contain_text(said, timeout=1)  # what is drawn meanwhile does not take it away
