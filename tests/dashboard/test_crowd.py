"""Nobody, five or five hundred agents (a thousand in `make soak`): every page shows them, and stays quick while they
change.

So many of them are supervisors without a program: agents that the kernel runs, with accounts, lives and records,
but no process, so that two cores suffice. What changes is changed for real, and told by the real journal.
"""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from agent_os.abi.syscalls import Limit, Restart
from agent_os.client.wire import connect
from cli.desk import until
from dashboard.window import Home, Window, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]
SOAK = bool(os.environ.get("AGENT_OS_SOAK"))
NUMBER, CHANGES_A_SECOND, LONGEST_MS = (1000, 30, 50) if SOAK else (500, 10, 200)
SECONDS = 5.0
WINDOWS = 3
WIDTHS = (1360, 420)
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BUSY = "() => { const end = performance.now() + 2000; while (performance.now() < end); }"


def crowd(home: Home, number: int) -> None:
    folder = home.desk.project / f"crowd{number}"
    folder.mkdir()
    for index in range(number):
        text = f'name = "m{index:03}"\ndescription = "One of many"\nrole = "supervisor"\n'
        (folder / f"m{index:03}.agent.toml").write_text(text)
    home.desk.good("apply", "-f", folder)
    until(lambda: home.status()["agents"].get("running", 0) >= number)


def every_page(window: Window) -> None:
    for link in window.page.locator("nav[aria-label=pages] a").all():
        window.to(str(link.get_attribute("href")))
        window.settled()
        expect(window.page.locator("main > .error-box")).to_have_count(0)
        assert window.page.evaluate(TOO_WIDE) <= 0, f"{window.page.url} is wider than the window"


class Told:
    """What the stream told the page, in messages."""

    def __init__(self, page: Page) -> None:
        self.messages = 0
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _count(self, _: object) -> None:
        self.messages += 1


@contextmanager
def tasks(browser: Browser, page: Page) -> Iterator[list[float]]:
    """CPU time in milliseconds of each task of the page's main thread, from the browser's own trace. What somebody else
    did with the processor meanwhile lengthens a task by the clock, and is not the page's doing."""
    found: list[float] = []
    browser.start_tracing(page=page, categories=["toplevel", "disabled-by-default-devtools.timeline"])
    try:
        yield found
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    pages = {(one["pid"], one["tid"]) for one in events if one.get("args", {}).get("name") == "CrRendererMain"}
    found += [
        one["tdur"] / 1000
        for one in events
        if one["ph"] == "X" and "RunTask" in one["name"] and "tdur" in one and (one["pid"], one["tid"]) in pages
    ]
    assert found, "the trace has tasks"


@contextmanager
def changing(home: Home) -> Iterator[list[int]]:
    """All of them, one after the other, as fast as the kernel does it; the list has how often."""
    over = threading.Event()
    done = [0]

    async def change() -> None:
        async with connect(home.socket) as client:
            while not over.is_set():
                number = done[0] % NUMBER
                if done[0] % 50 == 0:
                    await client.call(Restart(agent=f"m{number:03}"))
                await client.call(Limit(agent=f"m{number:03}", limits={"calls": 1000 + done[0]}))
                done[0] += 1

    beside = threading.Thread(target=lambda: asyncio.run(change()))
    beside.start()
    try:
        yield done
    finally:
        over.set()
        beside.join()


@pytest.mark.parametrize("width", WIDTHS)
def test_nobody(browser: Browser, home: Home, width: int) -> None:
    with a_window(browser, home, width=width) as window:
        window.enter()
        every_page(window)


def test_five(browser: Browser, home: Home) -> None:
    crowd(home, 5)
    for width in WIDTHS:
        with a_window(browser, home, width=width) as window:
            window.enter()
            for index in range(5):
                expect(window.row(f"m{index:03}")).to_be_visible()
            every_page(window)


@pytest.fixture(scope="module")
def many(home: Home) -> None:
    crowd(home, NUMBER)


@pytest.mark.parametrize("width", WIDTHS)
def test_many(browser: Browser, home: Home, many: None, width: int) -> None:
    with a_window(browser, home, width=width) as window:
        window.enter()
        tile = window.page.get_by_role("region", name="Agents", exact=True)
        expect(tile.locator(".big")).to_have_text(f"{NUMBER:,}")
        assert window.page.get_by_role("treeitem").count() < 100, "only what is seen is drawn"
        window.page.get_by_role("tree").evaluate("box => { box.scrollTop = box.scrollHeight }")
        expect(window.row(f"m{NUMBER - 1}")).to_be_visible()
        every_page(window)


def test_many_that_change_keep_the_page_quick(browser: Browser, home: Home, many: None) -> None:
    with a_window(browser, home) as window, changing(home) as done:
        told = Told(window.page)
        window.enter()
        for _ in range(WINDOWS):
            changed, heard = done[0], told.messages
            with tasks(browser, window.page) as used:
                window.page.wait_for_timeout(SECONDS * 1000)  # what is measured is what happens meanwhile
            assert done[0] - changed >= CHANGES_A_SECOND * SECONDS, "they change often"
            assert told.messages - heard >= CHANGES_A_SECOND * SECONDS, "and the page is told so"
            assert max(used) < LONGEST_MS, f"the page worked {max(used):.0f} ms without a pause"
        with tasks(browser, window.page) as used:
            window.page.evaluate(BUSY)
        assert max(used) > LONGEST_MS, "a page that works for long is found out"
        window.live()
