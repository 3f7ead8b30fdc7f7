"""The overview: everybody in one tree, as the kernel says it is, and the button that stops all of them."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from playwright.sync_api import Browser, Error, Route, expect

from cli.desk import until
from dashboard.fleet import Fleet
from dashboard.window import Home, Window, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    return Fleet(home.desk)


@pytest.fixture(autouse=True)
def nobody_is_left(home: Home) -> Iterator[None]:
    yield
    for row in home.desk.good("ps", "-o", "json").json["agents"]:
        home.desk.ask("kill", row["name"])


def state(home: Home, name: str) -> str:
    rows = home.desk.good("ps", "--all", "-o", "json").json["agents"]
    return next((row["state"] for row in rows if row["name"] == name), "")


def test_without_agents_it_says_how_to_run_one(window: Window) -> None:
    window.enter()
    expect(window.page.get_by_text("No agent yet.")).to_be_visible()
    expect(window.page.get_by_text("agentctl run -- python my_agent.py")).to_be_visible()
    expect(window.button("Pause all agents")).to_be_disabled()


def test_whoever_starts_and_ends_is_seen_to(window: Window) -> None:
    window.enter()
    window.home.desk.start("visitor")
    expect(window.row("visitor")).to_have_attribute("data-state", "running")
    window.home.desk.good("kill", "visitor")
    expect(window.row("visitor")).to_have_count(0)
    window.page.get_by_label("ended").check()
    expect(window.row("visitor")).to_have_attribute("data-state", "completed")


def test_children_hang_from_their_parent(window: Window, fleet: Fleet) -> None:
    fleet.delegate()
    window.enter()
    levels = {name: int(window.row(name).get_attribute("aria-level") or 0) for name in ("lead", "middle", "leaf")}
    assert levels["lead"] < levels["middle"] < levels["leaf"]
    window.row("middle").focus()
    window.page.keyboard.press("ArrowLeft")
    expect(window.row("leaf")).to_have_count(0)
    expect(window.row("middle")).to_have_attribute("aria-expanded", "false")
    window.page.keyboard.press("ArrowRight")
    expect(window.row("leaf")).to_have_count(1)
    assert window.row("lead").get_by_role("img").get_attribute("aria-label") == "supervisor, running"


def test_the_red_button_pauses_everybody_and_shows_it_once_it_is_true(window: Window) -> None:
    desk = window.home.desk
    for name in ("first", "second"):
        desk.start(name)
    window.enter()
    window.button("Pause all agents").click()
    for name in ("first", "second"):
        expect(window.row(name)).to_have_attribute("data-state", "paused")
        assert state(window.home, name) == "paused"  # type: ignore[arg-type]
    window.button("Resume all").click()
    for name in ("first", "second"):
        expect(window.row(name)).to_have_attribute("data-state", "running")
        assert state(window.home, name) == "running"  # type: ignore[arg-type]


def test_what_was_refused_and_what_waits_is_told(window: Window, fleet: Fleet) -> None:
    window.enter()
    tile = window.page.get_by_role("region", name="Violations an hour")
    before = int(tile.locator(".big").inner_text())
    fleet.violate()
    until(lambda: int(tile.locator(".big").inner_text()) >= before + 2)
    refused = window.home.status()["refused_hour"]
    assert refused >= before + 2
    for _ in range(60):  # as many looks of somebody else as there are between refusals on a busy day
        window.home.get("snapshot")
    window.page.reload()
    expect(tile.locator(".big")).to_have_text(str(refused))
    fleet.violate("another")
    lately = window.page.get_by_role("region", name="lately")
    expect(lately.get_by_text("another").first).to_be_visible()
    asked = len(fleet.deploy())
    waiting = window.page.get_by_role("region", name="Approvals waiting")
    expect(waiting.locator(".big")).to_have_text(str(asked))
    lately.get_by_role("link").first.click()
    expect(window.page.get_by_role("dialog")).to_be_visible()


def test_what_agents_wrote_is_text(window: Window) -> None:
    word = "<img src=x onerror=\"document.title='owned'\">\u202egnp"
    window.home.desk.good("run", "--detach", "--name", "hostile", "--", "sh", "-c", "sleep 3600", word)
    window.enter()
    row = window.row("hostile")
    expect(row.locator(".hidden-char").first).to_have_text("U+202E")
    assert "<img src=x" in row.inner_text()
    assert row.locator("img").count() == 0
    assert window.page.title() == "Overview · Agent OS"


def test_words_find_agents(window: Window) -> None:
    for name in ("needle", "hay"):
        window.home.desk.start(name)
    window.enter()
    expect(window.row("hay")).to_be_visible()
    window.page.keyboard.press("/")
    window.page.keyboard.type("needle")
    expect(window.row("hay")).to_have_count(0)
    expect(window.row("needle")).to_be_visible()


def test_the_keyboard_reaches_everything(window: Window) -> None:
    window.home.desk.start("keyed")
    window.enter()
    window.page.keyboard.press("?")
    expect(window.page.get_by_role("dialog", name="Keys")).to_be_visible()
    window.page.keyboard.press("Escape")
    expect(window.page.get_by_role("dialog")).to_have_count(0)
    expect(window.row("keyed")).to_be_visible()
    rows = window.page.locator("[role=treeitem]").evaluate_all("rows => rows.map((row) => row.dataset.agent)")
    for _ in range(rows.index("default/keyed") + 1):  # others may be above it
        window.page.keyboard.press("j")
    expect(window.row("keyed")).to_be_focused()
    window.page.keyboard.press("k")
    window.page.keyboard.press("j")
    window.page.keyboard.press("Enter")
    expect(window.page.get_by_role("heading", name="keyed")).to_be_visible()
    window.page.keyboard.press("g")
    window.page.keyboard.press("o")
    expect(window.page.get_by_role("heading", name="Overview")).to_be_visible()


def test_the_theme_is_the_systems_until_it_is_chosen(browser: Browser, home: Home) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    with a_window(browser, home, scheme="dark") as window:
        window.enter()
        dark = window.page.evaluate(back)
        window.button("Light").click()
        light = window.page.evaluate(back)
        assert dark != light
        window.page.reload()
        window.live()
        assert window.page.evaluate(back) == light


def test_a_shadow_policy_and_agents_without_walls_have_a_banner_that_stays(window: Window) -> None:
    """The kernel here isolates, so its own snapshot is changed on the way in these two words only."""
    window.home.desk.start("bare")

    def change(route: Route) -> None:
        with suppress(Error):  # the page is loaded anew meanwhile, and does not wait for this one any more
            answer = route.fetch()
            told = answer.json()
            told["status"]["policy"]["mode"] = "shadow"
            for row in told["agents"]:
                row["level"] = row["isolation"] = "S0"
            route.fulfill(response=answer, json=told)

    window.enter()
    expect(window.row("bare")).to_be_visible()
    expect(window.page.locator(".banner")).to_have_count(0)
    window.page.route("**/api/v1/snapshot", change)
    window.page.reload()
    window.live()
    expect(window.page.get_by_text("Isolation S0")).to_be_visible()
    expect(window.page.get_by_text("shadow", exact=True)).to_be_visible()
    window.to("#/agent")
    expect(window.page.get_by_text("Isolation S0")).to_be_visible()
    window.page.unroute_all(behavior="ignoreErrors")
