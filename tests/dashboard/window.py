"""A browser window on the dashboard: a real Chromium, driven by Playwright, on a real kernel with its gateway."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from agent_os.abi.syscalls import Body
from gateway.house import House

ROOT = Path(__file__).parents[2]
NAMES = ("chromium-headless-shell", "headless_shell", "chromium", "chromium-browser", "google-chrome")
MILLISECONDS = 90_000  # a safety limit, never a measure
PAGES = ("overview", "approvals", "memory", "capabilities", "bus", "cost", "audit", "system")
Scheme = Literal["light", "dark"]

expect.set_options(timeout=MILLISECONDS)


def found() -> str:
    """The browser: as $AGENT_OS_CHROMIUM says, on the path, or in .cache; empty if there is none."""
    names = (os.environ.get("AGENT_OS_CHROMIUM", ""), *NAMES)
    on_path = next((path for name in names if name and (path := shutil.which(name))), "")
    kept = (path for name in NAMES for path in (ROOT / ".cache").glob(f"**/{name}"))
    return on_path or next((str(path) for path in kept if os.access(path, os.X_OK)), "")


needs_browser = pytest.mark.skipif(not found(), reason="no chromium found; make chromium")


class Home(House):
    """Playwright keeps an event loop in this thread, so whatever has its own runs in another."""

    def ask(self, request: Body) -> Any:
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(super().ask, request).result()


class Window:
    """One tab. What the page complains of is kept, and what it asked of whom."""

    def __init__(self, page: Page, home: House) -> None:
        self.page, self.home = page, home
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(MILLISECONDS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._heard)
        page.on("request", lambda request: self.asked.append(request.url))

    def _heard(self, message: ConsoleMessage) -> None:
        # What was refused or cut off is the browser's own note; the page shows it in its own words.
        if message.type in ("error", "warning") and not message.text.startswith(
            ("Failed to load resource", "WebSocket")
        ):
            self.complaints.append(message.text)

    def enter(self, route: str = "#/overview") -> "Window":
        """With a code of its own, as the address of `agentctl ui` has it."""
        self.page.goto(f"{self.home.url}/#code={self.home.code()}")
        self.live()
        return self.to(route)

    def live(self) -> None:
        expect(self.page.locator(".link.live")).to_be_visible()

    def to(self, route: str) -> "Window":
        self.page.evaluate("route => { location.hash = route }", route)
        expect(self.page.locator("main h1").first).to_be_visible()
        return self

    def agent(self, name: str, **query: str) -> "Window":
        search = "&".join(f"{key}={quote(value)}" for key, value in query.items())
        return self.to(f"#/agent/{quote(f'default/{name}', safe='')}" + (f"?{search}" if search else ""))

    def button(self, name: str, *, exact: bool = True) -> Locator:
        return self.page.get_by_role("button", name=name, exact=exact)

    def row(self, agent: str) -> Locator:
        """Of the supervision tree."""
        return self.page.locator(f'[role=treeitem][data-agent="default/{agent}"]')

    @property
    def text(self) -> str:
        return self.page.locator("body").inner_text()

    def settled(self) -> None:
        """Nothing is loading any more."""
        expect(self.page.locator(".skeleton")).to_have_count(0)

    def close(self) -> None:
        self.page.context.close()
        assert not self.complaints, self.complaints
        strange = [url for url in self.asked if not url.startswith((self.home.url, f"ws{self.home.url[4:]}"))]
        assert not strange, f"it asked another host: {strange}"


@contextmanager
def a_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def a_window(
    browser: Browser, home: House, *, scheme: Scheme = "light", width: int = 1360, height: int = 860
) -> Iterator[Window]:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    window = Window(context.new_page(), home)
    try:
        yield window
    except BaseException:
        window.page.context.close()
        raise
    else:
        window.close()
