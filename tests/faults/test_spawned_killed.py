"""Children that an agent spawned, over kill -9 of the real daemon: none lost, none twice, no crash loop forgiven.

The daemon is struck at random instants, also while a child is being spawned. The parent is taken through its record
each time, so what it was told of its children must be true in the end.
"""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.syscalls import Apply, Declared, Down, Reach
from agent_os.kernel.recorded import decode_any
from faults.daemons import Daemon, together
from faults.world import SOAK
from journals import opened
from leftovers import adopt_orphans, becomes_true, processes

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]
KILLS = 40 if SOAK else 4
RESTARTS = 4
PROGRAM = f"""
from agent_os import agent
from agent_os.abi.errors import EINTR

async def spawn(ctx, manifest):
    while True:
        try:
            return await ctx.spawn(manifest)
        except EINTR:  # the kernel ended before it had begun
            pass

@agent
async def boss(ctx):
    await spawn(ctx, {{"name": "kid", "role": "worker", "program": {{"argv": ["/bin/sleep", "1000"]}}}})
    health = {{"max_restarts": {RESTARTS}, "backoff": {{"base_ms": 100, "cap_ms": 400}}}}
    crash = {{"argv": ["/bin/sh", "-c", "sleep 0.1; exit 3"]}}
    loop = await spawn(ctx, {{"name": "loop", "role": "worker", "program": crash, "health": health}})
    print("loop", (await ctx.wait(loop)).state, flush=True)
    await ctx.sleep(3600)
"""
BOSS = """
name = "boss"
role = "supervisor"
[program]
entry = "boss.py:boss"
[sandbox]
workspace = "overlay"
[agency]
max_children = 2
allowed_roles = ["worker"]
"""


async def declare(daemon: Daemon) -> None:
    (daemon.project / "boss.py").write_text(PROGRAM)
    async with daemon.client() as client:
        await client.call(Apply(files={str(daemon.project / "boss.agent.toml"): BOSS}))


async def at_the_end(daemon: Daemon) -> dict[str, tuple[str, str]]:
    """Who is there with its state and its parent, once the loop is given up; then the kernel goes down."""
    async with daemon.client() as client, asyncio.timeout(120):
        await client.call(Reach(agent="boss", state="ready"))
        while "default/kid" not in {row["id"] for row in (await client.call(Declared()))["agents"]}:
            await asyncio.sleep(0.05)  # its first call makes it ready, and that may be the spawn
        await client.call(Reach(agent="kid", state="ready"))
        log = daemon.home / "logs/boss.log"
        while "loop failed" not in log.read_text():
            await asyncio.sleep(0.05)
        rows = (await client.call(Declared()))["agents"]
        await client.call(Down(grace_s=2))
    assert daemon.process is not None
    daemon.process.wait(60)
    return {row["id"]: (row["state"], row["parent"]) for row in rows}


def test_spawned_children_over_kills_of_their_kernel_are_there_once_and_no_crash_is_forgiven(tmp_path: Path) -> None:
    adopt_orphans()
    os.chmod(tmp_path, 0o755)
    daemon, rng = Daemon(tmp_path), random.Random(int(os.environ.get("SEED", "1")))
    daemon.start()
    asyncio.run(declare(daemon))
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.0, 1.0))  # the instant is what is tested
        daemon.kill()
        gone = becomes_true(lambda: processes() == {}, 60)  # taking down namespaces takes its time on a busy host
        assert gone, f"outlived its kernel: {processes()}"
        daemon.start()
    found = asyncio.run(at_the_end(daemon))
    below = {"default/kid": ("active", "default/boss")}
    assert {key: value for key, value in found.items() if value[1] == "default/boss"} == below
    assert becomes_true(lambda: processes() == {}, 60), processes()
    said = (daemon.home / "logs/boss.log").read_text().splitlines()
    assert "loop failed" in said, "a spawn that was cut off may have ended a life of it before"
    with opened(daemon.home) as journal:
        entries = list(journal.scan())
    ends = [decode_any(body) for entry, body in entries if (entry.agent, entry.kind) == ("default/loop", Kind.EXIT)]
    decided = [one["decision"]["act"] for one in ends]
    assert decided.count("restart") <= RESTARTS
    assert decided[-1] == "fail"
    spawned = Counter((entry.agent, entry.inc) for entry, _ in entries if entry.kind == Kind.SPAWN)
    assert max(spawned.values()) == 1, "a number was given to two lives"
    assert together(entry for entry, _ in entries) == []
