"""A dry replay: real programs in their sandbox against their record, with nothing happening."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL, ENOENT, ESRCH
from agent_os.client.wire import Client
from agent_os.kernel.workspace import Workspaces
from kernel.serving import entries, serving, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]

PROGRAM = """
import random
from agent_os import agent

@agent
async def worker(ctx):
    for number in range(COUNT):
        await ctx.write("/mem/working/note", f"{number} {random.random()} {await ctx.now()}")
    await ctx.write("/work/out.txt", "done")
    EXTRA
    return 7
"""


def program(project: Path, *, count: str = "3", extra: str = "pass") -> Path:
    file = project / "worker.py"
    file.write_text(PROGRAM.replace("COUNT", count).replace("EXTRA", extra))
    return file


def order(file: Path, name: str) -> dict[str, Any]:
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    about = {"cwd": str(file.parent), "environment": env, "name": name}
    return {**about, "file": str(file), "function": "worker", "python": sys.executable}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    return place


async def lived(client: Client, file: Path, name: str = "worker") -> None:
    await client.call(abi.Run(order=order(file, name), detach=True))
    ended = await client.call(abi.Await(agent=name), deadline=180)
    assert (ended["state"], ended["result"]) == ("completed", 7), ended


def kept(home: Path) -> list[str]:
    return [one.name for one in Workspaces(home).list() if one.name.startswith("replay")]


def test_a_program_matches_its_own_record_and_nothing_happens(tmp_path: Path, project: Path) -> None:
    async def main() -> None:
        home = tmp_path / "home"
        async with serving(home) as (kernel, client):
            file = program(project)
            await lived(client, file)
            before = kernel.store.aseq("default/worker")
            told = await client.call(abi.Replay(agent="worker"))
            assert told["match"], told
            assert told["calls"] >= 9  # the seed, three times two, the file, the end
            assert told["from"] < told["to"]
            assert kernel.store.aseq("default/worker") == before
            assert not (project / "out.txt").exists()
            assert kept(home) == []
            made = [one for one in await entries(client, abi.Events()) if one["agent"].startswith("default/replay")]
            assert {one["kind"] for one in made} == {"spawn", "state"}  # a process ran, and made no call

    asyncio.run(main())


def test_it_stops_at_the_entry_that_it_is_told(tmp_path: Path, project: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (_, client):
            file = program(project)
            await lived(client, file)
            calls = [one for one in await entries(client, abi.Events(agent="worker")) if "pos" in one]
            program(project, extra="await ctx.remove('/mem/working/note')")  # another ending, after that entry
            told = await client.call(abi.Replay(agent="worker", at=calls[3]["seq"]))
            assert (told["match"], told["calls"], told["to"]) == (True, 4, calls[3]["seq"])
            with pytest.raises(ENOENT):
                await client.call(abi.Replay(agent="worker", at=1))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"extra": "await ctx.remove('/mem/working/note')"}, "SYS_EXIT"),  # one call more than then
        ({"count": "2"}, "SYS_WRITE"),  # some calls fewer
    ],
)
def test_a_changed_program_is_shown_where_it_differs(
    tmp_path: Path, project: Path, changed: dict[str, str], word: str
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (_, client):
            file = program(project)
            await lived(client, file)
            program(project, **changed)
            told = await client.call(abi.Replay(agent="worker"))
            assert not told["match"]
            difference = told["difference"]
            assert difference["code"].startswith("replay.")
            assert word in difference["reason"]
            assert kept(tmp_path / "home") == []

    asyncio.run(main())


def test_time_that_does_not_come_from_the_context_is_found(tmp_path: Path, project: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (_, client):
            clock = "import time; await ctx.write('/mem/working/clock', str(time.time_ns()))"
            file = program(project, extra=clock)
            await lived(client, file)
            told = await client.call(abi.Replay(agent="worker"))
            assert told["difference"]["code"] == "replay.differs"
            assert told["difference"]["recorded"] == told["difference"]["called"] == "SYS_WRITE"

    asyncio.run(main())


def test_a_running_agent_is_not_touched_by_its_rehearsal(tmp_path: Path, project: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            file = program(project, extra="await ctx.sleep(3600)")
            await client.call(abi.Run(order=order(file, "sleeper"), detach=True))
            agent = kernel.table.find("sleeper")
            await until(lambda: any(e.op == 27 for e, _ in kernel.journal.scan(agent.id)))
            told = await client.call(abi.Replay(agent="sleeper"))
            assert told["match"]
            assert agent.state == "running"
            await client.call(abi.Tell(agent="sleeper", signal=4))

    asyncio.run(main())


def test_what_has_no_record_of_calls_is_refused_with_the_reason(tmp_path: Path, project: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (_, client):
            guest = {**order(project / "none", "guest"), "file": None, "function": "", "python": ""}
            guest["argv"] = ["/bin/true"]
            await client.call(abi.Run(order=guest, detach=True))
            await client.call(abi.Await(agent="guest"), deadline=180)
            with pytest.raises(EINVAL, match="does not speak to the kernel"):
                await client.call(abi.Replay(agent="guest"))
            with pytest.raises(ESRCH):
                await client.call(abi.Replay(agent="nobody"))

    asyncio.run(main())


def test_a_checkpoint_with_a_state_is_where_it_begins(tmp_path: Path, project: Path) -> None:
    text = """
from agent_os import agent

@agent
async def worker(ctx):
    done = (ctx.state or {"done": 0})["done"]
    while done < 6:
        worker.done = done  # true whenever the next call is about to be made
        await ctx.sleep(0.3)
        done += 1
    worker.done = done
    return 7

@worker.on_checkpoint
def save(ctx):
    return {"done": worker.done}
"""

    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            file = project / "worker.py"
            file.write_text(text)
            await client.call(abi.Run(order=order(file, "worker"), detach=True))
            agent = kernel.table.find("worker")
            await until(lambda: any(e.op == 27 for e, _ in kernel.journal.scan(agent.id)))
            made = await client.call(abi.CheckpointOf(agent="worker", name="half"))
            assert made["state"] is True
            assert (await client.call(abi.Await(agent="worker"), deadline=180))["result"] == 7
            told = await client.call(abi.Replay(agent="worker"))
            assert told["match"], told
            assert told["from"] > made["at"]
            early = await client.call(abi.Replay(agent="worker", at=made["at"]))
            assert early["match"], early
            assert early["checkpoint"] == "half"

    asyncio.run(main())
