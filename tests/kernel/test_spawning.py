"""Children: how many, how deep, with what of their parent's, and that they end with it and not before."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EDQUOT, ESRCH
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Spawn
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.spawning import MOST_CHILDREN, MOST_GENERATIONS, child_order, require_place
from agent_os.kernel.table import Ended, Table
from faults.inprocess import acks, kernel_with_processes, started
from faults.processes import Processes, alive
from peer import agent, greeted, until, with_kernel

ENDED = Ended(ExitClass.REQUESTED, -1, "the test is done with it")
CRASHED = Ended(ExitClass.SIGNAL, -9, "it crashed")
MANIFEST = {"program": {"entry": "a.py"}}


@pytest.fixture
def table() -> Table:
    return Table(SqliteStore(None))


def test_a_family_is_only_so_wide_and_an_ended_child_makes_room(table: Table) -> None:
    parent = table.admit("parent", "native")
    children = [table.admit(f"c{number}", "native", parent=parent.id) for number in range(MOST_CHILDREN - 1)]
    require_place(table, parent.id)
    children.append(table.admit("last", "native", parent=parent.id))
    with pytest.raises(EDQUOT, match="16 live children") as refused:
        require_place(table, parent.id)
    assert refused.value.code == "children"
    children[0].exit = children[1].exit = ENDED
    children[1].lasting = True  # it lives again
    require_place(table, parent.id)
    table.admit("more", "native", parent=parent.id)
    with pytest.raises(EDQUOT):
        require_place(table, parent.id)


def test_a_family_is_only_so_deep(table: Table) -> None:
    above = table.admit("g0", "native")
    for number in range(MOST_GENERATIONS):
        require_place(table, above.id)
        above = table.admit(f"g{number + 1}", "native", parent=above.id)
    with pytest.raises(EDQUOT, match="generations") as refused:
        require_place(table, above.id)
    assert refused.value.code == "limit"


def test_who_has_ended_gets_no_child(table: Table) -> None:
    parent = table.admit("parent", "native")
    parent.exit = CRASHED
    with pytest.raises(ESRCH):
        require_place(table, parent.id)
    parent.lasting = True
    require_place(table, parent.id)
    with pytest.raises(ESRCH):
        require_place(table, "default/nobody")


def test_a_child_has_its_parents_time_and_nothing_of_what_happens_with_its_work(table: Table) -> None:
    parent = table.admit("parent", "native")
    parent.order = {"file": "/p/a.py", "cwd": "/p", "timeout": "30s", "limit": ["memory_mb=64"], "after": "commit"}
    order, _ = child_order(parent, MANIFEST)
    assert (order["timeout"], order["limit"]) == ("30s", ["memory_mb=64"])
    assert "after" not in order


def test_a_spawn_for_which_there_is_no_room_is_refused_and_that_is_recorded() -> None:
    async def test(kernel: Kernel) -> None:
        parent, peer = await greeted(kernel, "parent", caps=("agent:*:spawn",))
        parent.order = {"file": "/p/a.py", "cwd": "/p"}
        for number in range(MOST_CHILDREN):
            kernel.table.admit(f"c{number}", "native", parent=parent.id)
        with pytest.raises(EDQUOT, match="live children"):
            await peer.ask(Spawn(manifest=MANIFEST))
        (refusal,) = [entry for entry, _ in kernel.journal.scan(parent.id) if entry.kind == Kind.DECISION]
        assert refusal.code == EDQUOT.number

    with_kernel(test)


def test_children_end_with_their_parent_and_that_is_recorded() -> None:
    async def test(kernel: Kernel) -> None:
        parent, _ = await agent(kernel, "parent")
        child, _ = await agent(kernel, "child", parent=parent.id)
        grandchild, _ = await agent(kernel, "grandchild", parent=child.id)
        stranger, _ = await agent(kernel, "stranger")
        await kernel.end(parent, ENDED)
        assert child.exit
        assert grandchild.exit, "all of them are gone when the parent is reported to be"
        assert stranger.exit is None
        ends = [decode_any(body)["reason"] for e, body in kernel.journal.scan() if e.kind == Kind.EXIT and body]
        assert ends[1:] == ["its parent parent has ended", "its parent child has ended"]

    with_kernel(test)


def test_a_crash_that_a_parent_survives_leaves_its_children_alone() -> None:
    async def test(kernel: Kernel) -> None:
        async def begin(*_: Any, **__: Any) -> None:
            pass

        kernel.recovery.begin = begin  # type: ignore[method-assign]
        for lasting in (True, False):
            parent, _ = await agent(kernel, f"p-{lasting}".lower())
            child, _ = await agent(kernel, f"c-{lasting}".lower(), parent=parent.id)
            parent.order = {"durable": lasting}
            await kernel.left(parent, CRASHED)
            assert (child.exit is None) == lasting

    with_kernel(test)


@pytest.mark.integration
def test_real_children_outlive_a_restart_of_their_parent_and_no_more(tmp_path: Path) -> None:
    async def test(kernel: Kernel, processes: Processes) -> None:
        parent = await started(kernel, "counting", tmp_path)
        env = {"ACKS": str(tmp_path / "acks"), "SECONDS": "100"}
        await kernel.guests.start({"program": "sleeper", "env": env}, name="child", parent=parent.id)
        await until(lambda: {"count", "asleep"} <= acks(tmp_path).keys())
        first, child = processes.started
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: len(processes.started) == 3)
        await until(lambda: kernel.table.find("counting").state == "running")
        assert alive(child.pid), "the parent goes on, and so does its child"
        await kernel.end(kernel.table.find("counting"), ENDED)
        assert not alive(child.pid)
        await asyncio.sleep(0.3)
        assert len(processes.started) == 3, "nor is it started again"

    kernel_with_processes(test, tmp_path)
