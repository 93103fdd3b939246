"""The job page lists checkpoints with their state in words, and says what one costs that is selected."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]

JOB = "with-checkpoints"


def step(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": number, "state": "complete", "problem": "", "time": time.time() - 9_000 + 60 * number, "ranks": 1,
        "disk_bytes": 3 << 30, "full_bytes": 3 << 30, "read_bytes": 3 << 30, "levels": ["local"], "pinned": False,
        "bases": [], "unreadable": [], "previous": number - 10, "restore_seconds": 6.0, "seconds_lost": 600.0,
        "nodes": ["node-a"], "node_count": 1, "survives": "the loss of any nodes: they share the directory", **changes,
    }  # fmt: skip


STEPS = [
    step(50, state="incomplete", problem="is not complete: parts of ranks [0] are missing", time=None, full_bytes=None,
         read_bytes=None, previous=None, restore_seconds=None, seconds_lost=None, survives=""),
    step(40, disk_bytes=300 << 20, bases=[30]),
    step(30, disk_bytes=400 << 20, bases=[20], unreadable=[40]),
    step(20, unreadable=[30, 40], levels=["local", "upload"], restore_seconds=None),
    step(10, pinned=True, previous=None),
    step(5, state="damaged", problem="manifest.json is damaged: its checksum does not hold", time=None, previous=None),
]  # fmt: skip


def put_job(stack: Stack, job: str, run: str | None, steps: list[dict[str, Any]] | None) -> None:
    ranks = [{"rank": 0, "dp": 0, "pp": 0, "tp": 0, "node": "node-a", "device": None, "pid": 9, "state": "running"}]
    protection = {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": 10, "state_bytes": [3 << 30]}
    checkpoints = {
        "run": run, "directory": "/shared/checkpoints", "upload": "s3://bucket/llm", "time": time.time(),
        "steps": steps, "omitted": 7,
    }  # fmt: skip
    report = {
        "name": job, "state": "running", "generation": 1, "command": ["train.py"],
        "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": ranks},
        "protection": protection | {"run": run},
        "steps_total": 100, "last_step": 52, "started_at": time.time() - 9_000, "finished_at": None,
    }  # fmt: skip
    stack.api.put(f"/jobs/{job}", report if steps is None else report | {"checkpoints": checkpoints})


def test_steps_with_their_states_chains_and_costs(page: Page, dashboard: Stack) -> None:
    put_job(dashboard, JOB, "0199", STEPS)
    page.goto(f"/jobs/{JOB}")
    page.get_by_role("radio", name="Checkpoints").click()
    expect(page).to_have_url(re.compile("tab=checkpoints"))
    table = page.get_by_role("table", name="Checkpoints")
    rows = table.get_by_role("row")
    expect(rows).to_have_count(7)
    for number, words in ((1, ("50", "Incomplete")), (2, ("40", "Complete", "300 MiB (10%)", "30")),
                          (4, ("20", "unknown", "30 min, 2 later steps")),
                          (5, ("10", "pinned", "nothing now")), (6, ("5", "Damaged"))):  # fmt: skip
        for word in words:
            expect(rows.nth(number)).to_contain_text(word)
    expect(rows.nth(2)).to_contain_text("next restore")
    expect(page.get_by_text("A new start with --resume takes step 40.")).to_be_visible()
    expect(page.get_by_text("7 older steps not listed")).to_be_visible()
    expect(page.get_by_role("heading", name="Step 40")).to_be_visible()
    rows.nth(3).click()
    expect(page).to_have_url(re.compile("step=30"))
    expect(page.get_by_role("heading", name="Step 30")).to_be_visible()
    expect(page.get_by_text("Later steps that cannot be read without it: 40.")).to_be_visible()
    expect(page.get_by_text("continues from step 20, not from step 40: 20 min of training is lost")).to_be_visible()
    table.get_by_role("button", name="Size on disk").click()
    expect(rows.nth(6)).to_contain_text("300 MiB")


def test_without_a_directory_the_page_says_how_to_turn_checkpoints_on(page: Page, dashboard: Stack) -> None:
    put_job(dashboard, "without-checkpoints", None, None)
    page.goto("/jobs/without-checkpoints?tab=checkpoints")
    expect(page.get_by_text("Checkpoints are off.")).to_be_visible()
    expect(page.get_by_text("--checkpoint-dir DIR")).to_be_visible()
    put_job(dashboard, "without-report", "0199", None)
    page.goto("/jobs/without-report?tab=checkpoints")
    expect(page.get_by_text("No report about checkpoints yet.")).to_be_visible()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390), ("dark", 1920)])
def test_the_page_keeps_to_the_guidelines(page: Page, dashboard: Stack, scheme: Any, width: int) -> None:
    put_job(dashboard, JOB, "0199", STEPS)
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"/jobs/{JOB}?tab=checkpoints&step=5")
    expect(page.get_by_text("its checksum does not hold")).to_be_visible()
    assert violations(page) == []
    cut = "table => table.parentElement.scrollWidth > table.parentElement.clientWidth"
    assert not page.get_by_role("table", name="Checkpoints").evaluate(cut)
    assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"), "wider than the window"
