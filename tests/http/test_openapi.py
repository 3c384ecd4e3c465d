"""The OpenAPI document tells what there is: every route, and refusals as it says."""

from __future__ import annotations

import json
import re
import urllib.request

from bargein.engine.client import EngineClient
from bargein.engine.fleet import Fleet
from bargein.http_api.app import make_app
from bargein.http_api.config import Config
from bargein.http_api.openapi import ROUTES, document, page
from bargein.http_api.services import Services

from .conftest import Served

ELSEWHERE = re.compile(r"/($|docs|openapi.json|inspector|pages|v1/realtime|v1/telephony|v1/inspect)")


def test_every_route_is_described_and_every_description_is_a_route() -> None:
    app = make_app(Services(Config(), Fleet([EngineClient()])))
    routes = {
        (re.sub(r":[^}]*}", "}", r.resource.canonical), r.method.lower())
        for r in app.router.routes()
        if r.resource is not None and r.method != "HEAD"
    }
    assert {r for r in routes if not ELSEWHERE.match(r[0])} == set(ROUTES)


def test_the_page_has_every_route_and_no_script() -> None:
    text = page("1")
    assert all(path in text for path, _ in ROUTES) and "<script" not in text
    assert document("1")["openapi"] == "3.1.0"


def test_both_are_served_with_safe_headers(server: Served) -> None:
    with urllib.request.urlopen(f"{server.base}/openapi.json") as r:
        assert json.loads(r.read())["paths"].keys() == {path for path, _ in ROUTES}
    with urllib.request.urlopen(f"{server.base}/docs") as r:
        assert "default-src 'none'" in r.headers["Content-Security-Policy"]
        assert r.headers["X-Content-Type-Options"] == "nosniff" and r.headers["Content-Type"].startswith("text/html")
