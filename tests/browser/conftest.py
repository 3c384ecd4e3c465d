"""Debian's Chromium, driven by Playwright, with a WAV file as its microphone."""

from __future__ import annotations

import os
import shutil
import subprocess
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from bargein.client.audio import RATE, read_wav

from ..e2e.conftest import DATA
from ..npm import packages

FLAGS = [
    "--no-sandbox",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-background-networking",
]


def chromium_path() -> str:
    """Where Chromium is; installed first where that is possible."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium"], check=False, capture_output=True)
        found = shutil.which("chromium")
    if found is None:
        pytest.fail("these tests drive Chromium, which is not here: run `apt-get install -y chromium` as root")
    return found


def microphone(path: Path, *parts: str | float) -> Path:
    """A WAV file of questions (names) and silence (seconds)."""
    pieces = [
        np.zeros(int(p * RATE), np.int16) if isinstance(p, int | float) else read_wav(DATA / "questions" / f"{p}.wav")
        for p in parts
    ]
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(np.concatenate(pieces).tobytes())
    return path


@pytest.fixture(scope="module")  # while it runs, no other event loop may on this thread
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


Open = Callable[..., Page]


@pytest.fixture
def open_page(playwright: Playwright, tmp_path: Path) -> Iterator[Open]:
    """Opens pages in browsers of their own: `open_page(url, *microphone parts, loop=…, flags=…, **context)`."""
    browsers: list[Browser] = []

    def make(url: str, *parts: str | float, loop: bool = False, flags: tuple[str, ...] = (), **context: object) -> Page:
        wav = microphone(tmp_path / f"mic{len(browsers)}.wav", *(parts or (1.0,)))
        capture = f"--use-file-for-fake-audio-capture={wav}" + ("" if loop else "%noloop")
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=[*FLAGS, capture, *flags])
        browsers.append(browser)
        settings: dict = {"permissions": ["microphone"], "viewport": {"width": 1280, "height": 800}} | context
        page = browser.new_context(**settings).new_page()
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        page.goto(url)
        return page

    problems: list[str] = []
    yield make
    for browser in browsers:
        browser.close()
    assert problems == [], "the page threw"


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Test-only JavaScript packages (package.json beside this file)."""
    return packages(Path(__file__).parent)
