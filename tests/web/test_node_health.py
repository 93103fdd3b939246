"""Node health in a real browser against a real service: a GPU falls off the bus, and an operator handles it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import COLORS, View, broken_pages, violations
from tests.web.job_timeline import GPU_NODE, OTHER_NODE, SERIAL, fall_off_the_bus, put_gpu_nodes

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def lost(dashboard: Stack) -> dict[str, Any]:
    """Two nodes with GPUs; one GPU is lost, and the service proposes what to do. The proposal."""
    put_gpu_nodes(dashboard)
    fall_off_the_bus(dashboard)

    def proposals() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = dashboard.api.get("/remediations", node=GPU_NODE)["items"]
        return found

    dashboard.until(lambda: bool(proposals()), 30.0, "the proposal")
    return proposals()[0]


def state_of(stack: Stack, node: str) -> str:
    return str(stack.api.get(f"/nodes/{node}")["state"])


def give_reason(page: Page, verb: str, reason: str) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Reason").fill(reason)
    dialog.get_by_role("button", name=verb, exact=True).click()


def test_the_first_screen_shows_proposals_that_wait_for_an_operator(page: Page, lost: dict[str, Any]) -> None:
    page.goto("/")
    panel = page.get_by_role("region", name="Action required")
    expect(panel.get_by_text(f"Drain {GPU_NODE}, then reboot it")).to_be_visible()
    expect(panel.get_by_text("dry run")).to_be_visible()
    panel.get_by_role("link", name=re.compile("then reboot it")).click()
    expect(page).to_have_url(re.compile("/remediation"))
    expect(page.get_by_text("The breaker is closed")).to_be_visible()


def test_the_incident_shows_the_recommended_action(page: Page, lost: dict[str, Any]) -> None:
    page.goto(f"/incidents/{lost['incident']}")
    expect(page.get_by_text("Recommended action:")).to_be_visible()
    expect(page.get_by_text("work leaves the node first")).to_be_visible()
    expect(page.get_by_role("heading", name="Remediation proposals")).to_be_visible()
    page.get_by_role("link", name="gpu0").first.click()
    expect(page).to_have_url(re.compile(f"/devices/{SERIAL}"))


def test_a_device_keeps_its_past_when_it_moves(page: Page, lost: dict[str, Any]) -> None:
    page.goto(f"/devices/{SERIAL}")
    locations = page.get_by_role("region", name="Location history")
    expect(locations.get_by_text("current node")).to_be_visible()
    expect(locations.get_by_role("link", name=OTHER_NODE)).to_be_visible()
    history = page.get_by_role("region", name="History")
    expect(history.get_by_text("Event: XID 79")).to_be_visible()
    page.get_by_role("combobox", name="Kind").click()
    page.get_by_role("option", name=re.compile("Moves")).click()
    expect(page).to_have_url(re.compile("show=move"))
    expect(history.get_by_text("Event: XID 79")).to_have_count(0)
    expect(history.get_by_text(re.compile(f"{OTHER_NODE} to {GPU_NODE}"))).to_be_visible()


def test_the_palette_finds_a_device_by_its_serial(page: Page, lost: dict[str, Any]) -> None:
    page.goto("/")
    page.get_by_role("heading", name="Overview").wait_for()
    page.keyboard.press("Control+k")
    page.keyboard.type(SERIAL[5:])
    expect(page.get_by_role("option").filter(has_text=f"{GPU_NODE} gpu0").first).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/devices/{SERIAL}"))


def test_an_unknown_device_shows_a_problem(page: Page) -> None:
    page.goto("/devices/999999999999")
    expect(page.get_by_role("alert")).to_be_visible()


def test_a_node_is_drained_and_taken_back_with_reasons(page: Page, dashboard: Stack, lost: dict[str, Any]) -> None:
    # Nothing reports for it: it turns unknown after 10 s, and a dialog that was opened before would be out of date.
    dashboard.until(lambda: state_of(dashboard, OTHER_NODE) == "unknown", 60.0, "the silent node is unknown")
    page.goto(f"/nodes/{OTHER_NODE}")
    cycle = page.get_by_role("region", name="Life cycle")
    cycle.get_by_role("button", name="Drain", exact=True).click()
    drain = page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True)
    expect(drain).to_be_disabled()
    give_reason(page, "Drain", "firmware of the ports")
    expect(cycle.get_by_text("firmware of the ports").first).to_be_visible()
    assert state_of(dashboard, OTHER_NODE) == "draining"
    cycle.get_by_role("button", name="Undrain").click()
    give_reason(page, "Undrain", "the firmware is in")
    expect(cycle.get_by_text("the firmware is in").first).to_be_visible()
    assert state_of(dashboard, OTHER_NODE) != "draining"


def test_a_page_that_is_out_of_date_is_rejected_with_a_reason(
    page: Page, dashboard: Stack, lost: dict[str, Any]
) -> None:
    """Another operator quarantines the node while the dialog is open: nothing is overwritten unseen."""
    page.goto(f"/nodes/{OTHER_NODE}")
    page.get_by_role("region", name="Life cycle").get_by_role("button", name="Drain", exact=True).click()
    dashboard.api.post(f"/nodes/{OTHER_NODE}:quarantine", {"reason": "another operator was faster"})
    give_reason(page, "Drain", "too late")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("quarantined")
    assert state_of(dashboard, OTHER_NODE) == "quarantined"
    page.keyboard.press("Escape")
    cycle = page.get_by_role("region", name="Life cycle")
    expect(cycle.get_by_text("Only a passed validation")).to_be_visible()
    expect(cycle.get_by_role("button", name="Validate")).to_be_visible()
    expect(cycle.get_by_role("button", name="Drain", exact=True)).to_have_count(0)


def test_a_proposal_is_accepted_by_an_operator(page: Page, dashboard: Stack, lost: dict[str, Any]) -> None:
    page.goto("/remediation")
    card = page.get_by_role("article").filter(has_text=f"Drain {GPU_NODE}")
    expect(card.get_by_text("Allows").first).to_be_visible()
    card.get_by_role("button", name="Accept").click()
    give_reason(page, "Accept", "the GPU is gone for good")
    expect(card.get_by_text("Accepted", exact=True)).to_be_visible()
    expect(card.get_by_role("button", name="Accept")).to_have_count(0)
    assert state_of(dashboard, GPU_NODE) in {"draining", "quarantined"}


def test_the_heatmap_is_colored_by_a_signal_found_by_typing(page: Page, lost: dict[str, Any]) -> None:
    page.goto("/fleet")
    page.get_by_role("button", name=re.compile("^Signal")).click()
    page.keyboard.type("throttle thermal")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("signal=gpu_throttle_thermal_nanoseconds_total"))
    expect(page.get_by_role("button", name=re.compile("GPU throttle thermal"))).to_be_visible()


def test_a_dcgm_target_is_added_and_removed(page: Page) -> None:
    page.goto("/fleet")
    page.get_by_role("button", name="Add target").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill("http://127.0.0.1:9/metrics")
    dialog.get_by_label("Node").fill("dcgm-node")
    dialog.get_by_role("button", name="Add target").click()
    panel = page.get_by_role("region", name="dcgm-exporter targets")
    expect(panel.get_by_text("dcgm-node")).to_be_visible()
    panel.get_by_role("button", name=re.compile("Remove")).click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(panel.get_by_text("No targets.")).to_be_visible()


def test_the_policy_is_searched_by_code(page: Page) -> None:
    page.goto("/policies/xid")
    page.get_by_role("searchbox", name=re.compile("Search rules")).fill("79")
    table = page.get_by_role("table", name="Rules")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_text("Reboot the node")).to_be_visible()
    page.get_by_role("searchbox", name=re.compile("Search rules")).fill("no such words")
    expect(page.get_by_text("No matching rules.")).to_be_visible()


def test_overrides_are_tested_on_history_before_activation(page: Page, lost: dict[str, Any]) -> None:
    """From a rule to a stanza, tested over what happened here, uploaded as shadow, activated, retired."""
    page.goto("/policies/xid?q=79")
    page.get_by_role("button", name="Override").first.click()
    text = page.get_by_role("textbox", name="Overrides in TOML")
    expect(text).to_have_value(re.compile(r"\[xid\.79\]"))
    text.fill('[xid.79]\nseverity = "warning"\nrecommended_action = "monitor"\n')
    page.get_by_role("button", name="Test on history").click()
    found = page.get_by_role("region", name="Test results")
    expect(found.get_by_text(re.compile("drains · .1"))).to_be_visible()
    expect(found.get_by_role("link", name=GPU_NODE)).to_be_visible()
    page.get_by_role("button", name="Upload as shadow").click()
    give_reason(page, "Upload as shadow", "try it for a week")
    versions = page.get_by_role("region", name="Versions")
    expect(versions.get_by_text("try it for a week").first).to_be_visible()
    expect(versions.get_by_text("Shadow", exact=True)).to_be_visible()
    versions.get_by_role("button", name="Activate").click()
    give_reason(page, "Activate", "it has proved itself")
    expect(versions.get_by_text("Active", exact=True)).to_be_visible()
    page.goto("/policies/xid?only=overridden")
    expect(page.get_by_role("table", name="Rules").get_by_text("overridden")).to_be_visible()
    page.goto("/policies/xid?tab=versions")
    versions.get_by_role("button", name="Retire").click()
    give_reason(page, "Retire", "back to the built-in rules")
    expect(page.get_by_text("Built-in rules", exact=True)).to_be_visible()


def test_overrides_that_cannot_be_read_are_rejected_with_a_reason(page: Page) -> None:
    page.goto("/policies/xid?tab=overrides")
    page.get_by_role("textbox", name="Overrides in TOML").fill('[xid.79]\nrecommended_action = "pray"\n')
    page.get_by_role("button", name="Test on history").click()
    expect(page.get_by_role("alert")).to_contain_text("79")


@pytest.mark.timeout(400)  # nine pages, each checked whole in three views
def test_the_pages_of_node_health_are_accessible_and_fit(
    browser: Browser, dashboard: Stack, lost: dict[str, Any]
) -> None:
    paths = (
        f"/nodes/{GPU_NODE}",
        f"/devices/{SERIAL}",
        "/remediation",
        f"/incidents/{lost['incident']}",
        "/fleet",
        "/policies/xid",
        "/policies/xid?tab=overrides",
        "/policies/xid?tab=versions",
        "/policies/xid?tab=shadow",
    )
    assert broken_pages(browser, dashboard, paths, [View(), View("dark", rules=COLORS), View(width=390)]) == {}


def test_the_dialogs_of_node_health_are_accessible(page: Page, lost: dict[str, Any]) -> None:
    page.emulate_media(reduced_motion="reduce")  # what fades in is not yet dark enough to read
    page.goto(f"/nodes/{GPU_NODE}")
    page.get_by_role("region", name="Life cycle").get_by_role("button", name="Validate").click()
    expect(page.get_by_role("dialog").get_by_role("textbox", name="Reason")).to_be_focused()
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.goto("/fleet")
    page.get_by_role("button", name=re.compile("^Signal")).click()
    expect(page.get_by_role("combobox", name="Search signal")).to_be_focused()
    assert violations(page) == []
