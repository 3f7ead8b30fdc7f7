"""An agent whose manifest offers it is asked over HTTP: request and answer by schema, and nobody else is."""

import json
from collections.abc import Iterator

import pytest

from gateway.house import House

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]
SERVER = """
from agent_os import agent

@agent
async def main(ctx):
    async def handle(message):
        if message.payload["say"] == "no":
            raise ValueError("I would rather not")
        return message.payload["say"]
    await ctx.serve(handle)
"""
MANIFEST = """
name = "{name}"
role = "service"
[program]
entry = "server.py:main"
[interface]
protocol = "{protocol}"
request_schema = "ask.json"
response_schema = "answer.json"
"""
ASK = {"type": "object", "required": ["say"], "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


@pytest.fixture(scope="module")
def served(house: House) -> Iterator[House]:
    """One agent that is asked over HTTP, and one that is not."""
    folder = house.desk.project
    (folder / "server.py").write_text(SERVER)
    (folder / "ask.json").write_text(json.dumps({**ASK, "properties": {**ASK["properties"], "say": {}}}))  # type: ignore[dict-item]
    (folder / "answer.json").write_text(json.dumps({"type": "string"}))
    for name, protocol in (("echo", "rest"), ("quiet", "ipc")):
        (folder / f"{name}.toml").write_text(MANIFEST.format(name=name, protocol=protocol))
        house.desk.good("apply", "-f", folder / f"{name}.toml")
        house.desk.good("wait", "--for", "ready", name)
    yield house
    house.desk.ask("delete", "echo", "quiet")


def test_the_answer_is_that_of_the_agent(served: House) -> None:
    answer = served.post("agents/echo/invoke", {"say": "hello", "n": 3})
    assert (answer.status_code, answer.json()["answer"], answer.json()["error"]) == (200, "hello", None), answer.text


def test_what_does_not_fit_is_refused_by_its_field(served: House) -> None:
    for body, field in (({"say": "x", "n": "three"}, "/n"), ({}, "/say"), ({"say": "x", "more": 1}, "/more")):
        refused = served.post("agents/echo/invoke", body)
        problem = refused.json()
        assert (refused.status_code, problem["detail_code"]) == (422, "interface.request"), refused.text
        assert problem["field"] == field
        assert problem["expected"]
    unfit = served.post("agents/echo/invoke", {"say": 17})
    assert (unfit.status_code, unfit.json()["detail_code"]) == (422, "interface.response")


def test_an_agent_that_could_not_says_why(served: House) -> None:
    answer = served.post("agents/echo/invoke", {"say": "no"})
    assert answer.status_code == 200
    assert answer.json()["answer"] is None
    assert "rather not" in answer.json()["error"]


def test_who_does_not_offer_it_or_is_not_there_or_may_not_ask(served: House) -> None:
    closed = served.post("agents/quiet/invoke", {"say": "x"})
    assert (closed.status_code, closed.json()["detail_code"]) == (400, "interface.protocol")
    assert closed.json()["hint"] == 'interface.protocol = "rest" in its manifest'
    assert served.post("agents/nobody/invoke", {"say": "x"}).status_code in (400, 404)
    assert served.post("agents/echo/invoke", {"say": "x"}, role="auditor").status_code == 403


def test_the_same_request_with_its_key_is_asked_once(served: House) -> None:
    key = {"Idempotency-Key": "once"}
    both = [served.post("agents/echo/invoke", {"say": "hello"}, headers=key) for _ in range(2)]
    assert both[0].json() == both[1].json()
    assert both[1].headers["idempotency-replayed"] == "true"
    assert served.post("agents/echo/invoke", {"say": "other"}, headers=key).status_code == 409
