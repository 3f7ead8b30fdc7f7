"""N-01 and its kin over kill -9 of the real daemon: a fleet goes on as declared, and no crash loop is forgiven.

The daemon is struck at random instants while agents crash, are healthy, or have been stopped. Afterwards each agent is
what its manifest and its operator want it to be; no number of a life was used twice, and nothing outlives the kernel.
"""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.syscalls import Apply, Declared, Down, Reach, Stop
from agent_os.kernel.recorded import decode_any
from faults.daemons import Daemon, together
from faults.world import SOAK
from journals import opened
from leftovers import adopt_orphans, becomes_true, processes

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]
KILLS = 60 if SOAK else 5
RESTARTS = 5
TO_START = 60.0  # seconds

CRASHER = f"""
name = "crasher"
role = "worker"
[program]
argv = ["/bin/sh", "-c", "sleep 0.1; exit 3"]
[health]
max_restarts = {RESTARTS}
backoff = {{ base_ms = 100, cap_ms = 400, jitter = "equal" }}
"""
STEADY = 'name = "steady"\nrole = "worker"\n[program]\nargv = ["/bin/sleep", "1000"]\n'
STOPPED = STEADY.replace("steady", "stopped")
NEEDY = STEADY.replace("steady", "needy") + '[dependencies]\nrequires = ["steady"]\n'
ONCE = 'name = "once"\nrole = "worker"\n[program]\nargv = ["/bin/true"]\n'
BOSS = 'name = "boss"\nrole = "supervisor"\nagency = "role"\n[supervision]\nchildren = ["below"]\n'
BELOW = STEADY.replace("steady", "below")
MANIFESTS = {"crasher": CRASHER, "steady": STEADY, "stopped": STOPPED, "needy": NEEDY, "once": ONCE}
MANIFESTS |= {"boss": BOSS, "below": BELOW}
LASTING = ("steady", "needy", "boss", "below")


async def declare(daemon: Daemon) -> None:
    files = {str(daemon.project / f"{name}.agent.toml"): text for name, text in MANIFESTS.items()}
    async with daemon.client() as client:
        await client.call(Apply(files=files))
        for name in ("steady", "needy", "boss", "stopped"):
            await client.call(Reach(agent=name, state="ready"))
        await client.call(Reach(agent="once", state="over"))
        await client.call(Stop(agent="stopped"))


async def as_declared(daemon: Daemon) -> dict[str, str]:
    """What everybody is in the end, and then the kernel goes down."""
    async with daemon.client() as client:
        for name in LASTING:
            await client.call(Reach(agent=name, state="ready"))
        await client.call(Reach(agent="crasher", state="over"))
        rows = (await client.call(Declared()))["agents"]
        await client.call(Down(grace_s=2))
    assert daemon.process is not None
    daemon.process.wait(TO_START)
    return {row["id"].rpartition("/")[2]: row["state"] for row in rows}


def test_a_fleet_over_kills_of_its_kernel_is_as_declared_and_forgives_no_crash_loop(tmp_path: Path) -> None:
    adopt_orphans()
    daemon, rng = Daemon(tmp_path), random.Random(int(os.environ.get("SEED", "1")))
    daemon.start()
    asyncio.run(declare(daemon))
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.0, 0.5))  # the instant is what is tested
        daemon.kill()
        gone = becomes_true(lambda: processes() == {}, 60)  # taking down namespaces takes its time on a busy host
        assert gone, f"outlived its kernel: {processes()}"
        daemon.start()
    states = asyncio.run(as_declared(daemon))
    wanted = dict.fromkeys(("root", *LASTING), "active")
    assert states == {**wanted, "crasher": "failed", "stopped": "stopped", "once": "completed"}
    assert becomes_true(lambda: processes() == {}, 60), processes()
    with opened(daemon.home) as journal:
        entries = list(journal.scan())
    decided = [decode_any(body)["decision"]["act"] for entry, body in entries if _ends(entry, "crasher") and body]
    assert decided.count("restart") <= RESTARTS
    assert decided[-1] == "fail"
    spawned = Counter((entry.agent, entry.inc) for entry, _ in entries if entry.kind == Kind.SPAWN)
    assert max(spawned.values()) == 1, "a number was given to two lives"
    assert len([one for one in spawned if one[0] == "default/once"]) == 1
    assert together(entry for entry, _ in entries) == []


def _ends(entry: Entry, name: str) -> bool:
    return (entry.agent, entry.kind) == (f"default/{name}", Kind.EXIT)
