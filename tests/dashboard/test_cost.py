"""What was spent, as a picture with its numbers beside it, and what is left of each cap."""

import pytest
from playwright.sync_api import Locator, Page, expect

from dashboard.fleet import Fleet, provider
from dashboard.window import Home, Window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    return Fleet(home.desk)


def cap(page: Page, account: str, resource: str) -> Locator:
    rows = page.get_by_role("table", name="caps").locator("[data-row]")
    return rows.filter(has_text=account).filter(has_text=resource)


def test_nothing_was_spent(window: Window) -> None:
    window.enter("#/cost")
    expect(window.page.get_by_text("Nothing was spent in this time.")).to_be_visible()
    expect(window.page.get_by_text("Nobody has a cap.")).to_be_visible()


def test_costs_by_agent_and_model_and_the_caps_are_those_of_the_record(window: Window, fleet: Fleet) -> None:
    with provider(fleet.desk) as mock:
        fleet.spend(mock)
    page = window.enter("#/cost").page
    total = fleet.desk.good("cost", "-o", "json").json["total"]["cost_usd"]
    assert total > 0
    table = page.get_by_role("table", name="cost by agent")
    expect(table).to_contain_text("spender")
    expect(table).to_contain_text(f"${total:.4f}")
    expect(page.get_by_role("img", name="cost by agent")).to_be_visible()
    page.get_by_label("by", exact=True).select_option("model")
    for model in ("mine/large", "mine/small"):
        expect(page.get_by_role("table", name="cost by model")).to_contain_text(model)
    row = (
        page.get_by_role("table", name="caps").locator("[data-row]").filter(has_text="spender").filter(has_text="cost")
    )
    expect(row).to_contain_text("$0.50")
    expect(row).to_contain_text(f"${total:.4f}")
    curve = page.get_by_role("img", name="spender: cost burnt down to")
    expect(curve.locator("path.line")).to_be_visible()
    expect(page.locator("figure").filter(has_text="spender").filter(has_text="cost").first).to_contain_text(
        "of $0.50 left"
    )


def test_a_cap_is_changed_and_shown_when_the_kernel_has_it(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/cost").page
    row = (
        page.get_by_role("table", name="caps").locator("[data-row]").filter(has_text="spender").filter(has_text="cost")
    )
    row.click()
    page.get_by_label("May spend in all").fill("0.75")
    page.get_by_role("button", name="Set the cap").click()
    expect(row).to_contain_text("$0.75")
    accounts = fleet.desk.good("budget", "ls", "spender", "-o", "json").json["accounts"]
    limits = [use["limit"] for one in accounts for use in one["uses"] if use["resource"] == "cost_usd"]
    assert 0.75 in limits
