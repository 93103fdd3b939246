"""An operator lets a detector only record its findings, with a reason, and returns it to the default of the site."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import View, broken_pages, violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]


def test_a_detector_only_records_until_its_policy_is_the_default_again(
    page: Page, browser: Browser, dashboard: Stack
) -> None:
    page.goto("/policies/xid")
    page.get_by_role("navigation", name="Policies").get_by_role("link", name="Detectors").click()
    page.get_by_role("searchbox", name="Search detectors").fill("memory leaks")
    row = page.get_by_role("listitem").filter(has_text="memory_leak")
    row.get_by_role("button", name=re.compile("^memory_leak")).click()
    form = page.get_by_role("form", name="Policy of memory_leak")
    save = form.get_by_role("button", name="Save policy")
    form.get_by_role("radio", name="Only record").click()
    expect(form).to_contain_text("They open no incident, propose nothing, and send nothing.")
    expect(save).to_be_disabled()
    form.get_by_role("textbox", name="Reason").fill("the page cache grows here")
    save.click()
    expect(form).to_contain_text(re.compile(r"Only record since .+, first admin: the page cache grows here"))
    expect(page.get_by_text("1 detector of")).to_be_visible()
    expect(page.get_by_role("link", name="Policy", exact=True)).to_have_attribute("data-status", "active")
    page.get_by_text("read only").click()
    assert violations(page) == []
    assert broken_pages(browser, dashboard, ["/policies/detectors"], [View("dark"), View(width=390)]) == {}

    page.reload()
    form.get_by_role("radio", name="Default").click()
    save.click()
    expect(form).to_contain_text(re.compile(r"Default since .+, first admin"))
    expect(page.get_by_text("0 detectors of")).to_be_visible()
