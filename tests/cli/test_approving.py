"""Approvals end to end: a native agent in a real daemon asks, waits and goes on; agentctl answers; the kernel dies."""

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli.desk import AGENTCTL, SECONDS, Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
POLICY = """
version = 1
default = "capability"
mode = "strict"

[[rule]]
id = "reports"
effect = "ask"
what = ["file:/work/report.md:write"]
reason = "everybody reads the reports"

[[rule]]
id = "plans"
effect = "ask"
what = ["file:/work/plan.md:write"]

[[rule]]
id = "hurry"
effect = "ask"
what = ["file:/work/soon.md:write"]
deadline = "2s"

[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/.env:read,write"]
"""
# Each act leaves one letter, so that one too many is seen. What it returns is all that came of it.
WRITER = """
from agent_os import agent

@agent
async def writer(ctx):
    await ctx.write("/work/begun", "1")
    said = []
    for path in PATHS:
        try:
            await ctx.append(path, "x")
            said.append("did")
        except Exception as refused:
            said.append(refused.detail.get("outcome") or refused.name)
    found = []
    for path in sorted(set(PATHS)):
        try:
            found.append(await ctx.read(path, text=True))
        except Exception:
            found.append("")
    return {"said": said, "found": found}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    made.home.mkdir(mode=0o700)
    (made.home / "policy.toml").write_text(POLICY)
    made.up()
    yield made
    made.ask("down")


def start(desk: Desk, name: str, *paths: str) -> None:
    (desk.project / "writer.py").write_text(WRITER.replace("PATHS", repr(list(paths))))
    desk.good("run", "--detach", "--name", name, "writer.py:writer")


def asked(desk: Desk, name: str) -> dict[str, Any]:
    """The one question of an agent, once there is one."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = desk.good("approvals", "--agent", name, "--json").json["approvals"]
        return bool(found)

    until(is_there)
    (one,) = found
    return one


def came_of(desk: Desk, name: str) -> dict[str, Any]:
    return desk.good("wait", name, "--json").json["result"]


def test_an_agent_waits_others_go_on_and_each_answer_is_told(desk: Desk) -> None:
    start(desk, "one", "/work/report.md", "/work/free.md", "/work/report.md")
    first = asked(desk, "one")
    assert (first["wants"], first["rules"]) == ("file.write /work/report.md", ["operator:reports"])
    start(desk, "two", "/work/free.md")
    assert came_of(desk, "two") == {"said": ["did"], "found": ["x"]}
    start(desk, "three", "/work/soon.md")
    asked(desk, "three")
    desk.good("approve", first["id"])
    second = asked(desk, "one")
    assert second["id"] != first["id"]
    desk.good("deny", second["id"], "--reason", "once is enough")
    assert came_of(desk, "one") == {"said": ["did", "did", "refused"], "found": ["x", "x"]}
    assert came_of(desk, "three") == {"said": ["expired"], "found": [""]}
    every = {one["id"]: one for one in desk.good("approvals", "--all", "--json").json["approvals"]}
    assert [every[one["id"]]["state"] for one in (first, second)] == ["used", "refused"]
    late = next(one for one in every.values() if one["agent"] == "three")
    assert late["state"] == "expired"
    refused = desk.ask("approve", late["id"], "--json")
    assert (refused.code != 0, refused.error["code"]) == (True, "EAPPROVAL"), refused
    assert desk.ask("approve", first["id"], "--json").error["code"] == "ECONFLICT"


def test_whoever_runs_an_agent_in_the_foreground_is_told_that_it_waits_for_them(desk: Desk) -> None:
    (desk.project / "writer.py").write_text(WRITER.replace("PATHS", '["/work/soon.md"]'))
    said = desk.good("run", "--name", "one", "writer.py:writer").err
    waits = "one  waits for you: file.write /work/soon.md   agentctl approve q-1\n"
    assert said.index(waits) < said.index("one  q-1 expired: nobody answered in time\n")
    summary = said[said.index("one  ended 0") :]
    assert "expired  file.write /work/soon.md  1×   nobody answered in time" in summary


def test_an_answer_for_the_session_stands_is_seen_and_taken_back(desk: Desk) -> None:
    start(desk, "one", *["/work/report.md"] * 3, "/work/plan.md", "/work/report.md")
    first = asked(desk, "one")
    desk.good("approve", first["id"], "--session")
    until(lambda: "plan.md" in asked(desk, "one")["wants"])  # all three are written, and this one waits for us
    assert first["id"] in desk.good("cap", "ls").out
    desk.good("cap", "revoke", first["id"])
    assert first["id"] not in desk.good("cap", "ls").out
    desk.good("deny", asked(desk, "one")["id"])
    until(lambda: "report.md" in asked(desk, "one")["wants"])
    desk.good("deny", asked(desk, "one")["id"])
    said = came_of(desk, "one")
    assert said == {"said": ["did", "did", "did", "refused", "refused"], "found": ["", "xxx"]}


def test_a_question_and_its_answer_survive_the_kernel(desk: Desk) -> None:
    start(desk, "one", "/work/report.md", "/work/report.md", "/work/free.md")
    before = asked(desk, "one")
    desk.kill_kernel()
    desk.up()
    after = asked(desk, "one")
    assert (after["id"], after["digest"]) == (before["id"], before["digest"])
    desk.good("approve", after["id"])
    desk.kill_kernel()  # before, while or after it acts
    desk.up()
    second = asked(desk, "one")
    assert second["id"] != before["id"]
    desk.good("approve", second["id"])
    assert came_of(desk, "one") == {"said": ["did", "did", "did"], "found": ["x", "xx"]}
    assert desk.good("audit", "verify").code == 0


def test_several_answers_at_once_are_one(desk: Desk) -> None:
    start(desk, "one", "/work/report.md", "/work/free.md")
    one = asked(desk, "one")
    with ThreadPoolExecutor() as doors:
        said = list(doors.map(lambda word: desk.ask(word, one["id"], "--json"), ["approve", "deny", "approve", "deny"]))
    assert sorted(each.code == 0 for each in said) == [False, False, False, True], said
    was = next(each for each in said if each.code == 0).json["state"]
    did = was == "approved"
    told = came_of(desk, "one")
    assert told == {"said": ["did" if did else "refused", "did"], "found": ["x", "x" if did else ""]}


def test_nobody_answers_from_a_namespace_of_their_own_or_from_a_sandbox(desk: Desk) -> None:
    start(desk, "one", "/work/report.md")
    one = asked(desk, "one")
    unshare = shutil.which("unshare")
    words = ["approve", one["id"], "--json"]
    if unshare and not subprocess.run([unshare, "--user", "--map-current-user", "true"], check=False).returncode:
        inside = [unshare, "--user", "--map-current-user", *AGENTCTL, *words]
        ran = subprocess.run(inside, env=desk.env, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ran.returncode != 0
        assert "EPERM" in ran.stderr, ran.stderr
    knock = "import socket,sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    where = desk.good("status", "--json").json["socket"]
    assert desk.ask("run", "--", "python3", "-c", knock, where).code != 0
    assert asked(desk, "one")["state"] == "pending"
    assert desk.good(*words).json["state"] == "approved"  # the control
    assert came_of(desk, "one")["said"] == ["did"]
