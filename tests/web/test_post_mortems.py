"""An operator downloads the post-mortem of an incident and shares it; the link shows it without signing in."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web import job_timeline
from tests.web.axe import COLORS, View, violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]

SETTLED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
VIEWS = [View(width=1440), View(width=390), View("dark", 1920, COLORS), View("dark", 390, COLORS)]


@pytest.fixture
def incident(dashboard: Stack) -> str:
    """A job whose rank was killed and restored, with a comment."""
    job_timeline.put_job(dashboard)
    job_timeline.kill(dashboard, 1)
    plan = job_timeline.plan(1)
    recovery = {"recovery": plan["id"]}
    job_timeline.send(dashboard, "recovery_planned", data={**recovery, "plan": plan}, generation=2)
    seconds = {"detect": 0.05, "fence": 0.1, "load": 0.12, "regroup": 0.3}
    job_timeline.send(
        dashboard,
        "recovery_completed",
        data={**recovery, "seconds": seconds, "steps_lost": 0, "epoch": 41},
        generation=2,
    )
    path = f"/incidents?job={job_timeline.JOB}&limit=1"
    dashboard.until(lambda: dashboard.api.get(path)["items"][0]["recovered_at"] is not None, 30.0, "the recovery")
    found = str(dashboard.api.get(path)["items"][0]["id"])
    dashboard.api.post(f"/incidents/{found}:comment", {"text": "Replaced the fan.\n<b>No</b> further action."})
    return found


def test_a_post_mortem_is_downloaded_and_shared(
    page: Page, browser: Browser, dashboard: Stack, incident: str, tmp_path: Path
) -> None:
    page.goto(f"/incidents/{incident}")
    page.get_by_role("button", name="Post-mortem").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Download post-mortem").click()
    assert download.value.suggested_filename == f"post-mortem-{incident}.md"
    download.value.save_as(tmp_path / "p.md")
    assert "## Follow-up actions" in (tmp_path / "p.md").read_text()

    page.get_by_role("button", name="Post-mortem").click()
    page.get_by_role("menuitem", name="Share").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("radio", name="1 day").click()
    dialog.get_by_role("button", name="Create link").click()
    link = dialog.get_by_role("textbox", name="Link").input_value()
    assert violations(page) == []
    dialog.get_by_role("button", name="Done").click()
    expect(page.get_by_text("made a link to the post-mortem")).to_be_visible()

    visitor = browser.new_context(reduced_motion="reduce")
    shared = visitor.new_page()
    shared.goto(f"{dashboard.api.url}/shared#{link.partition('#')[2]}")
    expect(shared.get_by_role("region", name="Decisions")).to_contain_text("Local slot (chosen)")
    expect(shared.get_by_role("region", name="Impact")).to_contain_text("GPU hours idle")
    expect(shared.get_by_role("region", name="Comments")).to_contain_text("<b>No</b> further action.")
    expect(shared.get_by_role("navigation")).to_have_count(0)
    for view in VIEWS:
        shared.emulate_media(color_scheme=view.scheme, reduced_motion="reduce")
        shared.set_viewport_size({"width": view.width, "height": 900})
        shared.evaluate(SETTLED)
        assert violations(shared, view.rules) == [], view
        assert not shared.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"), view
    shared.emulate_media(media="print")
    expect(shared.get_by_role("button", name="Print")).to_be_hidden()
    assert shared.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light", "saves ink"
    visitor.close()


def test_a_wrong_link_says_so_without_a_sign_in(browser: Browser, dashboard: Stack) -> None:
    visitor = browser.new_context()
    page = visitor.new_page()
    page.goto(f"{dashboard.api.url}/shared#nonsense")
    expect(page.get_by_role("alert")).to_contain_text("this link is not complete")
    assert page.url.endswith("/shared#nonsense")
    assert violations(page) == []
    visitor.close()
