"""An operator pauses admission to a rack; the first page shows it until another resumes it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.web.axe import violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


def test_admission_is_paused_and_resumed_with_reasons(page: Page) -> None:
    page.goto("/validation?tab=admission")
    expect(page.get_by_text("Admission is not paused.")).to_be_visible()
    page.get_by_role("button", name="Pause admission").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Rack").fill("rack-of-a-test")
    dialog.get_by_role("textbox", name="Reason").fill("power work")
    assert violations(page) == []
    dialog.get_by_role("button", name="Pause admission").click()
    row = page.get_by_role("listitem").filter(has_text="rack-of-a-test")
    expect(row).to_have_text(re.compile(r"^Paused for rack rack-of-a-test by .+: power work"))

    page.goto("/")
    expect(page.get_by_role("status").filter(has_text="paused")).to_have_text(
        "Admission of new work is paused: rack rack-of-a-test (power work).Show"
    )
    page.get_by_role("status").filter(has_text="paused").get_by_role("link", name="Show").click()
    row.get_by_role("button", name="Resume").click()
    dialog.get_by_role("textbox", name="Reason").fill("done")
    dialog.get_by_role("button", name="Resume admission").click()
    expect(page.get_by_text("Admission is not paused.")).to_be_visible()
