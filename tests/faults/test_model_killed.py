"""Model calls over kill -9 of the kernel and of the agent that makes them, against a provider on a loopback socket.

What was answered is on record and is asked of nobody again. The one call that was under way is made anew, and the bill
is never too small. The key is nowhere: not in the agent, not in the journal, not in a log.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.syscalls import Await, Down, ListAgents, Models, Run, Secrets
from agent_os.client.wire import Client
from agent_os.kernel.authority.budget import rebuilt
from faults.daemons import Daemon
from faults.world import wait_until
from journals import opened
from leftovers import adopt_orphans, processes
from models.provider import MockProvider, Say, Seen, Step

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]
TO_END = 120.0  # seconds; a safety limit
THINK = 19
KEY = "sk-canary-5f1b9c7d2e8a4036"
PROGRAM = """
import os
from agent_os import agent

@agent(model="mock/small")
async def talker(ctx):
    said = []
    for number in range(3):
        reply = await ctx.model(f"number {number}", max_output=500)
        said.append(reply.text)
        await ctx.write("/work/said.txt", repr(said))
    pieces = [part async for part in ctx.model_stream("all of it", max_output=500)]
    said.append("|".join(part.text for part in pieces[:-1] if type(part).__name__ == "TextDelta"))
    said.append((await ctx.model("last", max_output=500)).text)
    assert not [name for name, value in os.environ.items() if "canary" in value]
    return said
"""
WHOLE = ["said 0", "said 1", "said 2", "all of |it, in |piece|s", "last"]  # with "s" the key could begin


class Provider:
    """Answers by what it is asked; hangs once, at the call that a test says."""

    def __init__(self, hangs_at: str) -> None:
        self.hangs_at, self.hung = hangs_at, False

    def __call__(self, seen: Seen) -> Step:
        asked: str = seen.body["messages"][-1]["content"]
        text = asked if isinstance(asked, str) else asked[0]["text"]
        if text == self.hangs_at and not self.hung:
            self.hung = True
            return Say("this never ends", hang_after=3)
        if text.startswith("number"):
            return Say(f"said {text[-1]}", input=20, output=5)
        return Say("last" if text == "last" else "all of it, in pieces", input=30, output=9)


async def begin(daemon: Daemon, mock: MockProvider) -> None:
    (daemon.project / "talker.py").write_text(PROGRAM)
    async with daemon.client() as client:
        await client.call(Models(do="add", name="mock", dialect="openai", base=f"{mock.url}/v1", keys=["canary"]))
        await _keep(client)
        await client.call(Secrets(do="bind", name="canary", hosts=[f"127.0.0.1:{mock.port}"]))
        order: dict[str, Any] = {"file": str(daemon.project / "talker.py"), "function": "talker", "name": "talker"}
        order |= {"cwd": str(daemon.project), "python": sys.executable, "caps": ["llm:mock/small:call"]}
        await client.call(Run(order={**order, "budget": {"tokens": 100_000}}, detach=True))


async def _keep(client: Client) -> None:
    stream = client.stream(Secrets(do="set", name="canary"))
    await stream.send(KEY.encode())
    stream.end()
    await stream.result()


async def ended(daemon: Daemon) -> dict[str, Any]:
    async with daemon.client() as client, asyncio.timeout(TO_END):
        end = await client.call(Await(agent="talker"))
        await client.call(Down(grace_s=2))
    assert daemon.process is not None
    daemon.process.wait(60)
    return end


async def pid_of_agent(daemon: Daemon) -> int:
    async with daemon.client() as client:
        rows = (await client.call(ListAgents()))["agents"]
    return next(row["pid"] for row in rows if row["name"] == "talker")


def thoughts(daemon: Daemon) -> list[Entry]:
    with opened(daemon.home) as journal:
        return [entry for entry, _ in journal.scan("default/talker") if entry.op == THINK]


def balanced(daemon: Daemon) -> dict[str, int]:
    """What the record says was spent; nothing is held any more."""
    with opened(daemon.home) as journal:
        ledger = rebuilt(entry for entry, _ in journal.scan())
    account = ledger.account("default/talker")
    assert not any(account.held.values()), account
    return account.spent


def nowhere(daemon: Daemon) -> None:
    """No byte of the key, in anything that was written."""
    needle = KEY.encode()
    for top in (daemon.home, daemon.project):
        for path in top.rglob("*"):
            assert not path.is_file() or needle not in path.read_bytes(), path
    assert needle not in (daemon.home.parent / "daemon.log").read_bytes()


@pytest.mark.parametrize(("hangs_at", "number"), [("number 1", 2), ("last", 5)])
def test_a_kernel_killed_with_a_call_under_way_makes_that_one_anew_and_no_other(
    tmp_path: Path, hangs_at: str, number: int
) -> None:
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    daemon = Daemon(tmp_path)
    with MockProvider(keys=[KEY], answer=Provider(hangs_at)) as mock:
        daemon.start()
        asyncio.run(begin(daemon, mock))
        wait_until(lambda: len(mock.seen) == number, "the call that hangs")
        daemon.kill()
        wait_until(lambda: processes() == {}, "the end of everything that it started")
        daemon.start()
        end = asyncio.run(ended(daemon))
        assert (end["status"], end["result"]) == (0, WHOLE), end
        assert len(mock.seen) == 6  # five calls, one of them twice
    kinds = [(entry.kind, entry.cost) for entry in thoughts(daemon)]
    lost = [cost for kind, cost in kinds if kind == Kind.OUTCOME and cost.get("estimated")]
    held = [cost["held"] for kind, cost in kinds if kind == Kind.INTENT]
    assert len(lost) == 1
    assert lost[0]["spent"] == held[number - 1]
    assert balanced(daemon)["tokens"] == 3 * 25 + 2 * 39 + held[number - 1]["tokens"]
    nowhere(daemon)


def test_an_agent_killed_with_a_call_under_way_pays_what_came_and_asks_anew(tmp_path: Path) -> None:
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    daemon = Daemon(tmp_path)
    with MockProvider(keys=[KEY], answer=Provider("number 2")) as mock:
        daemon.start()
        asyncio.run(begin(daemon, mock))
        wait_until(lambda: len(mock.seen) == 3, "the third call")
        os.kill(asyncio.run(pid_of_agent(daemon)), signal.SIGKILL)
        assert mock.seen[2].gone.wait(10)
        end = asyncio.run(ended(daemon))
        assert (end["status"], end["result"]) == (0, WHOLE), end
        assert len(mock.seen) == 6
    spent = balanced(daemon)["tokens"]
    assert 3 * 25 + 2 * 39 < spent < 3 * 25 + 2 * 39 + 500
    nowhere(daemon)
