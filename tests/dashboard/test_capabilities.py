"""Who holds what, from whom, what each step narrowed, and what goes when one is taken back."""

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from dashboard.fleet import Fleet
from dashboard.window import Home, Window, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    return Fleet(home.desk)


def held(fleet: Fleet, agent: str, begins: str) -> str:
    rows = fleet.desk.good("cap", "ls", agent, "-o", "json").json["capabilities"]
    return next(row["handle"] for row in rows if row["capability"].startswith(begins))


def step(page: Page, handle: str) -> Locator:
    return page.locator(f'[role=treeitem][data-handle="{handle}"]')


def test_nobody_holds_anything(window: Window) -> None:
    window.enter("#/capabilities")
    expect(window.page.get_by_text("Nobody holds more than every agent does.")).to_be_visible()


def test_the_forest_shows_what_each_step_narrowed_and_who_reaches_what(window: Window, fleet: Fleet) -> None:
    fleet.delegate()
    page = window.enter("#/capabilities").page
    top, middle, leaf = (held(fleet, agent, "mem:/mem/") for agent in ("lead", "middle", "leaf"))
    expect(step(page, top)).to_have_attribute("aria-level", "1")
    expect(step(page, middle)).to_have_attribute("aria-level", "2")
    expect(step(page, leaf)).to_have_attribute("aria-level", "3")
    expect(step(page, middle)).to_contain_text("lead → middle")
    expect(step(page, middle)).to_contain_text("target /mem/** → /mem/semantic/**; count 500 → 50")
    expect(step(page, leaf)).to_contain_text("no read")
    step(page, leaf).click()
    drawer = page.get_by_role("dialog")
    for handle in (top, middle, leaf):
        expect(drawer.locator(".chain").first).to_contain_text(handle)
    drawer.get_by_label("one act").fill("mem:/mem/semantic/notes/x:write")
    drawer.get_by_role("button", name="Ask the gate").click()
    who = drawer.get_by_label("who can")
    expect(who.get_by_role("listitem").filter(has_text="leaf")).to_contain_text("yes")
    drawer.get_by_label("one act").fill("mem:/mem/semantic/plan:write")
    drawer.get_by_role("button", name="Ask the gate").click()
    expect(who.get_by_role("listitem").filter(has_text="leaf")).to_contain_text("no")
    expect(who.get_by_role("listitem").filter(has_text="middle")).to_contain_text("yes")


def test_a_revocation_shows_its_subtree_and_asks_before_it_takes_it(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/capabilities").page
    middle, leaf, twig = (held(fleet, agent, "mem:/mem/") for agent in ("middle", "leaf", "twig"))
    step(page, middle).click()
    page.get_by_role("button", name=f"Revoke {middle}").click()
    asked = page.get_by_role("dialog", name=f"Revoke {middle} of middle?")
    for handle in (middle, leaf, twig):
        expect(asked.locator(".subtree")).to_contain_text(handle)
    asked.get_by_role("button", name="Cancel").click()
    assert held(fleet, "leaf", "mem:/mem/") == leaf, "to ask is not to do"
    page.get_by_role("button", name=f"Revoke {middle}").click()
    page.locator("[data-confirm]").click()
    expect(step(page, middle)).to_have_count(0)
    expect(step(page, twig)).to_have_count(0)
    rows = fleet.desk.good("cap", "ls", "-o", "json").json["capabilities"]
    assert {middle, leaf, twig}.isdisjoint(row["handle"] for row in rows)


def test_narrow(browser: Browser, home: Home) -> None:
    with a_window(browser, home, width=400, height=800) as window:
        window.enter("#/capabilities")
        expect(window.page.get_by_role("treeitem").first).to_be_visible()
        assert window.page.evaluate("document.documentElement.scrollWidth") <= 400
