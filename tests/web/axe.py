"""Check pages with axe against the web accessibility guidelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack

AXE = Path(__file__).resolve().parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"


GUIDELINES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
COLORS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""The rules about colors, which a second theme of the same width can break."""
SHAPE: tuple[str, ...] = ()
"""No rules: the page only has to fit into the window."""


@dataclass(frozen=True, slots=True)
class View:
    """How a page is looked at, and by which rules of axe it is judged."""

    scheme: Literal["light", "dark"] = "light"
    width: int = 1280
    rules: Any = None
    """None: all ``GUIDELINES``; ``SHAPE``: none."""


SETTLED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
"""What a page shows after another theme or width has been drawn."""


def violations(page: Page, rules: Any = None) -> list[str]:
    """Return the violations on the page, one line each, by all ``GUIDELINES`` or by ``rules`` of axe."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    found: dict[str, Any] = page.evaluate(
        "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", rules or GUIDELINES
    )
    return [f"{v['id']}: {v['nodes'][0]['target']} {v['nodes'][0]['failureSummary']}" for v in found["violations"]]


def broken_pages(
    browser: Browser,
    dashboard: Stack,
    paths: Sequence[str],
    views: Sequence[View],
    *,
    prepare: Callable[[Page], None] | None = None,
    look: Callable[[Page, str], None] | None = None,
) -> dict[str, list[str]]:
    """Return the violations by page and view, and pages wider than the window.

    Each page is loaded once, and then looked at in all ``views``: theme and width only change its style.

    ``prepare`` may replace responses of the service; ``look`` gets each page after that, with its path.
    """
    context = browser.new_context(base_url=dashboard.api.url, reduced_motion="reduce")
    context.set_default_timeout(30_000)  # a first page on two busy cores
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    if prepare is not None:
        prepare(page)
    page.goto(dashboard.sign_in_link())
    page.get_by_role("heading", name="Overview").wait_for()
    broken = {}
    for path in paths:
        page.goto(path)
        page.get_by_role("heading", level=1).wait_for()
        if look is not None:
            look(page, path)
        for view in views:
            if found := _broken(page, view):
                broken[f"{path} ({view.scheme}, {view.width} px)"] = found
    context.close()
    return broken | ({"errors on the page": errors} if errors else {})


def _broken(page: Page, view: View) -> list[str]:
    page.emulate_media(color_scheme=view.scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": view.width, "height": 900})
    page.evaluate(SETTLED)
    expect(page.get_by_label("Loading")).to_have_count(0, timeout=20_000)
    found = violations(page, view.rules) if view.rules != SHAPE else []
    if page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"):
        found.append(f"wider than {view.width} px")
    return found
