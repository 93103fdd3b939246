"""Nodes are selected on the map, drained together, followed, and returned, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import violations
from tests.web.job_timeline import JOB, put_job, report

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]
RACKS, PER_RACK = 3, 8
HELD = tuple(f"gpu-{index:02}" for index in range(8, 12))
"""Nodes of rack r2 with ranks of a job: they keep draining."""


@pytest.fixture(scope="module")
def dashboard(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Stack]:
    settings = {"MAINSTAY_FLEET__HEARTBEAT_TIMEOUT_SECONDS": "3600"}  # the nodes report once
    stack = service_stack(tmp_path_factory.mktemp("bulk"), free_port(), settings)
    try:
        stack.start_service("serve")
        for index in range(RACKS * PER_RACK):
            said = report([f"{index:04}{gpu}" for gpu in range(8)])
            stack.api.put(f"/nodes/gpu-{index:02}", said | {"rack": f"r{index // PER_RACK + 1}"})
        put_job(stack, nodes=HELD)
        yield stack
    finally:
        stack.close()


@pytest.fixture
def fleet(page: Page) -> Page:
    page.goto("/fleet")
    page.locator("canvas").first.wait_for()
    page.get_by_role("button", name="r2", exact=True).wait_for()
    return page


def drag(page: Page, label: Locator, width: int, height: int) -> None:
    """Draw a box that begins under the name of a rack."""
    box = label.bounding_box()
    assert box is not None
    x, y = box["x"] + 2, box["y"] + box["height"] + 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + width, y + height, steps=5)
    page.mouse.up()


def bar(page: Page) -> Locator:
    return page.get_by_role("region", name="Selected nodes")


def draining(stack: Stack) -> set[str]:
    return {node["name"] for node in stack.api.get("/nodes", state="draining")["items"]}


def test_a_box_selects_nodes_that_are_drained_followed_and_returned(fleet: Page, dashboard: Stack) -> None:
    rack = fleet.get_by_role("button", name="r2", exact=True)
    size = rack.bounding_box()
    assert size is not None
    drag(fleet, rack, int(size["width"]) - 4, 34)  # the first row of the rack
    expect(bar(fleet)).to_contain_text("4 nodes selected")
    expect(fleet).to_have_url(re.compile("/fleet$"))  # a drag opens no node
    bar(fleet).get_by_role("button", name="Drain").click()

    dialog = fleet.get_by_role("dialog", name="Drain 4 nodes")
    preview = dialog.get_by_role("region", name="Preview")
    expect(preview).to_contain_text(f"4 nodes to drain, of 24 in the fleet. 1 job on them: {JOB}.")
    assert draining(dashboard) == set()
    assert violations(fleet) == []
    dialog.get_by_role("textbox", name="Reason").fill("new power supply")
    dialog.get_by_role("button", name="Drain 4 nodes").click()
    expect(dialog).to_be_hidden()

    progress = fleet.get_by_role("region", name="Drain in progress")
    expect(progress).to_contain_text(f"0 of 4 nodes drained, 4 still draining with 1 job: {JOB}")
    assert draining(dashboard) == set(HELD)
    assert violations(fleet) == []
    fleet.get_by_role("link", name="Jobs", exact=True).click()  # another page, and back
    fleet.get_by_role("link", name="Fleet", exact=True).click()
    progress.get_by_role("button", name="Undo").click()
    expect(progress).to_contain_text("Drain undone: 4 nodes returned.")
    assert draining(dashboard) == set()
    reasons = {dashboard.api.get(f"/nodes/{name}/transitions")["items"][0]["reason"] for name in HELD}
    assert reasons == {"Undo of the drain: new power supply"}
    progress.get_by_role("button", name="Dismiss").click()
    expect(progress).to_be_hidden()


def test_a_preview_names_what_is_refused(fleet: Page, dashboard: Stack) -> None:
    fleet.get_by_role("button", name="r3", exact=True).click()
    expect(bar(fleet)).to_contain_text("8 nodes selected")
    bar(fleet).get_by_role("button", name="Validate").click()
    dialog = fleet.get_by_role("dialog", name="Validate 8 nodes")
    expect(dialog.get_by_text("8 refused")).to_be_visible()
    expect(dialog.get_by_text("gpu-16: validate does not lead out of")).to_be_visible()
    dialog.get_by_role("textbox", name="Reason").fill("x")
    expect(dialog.get_by_role("button", name="Validate", exact=True)).to_be_disabled()


def test_the_keyboard_selects_nodes_and_racks(fleet: Page) -> None:
    grid = fleet.get_by_role("application")
    grid.focus()
    grid.press("ArrowRight")  # to the first device
    grid.press(" ")
    expect(bar(fleet)).to_contain_text("1 node selected")
    grid.press("r")
    expect(bar(fleet)).to_contain_text("8 nodes selected")
    grid.press("r")
    expect(bar(fleet)).to_be_hidden()


def test_the_table_shares_the_selection_and_a_rack_is_silenced_as_a_rack(fleet: Page) -> None:
    fleet.get_by_role("checkbox", name="Select gpu-16").check()
    expect(bar(fleet)).to_contain_text("1 node selected")
    fleet.get_by_role("button", name="r3", exact=True).click()
    expect(fleet.get_by_role("checkbox", name="Select gpu-23")).to_be_checked()
    bar(fleet).get_by_role("button", name="Silence").click()
    dialog = fleet.get_by_role("dialog", name="New silence")
    expect(dialog.get_by_label("Racks")).to_have_value("r3")
    dialog.get_by_role("button", name="Cancel").click()
    bar(fleet).get_by_role("button", name="Clear").click()
    expect(bar(fleet)).to_be_hidden()


def test_the_legend_highlights_one_state(fleet: Page) -> None:
    legend = fleet.get_by_role("region", name="Map").get_by_role("button", name=re.compile("^192 "))
    before = fleet.locator("canvas").first.screenshot()
    legend.focus()
    legend.press("Enter")
    expect(legend).to_have_attribute("aria-pressed", "true")
    expect(fleet).to_have_url(re.compile(r"highlight=(healthy|unknown)"))
    fleet.goto("/fleet?highlight=quarantined")
    chosen = fleet.get_by_role("button", name=re.compile("quarantined$"))
    expect(chosen).to_have_attribute("aria-pressed", "true")
    assert fleet.locator("canvas").first.screenshot() != before
    chosen.click()
    expect(fleet).to_have_url(re.compile("/fleet$"))


def test_the_map_groups_nodes_by_their_jobs_at_twice_the_size(fleet: Page) -> None:
    canvas = fleet.locator("canvas").first
    width, small = canvas.bounding_box(), canvas.evaluate("canvas => canvas.clientHeight")
    fleet.get_by_role("radiogroup", name="Group nodes by").get_by_role("radio", name="Job").click()
    fleet.get_by_role("button", name=JOB, exact=True).click()
    expect(bar(fleet)).to_contain_text(f"{len(HELD)} nodes selected")
    fleet.get_by_role("radiogroup", name="Size of the map").get_by_role("radio", name="2×").click()
    expect(fleet).to_have_url(re.compile("group=job&zoom=2x"))
    fleet.wait_for_function("before => document.querySelector('canvas').clientHeight > before", arg=small)
    assert width is not None
    assert fleet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    fleet.reload()
    fleet.get_by_role("button", name=JOB, exact=True).wait_for()
    assert violations(fleet) == []
