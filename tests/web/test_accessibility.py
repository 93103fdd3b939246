"""Check every page in both themes with axe."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from mainstay.service.demo.stack import Stack
from tests.web.axe import COLORS, View, broken_pages, violations
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
    "/validation",
    "/validation?tab=sweeps",
    "/service",
    "/glossary",
    "/no-such-page",
)
"""The suites, which are the same everywhere, are checked in ``test_validation.py``."""


@pytest.mark.timeout(400)  # fifteen pages, each checked whole in two views
def test_no_page_breaks_the_accessibility_guidelines(browser: Browser, dashboard: Stack) -> None:
    assert broken_pages(browser, dashboard, PAGES, [View(), View("dark", rules=COLORS)]) == {}


def test_a_form_and_a_dialog_are_reachable_too(page: Page) -> None:
    page.goto("/validation")
    page.get_by_role("button", name="Run validation").click()
    page.get_by_role("dialog").get_by_text("benchmarks", exact=False).first.wait_for()
    assert violations(page) == []
