"""Check pages with axe against the web accessibility guidelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack

AXE = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


GUIDELINES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
COLORS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""The rules about colors, which a second theme of the same width can break."""


def violations(page: Page, rules: Any = None) -> list[str]:
    """Return the violations on the page, one line each, by all ``GUIDELINES`` or by ``rules`` of axe."""
    page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate(
        "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", rules or GUIDELINES
    )
    return [f"{v['id']}: {v['nodes'][0]['target']} {v['nodes'][0]['failureSummary']}" for v in found["violations"]]


def broken_pages(
    browser: Browser,
    dashboard: Stack,
    paths: tuple[str, ...],
    *,
    scheme: str,
    width: int = 1280,
    prepare: Callable[[Page], None] | None = None,
    rules: Any = None,
) -> dict[str, list[str]]:
    """Return the violations by page in one theme, and pages wider than the window.

    ``prepare`` may replace responses of the service.
    """
    context = browser.new_context(
        base_url=dashboard.api.url,
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
        viewport={"width": width, "height": 900},
    )
    context.set_default_timeout(30_000)  # a first page on two busy cores
    page = context.new_page()
    if prepare is not None:
        prepare(page)
    page.goto(dashboard.sign_in_link())
    page.get_by_role("heading", name="Overview").wait_for()
    broken = {}
    for path in paths:
        page.goto(path)
        page.get_by_role("heading", level=1).wait_for()
        expect(page.get_by_label("Loading")).to_have_count(0, timeout=20_000)
        found = violations(page, rules)
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"):
            found.append(f"wider than {width} px")
        if found:
            broken[path] = found
    context.close()
    return broken
