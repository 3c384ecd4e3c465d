"""Who may come in: names, origins, keys, CORS, certificates. The whole application, with no engine behind it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from bargein.engine.client import EngineClient
from bargein.engine.fleet import Fleet
from bargein.http_api.app import make_app
from bargein.http_api.capabilities import settings_description
from bargein.http_api.config import Config, ConfigError, Inspector, Server
from bargein.http_api.secrets import Secrets
from bargein.http_api.services import Services
from bargein.http_api.tls import context, self_signed
from bargein.realtime.settings import FIELDS, Settings

KEYED = Server(api_keys=("sk_real",), admin_keys=("sk_admin",), allowed_origins=("https://app.example",))
Visit = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


def serve(server: Server, visit: Visit, *, tls: ssl.SSLContext | None = None, session_dir: str = "") -> None:
    """Run the application for the length of a visit."""

    async def run() -> None:
        services = Services(Config(server=server, inspector=Inspector(session_dir=session_dir)), Fleet([EngineClient()]))
        runner = web.AppRunner(make_app(services))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with aiohttp.ClientSession() as http:
                await visit(http, f"{'https' if tls else 'http'}://127.0.0.1:{port}")
        finally:
            await runner.cleanup()

    asyncio.run(run())


UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 503),  # let in: the engine is what is missing
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1.evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),  # a foreign name pointed at this machine
        ({"Host": "localhost"}, 503),
        ({"Host": "192.0.2.7:8000"}, 503),
        ({"Host": "[::1]:8000"}, 503),
        ({"Host": "listed.example"}, 503),
    ],
)
def test_names_and_origins(headers: dict[str, str], status: int) -> None:
    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        async with http.get(base + "/v1/realtime", headers=UPGRADE | headers) as reply:
            assert reply.status == status
        sdp = {"Content-Type": "application/sdp"}
        async with http.post(base + "/v1/realtime/calls", data=b"v=0\r\n", headers=sdp | headers) as reply:
            assert reply.status == status

    serve(Server(allowed_hosts=("listed.example",)), visit)


def test_keys_and_ephemeral_keys() -> None:
    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        async def post(path: str, key: str, body: str = "{}") -> tuple[int, dict]:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with http.post(base + path, data=body, headers=headers | {"Content-Type": "application/sdp"}) as reply:
                return reply.status, await reply.json()

        secrets = "/v1/realtime/client_secrets"
        assert (await post(secrets, ""))[0] == (await post(secrets, "sk_wrong"))[0] == 401
        assert (await post(secrets, "sk_real", "nonsense"))[0] == 400
        assert (await post(secrets, "sk_real", '{"expires_after":{"seconds":1}}'))[1]["error"]["param"]
        status, body = await post(secrets, "sk_real", '{"expires_after":{"anchor":"created_at","seconds":30}}')
        key = body["value"]
        assert status == 200 and key.startswith("ek_")
        assert (await post(secrets, key))[0] == 401, "a short-lived key makes no others"
        assert (await post("/v1/realtime/calls", key))[0] == 503
        assert (await post("/v1/realtime/calls", "ek_wrong"))[0] == 401
        for header, expected in ((key, 503), ("sk_real", 503), ("sk_wrong", 401), ("", 401)):
            offered = {"Sec-WebSocket-Protocol": f"realtime, openai-insecure-api-key.{header}"} if header else {}
            async with http.get(base + "/v1/realtime", headers=UPGRADE | offered) as reply:
                assert reply.status == expected
        for presented, expected in (("", 401), ("sk_real", 401), (key, 401), ("sk_admin", 200)):
            async with http.get(base + "/v1/inspect", headers={"Authorization": f"Bearer {presented}"}) as reply:
                assert reply.status == expected
        async with http.get(base + "/v1/realtime/capabilities") as reply:
            assert (await reply.json())["key_required"] is True

    serve(KEYED, visit)


def test_without_an_admin_key_nobody_inspects_a_server_that_has_keys() -> None:
    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        async with http.get(base + "/v1/inspect", headers={"Authorization": "Bearer sk_real"}) as reply:
            assert reply.status == 401 and "admin" in (await reply.json())["error"]["message"]

    serve(Server(api_keys=("sk_real",)), visit)


def test_ephemeral_keys_expire() -> None:
    now = [1000.0]
    secrets = Secrets(lambda: now[0])
    secret = secrets.mint({"speed": 1.2}, 60)
    assert secret.expires_at == 1060 and secrets.session_of(secret.value) == {"speed": 1.2}
    now[0] = 1060.0
    assert secrets.session_of(secret.value) is None
    for _ in range(10_010):
        last = secrets.mint({})
    assert len(secrets._alive) <= 10_000 and secrets.session_of(last.value) == {}


def test_cors_lets_the_listed_origin_call_and_read_location() -> None:
    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        ask = {"Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization, content-type, x-openai-agents-sdk"}  # fmt: skip
        for path in ("/v1/realtime/calls", "/v1/realtime/client_secrets", "/v1/models"):
            async with http.options(base + path, headers=ask | {"Origin": "https://app.example"}) as reply:
                assert reply.status == 204
                assert reply.headers["Access-Control-Allow-Origin"] == "https://app.example"
                assert "x-openai-agents-sdk" in reply.headers["Access-Control-Allow-Headers"]
            async with http.options(base + path, headers=ask | {"Origin": "https://evil.example"}) as reply:
                assert reply.status == 403 and "Access-Control-Allow-Origin" not in reply.headers
        async with http.post(base + "/v1/realtime/calls", headers={"Origin": "https://app.example"}) as reply:
            assert reply.status == 401
            assert reply.headers["Access-Control-Allow-Origin"] == "https://app.example"
            assert "Location" in reply.headers["Access-Control-Expose-Headers"]
        async with http.get(base + "/v1/models", headers={"Origin": "https://evil.example"}) as reply:
            assert "Access-Control-Allow-Origin" not in reply.headers

    serve(KEYED, visit)


def test_too_large_a_body_is_refused_before_it_is_read() -> None:
    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        async def endless():
            for _ in range(100):
                yield b"a=x\r\n" * 2000

        for data in (b"x" * 70_000, endless()):
            async with http.post(base + "/v1/realtime/calls", data=data, headers={"Content-Type": "application/sdp"}) as r:
                assert r.status == 413

    serve(Server(), visit)


def test_pages_are_served_and_nothing_beside_them() -> None:
    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        for path, kind in (("/", "text/html"), ("/inspector", "text/html"), ("/pages/call.js", "text/javascript")):
            async with http.get(base + path) as reply:
                assert reply.status == 200 and reply.content_type == kind
                assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
        for path in ("/pages/__init__.py", "/pages/..%2fREADME.md", "/pages/.hidden.js", "/pages/none.js"):
            async with http.get(base + path) as reply:
                assert reply.status == 404

    serve(Server(), visit)


def test_recordings_cannot_be_reached_by_a_path(tmp_path: Path) -> None:
    recorded = tmp_path / "rec" / "sess_a"
    for folder in (recorded, tmp_path / "sess_secret"):
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_text('{"journal":1,"session":"sess_a","started":1,"transport":"x"}\n')
    (tmp_path / "rec" / "sess_link").symlink_to(tmp_path / "sess_secret")

    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        async with http.get(base + "/v1/inspect/sess_a/journal") as reply:
            assert reply.status == 200 and json.loads(await reply.text())["session"] == "sess_a"
        for path in ("..%2fsess_secret/journal", "sess_a/..", "sess_b/journal", "sess_a/other", "sess_a/journal.jsonl",
                     "sess_link/journal", "sess_a/..%2f..%2fsess_secret%2fjournal"):  # fmt: skip
            async with http.get(f"{base}/v1/inspect/{path}") as reply:
                assert reply.status == 404
        for path in ("..%2fsess_secret", "..", "%2e%2e", "sess_link", "sess_b", "sess_a%2f..%2f..%2fsess_secret", "sess_a%00"):
            async with http.delete(f"{base}/v1/inspect/{path}") as reply:
                assert reply.status in (404, 405), path
        async with http.delete(f"{base}/v1/inspect/sess_a") as reply:
            assert reply.status == 200 and (await reply.json())["deleted"] is True
        async with http.delete(f"{base}/v1/inspect/sess_a") as reply:
            assert reply.status == 404

    serve(Server(), visit, session_dir=str(tmp_path / "rec"))
    assert not recorded.exists() and (tmp_path / "sess_secret" / "journal.jsonl").exists()


def test_a_recording_is_deleted_by_an_administrator_only(tmp_path: Path) -> None:
    (tmp_path / "sess_a").mkdir()

    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        for key, status in (("", 401), ("sk_real", 401), ("sk_admin", 200)):
            async with http.delete(base + "/v1/inspect/sess_a", headers={"Authorization": f"Bearer {key}"}) as reply:
                assert reply.status == status

    serve(KEYED, visit, session_dir=str(tmp_path))
    assert not (tmp_path / "sess_a").exists()


def test_a_self_signed_certificate_is_made_once_and_serves_https(tmp_path: Path) -> None:
    server = Server(tls="auto", allowed_hosts=("bargein.example",))
    made = context(server, tmp_path)
    assert made is not None
    cert, key = self_signed(tmp_path, (server.host, *server.allowed_hosts))
    first = cert.read_bytes()
    assert key.stat().st_mode & 0o077 == 0, "the key is the owner's only"
    assert context(server, tmp_path) is not None and cert.read_bytes() == first
    context(Server(tls="auto", allowed_hosts=("other.example",)), tmp_path)
    assert cert.read_bytes() != first, "another name needs another certificate"
    trust = ssl.create_default_context(cafile=str(cert))

    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        async with http.get(base + "/health", ssl=trust) as reply:
            assert reply.status == 200

    serve(server, visit, tls=context(Server(tls="auto", allowed_hosts=("other.example",)), tmp_path))
    with pytest.raises(ConfigError, match="tls_cert"):
        context(Server(tls_cert=str(tmp_path / "none.pem"), tls_key=str(key)), tmp_path)


def test_every_setting_is_described() -> None:
    described = {d["path"]: d for d in settings_description(Settings())}
    assert set(described) == {f.path for f in FIELDS}
    assert described["turn_detection.threshold"] | {"doc": ""} == {
        "path": "turn_detection.threshold", "name": "audio.input.turn_detection.threshold", "doc": "", "default": 0.5,
        "kind": "number", "min": 0, "max": 1}  # fmt: skip
    assert described["profile"]["choices"] == ["balanced", "fast", "patient"]
    assert described["eou.silence_hard_cap_ms"]["nullable"] is True
    assert json.dumps(list(described.values()))
