"""Check every page: with axe, in three widths and both themes, busy, empty, stale, and broken.

Pixels are not compared: they change with each Chromium and font. What a page must not do is compared in their place: be
wider than its window, raise an error, show data that is old as new, or show nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import COLORS, SHAPE, View, broken_pages, violations
from tests.web.job_timeline import JOB

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]

PAGES = (
    "/",
    "/fleet",
    "/fleet?signal=cpu_utilization_ratio",
    "/nodes/node-a",
    "/jobs",
    f"/jobs/{JOB}?rank=1",
    "/incidents",
    "/notifications",
    "/reliability",
    "/remediation",
    "/access",
    "/policies/xid",
    "/policies/detectors",
    "/simulation",
    "/validation",
    "/validation?tab=sweeps",
    "/service",
    "/glossary",
    "/no-such-page",
)
"""The suites, which are the same everywhere, are checked in ``test_validation.py``."""


SHAPES = [View(scheme, width, SHAPE) for scheme in ("light", "dark") for width in (390, 1440, 1920)]
WIDTHS = [View("light", 390, SHAPE), View("dark", 1440, SHAPE), View("light", 1920, SHAPE)]
STATIC = {"/glossary", "/no-such-page", "/simulation"}
"""Pages that show nothing of the service at first."""


@pytest.mark.timeout(400)  # all pages, each checked whole in two views
def test_no_page_breaks_the_accessibility_guidelines(browser: Browser, dashboard: Stack) -> None:
    assert broken_pages(browser, dashboard, PAGES, [View(), View("dark", rules=COLORS), *SHAPES]) == {}


@pytest.mark.timeout(400)
def test_every_page_of_a_new_service_says_what_is_missing(
    browser: Browser, tmp_path: Path, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> None:
    stack = service_stack(tmp_path, free_port(), {})
    try:
        stack.start_service("serve")
        pages = [path for path in PAGES if not path.startswith(("/nodes/", "/jobs/"))]
        assert broken_pages(browser, stack, pages, WIDTHS) == {}
    finally:
        stack.close()


def refuse(route: Route) -> None:
    problem = {"type": "urn:mainstay:problem:x", "title": "Broken", "status": 503, "detail": "", "instance": "/"}
    route.fulfill(status=503, content_type="application/problem+json", json=problem)


@pytest.mark.timeout(400)
def test_every_page_says_that_the_service_does_not_answer(browser: Browser, dashboard: Stack) -> None:
    def break_data(page: Page, path: str) -> None:
        page.route("**/v1/**", refuse)
        page.reload()
        if path not in STATIC:
            expect(page.get_by_text("Broken").first).to_be_visible()
        page.unroute("**/v1/**")

    assert broken_pages(browser, dashboard, PAGES, WIDTHS, look=break_data) == {}


@pytest.mark.timeout(400)
def test_data_that_is_not_refreshed_says_how_old_it_is(browser: Browser, dashboard: Stack) -> None:
    def stop_refreshing(page: Page, _: str) -> None:
        expect(page.get_by_label("Loading")).to_have_count(0)
        page.route("**/v1/**", refuse)
        page.clock.fast_forward(60_000)
        expect(page.get_by_role("status").filter(has_text="Broken").first).to_be_visible()
        page.unroute("**/v1/**")

    pages = ["/", "/fleet", "/nodes/node-a", "/jobs", f"/jobs/{JOB}", "/incidents", "/remediation", "/service"]
    found = broken_pages(
        browser, dashboard, pages, SHAPES[:1], prepare=lambda page: page.clock.install(), look=stop_refreshing
    )
    assert found == {}


def test_a_form_and_a_dialog_are_reachable_too(page: Page) -> None:
    page.goto("/validation")
    page.get_by_role("button", name="Run validation").click()
    page.get_by_role("dialog").get_by_text("benchmarks", exact=False).first.wait_for()
    assert violations(page) == []
