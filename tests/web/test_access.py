"""An administrator creates a team, a user, and a token; the user signs in, and sees the jobs of the team only."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from mainstay.service.demo.stack import Stack
from tests.web.axe import View, broken_pages, violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.processes, pytest.mark.xdist_group("browser")]
PASSWORD = "correct horse battery"


def test_a_user_of_a_team_is_created_and_signs_in(page: Page, browser: Browser, dashboard: Stack) -> None:
    page.goto("/access")
    page.get_by_role("button", name="New team").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("vision")
    dialog.get_by_label("Jobs").fill("vision-*")
    assert violations(page) == []
    dialog.get_by_role("button", name="Create team").click()
    expect(page.get_by_role("region", name="Teams")).to_contain_text("vision-*")

    page.get_by_role("button", name="New user").click()
    dialog.get_by_label("Name", exact=True).fill("bob@example.com")
    dialog.get_by_label("Password").fill(PASSWORD)
    dialog.get_by_role("combobox", name="Role in the whole fleet").click()
    page.get_by_role("option", name="No access").click()
    dialog.get_by_role("checkbox", name="vision").check()
    assert violations(page) == []
    dialog.get_by_role("button", name="Create user").click()
    expect(page.get_by_role("region", name="Users")).to_contain_text("Operator of vision")
    log = page.get_by_role("region", name="Audit log")
    expect(log.get_by_role("listitem").first).to_contain_text("Create user")
    expect(log).not_to_contain_text(PASSWORD)
    assert broken_pages(browser, dashboard, ["/access"], [View("dark"), View(width=390)]) == {}

    context = browser.new_context(base_url=page.url.removesuffix("/access"))
    person = context.new_page()
    person.goto("/sign-in")
    person.get_by_label("Name").fill("bob@example.com")
    person.get_by_label("Password").fill("wrong wrong wrong")
    person.get_by_role("button", name="Sign in", exact=True).click()
    expect(person.get_by_role("alert")).to_contain_text("the name or the password is wrong")
    person.get_by_label("Password").fill(PASSWORD)
    assert violations(person) == []
    person.get_by_role("button", name="Sign in", exact=True).click()
    links = person.get_by_role("navigation", name="Main").get_by_role("link")
    expect(links.filter(has_text="Jobs")).to_be_visible()
    expect(links.filter(has_text="Fleet")).to_have_count(0)
    person.goto("/access")
    expect(person.get_by_role("region", name="Sessions")).to_contain_text("this browser")
    expect(person.get_by_role("region", name="Users")).to_have_count(0)
    person.get_by_role("button", name="Sign bob@example.com out").click()
    expect(person.get_by_label("Password")).to_be_visible()
    context.close()


def test_a_secret_is_shown_once_and_the_token_revoked(page: Page) -> None:
    page.goto("/access")
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("nightly report")
    dialog.get_by_role("button", name="Create token").click()
    expect(page.get_by_role("dialog", name="Token nightly report")).to_contain_text("mst_user_")
    assert violations(page) == []
    page.keyboard.press("Escape")
    row = page.get_by_role("listitem").filter(has_text="nightly report").filter(has_text="User: read")
    expect(row).to_be_visible()
    row.get_by_role("button", name="Revoke nightly report").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke token").click()
    expect(row).to_have_count(0)
