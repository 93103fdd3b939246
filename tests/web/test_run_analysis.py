"""The run analysis in a real browser: detectors, progress, signals, transfers, findings."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web import run_analysis
from tests.web.axe import COLORS, View, broken_pages
from tests.web.job_timeline import JOB, kill, send

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]

TABS = (f"/jobs/{JOB}", f"/jobs/{JOB}?tab=progress", f"/jobs/{JOB}?tab=signals&rank=5", f"/jobs/{JOB}?tab=transfers")


@pytest.fixture
def job(page: Page) -> Page:
    run_analysis.serve(page)
    return page


def test_an_inactive_detector_gives_its_reason(job: Page) -> None:
    job.goto(TABS[0])
    panel = job.get_by_role("region", name="Detector status")
    expect(panel.get_by_text("4 detectors: 1 active, 1 learning, 1 abstaining, 1 idle")).to_be_visible()
    rows = panel.get_by_role("listitem")
    expect(rows.first).to_contain_text("Straggler")
    expect(rows.first).to_contain_text("Too noisy: 9.4% of at most 6%.")
    expect(rows.first.get_by_title(re.compile("not evidence of health"))).to_have_text("Abstaining")
    expect(panel.get_by_text("It has seen 41 of 64 steps.")).to_be_visible()


def test_a_job_without_detectors_is_not_called_healthy(job: Page) -> None:
    run_analysis.answer(job, "detectors", {"detectors": []})
    job.goto(TABS[0])
    expect(job.get_by_text("No detectors.")).to_be_visible()
    expect(job.get_by_text("a missing finding is not evidence of health")).to_be_visible()


def test_recommendations_are_apart_from_faults(job: Page) -> None:
    job.goto(TABS[0])
    panel = job.get_by_role("region", name="Recommendations")
    expect(panel.get_by_role("listitem")).to_have_count(1)
    expect(panel).to_contain_text("Stage 1 computes 1.5 times as long.")
    expect(panel).to_contain_text("50.0%")


def test_a_hang_names_the_rank_that_others_wait_for(job: Page) -> None:
    job.goto(TABS[1])
    expect(job.get_by_text("No collective has completed for 12.4 s; the hang timeout is 8.90 s.")).to_be_visible()
    expect(job.get_by_text("Rank 9 is behind the others in its pipeline group")).to_be_visible()
    rows = job.get_by_role("table", name="Ranks and their groups").get_by_role("row")
    expect(rows).to_have_count(17)
    expect(rows.nth(1)).to_contain_text("9, behind its group")
    expect(rows.nth(1)).to_contain_text("\u22121")
    expect(rows.nth(2)).not_to_contain_text("behind")
    heads = (
        "Rank",
        "Node",
        "Step",
        "Phase",
        "collective",
        "Last report",
        "world",
        "dp",
        "pp",
    )  # no rank uses a tensor group
    expect(job.get_by_role("columnheader")).to_have_text([re.compile(head) for head in heads])


def test_while_the_job_moves_no_rank_lags(job: Page) -> None:
    run_analysis.answer(job, "progress", run_analysis.progress("moving"))
    job.goto(TABS[1])
    expect(job.get_by_text("Moving", exact=True)).to_be_visible()
    expect(job.get_by_text("behind its group")).to_have_count(0)


def test_old_progress_is_not_shown_as_now(job: Page) -> None:
    run_analysis.answer(job, "progress", run_analysis.progress("moving", age=90))
    job.goto(TABS[0])
    expect(job.get_by_text("Its current state is unknown.")).to_be_visible()
    expect(job.get_by_text("Moving", exact=True)).to_have_count(0)


def test_without_reports_progress_is_unknown(job: Page) -> None:
    run_analysis.answer(job, "progress", run_analysis.progress("unknown"))
    job.goto(TABS[0])
    expect(job.get_by_text("No progress reports.")).to_be_visible()


def test_an_answer_that_fails_shows_a_problem(job: Page) -> None:
    body = {"type": "about:blank", "title": "The store is away", "status": 503, "detail": "It will be back soon."}
    run_analysis.answer(job, "progress", body, status=503)
    job.goto(TABS[1])
    alert = job.get_by_role("alert").filter(has_text="The store is away")
    expect(alert).to_be_visible(timeout=20_000)
    run_analysis.answer(job, "progress", run_analysis.progress("moving"))
    alert.get_by_role("button", name="Try again").click()
    expect(job.get_by_text("Moving", exact=True)).to_be_visible()


def test_a_straggler_is_a_line_and_a_cell_tells_its_value(job: Page) -> None:
    job.goto("/jobs/llama?tab=signals")
    expect(job.get_by_text("Over the last 20 steps: rank 5 is 20% above its peers.")).to_be_visible()
    area = job.get_by_role("application", name=re.compile("Compute of 16 ranks over 120 steps"))
    box = area.bounding_box()
    assert box is not None
    area.hover(position={"x": box["width"] - 2, "y": (run_analysis.SLOW + 0.5) * box["height"] / 16})
    value = job.get_by_text(re.compile(r"^rank 5 on node-001, step 1119: 1\.\d\d s, \d\d% above its peers$"))
    expect(value.first).to_be_visible()
    area.click(position={"x": box["width"] - 2, "y": (run_analysis.SLOW + 0.5) * box["height"] / 16})
    expect(job).to_have_url(re.compile("rank=5"))
    expect(job.get_by_role("region", name="Rank 5")).to_be_visible()


def test_the_map_is_read_by_keys_and_shows_other_signals(job: Page) -> None:
    job.goto("/jobs/llama?tab=signals")
    area = job.get_by_role("application", name=re.compile("Compute of 16 ranks"))
    area.focus()
    for key in ("ArrowRight", "ArrowDown", "j", "l"):
        job.keyboard.press(key)
    expect(job.get_by_text(re.compile("^rank 2 on node-000, step 1001: ")).first).to_be_visible()
    job.get_by_role("button", name="Signal: Compute").click()
    job.keyboard.type("garbage")
    job.keyboard.press("Enter")
    expect(job).to_have_url(re.compile("signal=gc_seconds"))
    expect(job.get_by_text("No rank reports garbage collection.")).to_be_visible()


def test_findings_are_at_their_steps(job: Page) -> None:
    job.goto("/jobs/llama?tab=signals")
    rows = job.get_by_role("region", name="Findings at these steps").get_by_role("listitem")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("step 1066")
    expect(rows.nth(1)).to_contain_text("rank 3 → rank 4")
    expect(job.get_by_role("img", name=re.compile("^Gradient norm: from 1 to 6"))).to_be_visible()


def test_a_slow_sender_is_shown_by_matrix_table_and_text(job: Page) -> None:
    job.goto(TABS[3])
    expect(job.get_by_text("All 2 transfers that rank 3 sends are slow.")).to_be_visible()
    table = job.get_by_role("table", name="Slowest transfers")
    expect(table.get_by_role("row").nth(1)).to_contain_text("rank 3 →")
    area = job.get_by_role("application", name=re.compile("Transfers between 16 ranks"))
    box = area.bounding_box()
    assert box is not None
    side = box["width"] / 16
    area.hover(position={"x": 4.5 * side, "y": 3.5 * side})
    expect(
        job.get_by_text(re.compile(r"^rank 3 on node-000 → rank 4 on node-001: 4\.00 ms for 1\.00 MiB")).first
    ).to_be_visible()
    job.get_by_role("radio", name="Nodes").click()
    expect(job.get_by_role("application", name=re.compile("Transfers between 4 nodes"))).to_be_visible()


@pytest.mark.timeout(120)
def test_two_thousand_ranks_are_still_legible(page: Page) -> None:
    run_analysis.serve(page, ranks=2048)
    run_analysis.answer(
        page, "transfers", run_analysis.pairs(256)
    )  # the service sends the 256 ranks of the slowest transfers
    page.goto("/jobs/llama?tab=signals")
    expect(page.get_by_text("rank 5 is 20% above its peers", exact=False)).to_be_visible(timeout=40_000)
    expect(page.get_by_text("ranks per row: the largest deviation is shown", exact=False)).to_be_visible()
    page.get_by_role("radio", name="Transfers").click()
    expect(page.get_by_role("application", name=re.compile("Transfers between 32 nodes"))).to_be_visible(timeout=40_000)
    expect(page.get_by_text("1 792 other ranks".replace(" ", "\u202f", 1))).to_be_visible()


def test_the_incident_shows_stacks_innermost_first(page: Page, dashboard: Stack) -> None:
    kill(dashboard, 1)
    frames = ["wait (torch/distributed/distributed_c10d.py:2421)", "step (train.py:40)"]
    stacks = [{"thread": "MainThread", "frames": frames}, {"thread": "beat", "frames": ["sleep (beat.py:5)"]}]
    dump = {"reason": "behind its group", "suspect": True, "tool": "py-spy", "pid": 101, "process": "sleeping"}
    send(dashboard, "stack_dump", rank=1, data={**dump, "stacks": stacks})
    page.goto("/incidents")
    page.get_by_role("link").filter(has_text="ank 1").first.click()
    panel = page.get_by_role("region", name="Stacks")
    expect(panel.get_by_text("suspect")).to_be_visible()
    expect(panel.get_by_label("Frames of MainThread").get_by_role("listitem")).to_have_text(
        [re.compile("^0wait"), re.compile("^1step")]
    )
    expect(panel.get_by_text("sleep (beat.py:5)")).to_be_hidden()
    panel.get_by_text("beat", exact=True).click()
    expect(panel.get_by_text("sleep (beat.py:5)")).to_be_visible()
    expect(panel.get_by_role("button", name="Copy stacks")).to_be_visible()


def test_the_root_cause_comes_first(page: Page, dashboard: Stack) -> None:
    kill(dashboard, 0)
    found: list[dict[str, Any]] = []

    def incidents() -> bool:
        found[:] = [i for i in dashboard.api.get("/incidents", job=JOB)["items"] if 0 in i["ranks"]]
        return bool(found)

    dashboard.until(incidents, 20.0, "the incident")
    findings = [
        run_analysis.finding("straggler", "It follows.", rank=3),
        run_analysis.finding("nic_degraded", "The root.", rank=3, peer=4, cause="nic"),
    ]
    detail = dashboard.api.get(f"/incidents/{found[0]['id']}")
    detail |= {"kinds": ["nic_degraded", "straggler"], "cause": "nic", "findings": findings}
    page.route(f"**/v1/incidents/{found[0]['id']}", lambda route: route.fulfill(json=detail))
    page.goto(f"/incidents/{found[0]['id']}")
    expect(page.get_by_text("Cause: NIC · A port or adapter of a host")).to_be_visible()
    articles = page.get_by_role("region", name="Evidence").get_by_role("article")
    expect(articles.nth(0)).to_contain_text("Most likely root cause")
    expect(articles.nth(0)).to_contain_text("rank 3 → rank 4")
    expect(articles.nth(1)).to_contain_text("Consequence")


def test_incidents_are_filtered_by_cause(page: Page) -> None:
    page.goto("/incidents")
    page.get_by_role("combobox", name="Cause").click()
    with page.expect_request(re.compile(r"/v1/incidents\?.*cause=silent_corruption")):
        page.get_by_role("option", name="Silent data corruption").click()
    expect(page.get_by_text("No matching incidents.")).to_be_visible()


@pytest.mark.timeout(400)
def test_the_run_analysis_breaks_no_accessibility_guideline(browser: Browser, dashboard: Stack) -> None:
    views = [View(), View("dark", rules=COLORS), View("dark", 390), View(width=1920)]
    assert broken_pages(browser, dashboard, TABS, views, prepare=run_analysis.serve) == {}
