"""The inbox: everything that an answer is about is on the card, in words that cannot act, and the answer is for exactly
what was shown."""

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from cli.desk import until
from dashboard.fleet import CONTROL, Fleet
from dashboard.window import Home, Window, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]
GUARD_MS = 350  # longer than a card that moved is guarded
UNMOVED = """guard => new Promise(done => {
    let before = "", since = performance.now();
    const look = () => {
        const cards = [...document.querySelectorAll("[data-approval]")];
        const places = cards.map(card => card.dataset.approval + " " + card.offsetTop);
        const now = places.join() + cards.indexOf(document.activeElement);
        if (now !== before) [before, since] = [now, performance.now()];
        if (performance.now() - since >= guard) done(); else requestAnimationFrame(look);
    };
    look();
})"""


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    return Fleet(home.desk)


@pytest.fixture
def inbox(window: Window) -> Window:
    return window.enter("#/approvals")


def card(page: Page, approval: str) -> Locator:
    return page.locator(f'[data-approval="{approval}"]')


def closed(page: Page, approval: str) -> Locator:
    return page.locator(f'[data-closed="{approval}"]')


def steady(page: Page, *asked: dict[str, Any]) -> None:
    """Cards are there, and have been where they are for long enough."""
    for one in asked:
        expect(card(page, one["id"])).to_be_visible()
    page.evaluate(UNMOVED, GUARD_MS)


def state(fleet: Fleet, approval: str) -> dict[str, object]:
    rows = fleet.desk.good("approvals", "--all", "-o", "json").json["approvals"]
    return next(row for row in rows if row["id"] == approval)


def test_nothing_waits(inbox: Window) -> None:
    expect(inbox.page.get_by_text("Nothing waits for a person")).to_be_visible()
    expect(inbox.page.get_by_text("agentctl approvals --watch")).to_be_visible()
    inbox.page.get_by_role("tab", name="Decided lately").click()
    expect(inbox.page.get_by_text("Nothing was decided")).to_be_visible()


def test_a_write_is_shown_as_a_difference_with_origin_and_capability(inbox: Window, fleet: Fleet) -> None:
    file, memory = fleet.deploy("deploy-a")  # it appears by itself: the page is open
    shown = card(inbox.page, file["id"])
    expect(shown).to_contain_text("file.write /work/production/shop")
    expect(shown).to_contain_text("Customers see this.")
    expect(shown).to_contain_text("project:production")
    expect(shown).to_contain_text("untrusted")
    expect(shown).to_contain_text("file:/work")
    expect(shown.get_by_role("radio")).to_have_count(3)
    expect(shown).to_contain_text(f"always: {file['capability']}")
    expect(shown).to_contain_text("denied in 14 min")
    lines = shown.locator(".diff-line")
    expect(lines.filter(has_text="release = 1")).to_have_class("diff-line gone")
    expect(lines.filter(has_text="release = 2")).to_have_class("diff-line new")
    expect(lines.filter(has_text="name = shop")).to_have_class("diff-line same")
    other = card(inbox.page, memory["id"])
    expect(other).to_contain_text("There is nothing at this path yet.")
    expect(other).to_contain_text(memory["args"]["data"]["sha256"])


def test_what_an_agent_wrote_is_marked_and_is_text_only(inbox: Window, fleet: Fleet) -> None:
    asked = fleet.search("search-a")[0]
    shown = card(inbox.page, asked["id"])
    wrote = shown.locator(".agent-wrote")
    expect(wrote).to_contain_text("the agent wrote")
    expect(wrote).to_contain_text("<script>")
    expect(wrote.locator(".hidden-char").first).to_be_visible()
    assert {"U+202E", "U+001B"} <= set(
        wrote.locator(".hidden-char").all_inner_texts()
    ) or "\\u001b" in wrote.inner_text()
    assert "\u202e" not in shown.inner_text()
    assert "\u202e" in CONTROL, "there is something to look for"
    assert shown.locator("img, script, iframe").count() == 0
    assert "owned" not in inbox.page.title()
    expect(shown.get_by_role("radio")).to_have_count(2)  # its rule offers no `always`


def test_a_guest_is_never_offered_always(inbox: Window, fleet: Fleet) -> None:
    asked = fleet.guest("guest-a")[0]
    shown = card(inbox.page, asked["id"])
    expect(shown).to_contain_text("Always is not offered for guests")
    expect(shown.get_by_role("radio")).to_have_count(len(asked["scopes"]))
    assert "always" not in asked["scopes"]
    expect(shown.locator('input[value="always"]')).to_have_count(0)
    expect(shown).to_contain_text("http.post reports.example")


def test_how_long_somebody_waits_is_told_between_two_looks(inbox: Window, fleet: Fleet) -> None:
    asked = fleet.guest("guest-b")[0]
    since = card(inbox.page, asked["id"]).locator(".approval-head .faint")
    expect(since).to_contain_text("asked")
    inbox.page.route("**/snapshot", lambda route: None)  # nobody answers
    expect(since).not_to_have_text(since.inner_text())


def test_an_answer_is_shown_when_the_kernel_gave_it_and_acts(inbox: Window, fleet: Fleet) -> None:
    file, memory = fleet.deploy("deploy-b")
    steady(inbox.page, file, memory)
    first = card(inbox.page, memory["id"])
    first.get_by_label("Reason").fill("seen and liked")
    first.get_by_role("button", name="Approve once").click()
    expect(closed(inbox.page, memory["id"])).to_contain_text("approved by")
    assert state(fleet, memory["id"])["note"] == "seen and liked"
    until(lambda: state(fleet, memory["id"])["state"] == "used")
    expect(closed(inbox.page, memory["id"])).to_contain_text("seen and liked")
    steady(inbox.page)
    card(inbox.page, file["id"]).get_by_role("button", name="Deny").click()
    expect(closed(inbox.page, file["id"])).to_contain_text("denied by")
    assert state(fleet, file["id"])["state"] == "refused"
    inbox.page.get_by_role("tab", name="Decided lately").click()
    expect(inbox.page.get_by_role("table", name="decided lately")).to_contain_text("seen and liked")


def test_always_grants_exactly_what_the_card_said(inbox: Window, fleet: Fleet) -> None:
    file, memory = fleet.deploy("deploy-c")
    steady(inbox.page, file, memory)
    shown = card(inbox.page, file["id"])
    shown.get_by_label("always:").check()
    shown.get_by_role("button", name="Approve: always").click()
    expect(closed(inbox.page, file["id"])).to_contain_text("always")
    standing = fleet.desk.good("cap", "ls", "deploy-c", "-o", "json").json["standing"]
    assert [(one["scope"], one["capability"]) for one in standing] == [("always", "file:/work/production/shop:write")]


def test_keys_decide_for_the_focused_card_alone_and_never_for_one_that_just_moved(inbox: Window, fleet: Fleet) -> None:
    page = inbox.page
    file, memory = fleet.deploy("deploy-d")
    steady(page, file, memory)
    page.keyboard.press("a")  # no card has the focus
    card(page, memory["id"]).get_by_label("Reason").fill("ad")  # typing is no decision
    assert {state(fleet, one["id"])["state"] for one in (file, memory)} == {"pending"}
    # A card that comes in above pushes the others down: the key was meant for what was there before.
    card(page, memory["id"]).focus()
    page.evaluate(
        """() => {
            const list = document.querySelector('.approval-list');
            const moved = document.createElement('div');
            moved.style.height = '120px';
            list.prepend(moved);
        }"""
    )
    page.wait_for_function("document.querySelector('.approval-list').firstChild.style?.height === '120px'")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.keyboard.press("d")
    expect(card(page, memory["id"])).to_contain_text("only just moved here")
    assert state(fleet, memory["id"])["state"] == "pending"
    steady(page)
    page.keyboard.press("d")
    expect(closed(page, memory["id"])).to_contain_text("denied by")
    assert state(fleet, file["id"])["state"] == "pending"
    card(page, file["id"]).focus()
    steady(page)
    page.keyboard.press("a")
    expect(closed(page, file["id"])).to_contain_text("approved by")


def test_questions_are_answered_by_a_form_of_their_schema(inbox: Window, fleet: Fleet) -> None:
    page = inbox.page
    asked = {one["args"]["question"][:5]: one for one in fleet.question("ask-a")}
    yes, town, words, form = (asked[begin]["id"] for begin in ("May I", "Which", "What ", "Fill "))
    expect(card(page, yes)).to_contain_text("May I buy 500 pieces?")
    assert card(page, yes).locator("img, script").count() == 0
    steady(page, *asked.values())
    card(page, yes).get_by_role("button", name="Answer").click()
    expect(card(page, yes)).to_contain_text("Not sent: choose yes or no")
    card(page, yes).get_by_label("Yes").check()
    card(page, yes).get_by_role("button", name="Answer").click()
    expect(closed(page, yes)).to_contain_text("approved by")
    steady(page)
    card(page, town).get_by_label("Your answer").select_option("Bonn")
    card(page, town).get_by_role("button", name="Answer").click()
    expect(closed(page, town)).to_be_visible()
    steady(page)
    card(page, words).get_by_label("Your answer").fill("quite good")
    card(page, words).get_by_role("button", name="Answer").click()
    expect(closed(page, words)).to_be_visible()
    steady(page)
    last = card(page, form)
    last.get_by_label("name").fill("Ann")
    last.get_by_label("pieces").fill("11")
    last.get_by_role("button", name="Answer").click()
    expect(last.locator(":invalid")).not_to_have_count(0)  # the browser says it at the field
    last.get_by_label("pieces").fill("3")
    last.get_by_role("button", name="Answer").click()
    expect(closed(page, form)).to_be_visible()
    until(lambda: fleet.desk.ask("logs", "ask-a").out.count("value") == 4)
    said = fleet.desk.good("logs", "ask-a").out
    assert "value True" in said
    assert "value 'Bonn'" in said
    assert "value 'quite good'" in said
    assert "{'name': 'Ann', 'pieces': 3}" in said


def test_an_answer_that_the_kernel_refuses_is_told_in_its_words(browser: Browser, home: Home, fleet: Fleet) -> None:
    """The digest is that of what was shown: a page that shows something else than the kernel has is refused."""
    file, memory = fleet.deploy("deploy-e")
    with a_window(browser, home) as window:
        window.page.route(
            "**/decision", lambda route: route.continue_(post_data=_other_digest(route.request.post_data))
        )
        window.enter("#/approvals")
        steady(window.page, file, memory)
        card(window.page, file["id"]).get_by_role("button", name="Approve once").click()
        expect(card(window.page, file["id"]).get_by_role("alert")).to_contain_text("E")
    assert state(fleet, file["id"])["state"] == "pending"


def _other_digest(sent: str | None) -> str:
    return json.dumps({**json.loads(sent or "{}"), "args_hash": "0" * 64})


def test_narrow_windows_show_all_of_a_card(browser: Browser, home: Home, fleet: Fleet) -> None:
    asked = fleet.search("search-b")[0]
    with a_window(browser, home, width=400, height=800) as window:
        window.enter("#/approvals")
        expect(card(window.page, asked["id"])).to_be_visible()
        assert window.page.evaluate("document.documentElement.scrollWidth") <= 400
        expect(card(window.page, asked["id"])).to_contain_text("<img src=x")
