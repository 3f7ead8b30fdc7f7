"""One browser and one kernel with its gateway for the tests of a file. Both end with the file: Playwright's event loop
would be in the way of other tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from dashboard.window import Home, Window, a_browser, a_window


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("home"), limits={"rate": 10_000, "burst": 10_000})
    yield home
    home.close()


@pytest.fixture
def window(browser: Browser, home: Home) -> Iterator[Window]:
    with a_window(browser, home) as window:
        yield window
