"""One agent: signals that are shown once they are true, and every decision with its rule, request and reply."""

import os
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from cli.desk import ended
from dashboard.fleet import Fleet, provider
from dashboard.window import Home, Window, needs_browser
from models.provider import MockProvider

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def mock(home: Home) -> Iterator[MockProvider]:
    with provider(home.desk) as mock:
        yield mock


@pytest.fixture(scope="module")
def fleet(home: Home, mock: MockProvider) -> Fleet:
    fleet = Fleet(home.desk)
    fleet.violate()
    fleet.delegate()
    fleet.talk()
    fleet.spend(mock)
    return fleet


def drawer(page: Page, text: str) -> str:
    """Of the newest entry with this text."""
    page.get_by_role("row").filter(has_text=text).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".skeleton")).to_have_count(0)
    expect(dialog.get_by_text("Request")).to_be_visible()
    return dialog.inner_text()


def test_a_signal_is_pending_until_the_kernel_confirms(window: Window) -> None:
    window.home.desk.start("still")
    window.enter().agent("still")
    held: list[Route] = []
    window.page.route("**/signals", lambda route: held.append(route))
    window.button("Pause").click()
    expect(window.button("Pausing …")).to_be_disabled()
    expect(window.page.locator(".agent-head .state")).to_have_text("running")
    held[0].continue_()
    expect(window.page.locator(".agent-head .state")).to_have_text("paused")
    window.page.unroute("**/signals")
    window.button("Resume").click()
    expect(window.page.locator(".agent-head .state")).to_have_text("running")


def test_a_refused_signal_is_told_in_the_kernels_words(window: Window) -> None:
    window.home.desk.start("gone")
    window.enter().agent("gone")
    expect(window.button("Interrupt")).to_be_enabled()
    window.page.route(
        "**/agents/gone/signals", lambda route: route.continue_(url=route.request.url.replace("gone", "nobody"))
    )
    window.button("Interrupt").click()
    said = window.home.post("agents/nobody/signals", {"signal": "SIGINT"}).json()
    box = window.page.locator(".signals .error-box")
    expect(box).to_contain_text(said["code"])
    expect(box).to_contain_text(said["reason"])


def test_kill_asks_once_with_the_count_of_descendants_and_leaves_no_process(window: Window, fleet: Fleet) -> None:
    rows = {row["name"]: row for row in window.home.desk.good("ps", "-o", "json").json["agents"]}
    pids = [rows[name]["pid"] for name in ("lead", "middle", "leaf", "twig")]
    assert all(pids)
    window.enter().agent("lead")
    window.button("Kill").click()
    dialog = window.page.get_by_role("dialog")
    expect(dialog).to_contain_text("3 descendants")
    dialog.get_by_role("button", name="Cancel").click()
    assert not any(map(ended, pids)), "to look is not to kill"
    window.button("Kill").click()
    window.button("Kill 4 agents").click()
    expect(window.page.locator(".agent-head .state")).not_to_have_text("running")
    assert all(map(ended, pids))


def test_a_refusal_opens_with_its_rule_and_where_that_is_written(window: Window, fleet: Fleet) -> None:
    window.enter().agent("burglar")
    said = drawer(window.page, "/mem/semantic/vault/door")
    assert "FORBIDDEN" in said
    assert "vault" in said
    assert "policy.toml" in said, "the file of the rule"
    assert "Nobody writes to the vault." in said
    assert "audit" in said
    assert "/mem/semantic/vault/door" in said
    number = window.page.url.partition("entry=")[2]
    explained = window.home.get(f"decisions/d-{number}").json()
    assert all(step["name"] in said for step in explained["steps"])


def test_every_lane_shows_what_belongs_there(window: Window, fleet: Fleet) -> None:
    window.enter()
    for name, lane, text in (
        ("spender", "model", "SYS_THINK"),
        ("burglar", "policy", "SYS_WRITE"),
        ("clerk", "messages", "SYS_RECV"),
        ("clerk", "state", "spawn"),
    ):
        window.agent(name)
        window.page.get_by_role("group", name="lanes").get_by_role("button", name=lane).click()
        expect(window.page.get_by_role("row").filter(has_text=text).first).to_be_visible()
        assert window.page.locator(f"svg .span.{lane}").count() > 0


def test_the_timeline_grows_while_it_is_looked_at(window: Window) -> None:
    window.home.desk.good("run", "--detach", "--name", "live", "--", "sh", "-c", "sleep 3600")
    window.enter().agent("live")
    expect(window.page.locator("svg .span").first).to_be_attached()
    before = window.page.locator("svg .span").count()
    window.button("Pause").click()
    expect(window.page.locator(".agent-head .state")).to_have_text("paused")
    expect(window.page.get_by_role("row").filter(has_text="SIGSTOP").first).to_be_visible()
    assert window.page.locator("svg .span").count() > before


def test_the_timeline_goes_back_to_the_first_entry(window: Window, fleet: Fleet) -> None:
    small = re.compile(r"\b(last|limit)=300\b")  # pages of eight
    window.page.route("**/api/v1/audit?*", lambda route: route.continue_(url=small.sub(r"\1=8", route.request.url)))
    window.enter().agent("burglar")
    first = window.home.get("audit", params={"agent": "burglar", "limit": 1}).json()["items"][0]
    number = window.page.get_by_role("cell", name=f"#{first['seq']}", exact=True)
    expect(window.button("Earlier")).to_be_visible()
    expect(number).to_have_count(0)
    while window.button("Earlier").count():
        before = window.page.locator("svg .span").count()
        window.button("Earlier").click()
        expect(window.button("Looking …")).to_have_count(0)
        assert window.page.locator("svg .span").count() >= before
    expect(number).to_be_visible()


def test_the_tabs_tell_the_rest(window: Window, fleet: Fleet) -> None:
    window.home.desk.start("tabbed")
    window.enter()
    for name, tab, text in (
        ("tabbed", "Memory", "/mem/working/note"),
        ("tabbed", "Capabilities", "mem:/mem/working/**"),
        ("burglar", "Logs", "tried"),
        ("clerk", "Messages", "SYS_RECV"),
        ("spender", "Cost", "$0.50"),
    ):
        window.agent(name)
        window.page.get_by_role("tab", name=tab).click()
        expect(window.page.get_by_role("tabpanel").get_by_text(text).first).to_be_visible()
    window.page.get_by_role("tab", name="Cost").press("ArrowRight")
    expect(window.page.get_by_role("tab", name="Logs")).to_be_focused()


def test_an_agent_that_is_not_there_is_said_to_be_so(window: Window) -> None:
    window.enter().agent("nobody")
    expect(window.page.get_by_text("There is no such agent now.")).to_be_visible()


def test_hostile_texts_stay_texts(window: Window, fleet: Fleet) -> None:
    window.enter().agent("burglar")
    drawer(window.page, "shell.execute")
    dialog = window.page.get_by_role("dialog")
    expect(dialog.locator(".hidden-char").first).to_be_visible()
    assert dialog.locator("img[src=x], script").count() == 0
    assert "owned" not in window.page.title()


def test_the_page_has_what_a_process_says_of_itself(window: Window) -> None:
    window.home.desk.start("known")
    row = next(one for one in window.home.desk.good("ps", "-o", "json").json["agents"] if one["name"] == "known")
    os.kill(row["pid"], 0)
    window.enter().agent("known")
    expect(window.page.locator(".agent-facts")).to_contain_text(str(row["pid"]))
    expect(window.page.locator(".agent-facts")).to_contain_text(row["level"])
