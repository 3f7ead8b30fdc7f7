"""The machine and the kernel on it."""

import pytest
from playwright.sync_api import expect

from dashboard.fleet import Fleet, provider
from dashboard.window import Home, Window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


def test_doctor_models_goals_and_metrics_are_told(window: Window, home: Home) -> None:
    page = window.enter("#/system").page
    checks = page.get_by_role("table", name="checks")
    expect(checks).to_contain_text("canary", timeout=120_000)
    expect(page.get_by_role("table", name="providers")).to_contain_text("anthropic")
    expect(page.get_by_text("No model call waits.")).to_be_visible()
    expect(page.get_by_text("The scheduler has no goal.")).to_be_visible()
    expect(page.get_by_role("table", name="metrics")).to_contain_text("approvals pending")
    expect(page.get_by_text(f"process {home.status()['pid']}, up")).to_be_visible()


def test_what_a_model_allows_is_told_once_it_was_called(window: Window, home: Home) -> None:
    with provider(home.desk) as mock:
        Fleet(home.desk).spend(mock)
        limits = window.enter("#/system").page.get_by_role("table", name="limits")
        for model in ("mine/small", "mine/large"):
            expect(limits).to_contain_text(model)
        expect(limits).to_contain_text("0 of ")


def test_a_part_that_fails_says_why_and_the_rest_of_the_page_stays(window: Window) -> None:
    problem = '{"code": "EBUSY", "reason": "somebody examines it already", "hint": "wait a moment", "status": 409}'
    page = window.page
    page.route("**/doctor", lambda one: one.fulfill(status=409, content_type="application/problem+json", body=problem))
    window.enter("#/system")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("EBUSY")
    expect(alert).to_contain_text("wait a moment")
    expect(page.get_by_role("table", name="providers")).to_be_visible()
    page.unroute("**/doctor")
    alert.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("table", name="checks")).to_contain_text("canary", timeout=120_000)
