"""Nobody is shut out: axe finds nothing on any page, in either theme, full or empty."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from dashboard.fleet import Fleet, provider
from dashboard.window import Home, Scheme, Window, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


def found(window: Window) -> list[str]:
    window.settled()
    told = Axe().run(window.page).response["violations"]
    return [f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:200]}" for one in told]


def routes(window: Window) -> list[str]:
    """Of every page in the navigation, so that a new one is not forgotten."""
    links = window.page.locator("nav[aria-label=pages] a").all()
    return [str(link.get_attribute("href")) for link in links]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Iterator[Fleet]:
    with provider(home.desk) as mock:
        fleet = Fleet(home.desk)
        fleet.everything(mock)
        yield fleet


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_door(browser: Browser, home: Home, scheme: Scheme) -> None:
    with a_window(browser, home, scheme=scheme) as window:
        window.page.goto(home.url)
        expect(window.page.get_by_label("Code")).to_be_visible()
        assert not found(window)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_without_anybody(browser: Browser, home: Home, scheme: Scheme) -> None:
    with a_window(browser, home, scheme=scheme) as window:
        window.enter()
        assert not {route: bad for route in routes(window) if (bad := found(window.to(route)))}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pages_with_a_fleet(browser: Browser, home: Home, fleet: Fleet, scheme: Scheme) -> None:
    with a_window(browser, home, scheme=scheme) as window:
        window.enter()
        assert not {route: bad for route in routes(window) if (bad := found(window.to(route)))}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_agent_and_its_decision(browser: Browser, home: Home, fleet: Fleet, scheme: Scheme) -> None:
    with a_window(browser, home, scheme=scheme) as window:
        window.enter().agent("burglar")
        expect(window.page.get_by_role("row").nth(1)).to_be_visible()
        assert not found(window)
        for tab in ("Memory", "Capabilities", "Messages", "Cost", "Logs"):
            window.page.get_by_role("tab", name=tab).click()
            assert not found(window), tab
        window.page.get_by_role("tab", name="Timeline").click()
        window.page.get_by_role("row").filter(has_text="/mem/semantic/vault/door").first.click()
        expect(window.page.get_by_role("dialog").get_by_text("Request")).to_be_visible()
        assert not found(window)
