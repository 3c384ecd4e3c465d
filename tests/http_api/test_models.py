"""A model that is not here is refused over HTTP: model_not_found (SPEC sections 10, 11)."""

from __future__ import annotations

import aiohttp
import pytest

from bargein.http_api.config import Server

from .test_doors import serve


@pytest.mark.parametrize(("model", "status"), [("no-such-model", 404), ("gpt-realtime", 200), ("default", 200)])
def test_an_unknown_model_is_named_and_openais_mean_ours(model: str, status: int) -> None:
    async def visit(http: aiohttp.ClientSession, base: str) -> None:
        session = {"type": "realtime", "model": model}
        async with http.post(f"{base}/v1/realtime/client_secrets", json={"session": session}) as r:
            body = await r.json()
            assert r.status == status
            if status == 404:
                assert (body["error"]["code"], body["error"]["param"]) == ("model_not_found", "model")

    serve(Server(), visit)
