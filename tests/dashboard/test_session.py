"""How a browser is let in: by a code that is good once, for a session that nobody else gets to see."""

import pytest
from playwright.sync_api import Browser, expect

from dashboard.window import Home, Window, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


def kept(window: Window) -> str:
    return window.page.evaluate("JSON.parse(sessionStorage.getItem('agent-os.session') ?? '{}').session ?? ''")


def test_a_code_lets_in_and_is_gone_from_the_address(window: Window) -> None:
    code = window.home.code()
    window.page.goto(f"{window.home.url}/#code={code}")
    window.live()
    assert code not in window.page.url
    assert code not in window.page.evaluate("history.state === null ? location.href : JSON.stringify(history.state)")
    window.page.go_back()
    assert code not in window.page.url


def test_the_session_is_in_no_page_address_or_log(window: Window) -> None:
    window.enter()
    session = kept(window)
    assert session.startswith("aoss_"), "there is something to look for"
    for page in ("overview", "agent"):
        window.to(f"#/{page}")
        assert session not in window.page.content()
        assert session not in window.page.url
    assert all(session not in url for url in window.asked)
    assert session not in window.home.log()
    assert not window.page.evaluate("document.cookie")
    assert session not in window.page.evaluate("JSON.stringify({...localStorage})")


def test_a_tab_that_is_loaded_again_is_still_in(window: Window) -> None:
    window.enter()
    window.page.reload()
    window.live()


def test_another_tab_is_not_in(browser: Browser, home: Home, window: Window) -> None:
    window.enter()
    other = window.page.context.new_page()
    other.goto(home.url)
    expect(other.get_by_text("agentctl ui")).to_be_visible()
    other.close()


def test_a_used_code_is_refused_in_the_kernels_words(browser: Browser, home: Home) -> None:
    code = home.code()
    with a_window(browser, home) as first:
        first.page.goto(f"{home.url}/#code={code}")
        first.live()
    with a_window(browser, home) as second:
        second.page.goto(f"{home.url}/#code={code}")
        expect(second.page.get_by_role("alert")).to_be_visible()
        expect(second.page.get_by_text("agentctl ui").first).to_be_visible()
        assert not kept(second)
        said = home.post("session", {"code": code}, role=None).json()
        assert said["reason"].partition(":")[0] in second.text


def test_a_code_can_be_typed(browser: Browser, home: Home) -> None:
    with a_window(browser, home) as window:
        window.page.goto(home.url)
        window.page.get_by_label("Code").fill(home.code().lower())
        window.button("Enter").click()
        window.live()


def test_leaving_ends_the_session_here_and_there(window: Window) -> None:
    window.enter()
    session = kept(window)
    window.button("Leave").click()
    expect(window.page.get_by_label("Code")).to_be_visible()
    assert not kept(window)
    gone = window.home.get("status", role=None, headers={"Authorization": f"Bearer {session}"})
    assert gone.status_code == 401


def test_a_viewer_sees_buttons_that_are_off_and_why(browser: Browser, home: Home) -> None:
    home.desk.start("seen")
    with a_window(browser, home) as window:
        window.page.goto(home.url)
        window.page.get_by_label("Code").fill(home.tokens["viewer"])
        window.button("Enter").click()
        window.live()
        window.agent("seen")
        expect(window.button("Pause")).to_be_disabled()
        assert window.button("Pause").get_attribute("title") == "a viewer may only look"
