"""Each resource of the API against a real kernel: it answers with the kernel's rows, and changes what it says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import until
from gateway.house import API, House

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]
DOER = """
from agent_os import agent

@agent
async def doer(ctx):
    await ctx.goal()
    await ctx.sleep(3600)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"), limits={"rate": 10_000, "burst": 10_000})
    house.desk.start("worker")
    yield house
    house.close()


def test_agents_are_listed_in_pages(house: House) -> None:
    first = house.get("agents", params={"limit": 1}).json()
    assert len(first["items"]) == 1
    rest = house.get("agents", params={"cursor": first["next"], "limit": 500}).json()
    assert rest["next"] is None
    names = [row["name"] for row in first["items"] + rest["items"]]
    assert names.count("worker") == 1
    assert names.count("root") == 1


def test_a_cursor_that_no_list_gave_is_refused(house: House) -> None:
    for cursor in ("bm8gY3Vyc29y", "", "n3", "t6"):
        said = house.get("agents", params={"cursor": cursor})
        assert (said.status_code, said.json()["field"]) == (422, "?cursor="), cursor
    assert house.get("audit", params={"cursor": "n3", "limit": 1}).json()["items"][0]["seq"] == 4


def test_one_agent_is_told_with_all_there_is(house: House) -> None:
    facts = house.get("agents/worker").json()
    assert facts["state"] == "running"
    assert facts["capabilities"]
    assert house.get("agents/nobody").status_code == 404
    assert [one["name"] for one in house.get("agents/system~root/tree").json()["children"]] == ["worker"]
    assert house.get("agents/system%2Froot/tree").json()["name"] == "root"
    assert house.get("agents/worker/history").json()["lives"]


def test_its_record_and_what_it_wrote_can_be_read(house: House) -> None:
    page = house.get("agents/worker/trace", params={"limit": 2}).json()
    assert len(page["items"]) == 2
    after = house.get("agents/worker/trace", params={"limit": 2, "cursor": page["next"]}).json()
    assert after["items"][0]["seq"] > page["items"][1]["seq"]


def test_what_an_agent_wrote_is_read_as_it_wrote_it(house: House) -> None:
    wrote = ["-c", "for i in 1 2 3; do echo line $i; done; printf 'bad \\377 byte\\n' >&2; exec sleep 1012"]
    order = {"argv": ["sh", *wrote], "cwd": str(house.desk.project), "workspace": "tmpfs", "name": "writer"}
    assert house.post("agents", {"order": order}).status_code == 201
    until(lambda: "byte" in house.get("agents/writer/logs").json()["text"])
    written = house.get("agents/writer/logs").json()
    assert [line for line in written["text"].splitlines() if "line" in line] == ["line 1", "line 2", "line 3"]
    assert "bad \\xff byte" in written["text"]
    assert written["size"] == len(b"line 1\nline 2\nline 3\nbad \xff byte\n")
    short = house.get("agents/writer/logs", params={"last": 1}).json()["text"]
    assert len(short.splitlines()) == 1
    assert house.call("DELETE", "agents/writer").status_code == 200


def test_an_agent_is_started_held_and_ended(house: House, tmp_path: Path) -> None:
    order = {"argv": ["sleep", "1009"], "cwd": str(house.desk.project), "workspace": "tmpfs", "name": "sleeper"}
    made = house.post("agents", {"order": order})
    assert (made.status_code, made.headers["location"]) == (201, f"{API}/agents/sleeper"), made.text
    assert house.post("agents", {"order": order}).status_code == 409
    held = house.post("agents/sleeper/signals", {"signal": "SIGSTOP", "reason": "lunch at twelve"})
    assert held.json()["done"][0]["name"] == "sleeper"
    assert "lunch at twelve" in house.get("audit", params={"last": 50}).text
    assert house.get("agents/sleeper").json()["state"] == "paused"
    all_on = house.post("signals", {"signal": "SIGCONT"}).json()
    assert {one["name"] for one in all_on["done"]} == {"worker", "sleeper"}
    assert house.get("agents/sleeper").json()["state"] == "running"
    gone = house.call("DELETE", "agents/sleeper").json()
    assert (gone["processes"] > 0, gone["survivors"]) == (True, 0)
    again = house.call("DELETE", "agents/sleeper")
    assert again.status_code == 404, again.text


def test_a_manifest_is_declared_and_started_and_forgotten(house: House) -> None:
    file = house.desk.project / "ticker.agent.toml"
    text = "name = 'ticker'\nrole = 'worker'\n[program]\nargv = ['sleep', '1010']\n"
    made = house.post("agents", {"manifest": {"file": str(file), "text": text}})
    assert made.status_code == 201, made.text
    until(lambda: house.get("agents/ticker").json()["state"] == "running")
    again = house.post("agents/ticker/life", {"do": "restart"})
    assert (again.status_code, again.json()["incarnation"]) == (200, 2), again.text
    assert house.call("DELETE", "agents/ticker").status_code == 200
    assert "ticker" not in [row["name"] for row in house.get("agents").json()["items"]]
    broken = house.post("agents", {"manifest": {"file": str(file), "text": "name = 1"}})
    assert broken.status_code == 400
    assert "name" in broken.json()["reason"]


def test_a_start_needs_an_order_or_a_manifest(house: House) -> None:
    said = house.post("agents", {})
    assert (said.status_code, said.json()["field"]) == (422, "order")


def test_memory_is_listed_read_written_and_removed(house: House) -> None:
    listed = house.get("agents/worker/memory").json()
    assert "/mem/working/note" in [row["path"] for row in listed["items"]]
    place = "agents/worker/memory/mem/working/note"
    found = house.get(place)
    assert found.json()["data"] == "hello"
    etag = found.headers["etag"]
    written = house.call("PUT", place, json={"data": "goodbye"}, headers={"If-Match": etag})
    assert written.status_code == 200, written.text
    late = house.call("PUT", place, json={"data": "too late"}, headers={"If-Match": etag})
    assert (late.status_code, late.json()["code"]) == (412, "ECONFLICT")
    large = house.call("PUT", "agents/worker/memory/mem/working/large", json={"data": "x" * (2 << 20)})
    assert large.status_code == 200, large.text
    assert house.get("agents/worker/memory/mem/working/large").json()["size"] == 2 << 20
    assert house.post("agents/worker/memory/search", {"query": "goodbye"}).json()["found"]
    assert house.call("DELETE", place).status_code == 200
    assert house.get(place).status_code == 404
    assert [row["path"] for row in house.get("agents/worker/memory/mem/working").json()["items"]]


def test_capabilities_are_granted_looked_at_checked_and_revoked(house: House) -> None:
    made = house.post("capabilities", {"agent": "worker", "capability": "http:api.example.com:get", "ttl_ms": 600_000})
    assert made.status_code == 201, made.text
    handle = made.json()["handle"]
    assert house.get(f"capabilities/{handle}").json()["agent"] == "worker"
    listed = house.get("capabilities", params={"agent": "worker", "limit": 500}).json()
    assert handle in [row["handle"] for row in listed["items"]]
    wish = {"agent": "worker", "capability": "http:api.example.com:get"}
    assert house.post("capabilities/check", wish).json()["verdict"] == "allow"
    assert house.call("DELETE", f"capabilities/{handle}").json()["revoked"] == [handle]
    assert house.post("capabilities/check", wish).json()["verdict"] == "refuse"
    assert house.get(f"capabilities/{handle}").status_code == 404


def test_rules_are_read_and_replaced_only_as_they_were_read(house: House) -> None:
    etag = house.get("policies/operator").headers["etag"]
    text = 'version = 1\ndefault = "capability"\nmode = "enforce"\n[[rule]]\nid = "no-mail"\neffect = "forbid"\n'
    text += 'what = ["tool:mail:call"]\n'
    without = house.call("PUT", "policies/operator", json={"text": text})
    assert (without.status_code, without.json()["detail_code"]) == (428, "if.match")
    broken = house.call("PUT", "policies/operator", json={"text": "rules = ["}, headers={"If-Match": etag})
    assert broken.status_code == 400, broken.text
    done = house.call("PUT", "policies/operator", json={"text": text}, headers={"If-Match": etag})
    assert done.status_code == 200, done.text
    late = house.call("PUT", "policies/operator", json={"text": ""}, headers={"If-Match": etag})
    assert (late.status_code, late.json()["code"]) == (412, "ECONFLICT")
    now = house.get("policies/operator")
    assert [rule["rule"] for rule in now.json()["rules"]] == ["no-mail"]
    assert now.headers["etag"] == done.headers["etag"] != etag


def test_cases_are_decided_under_the_rules_in_force(house: House) -> None:
    cases = [{"agent": "worker", "capability": "http:evil.example:get", "expect": "refuse"}]
    assert house.post("policies/test", {"cases": cases}).json()["passed"] == 1


def test_a_secret_goes_in_and_never_comes_out(house: House) -> None:
    value = "canary-5d1c6a"
    done = house.call("PUT", "secrets/mail", json={"value": value, "hosts": ["mail.example"]})
    assert done.status_code == 200, done.text
    listed = house.get("secrets").text
    assert "mail.example" in listed
    assert value not in listed + done.text + house.get("audit", params={"last": 100}).text + house.log()
    assert house.call("DELETE", "secrets/mail").status_code == 200


def test_messages_topics_and_dead_letters(house: House) -> None:
    sent = house.post("messages", {"to": "worker", "payload": {"hello": 1}})
    assert sent.status_code == 200, sent.text
    assert house.get("messages").json()["items"][0]["agent"].endswith("worker")
    assert house.post("messages", {"payload": 1}).json()["field"] == "to"
    assert house.post("topics", {"topic": "news.>"}).json()["reliable"] == ["news.>"]
    assert house.get("topics").json()["reliable"] == ["news.>"]
    assert house.get("dead-letters").json() == {"items": [], "next": None}
    assert house.post("dead-letters/nothing/redeliver", {}).status_code == 404


def test_goals_are_submitted_put_in_order_and_taken_back(house: House) -> None:
    (house.desk.project / "doer.py").write_text(DOER)
    text = "name = 'doer'\nrole = 'worker'\n[program]\nentry = 'doer.py:doer'\n[lifecycle]\nactivation = 'manual'\n"
    (house.desk.project / "doer.agent.toml").write_text(text)
    house.desk.good("apply", "-f", "doer.agent.toml")
    first = house.post("goals", {"text": "wash up", "agent": "doer"})
    assert (first.status_code, first.json()["agent"]) == (201, "default/doer"), first.text
    at_work = first.headers["location"]
    until(lambda: house.get(at_work).json()["state"] == "working")
    second, third = (house.post("goals", {"text": text, "agent": "doer"}).json()["id"] for text in ("iron", "cook"))
    assert waiting(house) == [second, third]
    urgent = house.call("PATCH", f"goals/{third}", json={"priority": "high"})
    assert urgent.status_code == 200, urgent.text
    assert waiting(house) == [third, second]
    gone = house.call("DELETE", f"goals/{second}", params={"reason": "not now"})
    assert gone.status_code == 200, gone.text
    assert house.get(f"goals/{second}").json()["state"] == "withdrawn"
    busy = house.call("DELETE", at_work)
    assert busy.status_code == 409, busy.text
    assert house.call("DELETE", f"goals/{third}").status_code == 200
    assert waiting(house) == []
    assert house.call("PATCH", "goals/doer", json={"priority": "high"}).status_code == 404, "no goal but an agent"
    assert house.call("DELETE", "agents/doer").status_code == 200
    missing = house.post("goals", {"text": "wash up", "agent": "nobody"})
    assert missing.status_code == 404, missing.text
    assert house.get("goals/g-0").status_code == 404


def waiting(house: House) -> list[str]:
    """In the order in which they come."""
    rows = [row for row in house.get("goals").json()["items"] if row["part"] == "waiting"]
    return [row["id"] for row in sorted(rows, key=lambda row: row["position"])]


def test_tools_are_listed_shown_and_called(house: House) -> None:
    assert house.get("tools", params={"query": "fetch"}).json()["items"]
    assert house.get("tools/http.fetch").json()["tools"][0]["spec"]
    assert house.get("tools/no.such").status_code == 404
    called = house.post("tools/file.read/calls", {"agent": "worker", "params": {"path": "/work/out.txt"}})
    assert (called.status_code, called.json()["missing"]) == (403, "tool:file.read:call")
    held = house.post("capabilities", {"agent": "worker", "capability": "tool:file.read:call"}).json()["handle"]
    called = house.post("tools/file.read/calls", {"agent": "worker", "params": {"path": "/work/out.txt"}})
    assert called.status_code == 200, called.text
    assert "done" in called.text
    house.call("DELETE", f"capabilities/{held}")


def test_the_record_is_read_proved_and_its_head_shown(house: House) -> None:
    page = house.get("audit", params={"limit": 3}).json()
    assert [one["seq"] for one in page["items"]] == [1, 2, 3]
    assert house.get("audit", params={"cursor": page["next"], "limit": 1}).json()["items"][0]["seq"] == 4
    newest = house.get("audit", params={"last": 2}).json()
    assert len(newest["items"]) == 2
    assert newest["next"] is None
    until(lambda: len(house.get("audit/heads", params={"limit": 500}).json()["items"]) >= 3)
    heads = house.get("audit/heads", params={"limit": 2}, role="viewer").json()
    assert [set(one) for one in heads["items"]] == [{"size", "root", "wall_ns", "boot"}] * 2
    older = house.get("audit/heads", params={"limit": 500, "cursor": heads["next"]}, role="viewer").json()
    sizes = [one["size"] for one in heads["items"] + older["items"]]
    assert sizes == sorted(set(sizes), reverse=True)
    assert house.get("audit/heads", params={"cursor": "nonsense"}).status_code == 422
    assert house.get("audit/2").json()["seq"] == 2
    assert house.get("audit/999999999").status_code == 404
    until(lambda: house.get("audit/head").json()["size"] > 2)
    proof = house.get("audit/proofs", params={"seq": 2, "size": house.get("audit/head").json()["size"]})
    assert proof.status_code == 200, proof.text
    assert house.get("audit/proofs").status_code == 400


def test_budgets_are_set_and_taken_away(house: House) -> None:
    done = house.call("PUT", "budgets/worker", json={"limits": {"tokens": 1000}, "reason": "a test"})
    assert done.status_code == 200, done.text
    assert house.get("budgets").json()["items"]
    assert house.call("PUT", "budgets/default%2Fworker", json={"limits": {"messages": 50}}).status_code == 200
    assert house.call("DELETE", "budgets/worker").status_code == 200
    assert house.call("PUT", "budgets/worker", json={"limits": {"gold": 1}}).status_code == 422


def test_costs_are_what_a_model_was_paid(house: House) -> None:
    house.desk.good("init", "--template", "loop", "loop")
    house.desk.good("run", "loop/loop.agent.toml")
    told = house.get("costs", params={"by": ["agent", "model"]}).json()
    spent = {row["model"]: row["spent"] for row in told["rows"] if row["agent"] == "loop"}
    assert spent["scripted/loop"] == {**spent["scripted/loop"], "model_calls": 3, "tokens": 4355}, told
    assert told["total"]["tokens"] == 4355
    later = house.get("costs", params={"by": ["agent"], "since_ns": 2**62}).json()
    assert later["rows"] == []


@pytest.mark.parametrize("path", ["health", "models", "links", "mcp-servers", "approvals"])
def test_what_there_is_to_look_at(house: House, path: str) -> None:
    assert house.get(path).status_code == 200


def test_the_doctor_examines_the_machine(house: House) -> None:
    found = house.get("doctor").json()
    assert found["level"].startswith("S")
    assert found["checks"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "agents", {"order": {"argv": ["true"], "cwd": "/tmp"}}),
        ("POST", "signals", {"signal": "SIGSTOP"}),
        ("POST", "capabilities", {"agent": "worker", "capability": "http:x.example:get"}),
        ("PUT", "budgets/worker", {"limits": {"tokens": 1}}),
        ("PUT", "secrets/x", {"value": "canary-77d0"}),
        ("POST", "messages", {"to": "worker"}),
        ("PUT", "agents/worker/memory/mem/working/x", {"data": "y"}),
        ("DELETE", "agents/worker", None),
    ],
)
@pytest.mark.parametrize("role", ["viewer", "auditor"])
def test_only_an_operator_changes_anything(house: House, method: str, path: str, body: object, role: str) -> None:
    before = house.status()["agents"]
    said = house.call(method, path, role=role, **({} if body is None else {"json": body}))
    assert (said.status_code, said.json()["detail_code"]) == (403, "role.low")
    assert house.status()["agents"] == before


def test_of_a_large_entry_a_viewer_sees_how_large_it_is(house: House) -> None:
    text = "INCA-gold" * 100_000
    place = "agents/worker/memory/mem/working/large"
    assert house.call("PUT", place, json={"data": text}).status_code == 200
    assert house.get(place, role="auditor").json()["data"] == text
    seen = house.get(place, role="viewer")
    assert (seen.status_code, seen.json()["data"]["size"]) == (200, len(text)), seen.text[:500]
    assert "INCA" not in seen.text
    assert house.call("DELETE", place).status_code == 200
