"""The dashboard in a real browser against a real service: the tasks of an operations team."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.job_timeline import JOB, kill, plan, send

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


def test_sign_in_takes_the_code_out_of_the_address_and_uses_it_up(page: Page, dashboard: Stack) -> None:
    page.context.clear_cookies()
    link = dashboard.sign_in_link()
    page.goto(link)
    page.get_by_role("heading", name="Overview").wait_for()
    assert "code" not in page.url
    page.context.clear_cookies()
    page.goto(link)
    expect(page.get_by_role("alert")).to_contain_text("used")


def test_a_wrong_code_is_rejected_with_a_reason(browser: Browser, dashboard: Stack) -> None:
    context = browser.new_context(base_url=dashboard.api.url)
    page = context.new_page()
    page.goto("/sign-in#code=mst_code_wrong")
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    page.goto("/fleet")
    expect(page.get_by_role("heading", name="Mainstay")).to_be_visible()
    assert "/sign-in" in page.url
    context.close()


def test_the_first_screen_answers_and_follows_live(page: Page, dashboard: Stack) -> None:
    """An incident appears without a reload, triggers an automated action, and leads to its page."""
    page.goto("/")
    expect(page.get_by_role("heading", name="No active incidents.")).to_be_visible()
    kill(dashboard, 3)
    expect(page.get_by_role("heading", name="1 active incident.")).to_be_visible()
    send(dashboard, "recovery_planned", data={"recovery": "r1", "plan": plan(3)}, generation=2)
    expect(page.get_by_role("region", name="Automated actions").get_by_role("listitem").first).to_be_visible()
    page.get_by_role("main").get_by_role("link").filter(has_text="ank 3").first.click()
    expect(page).to_have_url(re.compile("/incidents/."))
    expect(page.get_by_text("No checkpoint is on disk.")).to_be_visible()
    send(
        dashboard, "recovery_completed", generation=2,
        data={"recovery": "r1", "seconds": {"detect": 0.01, "regroup": 0.2}, "steps_lost": 0, "epoch": 41},
    )  # fmt: skip
    send(
        dashboard,
        "recovery_verified",
        generation=2,
        data={"recovery": "r1", "steps_committed": 3, "digest_match": True},
    )
    expect(page.get_by_text("Verified").first).to_be_visible()


def test_an_incident_is_closed_by_an_operator_with_a_reason(page: Page, dashboard: Stack) -> None:
    kill(dashboard, 2)
    page.goto("/incidents")
    page.get_by_role("link").filter(has_text="ank 2").first.click()
    page.get_by_role("button", name="Close").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("the rank was killed by a test")
    dialog.get_by_role("button", name="Close").last.click()
    expect(page.get_by_text("the rank was killed by a test").first).to_be_visible()


def test_fleet_map_and_node_page_show_real_measurements(page: Page) -> None:
    page.goto("/fleet")
    expect(page.locator("canvas").first).to_be_visible()
    page.get_by_role("link", name="node-a").first.click()
    expect(page).to_have_url(re.compile("/nodes/node-a"))
    expect(page.locator(".uplot").first).to_be_visible()


def test_job_page_shows_the_grid_of_ranks(page: Page) -> None:
    page.goto(f"/jobs/{JOB}")
    expect(page.get_by_role("heading", name=JOB)).to_be_visible()
    for rank in range(4):
        expect(page.get_by_text(f"rank {rank}", exact=True).first).to_be_visible()


def test_a_validation_is_requested_here_and_measured_on_the_node(page: Page) -> None:
    """The node daemon fetches the task, runs real benchmarks, and the page shows the verdict: no criteria, UNKNOWN.

    A job runs on the node, so the operator has to allow it.
    """
    page.goto("/validation")
    page.get_by_role("radio", name="Suites and criteria").click()
    expect(page.get_by_text("quick").first).to_be_visible()
    page.get_by_role("button", name="Run validation").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Run validation").click()
    expect(dialog.get_by_text("runs on this node")).to_be_visible()
    dialog.get_by_role("switch", name="Allow occupied").click()
    dialog.get_by_role("button", name="Run validation").click()
    expect(page).to_have_url(re.compile("/validation/."))
    expect(page.get_by_text("Unknown").first).to_be_visible(timeout=100_000)
    expect(page.get_by_text("gemm").first).to_be_visible(timeout=100_000)


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.goto("/")
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("valid")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Validation").first).to_be_visible()


def test_an_unknown_address_shows_not_found(page: Page) -> None:
    page.goto("/nowhere")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()


def test_an_unknown_incident_shows_a_problem(page: Page) -> None:
    page.goto("/incidents/0190a0a0-0000-7000-8000-000000000000")
    expect(page.get_by_role("alert").or_(page.get_by_text("not")).first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_both_follow_the_system(browser: Browser, dashboard: Stack, scheme: str) -> None:
    context = browser.new_context(base_url=dashboard.api.url, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(dashboard.sign_in_link())
    page.get_by_role("heading", name="Overview").wait_for()
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    level = sum(int(part) for part in background[background.index("(") + 1 : -1].split(",")[:3])
    assert (level > 384) == (scheme == "light"), background
    context.close()
