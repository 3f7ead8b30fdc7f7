"""Messages that wait by lane, topics, and dead letters that go again or are dropped."""

import pytest
from playwright.sync_api import Locator, Page, expect

from dashboard.fleet import Fleet
from dashboard.window import Home, Window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    return Fleet(home.desk)


def letters(page: Page) -> Locator:
    return page.get_by_role("table", name="dead letters").locator("[data-row]")


def dead(fleet: Fleet) -> list[str]:
    return [one["id"] for one in fleet.desk.good("bus", "dead", "-o", "json").json["letters"]]


def test_nothing_waits(window: Window) -> None:
    window.enter("#/bus")
    for words in ("there is no dead letter", "No message waits for anybody.", "Nobody has subscribed to a topic."):
        expect(window.page.get_by_text(words)).to_be_visible()


def test_lanes_topics_and_dead_letters_are_told(window: Window, fleet: Fleet) -> None:
    fleet.talk()
    page = window.enter("#/bus").page
    expect(page.get_by_role("img", name="1 wait in the lane high")).to_be_visible()
    expect(page.get_by_role("img", name="1 wait in the lane low")).to_be_visible()
    expect(page.get_by_role("table", name="mailboxes")).to_contain_text("clerk")
    expect(page.get_by_role("table", name="topics")).to_contain_text("news.>")
    expect(letters(page)).to_have_count(3)
    letters(page).first.click()
    drawer = page.get_by_role("dialog")
    expect(drawer).to_contain_text("rejected")
    expect(drawer).to_contain_text("<script>")
    expect(drawer.locator(".hidden-char").filter(has_text="U+202E").first).to_be_visible()
    assert drawer.locator("img, script").count() == 0
    assert "owned" not in page.title()


def test_a_dead_letter_goes_again_or_is_dropped_after_a_question(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/bus").page
    first, second, third = dead(fleet)
    letters(page).first.click()
    page.get_by_role("button", name="Redeliver").click()
    expect(letters(page)).to_have_count(2)
    assert first not in dead(fleet)
    letters(page).first.click()
    page.get_by_role("button", name="Drop", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    assert second in dead(fleet), "to ask is not to do"
    page.get_by_role("button", name="Drop", exact=True).click()
    page.locator("[data-confirm]").click()
    expect(letters(page)).to_have_count(1)
    assert dead(fleet) == [third]
