"""axe-core finds no serious fault on either page, light or dark, at rest and in use; and the keyboard reaches everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ..e2e.conftest import Served
from .conftest import Open
from .test_call_page import microphone_fails


def faults(page: Page, node_modules: Path) -> list[str]:
    """Serious and critical violations, one line each."""
    page.evaluate((node_modules / "axe-core" / "axe.min.js").read_text())
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{v['id']}: {n['target']} {n.get('failureSummary', '')}"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
        for n in v["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desktop", "phone"])
def test_the_call_page(server: Served, open_page: Open, node_modules: Path, scheme: str, size: tuple[int, int]) -> None:
    view = {"width": size[0], "height": size[1]}
    page = open_page(f"http://localhost:{server.port}", color_scheme=scheme, viewport=view)
    expect(page.locator("body")).to_have_attribute("data-state", "idle", timeout=60_000)
    assert faults(page, node_modules) == []
    page.get_by_role("button", name="Settings").click()
    page.get_by_text("All others").click()
    assert faults(page, node_modules) == []
    page.keyboard.press("Escape")
    microphone_fails(page, "NotFoundError")
    page.get_by_role("button", name="Start call").click()
    expect(page.get_by_role("alert").filter(has_text="No microphone")).to_be_visible()
    assert faults(page, node_modules) == []
    page.get_by_role("button", name="Call without a microphone").click()
    expect(page.locator("body")).to_have_attribute("data-state", "live", timeout=20_000)
    page.get_by_label("Message").fill("What do bees make?")
    page.keyboard.press("Enter")
    expect(page.locator("#captions .reply .word.heard").first).to_be_visible(timeout=30_000)
    page.wait_for_timeout(1500)
    assert faults(page, node_modules) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out to the side"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_inspector(server: Served, open_page: Open, node_modules: Path, scheme: str) -> None:
    page = open_page(f"http://localhost:{server.port}/inspector", color_scheme=scheme)
    expect(page.locator("#sessions button").first).to_be_visible(timeout=15_000)
    assert faults(page, node_modules) == []
    page.locator("#sessions button").first.click()
    expect(page.locator("#turns button").first).to_be_visible(timeout=15_000)
    page.locator("#turns button").first.click()
    page.locator("#export summary").click()
    assert faults(page, node_modules) == []
    page.locator("#lanes").focus()
    for _ in range(4):
        page.keyboard.press("+")
    before = page.evaluate("window.inspector.timeline.from")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.inspector.timeline.from") > before


def test_a_call_by_keyboard_alone(server: Served, open_page: Open) -> None:
    page = open_page(f"http://localhost:{server.port}", 60.0)
    expect(page.locator("body")).to_have_attribute("data-state", "idle", timeout=60_000)
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "call":
            break
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_have_attribute("data-state", "live", timeout=20_000)
    page.keyboard.press("m")
    expect(page.get_by_role("button", name="Muted")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("window.bargein.microphone.getAudioTracks()[0].enabled") is False
    page.keyboard.press("m")
    page.keyboard.press("Enter")  # the focus is still on the button, which now ends the call
    expect(page.locator("body")).to_have_attribute("data-state", "idle")
