"""A page that loses its gateway, or its kernel: it says so, changes nothing meanwhile, shows nothing stale after."""

import os
import signal

import pytest
from playwright.sync_api import Browser, expect

from agent_os.abi.doors import Gateway
from cli.desk import ended, until
from dashboard.window import Home, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


def test_a_killed_gateway_is_missed_and_found_again(browser: Browser, home: Home) -> None:
    """The daemon starts another one; the session is the kernel's and holds, and the stream goes on where it was cut."""
    home.desk.start("lasting")
    with a_window(browser, home) as window:
        window.enter()
        expect(window.row("lasting")).to_be_visible()
        pid = home.ask(Gateway())["gateway"]["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: ended(pid))
        expect(window.page.locator(".banner.bad").get_by_text("Not connected.")).to_be_visible()
        expect(window.button("Pause all agents")).to_be_disabled()
        home.desk.start("meanwhile")
        window.live()
        expect(window.row("meanwhile")).to_have_attribute("data-state", "running")
        expect(window.page.locator(".banner.bad")).to_have_count(0)
        expect(window.button("Pause all agents")).to_be_enabled()


def test_a_restarted_kernel_ends_the_session_and_leaves_nothing_stale(browser: Browser, home: Home) -> None:
    home.desk.start("before")
    with a_window(browser, home) as window:
        window.enter().agent("before")
        expect(window.page.get_by_role("heading", name="before")).to_be_visible()
        gateway = home.ask(Gateway())["gateway"]
        home.desk.kill_kernel()
        expect(window.page.locator(".banner.bad").or_(window.page.get_by_label("Code")).first).to_be_visible()
        home.desk.good("up", "--detach", "--port", str(gateway["url"].rpartition(":")[2]))
        # The session was the old kernel's: the page asks for a code, and nothing of before is to be seen.
        expect(window.page.get_by_label("Code")).to_be_visible()
        expect(window.page.get_by_text("agentctl ui").first).to_be_visible()
        assert "before" not in window.text
        home.desk.ask("kill", "before")
        home.desk.start("after")
        window.page.get_by_label("Code").fill(home.code())
        window.button("Enter").click()
        window.live()
        window.to("#/overview")
        expect(window.row("after")).to_be_visible()
        expect(window.row("before")).to_have_count(0)


def test_a_journal_that_is_another_begins_anew(browser: Browser, home: Home) -> None:
    """A cursor that nobody knows is answered with a reset: the page reads everything again and stays live."""
    home.desk.start("there")
    with a_window(browser, home) as window:
        window.page.add_init_script(
            """const send = WebSocket.prototype.send;
            let spoilt = false;
            WebSocket.prototype.send = function (text) {
              if (!spoilt) { spoilt = true; text = JSON.stringify({ ...JSON.parse(text), cursor: "other-1" }); }
              return send.call(this, text);
            };"""
        )
        window.enter()
        expect(window.row("there")).to_be_visible()
        assert sum(url.endswith("/snapshot") for url in window.asked) >= 2
