"""Pipes between isolated processes: the three of the example, a deny-all policy, and kill -9 between two stages."""

import os
import signal
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

PROGRAM = """
import msgspec
from agent_os import PipeError, PolicyCheckPipe, agent

class ResearchResult(msgspec.Struct):
    topic: str
    pages: int

class Summary(msgspec.Struct):
    line: str

@agent
async def researcher(ctx, query: str) -> ResearchResult:
    await ctx.append("/work/ran.txt", "researcher ")
    return ResearchResult(query, 3)

@agent
async def forger(ctx, query: str) -> ResearchResult:
    return {"topic": query, "pages": 3, "note": "buy now"}

@agent
async def writer(ctx, found: ResearchResult) -> Summary:
    await ctx.append("/work/ran.txt", "writer ")
    await ctx.sleep(WAIT)
    assert isinstance(found, ResearchResult)
    return Summary(f"{found.topic}: {found.pages} pages")

@agent
async def planner(ctx, first: str = "researcher"):
    begin = {"researcher": researcher, "forger": forger}[first]
    pipeline = begin | PolicyCheckPipe(allowed_types=["ResearchResult"]) | writer
    try:
        result = await pipeline.execute("pipes", timeout=120)
    except PipeError as refused:
        print("refused", refused.stage, refused.errno, refused.code, flush=True)
        return 1
    print("summary", result.line, flush=True)
"""
CAPS = ("--cap", "ipc:agent/*:send", "--cap", "agent:*:spawn,signal")
LASTING = """
import msgspec
from agent_os import PolicyCheckPipe, agent
from agent_os.userland.pipes import Stage

class ResearchResult(msgspec.Struct):
    topic: str
    pages: int

class Summary(msgspec.Struct):
    line: str

@agent
async def researcher(ctx):
    asked = 0
    async def handle(message):
        nonlocal asked
        asked += 1
        return {"topic": message.payload, "pages": asked}
    await ctx.serve(handle)

@agent
async def writer(ctx):
    asked = 0
    async def handle(message):
        nonlocal asked
        asked += 1
        await ctx.sleep(WAIT)
        return {"line": f"{message.schema} {message.payload['pages']} {asked} via {message.via}"}
    await ctx.serve(handle)

@agent
async def planner(ctx):
    first, last = Stage("researcher", ResearchResult), Stage("writer", Summary)
    result = await (first | PolicyCheckPipe(["ResearchResult"]) | last).execute("pipes", timeout=120)
    ctx.log("the summary is", result.line)
    await ctx.sleep(1000)
"""
MANIFEST = """
name = "NAME"
role = "worker"
[program]
entry = "lasting.py:NAME"
[health]
max_restarts = 100
backoff = { base_ms = 20, cap_ms = 100, jitter = "none" }
[capabilities]
ipc_scope = "peers"
ipc_peers = ["researcher", "writer"]
"""

FORGETFUL = """
import sys

if "agent_os.daemon" in sys.orig_argv:
    from agent_os.kernel.pipes.running import Running

    Running.keep = lambda self, agent, place, progress: []
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    (made.project / "plan.py").write_text(PROGRAM.replace("WAIT", "0"))
    return made


def test_three_isolated_processes_are_one_pipe(desk: Desk) -> None:
    desk.up()
    try:
        said = desk.ask("run", *CAPS, "--name", "planner", "plan.py:planner")
        assert "summary pipes: 3 pages" in said.out, said
        alive = desk.good("ps", "--json").json["agents"]
        assert [one["name"] for one in alive] == [], "what was started for the pipe has ended"
        said = desk.ask("run", *CAPS, "--name", "liar", "plan.py:planner", "first=forger")
        assert "refused 0 ETYPE type.value" in said.out, said
        assert not any("writer" in one["name"] and one for one in desk.good("ps", "--json").json["agents"])
    finally:
        desk.down()


def asked_over_kills(desk: Desk) -> tuple[dict[str, int], str]:
    """The planner is killed while the writer works, then the kernel. How often each stage has answered by the end, and
    what the planner says."""
    (desk.project / "lasting.py").write_text(LASTING.replace("WAIT", "8"))
    names = ("researcher", "writer", "planner")
    for name in names:
        (desk.project / f"{name}.agent.toml").write_text(MANIFEST.replace("NAME", name))
    desk.up()
    try:
        desk.good("apply", *(word for name in names for word in ("-f", f"{name}.agent.toml")))
        until(lambda: "SYS_SLEEP" in desk.ask("events", "--agent", "writer").out)
        os.kill(desk.good("inspect", "planner", "--json").json["pid"], signal.SIGKILL)
        until(lambda: len(desk.good("history", "planner", "--json").json["lives"]) == 2)
        desk.kill_kernel()
        desk.up()
        until(lambda: "the summary is" in _said(desk))
        assert desk.ask("audit", "verify").code == 0
        assert desk.good("bus", "dead", "--json").json["letters"] == []
        events = {name: desk.good("events", "--agent", name, "-n", "1000").out for name in ("researcher", "writer")}
        return {name: told.count("SYS_REPLY") for name, told in events.items()}, _said(desk)
    finally:
        desk.down()


def _said(desk: Desk) -> str:
    said = desk.ask("logs", "planner")
    return said.out + said.err


def test_a_pipe_goes_on_after_kills_and_repeats_no_finished_stage(desk: Desk) -> None:
    asked, said = asked_over_kills(desk)
    assert asked == {"researcher": 1, "writer": 1}
    assert "the summary is ResearchResult 1 1 via pipe" in said


def test_a_pipe_that_does_not_keep_how_far_it_is_would_repeat_a_finished_stage(desk: Desk, tmp_path: Path) -> None:
    """The broken build of the test before: the kernel loads a `running` that keeps nothing."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(FORGETFUL)
    desk.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "broken"), desk.env.get("PYTHONPATH", "")])
    asked, _ = asked_over_kills(desk)
    assert asked["researcher"] > 1


def test_agents_that_were_started_for_a_pipe_live_again_with_their_kernel(desk: Desk) -> None:
    (desk.project / "plan.py").write_text(PROGRAM.replace("WAIT", "6"))
    desk.up()
    try:
        desk.good("run", "--detach", *CAPS, "--name", "planner", "plan.py:planner")
        until(lambda: "SYS_SLEEP" in desk.ask("events", "-n", "200").out)
        desk.kill_kernel()
        desk.up()
        until(lambda: "summary" in desk.ask("logs", "planner").out)
        said = desk.good("logs", "planner").out
        assert said.split("\n")[-2] == "summary pipes: 3 pages", said
        until(lambda: desk.good("ps", "--json").json["agents"] == [])
        entries = desk.good("events", "-n", "1000").out
        assert entries.count("SYS_REPLY") == 2, "one of each stage, whatever was replayed"
        assert desk.ask("audit", "verify").code == 0
    finally:
        desk.down()
