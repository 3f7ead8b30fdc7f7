"""What an agent keeps: the tree, the values, how each came to be, and all of it as it was."""

import pytest
from playwright.sync_api import expect

from dashboard.fleet import Fleet
from dashboard.window import Home, Window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    return Fleet(home.desk)


def test_nobody_remembers_anything(window: Window) -> None:
    window.enter("#/memory")
    expect(window.page.get_by_text("nobody remembers anything")).to_be_visible()


def test_a_tree_of_odd_names_with_values_that_are_text_only(window: Window, fleet: Fleet) -> None:
    fleet.remember()
    page = window.enter("#/memory?agent=keeper").page
    tree = page.get_by_role("tree", name="entries")
    expect(tree).to_contain_text("<b>bold<b>")
    expect(tree.get_by_role("treeitem").filter(has_text="semantic").first).to_have_attribute("aria-expanded", "true")
    tree.get_by_role("treeitem").filter(has_text="place").click()
    wrote = page.locator(".agent-wrote")
    expect(wrote).to_contain_text("<script>")
    expect(wrote.locator(".hidden-char").filter(has_text="U+202E").first).to_be_visible()
    assert wrote.locator("img, script").count() == 0
    assert "owned" not in page.title()
    tree.get_by_role("treeitem").filter(has_text="picture").click()
    expect(page.get_by_text("This is no text")).to_be_visible()


def test_history_shows_versions_and_what_changed_between_them(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/memory?agent=keeper&path=/mem/semantic/plan").page
    history = page.get_by_role("table", name="history").locator("[data-row]")
    expect(history).to_have_count(5)
    history.nth(2).click()
    expect(page.locator(".agent-wrote")).to_contain_text("step 0 of 3")
    lines = page.locator(".diff-line")
    expect(lines.filter(has_text="step 0 of 2")).to_have_class("diff-line gone")
    expect(lines.filter(has_text="step 0 of 3")).to_have_class("diff-line new")


def test_the_slider_shows_it_as_it_was(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/memory?agent=keeper&path=/mem/semantic/plan").page
    changes = fleet.desk.good("memory", "history", "keeper", "/mem/semantic/plan", "-o", "json").json["changes"]
    second = sorted(changes, key=lambda one: one["seq"])[1]
    page.get_by_label("As of entry").fill(str(second["seq"]))
    expect(page.locator(".agent-wrote")).to_contain_text("step 0 of 2")
    expect(page.get_by_role("tree", name="entries")).not_to_contain_text("picture")
    page.get_by_role("button", name="Now").click()
    expect(page.locator(".agent-wrote")).to_contain_text("step 0 of 5")
    expect(page.get_by_role("tree", name="entries")).to_contain_text("picture")


def test_words_are_found_in_paths_and_values(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/memory?agent=keeper").page
    page.get_by_label("words in paths and values").fill("thought")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("table", name="found")).to_contain_text("/mem/working/draft")
    page.get_by_label("words in paths and values").fill("nothingofthesort")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("Nothing that it keeps has all of these words.")).to_be_visible()
