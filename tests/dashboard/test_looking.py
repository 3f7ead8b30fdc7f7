"""Every look is an entry of the journal: an open page asks little when nothing happens, and not for each change when
much does."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect

from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Tell
from agent_os.client.wire import connect
from dashboard.window import PAGES, Home, Window, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]
ROUTES = {**{page: f"#/{page}" for page in PAGES}, "logs": "#/agent/default%2Fquiet?tab=logs"}
SECONDS = 6.0
STORM = 10  # changes a second


def questions(window: Window) -> list[str]:
    return [url for url in window.asked if "/api/v1/" in url]


@pytest.fixture(scope="module")
def quiet(home: Home) -> Iterator[None]:
    home.desk.start("quiet")
    yield
    home.desk.ask("kill", "quiet")


def test_a_page_that_nothing_happens_on_asks_a_few_times_a_minute(browser: Browser, home: Home, quiet: None) -> None:
    found: dict[str, list[str]] = {}
    with a_window(browser, home) as window:
        window.page.clock.install()
        window.enter()
        for name, route in ROUTES.items():
            window.to(route)
            window.settled()
            minute(window)  # what is asked ever more seldom has become seldom
            calm(window)
            before = len(questions(window))
            minute(window)
            found[name] = questions(window)[before:]
    assert found["approvals"] == []  # it lives from the stream alone
    assert len(found["overview"]) <= 1, found  # for how many violations there are in the last hour
    assert max(map(len, found.values())) <= 6, found
    assert any(found.values()), "the clock was turned, and what nothing tells of was asked for"


def calm(window: Window) -> None:
    """Returns when it has asked nothing for a second: what it heard while it came in is looked at."""
    known = -1
    while known < len(questions(window)):
        known = len(questions(window))
        window.page.wait_for_timeout(1000)


def minute(window: Window) -> None:
    """Of the page's clock. Between two of its seconds an answer may come."""
    for _ in range(60):
        window.page.clock.run_for(1000)
        window.page.wait_for_timeout(20)


def test_the_journal_does_not_grow_by_an_idle_overview(window: Window, quiet: None) -> None:
    window.enter()
    window.settled()
    window.page.wait_for_load_state("networkidle")
    before = window.home.status()["entries"]
    window.page.wait_for_timeout(3000)  # the time itself is what is measured
    assert window.home.status()["entries"] == before + 1  # our own look


@contextmanager
def changing(home: Home) -> Iterator[list[int]]:
    over, done = threading.Event(), [0]

    async def change() -> None:
        async with connect(home.socket) as client:
            while not over.is_set():
                done[0] += 1
                turn = AgentSignal.SIGSTOP if done[0] % 2 else AgentSignal.SIGCONT
                await client.call(Tell(agent="quiet", signal=turn))
                await asyncio.sleep(1 / STORM)

    beside = threading.Thread(target=lambda: asyncio.run(change()))
    beside.start()
    try:
        yield done
    finally:
        over.set()
        beside.join()


def test_many_changes_are_looked_at_together_and_the_last_one_is_seen(window: Window, quiet: None) -> None:
    window.enter()
    with changing(window.home) as changes:
        before, began = len(questions(window)), time.monotonic()
        window.page.wait_for_timeout(SECONDS * 1000)
        asked, took = len(questions(window)) - before, time.monotonic() - began
    assert changes[0] > 2 * SECONDS, "it changed all the time"
    assert 1 <= asked <= 3 + took / 2, f"{asked} looks at {changes[0]} changes"
    last = "paused" if changes[0] % 2 else "running"
    expect(window.row("quiet")).to_have_attribute("data-state", last)
    window.home.desk.ask("resume", "quiet")
