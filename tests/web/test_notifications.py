"""An administrator configures a route, tests a receiver, and silences a node; a message's link acknowledges."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import View, broken_pages, violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


class _Accepts(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Accepts)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join(20)
    server.server_close()


def test_a_route_is_configured_and_its_receiver_tested(
    page: Page, browser: Browser, dashboard: Stack, hook: str
) -> None:
    page.goto("/notifications")
    text = page.get_by_role("textbox", name="Routes and receivers in TOML")
    text.fill("[[routes]]\nname = 1")
    page.get_by_role("button", name="Put in force").click()
    expect(page.get_by_role("alert").filter(has_text="routes.0")).to_be_visible()
    text.fill(
        f'[receivers.channel]\nkind = "webhook"\nurl = "{hook}"\n'
        '[[routes]]\nname = "no incident"\nreceivers = []\nracks = ["r1"]\n'
    )
    page.get_by_role("button", name="Put in force").click()
    expect(page.get_by_role("region", name="Routes")).to_contain_text("severity warning or more · rack r1")
    page.get_by_role("button", name="Test channel").click()
    log = page.get_by_role("region", name="Delivery log")
    expect(log.get_by_role("row").filter(has_text="tests the receiver channel")).to_contain_text("Delivered")
    assert violations(page) == []
    assert broken_pages(browser, dashboard, ["/notifications"], [View("dark"), View(width=390)]) == {}


def test_a_node_is_silenced_and_the_silence_ended(page: Page) -> None:
    page.goto("/notifications")
    page.get_by_role("button", name="New silence").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Nodes").fill("node-a")
    dialog.get_by_role("textbox", name="Reason").fill("a new fan")
    assert violations(page) == []
    dialog.get_by_role("button", name="Silence").click()
    row = page.get_by_role("listitem").filter(has_text="a new fan")
    expect(row).to_contain_text("1 node · active")
    page.goto("/nodes/node-a")
    expect(page.get_by_role("status").filter(has_text="Silenced by")).to_contain_text(
        "a new fan. No messages are sent."
    )
    page.get_by_role("status").get_by_role("link", name="Silences").click()
    row.get_by_role("button", name="End").click()
    expect(row).to_have_count(0)


def test_a_wrong_link_says_so(page: Page) -> None:
    page.goto("/acknowledge#nonsense")
    expect(page.get_by_role("alert")).to_contain_text("this link is not complete")
    assert violations(page) == []
