"""The map in a real browser: at a past time, before a node was drained, and with a finding about one of its GPUs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from mainstay.probes.core_types import HealthState
from mainstay.service.app import build_services, close_services
from mainstay.service.demo.stack import Stack
from mainstay.service.fleet import service as fleet_service
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.transitions import propose
from mainstay.service.settings import Settings
from tests.web.axe import violations
from tests.web.job_timeline import fall_off_the_bus, report

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def dashboard(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Stack]:
    """Two nodes that are healthy since three hours; one of them is drained now."""
    settings = {"MAINSTAY_FLEET__HEARTBEAT_TIMEOUT_SECONDS": "36000"}
    stack = service_stack(tmp_path_factory.mktemp("history"), free_port(), settings)
    try:
        services = build_services(Settings(data_dir=stack.data_dir, migrate=True))
        then = time.time() - 3 * 3600
        with services.database.session() as session:
            for name in ("gpu-00", "gpu-01"):
                said = NodeReportCreate.model_validate(report([f"{name}{gpu}" for gpu in range(8)]) | {"rack": "r1"})
                fleet_service.report(session, name, said, now=then)
                row = session.get_one(NodeRow, name)
                row.last_seen_at = then
                known = NodeFacts(state=HealthState.UNKNOWN)
                assert propose(session, row, NodeTrigger.REPORTED, reason="", now=then, known=known).accepted
        close_services(services)
        stack.start_service("serve")
        stack.api.post("/nodes/gpu-00:drain", {"reason": "fan broken"})
        yield stack
    finally:
        stack.close()


def test_before_the_drain_the_map_shows_a_healthy_node(page: Page) -> None:
    page.goto("/fleet?range=1h")
    now = page.get_by_role("region", name="Map")
    expect(now.get_by_role("button", name="8 draining")).to_be_visible()
    handle = page.get_by_role("slider", name="Time of the map")
    expect(handle).to_have_attribute("aria-valuetext", re.compile("^Live: 1 draining, 1 healthy"))
    handle.press("Home")
    past = page.get_by_role("region", name=re.compile(r"^Fleet at \d{4}-\d\d-\d\d \d\d:\d\d"))
    expect(past.get_by_role("button", name="16 healthy")).to_be_visible()
    expect(past.get_by_role("button", name="draining")).to_have_count(0)
    expect(handle).to_have_attribute("aria-valuetext", re.compile(r"^\d{4}-.*: 2 healthy$"))
    expect(page).to_have_url(re.compile(r"[?&]at=\d+"))
    expect(page.get_by_role("region", name="Nodes")).to_contain_text("the present, not the time of the map")
    page.reload()
    expect(past.get_by_role("button", name="16 healthy")).to_be_visible()
    past.get_by_role("button", name="r1", exact=True).click()
    selected = page.get_by_role("region", name="Selected nodes")
    for action in ("Drain", "Validate", "Silence"):
        expect(selected.get_by_role("button", name=action)).to_be_disabled()
    expect(selected).to_contain_text("Choose Live to act")
    page.get_by_role("button", name="Live", exact=True).click()
    expect(now.get_by_role("button", name="8 draining")).to_be_visible()
    expect(selected.get_by_role("button", name="Drain")).to_be_enabled()
    expect(page).not_to_have_url(re.compile("at="))


def test_a_past_time_in_the_last_bucket_is_not_now(page: Page) -> None:
    page.goto(f"/fleet?range=30d&at={time.time() - 5}")
    handle = page.get_by_role("slider", name="Time of the map")
    expect(handle).to_have_attribute("aria-valuetext", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d"))
    expect(page.get_by_role("region", name="History").get_by_text("Now", exact=True)).to_have_count(0)


def test_a_finding_about_one_gpu_marks_that_gpu_while_it_holds(page: Page, dashboard: Stack) -> None:
    page.goto("/fleet?range=1h")
    shown = page.get_by_role("region", name="Map")
    expect(shown.get_by_role("button", name="8 draining")).to_be_visible()
    marked = shown.get_by_role("button", name="1 with a critical finding")
    expect(marked).to_have_count(0)
    fall_off_the_bus(dashboard, node="gpu-01", device="gpu3")
    expect(marked).to_be_visible()  # without a reload
    grid = page.get_by_role("application")
    grid.focus()
    for _ in range(12):  # to the fourth device of the second node
        grid.press("ArrowRight")
    told = page.get_by_text("gpu-01, gpu3: Suspect. Critical finding: XID", exact=True)
    expect(told).to_have_count(1)
    grid.press("ArrowRight")
    expect(page.get_by_text("gpu-01, gpu4: Suspect", exact=True)).to_have_count(1)
    marked.click()
    expect(page).to_have_url(re.compile("highlight=critical"))
    expect(marked).to_have_attribute("aria-pressed", "true")
    assert violations(page) == []
    marked.click()
    page.get_by_role("slider", name="Time of the map").press("Home")
    expect(page.get_by_role("button", name="16 healthy")).to_be_visible()
    expect(page.get_by_role("button", name="with a critical finding")).to_have_count(0)
    page.get_by_role("button", name="Live", exact=True).click()
    expect(marked).to_be_visible()
    for incident in dashboard.api.get("/incidents", node="gpu-01")["items"]:
        dashboard.api.post(f"/incidents/{incident['id']}:close", {"reason": "replaced"})
    expect(marked).to_have_count(0)
