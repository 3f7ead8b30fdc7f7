"""kill -9 of the real daemon inside a tool's run: nothing of the run outlives it, nothing is done twice, and what
nobody can tell waits for a person."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import syscalls as abi
from agent_os.client.wire import Client
from faults.daemons import Daemon
from kernel.serving import until

pytestmark = pytest.mark.integration
PROGRAM = """
from agent_os import agent

@agent
async def works(ctx):
    first = await ctx.call("file.write", path="/work/first", content="1")
    ran = await ctx.call("shell.execute", command="echo ran >> ran; sleep 600")
    last = await ctx.call("file.edit", path="/work/first", old="1", new="2")
    return [first.size, ran["exit"], last.size]
"""
CAPS = ["tool:*:call", "shell:execute", "file:/work/**:read,write"]


def test_a_run_that_was_cut_off_is_not_made_again_and_a_person_says_what_became_of_it(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    daemon = Daemon(tmp_path)
    (daemon.project / "works.py").write_text(PROGRAM)
    ran = daemon.project / "ran"

    async def life() -> None:
        file = str(daemon.project / "works.py")
        order = {"file": file, "function": "works", "python": sys.executable, "cwd": str(daemon.project)}
        order |= {"workspace": f"bind:{daemon.project}", "name": "worker", "caps": CAPS}
        daemon.start()
        async with daemon.client() as client:
            await client.call(abi.Run(order=order, detach=True))
            await until(ran.exists)
        daemon.kill()
        daemon.start()
        async with daemon.client() as client:
            seq = await _parked(client)
            assert ran.read_text() == "ran\n", "it was not made again"
            resolved = {"exit": 7, "stdout": "", "stderr": "", "duration_ms": 1}
            await client.call(abi.Resolve(agent="worker", seq=seq, verdict="done", result=resolved))
            ended = await client.call(abi.Await(agent="worker"), deadline=60)
            assert ended["result"] == [1, 7, 1]

    try:
        asyncio.run(life())
    except Exception:
        print((tmp_path / "daemon.log").read_text()[-3000:])
        raise
    finally:
        if daemon.process and daemon.process.poll() is None:
            daemon.kill()
    assert ran.read_text() == "ran\n"
    assert (daemon.project / "first").read_text() == "2"


async def _parked(client: Client) -> int:
    """The entry that waits for somebody to say what became of it."""
    async with asyncio.timeout(60):
        while True:
            facts: dict[str, Any] = await client.call(abi.Inspect(agent="worker"))
            if found := facts.get("parked"):
                return int(found[0]["seq"])
            await asyncio.sleep(0.05)
