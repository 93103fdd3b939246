"""Validation in a real browser against a real service: sweeps, distributions, fault localization, admission."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web import updated, validated
from tests.web.axe import COLORS, View, broken_pages, violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]

FIRST, SLOW = validated.NODES[0], validated.SLOW
CRITERION = "/validation/criterion?" + urlencode(
    {"cohort": validated.COHORT, "benchmark": validated.METRIC[0], "metric": validated.METRIC[1]}
)


@dataclass(frozen=True, slots=True)
class Scenario:
    sweep: str
    ids: dict[str, str]
    """Node → its validation."""
    localization: str
    updated: dict[str, str]
    """Node → its validation after an update."""


@pytest.fixture(scope="module")
def dashboard(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Stack]:
    """A service with its own worker, which makes a sweep's validations."""
    # Validations that tests leave open must outlast them, on a slow machine too; the nodes report once.
    settings = {"MAINSTAY_VALIDATION__DEADLINE_SECONDS": "3600", "MAINSTAY_FLEET__HEARTBEAT_TIMEOUT_SECONDS": "3600"}
    stack = service_stack(tmp_path_factory.mktemp("validation"), free_port(), settings)
    try:
        stack.start_service("up", "--no-node")
        validated.put_nodes(stack)
        validated.put_criteria(stack)
        yield stack
    finally:
        stack.close()


@pytest.fixture(scope="module")
def scenario(dashboard: Stack) -> Scenario:
    found = validated.localize(dashboard)
    sweep, ids = validated.play_sweep(dashboard)
    return Scenario(sweep["id"], ids, found, updated.update(dashboard))


def test_a_run_shows_outliers_first_and_why_others_are_held(page: Page, scenario: Scenario) -> None:
    page.goto(f"/validation/sweeps/{scenario.sweep}")
    rows = page.get_by_role("list", name="Nodes of the run").get_by_role("listitem")
    expect(rows).to_have_count(len(validated.NODES))
    expect(rows.nth(0)).to_contain_text(SLOW)
    expect(rows.nth(0)).to_contain_text("beyond the limit")
    expect(rows.nth(1)).to_contain_text("Copy on gpu0, 1 of 2 done")
    expect(rows.nth(1).get_by_role("progressbar")).to_have_attribute("aria-valuenow", "50")
    expect(rows.last).to_contain_text("at most 3 concurrent")
    page.get_by_role("radio", name="Outliers").click()
    expect(rows).to_have_count(1)


def test_a_failed_metric_is_drawn_beside_its_reference(page: Page, scenario: Scenario) -> None:
    page.goto(f"/validation/{scenario.ids[SLOW]}")
    chart = page.get_by_role("img", name=re.compile("beside its reference"))
    expect(chart).to_have_attribute("aria-label", re.compile("reference of 41 values"))
    expect(chart).to_have_attribute("aria-label", re.compile("21 values drawn beyond it"))
    expect(page.get_by_text("timeout: no end after 60 s")).to_be_visible()
    expect(page.get_by_text("The whole benchmark")).to_be_visible()
    page.get_by_role("button", name=re.compile("Distribution of")).click()
    expect(chart).to_have_count(0)


def test_a_criterion_shows_what_it_can_detect(page: Page, scenario: Scenario) -> None:
    page.goto(CRITERION)
    asks = page.get_by_role("region", name="Criterion")
    expect(asks).to_contain_text("accepted from 690 TFLOP/s")
    expect(asks).to_contain_text("98.00%")
    expect(asks).to_contain_text("2.10%: 95% of devices with it fail")
    page.get_by_role("region", name="Newest runs").get_by_role("link", name=re.compile(SLOW)).click()
    expect(page).to_have_url(re.compile(scenario.ids[SLOW]))


def test_a_failed_metric_leads_to_other_runs(page: Page, scenario: Scenario) -> None:
    page.goto(f"/validation/{scenario.ids[SLOW]}")
    page.get_by_role("link", name="Compare with other runs").click()
    runs = page.get_by_role("region", name="Newest runs").get_by_role("listitem")
    expect(runs.and_(page.locator("[aria-current=true]"))).to_contain_text(SLOW)


def test_an_update_and_a_slow_device_are_named(page: Page, scenario: Scenario) -> None:
    page.goto("/validation?tab=compare")  # the update that came last
    result = page.get_by_role("region", name="Result")
    expect(result).to_contain_text("The update caused a slowdown: 1 of 1 metric became slower on all devices")
    expect(result).to_contain_text("1 device stands out")
    node, card = updated.STANDS_OUT
    stands = result.get_by_role("list", name="Devices that stand out").get_by_role("listitem")
    expect(stands).to_have_count(1)
    expect(stands).to_contain_text(f"{node} {card}")
    chart = page.get_by_role("img", name=re.compile("16 devices before and 16 devices after"))
    expect(chart).to_be_visible()
    row = page.get_by_role("list", name="Metrics before and after").locator("> li")
    expect(row).to_contain_text("5.3% slower")
    expect(row).to_contain_text("Caused by the update and by these devices")
    page.get_by_role("radio", name="A time").click()
    page.get_by_label("Time", exact=True).fill("2020-01-01T00:00")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("alert")).to_contain_text("was not measured before")


def test_a_node_is_compared_with_its_earlier_validation(page: Page, scenario: Scenario) -> None:
    node, card = updated.STANDS_OUT
    page.goto(f"/validation/{scenario.updated[node]}")
    page.get_by_role("link", name="compare with earlier").click()
    rows = page.get_by_role("list", name="Metrics before and after").locator("> li")
    expect(rows).to_have_count(updated.GPUS)
    expect(rows.nth(0)).to_contain_text(card)
    expect(rows.nth(0)).to_contain_text("31.6% slower")
    expect(rows.nth(0)).to_contain_text("12 of 12 devices became slower: look at the update")
    rows.nth(0).get_by_role("button", name=re.compile("Distributions of")).click()
    expect(page.get_by_role("img", name=re.compile("11 repetitions before and 11 repetitions after"))).to_be_visible()


def test_the_verdict_names_the_slow_node_with_its_evidence(page: Page, scenario: Scenario) -> None:
    page.goto("/validation?tab=localization")
    page.get_by_role("link", name="job 7 is slow and no node is at fault").click()
    expect(page).to_have_url(re.compile(scenario.localization))
    culprits = page.get_by_role("list", name="Culprits")
    expect(culprits.get_by_role("link", name=SLOW)).to_be_visible()
    expect(culprits).to_contain_text(re.compile("At 7[01]% of normal speed"))
    expect(page.get_by_text(re.compile("1 culprit named after .* 5 nodes cleared"))).to_be_visible()
    slow = page.get_by_role("list", name=re.compile("Pairs of round")).get_by_role("listitem").filter(has_text="Slow")
    expect(slow.first).to_contain_text(SLOW)


def test_the_gate_denies_with_reasons(page: Page, scenario: Scenario) -> None:
    page.goto("/validation?tab=admission")
    page.get_by_role("textbox", name="Job").fill("llama")
    page.get_by_role("textbox", name="Nodes").fill(f"{SLOW}, unknown-node")
    page.get_by_role("button", name="Check admission").click()
    answer = page.get_by_role("region", name="Result")
    rows = answer.get_by_role("list", name="Nodes with reasons").locator("> li")
    expect(rows).to_have_count(2)
    expect(answer).to_contain_text("1 denied only for missing data")
    expect(rows.filter(has_text=SLOW)).to_contain_text("Validation failed")
    expect(rows.filter(has_text="unknown-node")).to_contain_text("no node has this name")


def test_nodes_are_found_for_a_job(page: Page, scenario: Scenario) -> None:
    page.goto("/validation?tab=admission")
    page.get_by_role("radio", name="Find nodes").click()
    page.get_by_role("spinbutton", name="Number of nodes").fill("1000")
    page.get_by_role("button", name="Find nodes").click()
    answer = page.get_by_role("region", name="Result")
    expect(answer).to_contain_text("of 1\u202f000 nodes found")
    expect(answer.get_by_role("list", name="Why other nodes are not fit")).to_contain_text("with a failed validation")
    expect(answer.get_by_role("list", name="Fit nodes")).not_to_contain_text(SLOW)
    page.get_by_role("textbox", name="Racks").fill("no such rack")
    page.get_by_role("button", name="Find nodes").click()
    expect(page.get_by_text(re.compile("no node is in rack 'no such rack'"))).to_be_visible()


def test_a_plan_without_history_claims_no_risk(page: Page, scenario: Scenario) -> None:
    page.goto("/validation?tab=plans")
    page.get_by_role("textbox", name="Nodes").fill(" ".join(validated.NODES))
    page.get_by_role("button", name="Create plan").click()
    expect(page).to_have_url(re.compile("plan="))
    expect(page.get_by_text(re.compile("^Run .* on all 6 nodes"))).to_be_visible()
    rows = page.get_by_role("table", name="Benchmarks evaluated").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("unknown")
    expect(rows.nth(1)).to_contain_text("too little is known to leave it out")


def test_a_sweep_is_made_with_its_limits(page: Page, dashboard: Stack, scenario: Scenario) -> None:
    page.goto("/validation?tab=sweeps")
    page.get_by_role("button", name="New sweep").click()
    dialog = page.get_by_role("dialog")
    fields = {
        "Name": "hourly", "Schedule": "0 2 * * *", "Time zone": "Europe/Berlin", "Concurrent nodes": "2",
        "Nodes per switch": "1", "Retries": "3", "Timeout (minutes)": "10",
    }  # fmt: skip
    for name, text in fields.items():
        dialog.get_by_label(name, exact=True).fill(text)
    dialog.get_by_text("The whole suite").click()
    dialog.get_by_label("gemm").check()
    cohort = dashboard.api.get("/nodes", facets="true")["facets"]["cohort"][0]
    dialog.get_by_text("All cohorts").click()
    dialog.get_by_label(f"{cohort['value']} {cohort['count']}", exact=True).check()
    preview = dialog.get_by_role("region", name="Preview")
    expect(preview).to_contain_text(f"of {cohort['count']} that match")
    expect(preview).to_contain_text("02:00 (Europe/Berlin)")
    assert violations(page) == []
    dialog.get_by_role("button", name="Create sweep").click()
    expect(page.get_by_role("link", name="hourly")).to_be_visible()
    made: dict[str, Any] = next(s for s in dashboard.api.get("/sweeps")["items"] if s["name"] == "hourly")
    limits = {
        name: made[name] for name in ("schedule", "timezone", "cohorts", "max_concurrent", "max_per_switch", "retries")
    }
    assert limits == {
        "schedule": "0 2 * * *", "timezone": "Europe/Berlin", "cohorts": [cohort["value"]], "max_concurrent": 2,
        "max_per_switch": 1, "retries": 3,
    }  # fmt: skip
    assert (made["benchmarks"], made["timeout_seconds"]) == (["gemm"], 600.0)


def test_a_sweep_is_made_to_run_once(page: Page, dashboard: Stack, scenario: Scenario) -> None:
    zone = {"timezoneId": "America/New_York"}
    page.context.new_cdp_session(page).send("Emulation.setTimezoneOverride", zone)
    page.goto("/validation?tab=sweeps")
    page.get_by_role("button", name="New sweep").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("maintenance")
    dialog.get_by_role("radio", name="Once").click()
    expect(dialog.get_by_role("button", name="Create sweep")).to_be_disabled()
    expect(dialog).to_contain_text("America/New_York")
    dialog.get_by_label("Time", exact=True).fill("2098-07-01T04:30")
    expect(dialog.get_by_role("region", name="Preview")).to_contain_text("2098-07-01, 04:30 (America/New_York)")
    dialog.get_by_role("button", name="Create sweep").click()
    expect(page.get_by_text("once, Tue, 2098-07-01, 04:30 (America/New_York)")).to_be_visible()
    made = next(s for s in dashboard.api.get("/sweeps")["items"] if s["name"] == "maintenance")
    assert (made["schedule"], made["next_run_at"]) == (None, 4_055_041_800.0)


def test_a_sweep_is_edited_and_switched_off_without_overwriting_changes(
    page: Page, dashboard: Stack, scenario: Scenario
) -> None:
    body = {"name": "weekly", "suite": "quick", "schedule": "0 3 * * 1"}
    made = dashboard.api.post("/sweeps", body)

    def stored() -> dict[str, Any]:
        return dict(dashboard.api.get(f"/sweeps/{made['id']}"))

    page.goto("/validation?tab=sweeps")
    row = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="weekly", exact=True))
    row.get_by_role("switch", name="Schedule of weekly").click()
    expect(row).to_contain_text("off")
    assert (stored()["enabled"], stored()["next_run_at"]) == (False, None)
    row.get_by_role("button", name="Edit weekly").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Schedule")).to_have_value("0 3 * * 1")
    dialog.get_by_label("Remeasure").fill("2")
    dialog.get_by_role("button", name="Save sweep").click()
    expect(dialog).to_have_count(0)
    expect(row).to_contain_text("failed measurements repeat up to 2 times")
    row.get_by_role("button", name="Edit weekly").click()
    assert violations(page) == []
    dialog.get_by_label("Name", exact=True).fill("mine")
    dashboard.api._json("PATCH", f"/sweeps/{made['id']}", {"version": stored()["version"], "max_concurrent": 7})
    dialog.get_by_role("button", name="Save sweep").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Sweep was changed")
    assert (stored()["name"], stored()["max_concurrent"]) == ("weekly", 7)


@pytest.mark.timeout(400)
def test_every_page_of_validation_is_accessible(browser: Browser, dashboard: Stack, scenario: Scenario) -> None:
    plan = dashboard.api.post("/validation-plans", {"nodes": list(validated.NODES), "job_hours": 24})["id"]
    paths = (
        f"/validation/sweeps/{scenario.sweep}", f"/validation/{scenario.ids[SLOW]}",
        f"/validation/{scenario.ids[FIRST]}",
        CRITERION, f"/validation/fault-localizations/{scenario.localization}", "/validation?tab=localization",
        "/validation?tab=admission", f"/validation?tab=plans&plan={plan}", "/validation?tab=suites",
        "/validation?tab=sweeps", "/validation?tab=compare",
        f"/validation/{scenario.updated[updated.NODES[2]]}/comparison",
    )  # fmt: skip
    assert broken_pages(browser, dashboard, paths, [View(), View("dark", 390, COLORS)]) == {}


# What follows changes the run, so it comes last.


def test_a_run_is_followed_live_and_a_node_canceled_with_a_reason(
    page: Page, dashboard: Stack, scenario: Scenario
) -> None:
    page.goto(f"/validation/sweeps/{scenario.sweep}")
    rows = page.get_by_role("list", name="Nodes of the run").get_by_role("listitem")
    row = rows.filter(has=page.get_by_role("link", name=FIRST, exact=True))
    expect(row).to_contain_text("1 of 2 done")
    validated.measured(dashboard, scenario.ids[FIRST])
    expect(row).to_contain_text("Unknown")  # its copy was never measured, and half a suite is no pass
    last = validated.NODES[-1]
    page.get_by_role("button", name=f"Cancel validation on {last}").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("within 5 s")
    dialog.get_by_role("textbox", name="Reason").fill("a job wants it")
    dialog.get_by_role("button", name="Cancel validation", exact=True).click()
    canceled = rows.filter(has=page.get_by_role("link", name=last, exact=True))
    expect(canceled).to_contain_text("a job wants it")
    expect(canceled).to_contain_text("Unknown")
    page.goto(f"/validation/{scenario.ids[last]}")
    expect(page.get_by_text("Canceled: health unknown")).to_be_visible()
