"""What cannot be honoured is refused by the name of its field; keys, limits, deadlines; nothing is ignored in silence."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from .conftest import Served, start, stop

CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]}


def post(base: str, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    request = urllib.request.Request(base + path, data, named)
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            raw = r.read()
            return r.status, dict(r.headers), json.loads(raw) if raw[:1] == b"{" else {}
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), json.loads(refused.read())


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        ("/v1/chat/completions", {"temperature": "warm"}, "temperature"),
        ("/v1/chat/completions", {"temperature": 3}, "temperature"),
        ("/v1/chat/completions", {"top_p": -0.1}, "top_p"),
        ("/v1/chat/completions", {"n": 0}, "n"),
        ("/v1/chat/completions", {"n": True}, "n"),
        ("/v1/chat/completions", {"messages": "hi"}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content[0].type"),
        ("/v1/chat/completions", {"top_logprobs": 3}, "top_logprobs"),
        ("/v1/chat/completions", {"logit_bias": {"x": 1}}, "logit_bias"),
        ("/v1/chat/completions", {"stop": [""]}, "stop"),
        ("/v1/chat/completions", {"store": True}, "store"),
        ("/v1/chat/completions", {"reasoning_effort": "high"}, "reasoning_effort"),
        ("/v1/chat/completions", {"web_search_options": {}}, "web_search_options"),
        ("/v1/chat/completions", {"colour": "blue"}, "colour"),
        ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice"),
        ("/v1/chat/completions", {"response_format": {"type": "xml"}}, "response_format.type"),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"not": {"type": "string"}}}}}, "schema"),
        ("/v1/chat/completions", {"modalities": ["text", "smell"]}, "modalities"),
        ("/v1/chat/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
        ("/v1/audio/speech", {"input": "x" * 5000}, "input"),
        ("/v1/audio/speech", {"voice": "darth"}, "voice"),
        ("/v1/audio/speech", {"speed": 9}, "speed"),
        ("/v1/audio/speech", {"response_format": "mp9"}, "response_format"),
        ("/v1/audio/speech", {"input": "🙂🙂"}, "input"),
        ("/v1/embeddings", {"input": [""]}, "input"),
        ("/v1/embeddings", {"dimensions": 385}, "dimensions"),
        ("/v1/embeddings", {"input": [10**7]}, "input"),
        ("/v1/embeddings", {"input": [10**30]}, "input"),
        ("/v1/embeddings", {"input": [-1]}, "input"),
        ("/v1/completions", {"prompt": [10**30]}, "prompt"),
        ("/v1/completions", {"seed": 10**30}, "seed"),
        ("/v1/chat/completions", {"logit_bias": {"9" * 40: 1}}, "logit_bias"),
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "string", "maxLength": 10**30}}}}, "response_format.json_schema.schema"),
        ("/v1/responses", {"background": True}, "background"),
        ("/v1/responses", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("/v1/responses", {"previous_response_id": "resp_none"}, "previous_response_id"),
        ("/v1/completions", {"suffix": "x"}, "suffix"),
        ("/v1/completions", {"prompt": 7}, "prompt"),
    ],
)  # fmt: skip
def test_a_refusal_names_its_field(server: Served, path: str, change: dict[str, Any], param: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": CHAT,
        "/v1/audio/speech": {"model": "tts-1", "voice": "alloy", "input": "Hello."},
        "/v1/embeddings": {"model": "text-embedding-3-small", "input": "Hello."},
        "/v1/responses": {"model": "gpt-4o", "input": "Hello."},
        "/v1/completions": {"model": "gpt-4o", "prompt": "Hello"},
    }
    for stream in (False, True):
        if stream and path in ("/v1/audio/speech", "/v1/embeddings"):
            continue
        if stream and "stream_options" in change:
            continue
        status, headers, body = post(server.base, path, bodies[path] | change | ({"stream": True} if stream else {}))
        assert status == 400, body
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["param"] == param and body["error"]["type"] == "invalid_request_error"
        assert headers["x-request-id"].startswith("req_")


def test_bodies_that_are_none(server: Served) -> None:
    for raw in (
        b"",
        b"{oops",
        b"[]",
        b"\xff\xfe",
        b'"text"',
        b"[" * 100_000,
        b'{"model": NaN}',
        b'{"model":"\\ud800","messages":[]}',
    ):
        status, _, body = post(server.base, "/v1/chat/completions", raw)
        assert status == 400 and body["error"]["type"] == "invalid_request_error", raw[:20]
    status, _, body = post(server.base, "/v1/chat/completions", b'{"x":"' + b"a" * (33 * 2**20) + b'"}')
    assert status == 413 and body["error"]["code"] == "request_too_large"


def test_names_of_models(server: Served) -> None:
    client = server.openai()
    ids = [m.id for m in client.models.list()]
    assert "whisper-base" in ids and client.models.retrieve("whisper-base").id == "whisper-base"
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("no-such-model")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="whisper-1", messages=[{"role": "user", "content": "x"}])
    assert wrong.value.param == "model"


def test_a_request_id_is_kept_and_what_has_no_effect_is_told(server: Served) -> None:
    asked = {"model": "tts-1", "voice": "alloy", "input": "Hi.", "instructions": "whisper", "response_format": "pcm"}
    status, headers, _ = post(server.base, "/v1/audio/speech", asked, x_request_id="mine-1")
    assert status == 200 and headers["x-request-id"] == "mine-1" and headers["x-bargein-unused"] == "instructions"


def test_a_deadline_ends_the_work(server: Served) -> None:
    long = CHAT | {"messages": [{"role": "user", "content": "Tell me a long story. " * 150}], "max_tokens": 400}
    started = time.monotonic()
    status, _, body = post(server.base, "/v1/chat/completions", long, x_request_timeout_ms="150")
    assert status == 408 and body["error"]["code"] == "timeout" and time.monotonic() - started < 3
    assert post(server.base, "/v1/chat/completions", CHAT, x_request_timeout_ms="soon")[0] == 400


def test_a_client_that_leaves_ends_its_work(server: Served) -> None:
    body = json.dumps(CHAT | {"n": 8, "max_tokens": 400, "temperature": 2, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
        s.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        assert s.recv(100).startswith(b"HTTP/1.1 200")
    deadline = time.monotonic() + 5
    while "bargein_engine_streams 0.0" not in (seen := metrics(server)):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


def metrics(server: Served, **headers: str) -> str:
    request = urllib.request.Request(f"{server.base}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=5) as r:
        return r.read().decode()


def test_metrics_count_by_route(server: Served) -> None:
    post(server.base, "/v1/embeddings", {"model": "text-embedding-3-small", "input": "secret words"})
    seen = metrics(server)
    assert 'bargein_http_requests_total{method="POST",route="/v1/embeddings",status="200"}' in seen
    assert "bargein_engine_ready 1.0" in seen and "secret" not in seen


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with keys and limits."""
    hashed = "sha256:" + hashlib.sha256(b"sk-two").hexdigest()
    served = start(
        tmp_path_factory.mktemp("locked") / "log", "--set", f"server.api_keys=sk-one,{hashed}",
        "--set", "http.requests_per_minute=30", "--set", "http.concurrent_requests=2",
    )  # fmt: skip
    yield served
    stop(served)


def test_keys(locked: Served) -> None:
    for key in ("", "sk-three", "sha256:" + hashlib.sha256(b"sk-two").hexdigest()):
        with pytest.raises(openai.AuthenticationError) as refused:
            locked.openai(key or "x").models.list()
        assert refused.value.code == "invalid_api_key"
    assert list(locked.openai("sk-one").models.list())
    assert list(locked.openai("sk-two").models.list())
    assert locked.anthropic("sk-two").messages.count_tokens(model="claude-x", messages=CHAT["messages"]).input_tokens
    with pytest.raises(urllib.error.HTTPError):
        metrics(locked)
    assert "bargein_" in metrics(locked, **{"x-api-key": "sk-one"})


def test_limits_of_a_key_are_its_own(locked: Served) -> None:
    codes = []
    for _ in range(40):
        status, headers, body = post(locked.base, "/v1/chat/completions", {}, Authorization="Bearer sk-one")
        codes.append(status)
        if status == 429:
            break
    assert codes[-1] == 429 and codes.count(400) >= 20
    assert int(headers["Retry-After"]) >= 1 and headers["x-ratelimit-remaining-requests"] == "0"
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert post(locked.base, "/v1/chat/completions", {}, Authorization="Bearer sk-two")[0] == 400


def test_requests_at_once(locked: Served) -> None:
    statuses: list[int] = []
    long = CHAT | {"messages": [{"role": "user", "content": "Tell me a story. " * 100}], "max_tokens": 300, "temperature": 2}

    def ask() -> None:
        statuses.append(post(locked.base, "/v1/chat/completions", long, x_api_key="sk-two", x_request_timeout_ms="4000")[0])

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert statuses.count(429) == 3, statuses


def test_a_server_told_to_end_lets_requests_finish(tmp_path: Path) -> None:
    served = start(tmp_path / "log")
    done: list[tuple[int, dict[str, str], dict[str, Any]]] = []
    slow = CHAT | {"max_tokens": 60, "temperature": 2, "n": 4}
    thread = threading.Thread(target=lambda: done.append(post(served.base, "/v1/chat/completions", slow)))
    thread.start()
    while 'in_flight{route="/v1/chat/completions"} 1.0' not in metrics(served):
        time.sleep(0.01)
    assert stop(served) == 0
    thread.join()
    assert done[0][0] == 200 and len(done[0][2]["choices"]) == 4


@pytest.mark.parametrize("name", ['"\x16"', '""', '"a"; name="b"', "", '"\xff"'])
def test_forms_that_are_none(server: Served, name: str) -> None:
    head = f"--x\r\nContent-Disposition: form-data; name={name}\r\n\r\nv\r\n--x--\r\n".encode("latin-1")
    for body in (head, head[:30], b"", b"--x", b"--x--\r\n"):
        status, _, answer = post(server.base, "/v1/audio/transcriptions", body, Content_Type="multipart/form-data; boundary=x")
        assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}, (body, answer)
