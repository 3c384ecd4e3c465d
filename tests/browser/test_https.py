"""A call over https, from a name that is not localhost, with the server's own certificate."""

from __future__ import annotations

import ssl
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ..e2e.conftest import start
from .conftest import Open

NAME = "bargein.example"


@pytest.fixture
def https_port(tmp_path: Path):
    process, port = start("--tls", "auto", "--set", f"server.allowed_hosts={NAME}", log=tmp_path / "log")
    trusting = ssl._create_unverified_context()
    deadline = time.monotonic() + 300
    try:
        while True:
            try:
                with urllib.request.urlopen(f"https://127.0.0.1:{port}/health/ready", timeout=5, context=trusting):
                    break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.3)
        yield port
    finally:
        process.terminate()
        process.wait(15)


def test_a_call_over_https_from_another_name(https_port: int, open_page: Open) -> None:
    flags = (f"--host-resolver-rules=MAP {NAME} 127.0.0.1", "--ignore-certificate-errors")
    page = open_page(f"https://{NAME}:{https_port}/", 2.0, "bees", 60.0, flags=flags, ignore_https_errors=True)
    expect(page.locator("body")).to_have_attribute("data-state", "idle", timeout=60_000)
    assert page.evaluate("window.isSecureContext") is True
    page.click("#call")
    expect(page.locator("body")).to_have_attribute("data-state", "live", timeout=20_000)
    assert page.evaluate("window.bargein.call.kind") == "webrtc"
    expect(page.locator("#captions .reply .word.heard").first).to_be_visible(timeout=40_000)
    page.click("#call")
