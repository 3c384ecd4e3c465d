"""An agent on the call page: its greeting, and a tool's result in the spoken reply."""

from __future__ import annotations

from playwright.sync_api import expect

from ..e2e.conftest import Served
from ..e2e.upstream import Upstream
from .conftest import Open
from .test_call_page import base, hang_up, start_call


def test_the_readmes_agent_greets_and_answers_with_its_tools_result(desk: tuple[Served, Upstream], open_page: Open) -> None:
    served, _ = desk
    page = open_page(base(served) + "/?agent=porter", 7.0, "capital", 60.0)
    start_call(page)
    reply = page.locator("#captions .reply")
    expect(reply.first).to_contain_text("Good evening, this is Maple House.", timeout=20_000)
    expect(reply.last).to_contain_text("It is 21 degrees in there right now.", timeout=30_000)
    page.wait_for_function("() => Math.max(...window.samples.map((s) => s[2])) > 0.02", timeout=10_000)
    hang_up(page)
