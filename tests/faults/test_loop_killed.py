"""A model's run over kill -9 of its kernel and of itself: the same transcript, no effect twice, nothing paid twice.

The model is scripted and its tools are the real ones. The run is struck at every turn boundary, after each of its tool
calls, and inside a tool whose outcome nobody can know; then it waits for a person, and goes on as that one says.
"""

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.syscalls import Apply, Approvals, Await, Decide, Declared, Down, Reach, Resolve
from agent_os.kernel.recorded import decode_any
from faults.daemons import PLAIN, Daemon
from faults.world import SOAK
from journals import opened
from leftovers import adopt_orphans, processes

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]
TO_END = 120.0  # seconds; a safety limit
TURNS = 4
THINK, CHECKPOINT, EVENT = 19, 26, 41
TRADING = Path(__file__).resolve().parents[2] / "examples/trading"
STRUCK = (str(Path(__file__).with_name("loop_process.py")),)
MANIFEST = """
name = "clerk"
role = "worker"
tools = ["file.*", "shell.execute"]
[program]
model = "scripted/clerk"
goal = "Write the ledger."
output_schema = "result.json"
[program.loop]
window = 2_000_000
[sandbox]
workspace = "overlay"
[health]
max_restarts = 3
backoff = { base_ms = 100, cap_ms = 200 }
[budget]
usd = 1.0
tokens = 100_000_000
"""
SCHEMA = '{"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}'
SCRIPT = """
- text: I write the first line.
  tool_calls: [{name: file.write, args: {path: /work/ledger, content: "one\\n", mode: append}}]
- text: And the second.
  tool_calls:
    - {name: file.read, args: {path: /work/ledger}}
    - {name: shell.execute, args: {argv: [sh, -c, "echo two >> ledger"], cwd: /work}}
- text: I look at it.
  tool_calls: [{name: file.read, args: {path: /work/ledger}}]
- when: two
  tool_calls: [{name: agent.finish, args: {result: {lines: 2}}}]
"""
LASTING = """
- tool_calls: [{name: shell.execute, args: {argv: [sh, -c, "echo one >> ledger; sleep 600"], timeout_s: 700}}]
- when: said by a person
  tool_calls: [{name: agent.finish, args: {result: {lines: 1}}}]
"""


async def run(daemon: Daemon, script: str = SCRIPT) -> None:
    files = {"result.json": SCHEMA, "clerk.yaml": script, "clerk.agent.toml": MANIFEST}
    for name, text in files.items():
        (daemon.project / name).write_text(text)
    async with daemon.client() as client:
        await client.call(Apply(files={str(daemon.project / "clerk.agent.toml"): MANIFEST}))


async def ended(daemon: Daemon) -> dict[str, Any]:
    async with daemon.client() as client, asyncio.timeout(TO_END):
        await client.call(Reach(agent="clerk", state="over"))
        end = await client.call(Await(agent="clerk"))
        await client.call(Down(grace_s=2))
    assert daemon.process is not None
    daemon.process.wait(60)
    return end


def gone(daemon: Daemon) -> None:
    """The kernel has died by itself, and nothing outlives it."""
    assert daemon.process is not None
    daemon.process.wait(TO_END)
    deadline = time.monotonic() + 60
    while processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes() == {}, "something outlived its kernel"


def ledger(daemon: Daemon) -> str:
    """What it wrote, in the layer of its own that it wrote to."""
    found = next((daemon.home / "work").glob("*/upper/ledger"), None)
    return found.read_text() if found else ""


def transcript(daemon: Daemon) -> dict[str, Any]:
    """What is on record of the run: its last word, what the model was paid for, what was done."""
    with opened(daemon.home) as journal:
        rows = [(entry, body) for entry, body in journal.scan("default/clerk") if entry.op]
    # An answer that was on its way when the agent died was cut off, and that is its outcome.
    outcomes = [entry for entry, _ in rows if entry.op == THINK and entry.kind == Kind.OUTCOME and not entry.code]
    events = [decode_any(body)[1] for entry, body in rows if entry.op == EVENT and entry.kind == Kind.RESULT and body]
    done = [one["facts"] for one in events if one["kind"] == "agent.done"]
    for one in done:
        del one["usage"]  # how long a program took is in its result, and no two runs are alike in that
    turns = [one["facts"]["turn"] for one in events if one["kind"] == "agent.turn"]
    return {"done": done, "turns": turns, "paid": len(outcomes)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run that nobody disturbed."""
    top = tmp_path_factory.mktemp("whole")
    os.chmod(top, 0o755)
    daemon = Daemon(top, PLAIN)
    daemon.start()
    asyncio.run(run(daemon))
    end = asyncio.run(ended(daemon))
    assert (end["status"], end["result"]) == (0, {"lines": 2}), end
    assert ledger(daemon) == "one\ntwo\n"
    return transcript(daemon)


MOMENTS = [
    *(("agent.turn", number) for number in range(1, TURNS)),
    *(("agent.tool", number) for number in (1, 2, 3, 4)),
    *(("agent.model", number) for number in (1, TURNS)),
    ("agent.done", 1),
]
COUNTED = 22
LONG = "".join(
    f'- tool_calls: [{{name: file.write, args: {{path: /work/ledger, content: "line {number}\\n", mode: append}}}}]\n'
    for number in range(COUNTED)
)
LAST = "- tool_calls: [{name: agent.finish, args: {result: {lines: 22}}}]\n"
CHOSEN = MOMENTS if SOAK else [("agent.turn", 1), ("agent.turn", 3), ("agent.tool", 3), ("agent.model", 4)]


@pytest.mark.parametrize(("what", "number"), CHOSEN)
@pytest.mark.parametrize("whom", ["kernel", "agent"])
def test_a_run_that_was_struck_ends_as_if_it_had_not_been(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, whom: str, what: str, number: int
) -> None:
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    monkeypatch.setenv("STRIKE", f"{whom}:{what}:{number}")
    daemon = Daemon(tmp_path, STRUCK)
    daemon.start()
    asyncio.run(run(daemon))
    if whom == "kernel":
        gone(daemon)
        daemon.start()
    end = asyncio.run(ended(daemon))
    assert (tmp_path / "struck").exists(), "the moment never came"
    assert (end["status"], end["result"]) == (0, {"lines": 2}), end
    assert ledger(daemon) == "one\ntwo\n", "an effect happened twice, or not at all"
    assert transcript(daemon) == whole


def test_a_long_run_goes_on_from_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next life is taken through what came after that, and through nothing else."""
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    monkeypatch.setenv("STRIKE", "kernel:agent.turn:21")
    daemon = Daemon(tmp_path, STRUCK)
    daemon.start()
    asyncio.run(run(daemon, LONG + LAST))
    gone(daemon)
    daemon.start()
    end = asyncio.run(ended(daemon))
    assert (end["status"], end["result"]) == (0, {"lines": COUNTED}), end
    assert ledger(daemon).splitlines() == [f"line {number}" for number in range(COUNTED)]
    assert transcript(daemon)["paid"] == COUNTED + 1
    with opened(daemon.home) as journal:
        kept = [entry.inc for entry, _ in journal.scan("default/clerk") if entry.op == CHECKPOINT]
    assert kept == [1], "it was kept once, before it was struck"


def test_a_history_longer_than_a_frame_is_kept_in_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    monkeypatch.setenv("STRIKE", "kernel:agent.turn:21")
    daemon = Daemon(tmp_path, STRUCK)
    (daemon.project / "page").write_text("".join(f"{number} words of a page\n" for number in range(2_000)))
    daemon.start()
    read = "- tool_calls: [{name: file.read, args: {path: /work/page, offset: NUMBER}}]\n"
    asyncio.run(run(daemon, "".join(read.replace("NUMBER", str(number)) for number in range(COUNTED)) + LAST))
    gone(daemon)
    daemon.start()
    end = asyncio.run(ended(daemon))
    assert (end["status"], end["result"]) == (0, {"lines": COUNTED}), end
    with opened(daemon.home) as journal:
        kept = [len(body or b"") for entry, body in journal.scan("default/clerk") if entry.op == CHECKPOINT]
    assert 0 < kept[0] < 256 << 10, "a history of almost a megabyte has more"
    assert transcript(daemon)["paid"] == COUNTED + 1


@pytest.mark.parametrize("verdict", ["done", "fail"])
def test_an_outcome_that_nobody_knows_waits_for_a_person(tmp_path: Path, verdict: str) -> None:
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    daemon = Daemon(tmp_path, PLAIN)
    daemon.start()
    asyncio.run(run(daemon, LASTING))
    deadline = time.monotonic() + TO_END
    while not ledger(daemon) and time.monotonic() < deadline:
        time.sleep(0.02)
    daemon.kill()
    gone(daemon)
    daemon.start()
    asyncio.run(resolved(daemon, verdict))
    end = asyncio.run(ended(daemon))
    assert ledger(daemon) == "one\n", "it was begun again"
    assert end["status"] == (0 if verdict == "done" else 20), end


async def traded(daemon: Daemon) -> dict[str, Any]:
    """The trader's end, once its question was refused."""
    async with daemon.client() as client, asyncio.timeout(TO_END):
        while not (rows := (await client.call(Approvals()))["approvals"]):
            await asyncio.sleep(0.1)
        await client.call(Decide(approval=rows[0]["id"], outcome="deny", digest=rows[0]["digest"]))
        await client.call(Reach(agent="trader", state="over"))
        end = await client.call(Await(agent="trader"))
        await client.call(Down(grace_s=2))
    assert daemon.process is not None
    daemon.process.wait(60)
    return end


@pytest.mark.parametrize("number", [2, 3])
def test_orders_of_the_trading_example_are_booked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel dies after the first order, and after the second; market and trader go on from their records."""
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    monkeypatch.setenv("STRIKE", f"kernel:agent.tool:{number}")
    daemon = Daemon(tmp_path, STRUCK)
    shutil.copytree(TRADING, daemon.project, dirs_exist_ok=True)
    daemon.start()

    async def declare() -> None:
        async with daemon.client() as client:
            manifests = (daemon.project / f"{name}.agent.toml" for name in ("market", "trader"))
            await client.call(Apply(files={str(one): one.read_text() for one in manifests}))

    asyncio.run(declare())
    gone(daemon)
    daemon.start()
    end = asyncio.run(traded(daemon))
    assert end["status"] == 0, end
    assert (end["result"]["orders"], end["result"]["held"]) == (3, 0), "an order was booked twice, or never"


async def resolved(daemon: Daemon, verdict: Any) -> None:
    async with daemon.client() as client, asyncio.timeout(TO_END):
        seq = 0
        while not seq:
            rows = (await client.call(Declared(agents=["clerk"])))["agents"]
            assert rows[0]["state"] != "failed", rows
            with opened(daemon.home) as journal:
                parks = [decode_any(body) for entry, body in journal.scan("default/clerk") if entry.kind == Kind.PARK]
            seq = parks[-1]["intent"] if parks else 0
            await asyncio.sleep(0.05)
        result = {"value": {"exit": 0, "stdout": "said by a person"}, "tool": "shell.execute@1.0.0", "digest": ""}
        await client.call(
            Resolve(agent="clerk", seq=seq, verdict=verdict, result=result if verdict == "done" else None)
        )
