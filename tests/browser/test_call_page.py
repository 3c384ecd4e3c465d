"""The call page in a real browser, with a spoken microphone: WebRTC, its fallback, and every state that can go wrong."""

from __future__ import annotations

import json
import re
import time

import pytest
from playwright.sync_api import Page, expect

from ..e2e.conftest import Served
from ..e2e.test_call import QUESTIONS, word_error
from ..e2e.test_leaks import usage
from .conftest import Open

SAMPLE = """() => {
  window.samples = [];
  setInterval(() => {
    const l = window.bargein.levels;
    if (l) window.samples.push([performance.now(), l.micLevel, l.outLevel]);
  }, 10);
}"""


def base(server: Served) -> str:
    return f"http://localhost:{server.port}"


def all_gone(server: Served, patience_s: float = 5) -> None:
    """Wait until the server has no live session."""
    deadline = time.monotonic() + patience_s
    while [s for s in server.get("/v1/inspect")[1]["data"] if s["live"]]:
        assert time.monotonic() < deadline, "sessions are left"
        time.sleep(0.1)


def microphone_fails(page: Page, error: str) -> None:
    page.evaluate("(e) => { navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', e)); }", error)


def start_call(page: Page) -> None:
    expect(page.locator("body")).to_have_attribute("data-state", "idle", timeout=60_000)
    page.evaluate(SAMPLE)
    page.click("#call")
    expect(page.locator("body")).to_have_attribute("data-state", "live", timeout=20_000)


def hang_up(page: Page) -> None:
    page.click("#call")
    expect(page.locator("body")).to_have_attribute("data-state", "idle")


@pytest.mark.parametrize("transport", ["webrtc", "websocket"])
def test_a_spoken_question_is_captioned_and_its_answer_heard(server: Served, open_page: Open, transport: str) -> None:
    query = "" if transport == "webrtc" else "/?transport=websocket"
    page = open_page(base(server) + query, 2.0, "bees", 60.0)
    start_call(page)
    assert page.evaluate("window.bargein.call.kind") == transport
    expect(page.locator("#captions .you.final .words")).to_have_text(re.compile(r"\w"), timeout=30_000)
    heard = page.locator("#captions .you.final .words").inner_text()
    assert word_error(QUESTIONS["bees"], heard) == 0
    reply = page.locator("#captions .reply")
    expect(reply.locator(".word.heard").first).to_be_visible(timeout=30_000)
    expect(reply.locator("em")).to_have_text(re.compile(r"after \d+\.\d\d s"), timeout=10_000)
    page.wait_for_function("() => Math.max(...window.samples.map((s) => s[2])) > 0.02", timeout=10_000)
    waited = float(page.locator("#latency-value").inner_text().removesuffix(" s"))
    assert 0.3 < waited < 8
    assert page.evaluate("Math.max(...window.samples.map((s) => s[1]))") > 0.02, "the microphone's meter moves"
    hang_up(page)
    assert page.evaluate("window.bargein.call") is None and page.evaluate("window.bargein.microphone") is None
    all_gone(server)


FIRST_CUT = """() => {
  const s = window.samples, loud = (x) => x > 0.006;
  // the microphone's onset while the reply is heard: 300 ms of quiet before it
  for (let i = 40; i < s.length; i++) {
    const before = s.filter((x) => x[0] > s[i][0] - 300 && x[0] < s[i][0] - 5);
    if (s[i][1] > 0.015 && before.every((x) => x[1] < 0.015) && before.some((x) => loud(x[2]))) {
      const after = s.filter((x) => x[0] >= s[i][0]);
      if (after.at(-1)[0] - s[i][0] < 1000) return null;
      const heard = after.filter((x) => x[0] < s[i][0] + 1000 && loud(x[2]));
      return [s[i][0], heard.length ? heard.at(-1)[0] - s[i][0] : 0];
    }
  }
  return null;
}"""


def test_speaking_over_the_reply_silences_the_page_and_strikes_what_was_not_heard(storyteller: Served, open_page: Open) -> None:
    page = open_page(base(storyteller), 1.0, "bees", 7.5, loop=True)
    page.evaluate("""localStorage.setItem("bargein.settings", JSON.stringify({
      profile: "fast", "barge_in.mode": "cancel"}))""")
    page.reload()
    start_call(page)
    stopped = page.locator("#captions .tail", has_text="you spoke over it")
    typed_at, deadline = 0.0, time.monotonic() + 75
    while not stopped.count() and time.monotonic() < deadline:  # ask for something long, once in each pause
        page.wait_for_timeout(200)
        quiet_ms = page.evaluate("performance.now() - window.bargein.levels.voicedAt")
        if 3500 < quiet_ms < 5000 and time.monotonic() - typed_at > 5:
            typed_at = time.monotonic()
            page.fill("#text", "Tell me a story.")
            page.press("#text", "Enter")
    expect(stopped.first).to_be_visible()
    page.wait_for_timeout(1200)
    _, silent_after = page.evaluate(FIRST_CUT)
    print(f"the page was silent {silent_after:.0f} ms after the first voiced sample of the microphone")
    assert silent_after <= 300
    hang_up(page)


def test_typing_gets_a_spoken_answer_without_a_microphone(server: Served, open_page: Open) -> None:
    page = open_page(base(server))
    microphone_fails(page, "NotAllowedError")
    expect(page.locator("body")).to_have_attribute("data-state", "idle", timeout=60_000)
    page.evaluate(SAMPLE)
    page.click("#call")
    expect(page.get_by_role("alert").filter(has_text="microphone is blocked")).to_be_visible()
    page.get_by_role("button", name="Call without a microphone").click()
    expect(page.locator("body")).to_have_attribute("data-state", "live", timeout=20_000)
    page.get_by_label("Message").fill("What do bees make?")
    page.keyboard.press("Enter")
    expect(page.locator("#captions .reply .word.heard").first).to_be_visible(timeout=30_000)
    page.wait_for_function("() => Math.max(...window.samples.map((s) => s[2])) > 0.02", timeout=10_000)
    hang_up(page)


def test_where_webrtc_does_not_connect_the_call_goes_on_over_websocket_and_says_why(server: Served, open_page: Open) -> None:
    page = open_page(base(server), 8.0, "bees", 60.0)
    page.evaluate(r"""() => {
      const real = RTCPeerConnection.prototype.setRemoteDescription;
      RTCPeerConnection.prototype.setRemoteDescription = function ({ type, sdp }) {
        const elsewhere = sdp.replace(/a=candidate:.*\r\n/g, "").replace(/a=ice-pwd:.{8}/g, "a=ice-pwd:00000000")
          .replaceAll("a=end-of-candidates", "a=candidate:1 1 udp 1 192.0.2.99 9 typ host\r\na=end-of-candidates");
        return real.call(this, { type, sdp: elsewhere });
      };
    }""")
    start_call(page)
    assert page.evaluate("window.bargein.call.kind") == "websocket"
    expect(page.get_by_role("alert").filter(has_text="WebRTC did not connect")).to_be_visible()
    assert re.search(r"host udp .* → .* udp .*: (in-progress|failed|waiting)", page.locator("#problem-list").inner_text())
    expect(page.locator("#captions .you.final")).to_be_visible(timeout=40_000)
    hang_up(page)
    all_gone(server)


def test_states_are_told(server: Served, open_page: Open) -> None:
    page = open_page(base(server))
    expect(page.locator("body")).to_have_attribute("data-state", "idle", timeout=60_000)
    expect(page.get_by_text("This server records calls")).to_be_visible()
    for error, said in (("NotFoundError", "No microphone was found"), ("NotReadableError", "microphone is in use")):
        microphone_fails(page, error)
        page.click("#call")
        expect(page.get_by_role("alert").filter(has_text=said)).to_be_visible()
    full = {"error": {"message": "the server is full", "type": "server_error", "param": None, "code": "server_full"}}
    page.evaluate("""() => {
      const { stream } = new AudioContext().createMediaStreamDestination();
      navigator.mediaDevices.getUserMedia = async () => stream;
    }""")
    page.route("**/v1/realtime/calls?*",
               lambda r: r.fulfill(status=503, headers={"Retry-After": "10"}, body=json.dumps(full)))  # fmt: skip
    page.click("#call")
    expect(page.get_by_role("alert").filter(has_text="the server is full. Try again in 10 s.")).to_be_visible()
    page.route("**/v1/realtime/capabilities", lambda r: r.abort())
    expect(page.get_by_role("status")).to_have_text("The server does not answer", timeout=15_000)
    expect(page.get_by_role("button", name="Start call")).to_be_disabled()
    page.unroute("**/v1/realtime/capabilities")

    def loading(route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"ready": False})

    page.route("**/v1/realtime/capabilities", loading)
    expect(page.get_by_role("status")).to_have_text("Loading models", timeout=15_000)


def test_settings_come_from_the_server_and_reach_the_session(server: Served, open_page: Open) -> None:
    page = open_page(base(server), 60.0)
    start_call(page)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Profile").select_option("fast")
    page.get_by_label("Speed").fill("1.2")
    page.keyboard.press("Tab")
    page.get_by_text("All others").click()
    page.get_by_label("Threshold", exact=True).fill("7")
    page.keyboard.press("Tab")  # out of range: the browser says so, nothing is sent
    assert page.evaluate("document.getElementById('set-turn_detection-threshold').checkValidity()") is False
    assert json.loads(page.evaluate("localStorage.getItem('bargein.settings')")) == {
        "profile": "fast", "audio.output.speed": 1.2}  # fmt: skip
    page.get_by_role("button", name="Done").click()
    hang_up(page)
    page.reload()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Profile")).to_have_value("fast")


@pytest.mark.parametrize("goodbye", [True, False], ids=["closed", "killed"])
def test_a_closed_tab_frees_everything(server: Served, open_page: Open, goodbye: bool) -> None:
    before = None
    for _ in range(3 if goodbye else 2):
        page = open_page(base(server), 60.0)
        start_call(page)
        if goodbye:
            page.goto("about:blank")
        page.context.browser.close()
        all_gone(server, 5 if goodbye else 25)
        deadline = time.monotonic() + 5
        now = usage(server.pid)
        before = before or now
        while now["descriptors"] > before["descriptors"] and time.monotonic() < deadline:
            time.sleep(0.1)
            now = usage(server.pid)
    assert now["threads"] <= before["threads"] and now["descriptors"] <= before["descriptors"], (before, now)
