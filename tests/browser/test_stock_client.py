"""OpenAI's own JavaScript client, unpatched, against this server: in a browser over WebRTC, in Node over WebSocket."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bargein.client.audio import read_wav

from ..e2e.conftest import DATA, Served
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


def over_websocket(url: str, what: str, node_modules: Path, sound: Path) -> dict[str, Any]:
    """What the client heard, in Node."""
    script = node_modules.parent / "websocket.mjs"
    command = ["node", str(script), url, what, str(sound)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    heard: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert heard["errors"] == []
    return heard


def samples(name: str, folder: Path) -> Path:
    (folder / "said.raw").write_bytes(read_wav(DATA / "questions" / f"{name}.wav").tobytes())
    return folder / "said.raw"


def test_the_agents_client_speaks_over_websocket(server: Served, node_modules: Path, tmp_path: Path) -> None:
    heard = over_websocket(server.url, "speak", node_modules, samples("bees", tmp_path))
    assert word_error(QUESTIONS["bees"], heard["user"]) == 0 and heard["assistant"] and heard["audio"] > 24000


def test_the_agents_client_runs_a_tool_over_websocket(storyteller: Served, node_modules: Path, tmp_path: Path) -> None:
    heard = over_websocket(storyteller.url, "tool", node_modules, tmp_path)
    assert heard["rooms"] == ["kitchen"] and "31 degrees" in heard["assistant"]


def test_the_agents_client_interrupts_over_websocket(storyteller: Served, node_modules: Path, tmp_path: Path) -> None:
    heard = over_websocket(storyteller.url, "interrupt", node_modules, samples("capital", tmp_path))
    assert heard["interrupted"] >= 1 and "capital" in heard["user"]
