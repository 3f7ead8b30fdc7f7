"""The browser's tools as specs and results. The browser itself is tested in tests/userland."""

import asyncio
from typing import Any

from agent_os.abi.helpers import Click, Element, Navigate, Nothing, Page, Part, Screenshot, Type
from agent_os.drivers.tools import browser
from agent_os.kernel.helpers.link import Answered
from agent_os.kernel.tools.spec import checked, wanted
from drivers.tools.means import Bodies


class Helper:
    def __init__(self, page: Page, data: bytes = b"") -> None:
        self.answer, self.asked = Answered(page, data), list[Any]()

    async def ask(self, op: int, request: Any, answer: type[Any], *, seconds: float, limit: int = 0) -> Answered[Any]:
        self.asked.append(request)
        return self.answer


PAGE = Page("http://a.example/", "A", 200, notices=["a dialog was dismissed: hi"])
TOLD = {"url": "http://a.example/", "title": "A", "status": 200, "complete": True, "notices": PAGE.notices}


def test_only_looking_is_idempotent_and_only_navigating_names_a_host() -> None:
    specs = {spec.name: checked(spec) for spec in browser.SPECS}
    assert {name for name, spec in specs.items() if spec.effect == "idempotent"} == {"browser.navigate", "browser.read"}
    needs = wanted(specs["browser.navigate"], {"url": "https://A.example:8443/x"}).needs
    assert [(need.kind, need.action, need.target) for need in needs] == [
        ("tool", "call", "browser.navigate"),
        ("http", "get", "a.example/x"),
    ]
    assert all(spec.labels.integrity == "untrusted" for spec in specs.values())


def test_verbs_ask_what_they_were_given() -> None:
    helper = Helper(PAGE)

    async def all_of_them() -> None:
        assert await browser.navigate({"url": "http://a.example/"}, helper) == TOLD
        assert await browser.click({"ref": 3}, helper) == TOLD
        assert await browser.type_({"text": "x", "selector": "#q", "submit": True}, helper) == TOLD
        assert await browser.close({}, helper) == TOLD

    asyncio.run(all_of_them())
    assert helper.asked == [Navigate("http://a.example/"), Click(3), Type("x", 0, "#q", True, True), Nothing()]


def test_a_long_page_lies_in_a_blob_and_a_picture_always_does() -> None:
    bodies, data = Bodies(), b"x" * 100_000
    page = Page("http://a.example/", "A", parts=[Part("text", len(data), whole=900_000)], elements=[Element(1, "link")])
    result = asyncio.run(browser.read({}, Helper(page, data), bodies.kept()))
    assert (result["size"], result["elements"], bodies[result["blob"]]) == (900_000, [{"ref": 1, "kind": "link"}], data)
    assert len(result["text"]) < 60_000

    helper = Helper(Page("http://a.example/", "A", parts=[Part("image", 4, "image/jpeg")]), b"\xff\xd8ab")
    result = asyncio.run(browser.screenshot({"format": "jpeg", "full": True}, helper, bodies.kept()))
    assert (result["media"], result["size"], bodies[result["blob"]]) == ("image/jpeg", 4, b"\xff\xd8ab")
    assert helper.asked == [Screenshot(True, "image/jpeg")]
