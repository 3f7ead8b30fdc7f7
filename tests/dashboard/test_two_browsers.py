"""Two people at two browsers: what one does the other sees. Of two answers to one question one wins, and the other
person is told."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from dashboard.fleet import Fleet
from dashboard.test_approvals import card, closed, state, steady
from dashboard.window import Home, a_window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    return Fleet(home.desk)


def test_the_other_browser_sees_who_decided(browser: Browser, home: Home, fleet: Fleet) -> None:
    file, memory = fleet.deploy("two-a")
    with a_window(browser, home) as ann, a_window(browser, home) as bob:
        for window in (ann, bob):
            window.enter("#/approvals")
            steady(window.page, file, memory)
        card(ann.page, file["id"]).get_by_role("button", name="Deny").click()
        expect(closed(ann.page, file["id"])).to_contain_text("denied by")
        expect(closed(bob.page, file["id"])).to_contain_text("denied by")
        expect(card(bob.page, file["id"])).to_have_count(0)
        expect(card(bob.page, memory["id"])).to_be_visible()


def test_of_two_answers_at_once_one_wins_and_the_other_is_told(browser: Browser, home: Home, fleet: Fleet) -> None:
    file, memory = fleet.deploy("two-b")
    with a_window(browser, home) as ann, a_window(browser, home) as bob:
        held: list[Route] = []
        for window in (ann, bob):
            window.page.route("**/decision", lambda route: held.append(route))
            window.enter("#/approvals")
            steady(window.page, file, memory)
        # Both have pressed before either answer is on its way.
        card(ann.page, file["id"]).get_by_role("button", name="Approve once").click()
        expect(card(ann.page, file["id"]).get_by_role("button", name="Sending …")).to_be_disabled()
        card(bob.page, file["id"]).get_by_role("button", name="Deny").click()
        expect(card(bob.page, file["id"]).get_by_role("button", name="Denying …")).to_be_disabled()
        assert len(held) == 2
        assert state(fleet, file["id"])["state"] == "pending", "nothing is true before the kernel said so"
        for route in held:
            route.continue_()
        expect(closed(ann.page, file["id"])).to_be_visible()
        expect(closed(bob.page, file["id"])).to_be_visible()
        late = [window for window in (ann, bob) if "too late" in closed(window.page, file["id"]).inner_text()]
        assert len(late) == 1, "one is told"
        word = "denied by" if state(fleet, file["id"])["state"] == "refused" else "approved by"
        for window in (ann, bob):
            expect(closed(window.page, file["id"])).to_contain_text(word)


def test_twenty_answers_from_two_sessions_decide_each_question_once(home: Home, fleet: Fleet) -> None:
    """Without a page in between: the gateway and the kernel alone."""
    asked = fleet.question("two-c")
    sessions = [home.session(), home.session()]

    def answer(job: tuple[str, dict[str, Any]]) -> int:
        session, one = job
        body = {"outcome": "deny", "args_hash": one["digest"]}
        headers = {"Authorization": f"Bearer {session}"}
        return home.call("POST", f"approvals/{one['id']}/decision", role=None, json=body, headers=headers).status_code

    for one in asked:
        with ThreadPoolExecutor(4) as beside:
            codes = sorted(beside.map(answer, [(session, one) for session in sessions * 2]))
        assert codes == [200, 409, 409, 409]
