"""The openai package for JavaScript, and curl, unpatched: every route that they know."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..npm import packages
from .conftest import DATA, Served

MODEL = "gemma-3-270m"
NPM = Path(__file__).parent / "npm"
WAV = DATA / "questions" / "capital.wav"
QUESTION = "what is the capital of france"


def plain(text: str) -> str:
    return re.sub(r"[^a-z ]", "", text.lower()).strip()


def test_the_javascript_client(server: Served) -> None:
    packages(NPM)
    command = ["node", str(NPM / "routes.mjs"), server.base, str(WAV)]
    run = subprocess.run(command, cwd=NPM, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    said: dict[str, Any] = json.loads(run.stdout)
    assert said["model"] == said["models"][0] and "whisper-base" in said["models"]
    for name in ("chat", "chatStream", "response", "responseStream"):
        assert "Paris" in said[name], name
    assert said["kept"] == said["response"] and said["forgotten"] == "NotFoundError"
    assert said["asked"] == "What is the capital of France?" and said["completion"]
    assert isinstance(said["toolArguments"]["on"], bool)
    assert said["embedding"] == 384 and said["speech"] == "RIFF"
    for name in ("transcript", "transcriptStream", "translation"):
        assert plain(said[name]) == QUESTION, name
    assert plain(" ".join(said["words"])) == QUESTION
    assert said["badField"] == ["BadRequestError", 400, "temperature"]
    assert said["badFile"] == ["BadRequestError", 400, "file"]


def curl(server: Served, path: str, *args: str) -> tuple[int, str, bytes]:
    """Status, content type, body."""
    form = "\n%{http_code} %{content_type}"
    command = ["curl", "-sS", "--max-time", "60", "-w", form, f"{server.base}{path}", *args]
    run = subprocess.run(command, capture_output=True, check=True)
    body, _, tail = run.stdout.rpartition(b"\n")
    status, _, kind = tail.decode().partition(" ")
    return int(status), kind, body


def post(server: Served, path: str, **body: Any) -> Any:
    status, kind, answer = curl(server, path, "-H", "Content-Type: application/json", "-d", json.dumps(body))
    assert status == 200 and kind.startswith("application/json"), answer
    return json.loads(answer)


def form(server: Served, path: str, *fields: str) -> Any:
    parts = [x for field in fields for x in ("-F", field)]
    status, _, answer = curl(server, path, "-F", f"file=@{WAV}", *parts)
    assert status == 200, answer
    return json.loads(answer)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_on_every_route(server: Served) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    for path in ("/health", "/health/ready", "/version", "/v1/models", "/openapi.json"):
        assert curl(server, path)[0] == 200, path
    assert b"bargein_http_requests_total" in curl(server, "/metrics")[2]
    assert b"<html" in curl(server, "/docs")[2]
    chat = post(server, "/v1/chat/completions", model=MODEL, messages=messages, temperature=0)
    assert "Paris" in chat["choices"][0]["message"]["content"]
    assert post(server, "/v1/completions", model=MODEL, prompt="One, two,", max_tokens=4)["choices"][0]["text"]
    response = post(server, "/v1/responses", model=MODEL, input="What is the capital of France?", temperature=0)
    status, _, kept = curl(server, f"/v1/responses/{response['id']}")
    assert status == 200 and json.loads(kept)["id"] == response["id"]
    assert curl(server, f"/v1/responses/{response['id']}/input_items")[0] == 200
    assert curl(server, f"/v1/responses/{response['id']}", "-X", "DELETE")[0] == 200
    answer = post(server, "/v1/messages", model=MODEL, max_tokens=30, messages=messages)
    assert "Paris" in answer["content"][0]["text"]
    assert post(server, "/v1/messages/count_tokens", model=MODEL, messages=messages)["input_tokens"] > 5
    assert len(post(server, "/v1/embeddings", model="all-minilm-l6-v2", input="hello")["data"][0]["embedding"]) == 384
    speech = json.dumps({"model": "tts-1", "voice": "alloy", "input": "Hello.", "response_format": "flac"})
    status, kind, sound = curl(server, "/v1/audio/speech", "-H", "Content-Type: application/json", "-d", speech)
    assert status == 200 and kind == "audio/flac" and sound[:4] == b"fLaC"
    for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
        assert plain(form(server, path, "model=whisper-1")["text"]) == QUESTION
    words = form(server, "/v1/audio/alignments", f"text={QUESTION}")["words"]
    assert plain(" ".join(w["word"] for w in words)) == QUESTION
    assert form(server, "/v1/audio/diarization")["segments"]
    assert form(server, "/v1/audio/embeddings")["data"]
    status, _, refused = curl(server, "/v1/embeddings", "-H", "Content-Type: application/json", "-d", "{nonsense")
    assert status == 400 and json.loads(refused)["error"]["message"]
