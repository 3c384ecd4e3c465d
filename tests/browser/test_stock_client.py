"""OpenAI's own browser client, unpatched, against this server: an ephemeral key, a WebRTC call, a spoken turn."""

from __future__ import annotations

from pathlib import Path

from ..e2e.conftest import Served
from ..e2e.test_call import QUESTIONS, word_error
from .conftest import Open

CALL = """async () => {
  const { RealtimeAgent, RealtimeSession } = OpenAIAgentsRealtime;
  const minted = await (await fetch("/v1/realtime/client_secrets", { method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ session: { type: "realtime", model: "gpt-realtime" } }) })).json();
  window.heard = { errors: [], audio: false };
  const session = new RealtimeSession(new RealtimeAgent({ name: "assistant", instructions: "Answer briefly." }));
  session.on("error", (e) => window.heard.errors.push(JSON.stringify(e)));
  session.on("audio_start", () => (window.heard.audio = true));
  session.on("history_updated", (history) => (window.heard.history = history));
  await session.connect({ apiKey: minted.value, url: `${location.origin}/v1/realtime/calls` });
  window.session = session;
  return session.transport.callId;
}"""

SAID = """() => {
  const text = (role) => (window.heard.history ?? []).filter((i) => i.role === role && i.status === "completed")
    .map((i) => i.content.map((c) => c.transcript ?? c.text ?? "").join("")).join(" ");
  return { user: text("user"), assistant: text("assistant") };
}"""


def test_the_agents_client_holds_a_call(server: Served, open_page: Open, node_modules: Path) -> None:
    page = open_page(f"http://localhost:{server.port}/health/ready", 4.0, "bees", 60.0)  # a page without our policy
    bundle = node_modules / "@openai" / "agents-realtime" / "dist" / "bundle" / "openai-realtime-agents.umd.js"
    page.evaluate(bundle.read_text())
    assert page.evaluate(CALL).startswith("rtc_")
    for _ in range(60):
        said = page.evaluate(SAID)
        if said["assistant"].strip():
            break
        page.wait_for_timeout(500)
    assert word_error(QUESTIONS["bees"], said["user"]) == 0 and said["assistant"].strip(), page.evaluate("window.heard")
    assert page.evaluate("window.heard.errors") == []
    page.evaluate("window.session.close()")
