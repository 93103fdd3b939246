"""The job page shows the strategies evaluated at a failure, and the accuracy of the prediction."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import violations
from tests.web.job_timeline import JOB, kill, plan, send
from tests.web.strategy_evaluations import decision, outcome

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


def fail_once(dashboard: Stack, recovery: str) -> None:
    """Rank 1 is lost and comes back."""
    kill(dashboard, 1)
    send(
        dashboard,
        "recovery_planned",
        data={"recovery": recovery, "plan": plan(1), "decision": decision()},
        generation=2,
    )
    seconds = {"detect": 0.03, "fence": 0.05, "regroup": 0.7, "first_step": 0.28, "total": 1.06}
    completed = {"recovery": recovery, "seconds": seconds, "steps_lost": 0, "epoch": 41, "outcome": outcome()}
    send(dashboard, "recovery_completed", data=completed, generation=2)


def test_evaluated_strategies_are_one_click_away(page: Page, dashboard: Stack) -> None:
    fail_once(dashboard, "w1")
    page.goto(f"/jobs/{JOB}")
    row = page.get_by_role("table", name="Recoveries").get_by_role("row").filter(has_text="ank 1").first
    for text in ("Local slot", "1.06 s", "800 ms", "470 ms"):
        expect(row).to_contain_text(text)
    row.get_by_role("button", name=re.compile("strateg(y|ies) evaluated for")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1.32 times the prediction, outside the tolerance of 25%")
    expect(dialog.get_by_role("listitem").filter(has_text="executed")).to_contain_text("Local slot")
    expect(dialog.get_by_role("listitem").filter(has_text="lowest cost")).to_contain_text("Drop and heal")
    expect(dialog).to_contain_text("for comparison only: jobs cannot execute it")
    dialog.get_by_text("2 infeasible strategies").click()
    expect(dialog.get_by_text("No checkpoint is on disk.")).to_be_visible()
    dialog.get_by_role("link", name="Simulate other recovery policies").click()
    expect(page).to_have_url(re.compile(f"/simulation\\?job={JOB}"))
    expect(page.get_by_label("Stages (pp)")).to_have_value("2")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_dialog_keeps_to_the_guidelines(page: Page, dashboard: Stack, scheme: Any, width: int) -> None:
    fail_once(dashboard, "w2")
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.goto(f"/jobs/{JOB}")
    page.get_by_role("button", name=re.compile("strateg(y|ies) evaluated for")).first.click()
    page.get_by_role("dialog").get_by_text("infeasible strategies").click()
    assert violations(page) == []
    assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"), "wider than the window"
