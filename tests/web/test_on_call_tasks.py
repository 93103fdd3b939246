"""Ten tasks of an on-call engineer. Each begins on the first page and takes at most four clicks, typing aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web import job_timeline
from tests.web.job_timeline import JOB, report

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]
MOST = 4
COUNT = """
addEventListener("pointerdown", (event) => {
  if (event.isTrusted) sessionStorage.setItem("clicks", Number(sessionStorage.getItem("clicks") ?? 0) + 1);
}, true);
"""


@pytest.fixture(scope="module")
def dashboard(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], service_stack: Callable[..., Stack]
) -> Iterator[Stack]:
    """A service with three racks of eight nodes, and a job with an incident that needs an operator."""
    # The nodes report once: they must not become silent while the tests run.
    settings = {
        "MAINSTAY_INCIDENTS__CLOSE_AFTER_SECONDS": "3600", "MAINSTAY_FLEET__HEARTBEAT_TIMEOUT_SECONDS": "3600",
    }  # fmt: skip
    stack = service_stack(tmp_path_factory.mktemp("on-call"), free_port(), settings)
    try:
        stack.start_service("serve")
        for index in range(24):
            said = report([f"{index:04}{gpu:06}" for gpu in range(8)])
            stack.api.put(f"/nodes/gpu-{index:02}", said | {"rack": f"r{index // 8 + 1}"})
        job_timeline.put_job(stack, nodes=("gpu-08", "gpu-09"))
        job_timeline.kill(stack, 1)
        stack.until(lambda: bool(stack.api.get("/incidents")["items"]), 30.0, "the incident")
        yield stack
    finally:
        stack.close()


@contextmanager
def task(page: Page) -> Iterator[Page]:
    page.add_init_script(COUNT)
    page.goto("/")
    page.get_by_role("heading", name="Overview").wait_for()
    yield page
    assert clicks(page) <= MOST


def clicks(page: Page) -> int:
    return int(page.evaluate("sessionStorage.getItem('clicks') ?? 0"))


def open_incident(page: Page) -> None:
    """Open the one incident from the list of active ones."""
    page.get_by_role("main").locator("a[href^='/incidents/']").first.click()
    expect(page.get_by_role("button", name="Comment")).to_be_enabled()


def go(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Main").get_by_role("link", name=name, exact=True).click()


def dialog(page: Page, reason: str) -> Locator:
    found = page.get_by_role("dialog")
    found.get_by_role("textbox", name="Reason").fill(reason)
    return found


def test_what_is_broken_and_what_it_costs(page: Page) -> None:
    with task(page):
        open_incident(page)
        life = page.get_by_role("region", name="Life cycle")
        expect(life).to_contain_text("Impact")
        expect(life).to_contain_text(f"job {JOB} (4 ranks)")
        expect(life).to_contain_text("Next")


def test_acknowledge_an_incident(page: Page) -> None:
    with task(page):
        open_incident(page)
        page.get_by_role("button", name="Acknowledge").click()
        dialog(page, "on it").get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_text("acknowledged by first admin").first).to_be_visible()


def test_hand_an_incident_over(page: Page) -> None:
    with task(page):
        open_incident(page)
        page.get_by_role("button", name="Assign").click()
        page.get_by_role("dialog").get_by_role("textbox", name="Assignee").fill("alice")
        page.get_by_role("dialog").get_by_role("button", name="Assign").click()
        expect(page.get_by_text("assigned to alice")).to_be_visible()


def test_drain_a_rack_and_undo_it(page: Page, dashboard: Stack) -> None:
    with task(page):
        go(page, "Fleet")
        page.get_by_role("button", name="r1", exact=True).click()
        page.get_by_role("region", name="Selected nodes").get_by_role("button", name="Drain").click()
        dialog(page, "new power supply").get_by_role("button", name="Drain 8 nodes").click()
        expect(page.get_by_role("region", name="Drain in progress")).to_be_visible()
    go(page, "Overview")
    page.evaluate("sessionStorage.removeItem('clicks')")
    go(page, "Fleet")
    progress = page.get_by_role("region", name="Drain in progress")
    progress.get_by_role("button", name="Undo").click()
    expect(progress).to_contain_text("8 nodes returned")
    assert clicks(page) <= MOST
    assert dashboard.api.get("/nodes", state="draining")["items"] == []


def test_silence_a_rack_for_maintenance(page: Page, dashboard: Stack) -> None:
    with task(page):
        go(page, "Fleet")
        page.get_by_role("button", name="r3", exact=True).click()
        page.get_by_role("region", name="Selected nodes").get_by_role("button", name="Silence").click()
        dialog(page, "maintenance").get_by_role("button", name="Silence").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
    assert [one["racks"] for one in dashboard.api.get("/silences")["items"]] == [["r3"]]


def test_what_failures_cost(page: Page) -> None:
    with task(page):
        go(page, "Reliability")
        expect(page.get_by_role("heading", name="Reliability")).to_be_visible()
        expect(page.get_by_role("main")).to_contain_text(JOB)


def test_write_a_post_mortem(page: Page, tmp_path: Path) -> None:
    with task(page):
        open_incident(page)
        page.get_by_role("button", name="Post-mortem").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name="Download post-mortem").click()
        download.value.save_as(tmp_path / "p.md")
    assert JOB in (tmp_path / "p.md").read_text()


def test_find_a_gpu_by_its_serial(page: Page) -> None:
    with task(page):
        page.keyboard.press("/")
        page.get_by_role("dialog", name="Search or jump").get_by_role("combobox").fill("0017000003")
        expect(page.get_by_role("option").first).to_contain_text("gpu-17")
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_contain_text("0017000003")


def test_who_did_it(page: Page, dashboard: Stack) -> None:
    dashboard.api.post("/nodes/gpu-20:drain", {"reason": "looks slow"})
    with task(page):
        page.get_by_role("button", name="Signed in as").click()
        page.get_by_role("menuitem", name="Access").click()
        entry = page.get_by_role("region", name="Audit log").get_by_role("listitem")
        expect(entry.filter(has_text="gpu-20").first).to_contain_text("first admin")
        expect(entry.filter(has_text="gpu-20").first).to_contain_text("Reason: looks slow")


def test_ask_a_job_to_move_ranks(page: Page) -> None:
    with task(page):
        go(page, "Jobs")
        page.get_by_role("main").get_by_role("link", name=JOB).first.click()
        page.get_by_role("button", name="New request").click()
        expect(page.get_by_role("dialog")).to_be_visible()
