"""Fixtures: a real service with a node daemon and a job, and a real Chromium."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from mainstay.service.demo.stack import Stack
from tests.web.job_timeline import put_job

QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--js-flags=--no-opt --no-maglev",  # no page lives so long that compiling its scripts again would pay
]  # fmt: skip
expect.set_options(timeout=20_000)  # the default, 5 s, is short for a page beside three training jobs on two cores


@pytest.fixture(scope="package")  # not the session: it would judge its node until the last test of all has ended
def dashboard(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Stack]:
    stack = service_stack(
        tmp_path_factory.mktemp("dashboard"), free_port(), {"MAINSTAY_INCIDENTS__CLOSE_AFTER_SECONDS": "3600"}
    )
    try:
        stack.start_service("serve")
        stack.start_node("node-a")
        stack.until(lambda: bool(stack.api.get("/nodes")["items"]), 30.0, "the node")
        put_job(stack)
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    """Start Chromium per module: Playwright runs an event loop, and other tests start their own."""
    try:
        with sync_playwright() as playwright:
            running = playwright.chromium.launch(executable_path=chromium_path, args=QUIET)
            yield running
            running.close()
    finally:
        # A driver that dies leaves the thread marked as inside its loop; every later test of this worker that calls
        # ``asyncio.run`` would fail.
        asyncio.events._set_running_loop(None)


@pytest.fixture
def page(browser: Browser, dashboard: Stack) -> Iterator[Page]:
    """Open a signed-in page. An error on the page fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=dashboard.api.url)
    context.set_default_timeout(15_000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    assert context.request.post("/v1/auth/session", data={"token": dashboard.token}).ok
    yield page
    context.close()
    assert not errors, errors
