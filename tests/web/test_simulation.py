"""The simulation page in a real browser against a real service."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import COLORS, View, broken_pages, violations
from tests.web.job_timeline import JOB

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


def test_policies_are_compared_with_intervals_and_a_plot(page: Page) -> None:
    page.goto("/simulation")
    expect(page.get_by_text("No result yet.")).to_be_visible()
    page.get_by_label("Runs", exact=True).fill("3")
    page.get_by_label("Days", exact=True).fill("5")
    page.get_by_role("button", name="Simulate").click()
    table = page.get_by_role("table", name="Policies compared")
    expect(table.get_by_role("row")).to_have_count(6)
    disk = table.get_by_role("row").filter(has_text="Restart from disk")
    expect(disk).to_contain_text(re.compile(r"8\d\.\d\d%"))
    expect(page.get_by_text(re.compile("has an ETTR of .* over 5 d"))).to_be_visible()
    losses = page.get_by_role("list", name="GPU-hours lost by policy").get_by_role("listitem")
    expect(losses).to_have_count(5)
    expect(page.get_by_role("img", name=re.compile("ETTR over spare nodes: restart from disk"))).to_be_visible()
    assert violations(page) == []


def test_it_works_by_keyboard_with_fewer_policies(page: Page) -> None:
    page.goto("/simulation")
    page.get_by_label("Runs", exact=True).fill("2")
    page.get_by_label("Days", exact=True).fill("2")
    page.get_by_role("radio", name="MTBF").press("Enter")
    page.get_by_role("checkbox", name="restart from disk").press("Space")
    page.get_by_role("button", name="Simulate").press("Enter")
    expect(page.get_by_role("table", name="Policies compared").get_by_role("row")).to_have_count(5)
    name = re.compile("ETTR over node MTBF in hours")
    expect(page.get_by_role("img", name=name)).to_be_visible()


def test_a_jobs_shape_fills_the_form(page: Page) -> None:
    page.goto(f"/simulation?job={JOB}")
    shape = {"Nodes": "1", "GPUs per node": "4", "Replicas (dp)": "2", "Stages (pp)": "2", "Tensor (tp)": "1"}
    for label, value in shape.items():
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    page.get_by_role("button", name="Simulate").click()
    swap = page.get_by_role("row").filter(has_text="Swap to a warm standby")
    expect(swap).to_contain_text("Not possible: a node holds a stage of every replica")


def test_a_shape_that_does_not_fit_is_reported(page: Page) -> None:
    page.goto("/simulation")
    page.get_by_label("Replicas (dp)").fill("3")
    expect(page.get_by_role("alert")).to_contain_text("3 × 16 × 8 is 384 ranks, but the nodes have 16384 GPUs.")
    expect(page.get_by_role("button", name="Simulate")).to_be_disabled()
    page.get_by_label("Replicas (dp)").fill("128")
    page.get_by_label("Runs", exact=True).fill("10000")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("alert")).to_contain_text("ask for fewer seeds or days")
    expect(page.get_by_role("alert")).to_contain_text("body.seeds")


def test_a_job_that_is_gone_and_an_unreachable_service_are_reported(page: Page) -> None:
    page.goto("/simulation?job=gone")
    expect(page.get_by_role("alert").first).to_be_visible()

    def away(route: Route) -> None:
        route.abort()

    page.route("**/v1/simulations", away)
    page.goto("/simulation")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.unroute("**/v1/simulations", away)
    page.get_by_label("Runs", exact=True).fill("1")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("table", name="Policies compared")).to_be_visible()


@pytest.mark.timeout(120)
def test_the_page_keeps_to_the_guidelines_in_the_dark_and_on_a_phone(browser: Browser, dashboard: Stack) -> None:
    views = [View("dark", 1280, COLORS), View("dark", 400, COLORS)]
    assert broken_pages(browser, dashboard, ("/simulation",), views) == {}
