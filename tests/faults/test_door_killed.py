"""kill -9 of a kernel while an unmodified program's model call is under way at its door: the bill is never too small,
and the kernel sends nothing again by itself."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.syscalls import Down, ListAgents, Models, Run, Secrets
from agent_os.kernel.authority.budget import rebuilt
from faults.daemons import Daemon
from faults.world import wait_until
from journals import opened
from leftovers import adopt_orphans, processes
from models.provider import MockProvider, Say

pytestmark = pytest.mark.integration
THINK = 19
KEY = "sk-canary-77ab1c3d5e9f2046"
PROGRAM = """
import json, urllib.request
body = {"model": "small", "max_tokens": 500, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
request = urllib.request.Request("http://127.0.0.1:3128/v1/chat/completions", json.dumps(body).encode())
urllib.request.urlopen(request).read()
"""


async def begin(daemon: Daemon, mock: MockProvider) -> None:
    async with daemon.client() as client:
        await client.call(Models(do="add", name="mock", dialect="openai", base=f"{mock.url}/v1", keys=["canary"]))
        stream = client.stream(Secrets(do="set", name="canary"))
        await stream.send(KEY.encode())
        stream.end()
        await stream.result()
        await client.call(Secrets(do="bind", name="canary", hosts=[f"127.0.0.1:{mock.port}"]))
        order = {"argv": [sys.executable, "-c", PROGRAM], "cwd": str(daemon.project), "name": "caller"}
        await client.call(Run(order={**order, "models": ["mock/small"], "budget": {"tokens": 100_000}}, detach=True))


async def over(daemon: Daemon) -> None:
    async with daemon.client() as client, asyncio.timeout(120):
        while any(row["name"] == "caller" and row["state"] != "ended" for row in await _rows(daemon)):
            await asyncio.sleep(0.05)
        await client.call(Down(grace_s=2))
    assert daemon.process is not None
    daemon.process.wait(60)


async def _rows(daemon: Daemon) -> list[dict[str, str]]:
    async with daemon.client() as client:
        return (await client.call(ListAgents()))["agents"]


def calls(daemon: Daemon) -> list[Entry]:
    with opened(daemon.home) as journal:
        return [entry for entry, _ in journal.scan("default/caller") if entry.op == THINK]


def test_a_kernel_killed_with_a_passage_under_way_pays_it_in_full_and_sends_it_to_nobody_again(tmp_path: Path) -> None:
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    daemon = Daemon(tmp_path)
    with MockProvider(keys=[KEY]) as mock:
        mock.then(Say("this never ends", hang_after=3))
        daemon.start()
        asyncio.run(begin(daemon, mock))
        wait_until(lambda: len(mock.seen) == 1, "the call that hangs")
        daemon.kill()
        wait_until(lambda: processes() == {}, "the end of everything that it started")
        assert mock.seen[0].gone.wait(10)
        daemon.start()
        asyncio.run(over(daemon))
    intents = [entry.cost["held"] for entry in calls(daemon) if entry.kind == Kind.INTENT]
    outcomes = [entry.cost for entry in calls(daemon) if entry.kind == Kind.OUTCOME]
    assert len(mock.seen) == len(intents) == len(outcomes)  # whoever asked again was the program, started anew
    assert [one["spent"] for one in outcomes if one.get("estimated")] == [intents[0]]
    with opened(daemon.home) as journal:
        account = rebuilt(entry for entry, _ in journal.scan()).account("default/caller")
    assert not any(account.held.values())
    for path in (*daemon.home.rglob("*"), *daemon.project.rglob("*")):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
