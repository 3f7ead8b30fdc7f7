"""The gateway as `agentctl up` starts it: who is let in, what they see, how it says no."""

import pytest

from agent_os.abi.doors import Gateway
from gateway.house import API, ROLES, House

pytestmark = pytest.mark.integration


def test_it_lives_and_is_ready_and_says_no_more_than_that(house: House) -> None:
    for path in ("/healthz", "/readyz"):
        said = house.get(path, role=None)
        assert (said.status_code, said.json()) == (200, {"ok": True})


def test_a_code_becomes_a_session_once(house: House) -> None:
    code = house.code()
    entered = house.post("session", {"code": code}, role=None)
    assert entered.status_code == 200, entered.text
    facts = entered.json()
    who = house.get("session", role=None, headers={"Authorization": f"Bearer {facts['session']}"}).json()
    assert (who["role"], who["via"], who["boot"]) == ("operator", "session", facts["boot"])
    again = house.post("session", {"code": code}, role=None)
    assert again.status_code == 401
    assert again.json()["detail_code"] == "code.wrong"


def test_a_session_that_left_is_over(house: House) -> None:
    mine = {"Authorization": f"Bearer {house.session()}"}
    assert house.get("status", role=None, headers=mine).status_code == 200
    assert house.call("DELETE", "session", role=None, headers=mine).status_code == 200
    gone = house.get("status", role=None, headers=mine)
    assert (gone.status_code, gone.json()["code"]) == (401, "EPERM")


@pytest.mark.parametrize("role", ROLES)
def test_a_token_says_who_one_is(house: House, role: str) -> None:
    who = house.get("session", role=role).json()
    assert (who["name"], who["role"], who["via"]) == (f"test-{role}", role, "token")


@pytest.mark.parametrize("role", ROLES)
def test_everybody_may_look(house: House, role: str) -> None:
    assert house.get("status", role=role).json()["pid"] == house.status()["pid"]
    facts = house.get("snapshot", role=role).json()
    assert facts["session"]["role"] == role
    assert facts["cursor"].startswith(facts["status"]["log"])
    assert {"agents", "declared", "approvals", "budgets"} <= set(facts)


def test_a_problem_names_the_field_and_what_to_do(house: House) -> None:
    said = house.post("signals", {"signal": "SIGFOO", "loud": True})
    assert (said.status_code, said.headers["content-type"]) == (422, "application/problem+json")
    problem = said.json()
    assert {one["field"] for one in problem["errors"]} == {"signal", "loud"}
    assert problem["type"] == "urn:agent-os:error:ETYPE"
    assert problem["instance"] == f"{API}/signals"
    assert problem["hint"]


def test_an_unknown_route_and_a_wrong_method_are_problems_too(house: House) -> None:
    unknown = house.get("nothing")
    assert (unknown.status_code, unknown.json()["detail_code"]) == (404, "route.unknown")
    wrong = house.call("PUT", "status", json={})
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
    assert "use GET" in wrong.json()["hint"]


def test_the_status_says_where_the_gateway_is(house: House) -> None:
    assert house.status()["gateway"] == house.gateway
    assert house.ask(Gateway(do="start", port=0)) == {"gateway": house.gateway}, "a second one was started"


def test_the_document_of_the_api_tells_of_every_route(house: House) -> None:
    document = house.get("/openapi.json", role=None).json()
    assert document["openapi"].startswith("3.1")
    assert f"{API}/agents/{{agent}}/signals" in document["paths"]
    for path, methods in document["paths"].items():
        for method, what in methods.items():
            assert what["summary"].endswith("."), (method, path)
            assert "429" in what["responses"], (method, path)
