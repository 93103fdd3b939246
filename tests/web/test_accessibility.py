"""Every page in both themes under axe, the usual checker of the web accessibility guidelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from service.demo.stack import Stack
from tests.web.story import JOB

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]

AXE = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = (
    "/",
    "/fleet",
    "/fleet?signal=cpu_utilization_ratio",
    "/nodes/node-a",
    "/jobs",
    f"/jobs/{JOB}?rank=1",
    "/incidents",
    "/validation",
    "/validation?tab=sweeps",
    "/validation?tab=suites",
    "/no-such-page",
)


def violations(page: Page) -> list[str]:
    page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
    )
    return [f"{v['id']}: {v['nodes'][0]['target']} {v['nodes'][0]['failureSummary']}" for v in found["violations"]]


@pytest.mark.timeout(240)  # eleven pages, each checked whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_breaks_the_accessibility_guidelines(browser: Browser, dashboard: Stack, scheme: str) -> None:
    context = browser.new_context(
        base_url=dashboard.api.base_url,
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
        viewport={"width": 1280, "height": 900},
    )
    context.set_default_timeout(30_000)  # a first page on two busy cores
    page = context.new_page()
    page.goto(f"/sign-in#token={dashboard.token}")
    page.get_by_role("heading", name="Overview").wait_for()
    broken = {}
    for path in PAGES:
        page.goto(path)
        page.get_by_role("heading", level=1).wait_for()
        expect(page.get_by_label("Loading")).to_have_count(0)
        if found := violations(page):
            broken[path] = found
    context.close()
    assert broken == {}


def test_a_form_and_a_dialog_are_reachable_too(page: Page) -> None:
    page.goto("/validation")
    page.get_by_role("button", name="Run now").click()
    page.get_by_role("dialog").get_by_text("benchmarks", exact=False).first.wait_for()
    assert violations(page) == []
