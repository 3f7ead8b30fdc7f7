"""kernel/vfs/view: AgentVFS over a context, and by itself."""

import asyncio
from typing import Any

import pytest

from agent_os.abi.errors import ECONFLICT, EEXIST, ENOENT
from agent_os.abi.syscalls import Body
from agent_os.kernel.vfs.view import AgentVFS


def test_a_tree_by_itself_works_with_nothing_else() -> None:
    async def run() -> None:
        vfs = AgentVFS("agent-001")
        assert await vfs.write("/mem/working/task.txt", "Analyze") == 1
        assert await vfs.append("/mem/working/task.txt", " data") == 7
        assert await vfs.read("/mem/working/task.txt") == "Analyze data"
        assert await vfs.read("/agent/agent-001/mem/working/task.txt", offset=8) == "data"
        assert await vfs.read("/mem/working/task.txt", version=1) == "Analyze"
        assert (await vfs.stat("/mem/working/task.txt"))["version"] == 2
        with pytest.raises(ECONFLICT):
            await vfs.write("/mem/working/task.txt", "x", if_version=1)
        with pytest.raises(EEXIST):
            await vfs.write("/mem/working/task.txt", "x", mode="create")
        assert await vfs.list("/mem/working") == ["task.txt"]
        assert await vfs.mounts() == ["/mem/episodic", "/mem/semantic", "/mem/shared", "/mem/working"]
        await vfs.remove("/mem/working/task.txt")
        assert not await vfs.exists("/mem/working/task.txt")
        with pytest.raises(ENOENT):
            await vfs.read("/mem/working/task.txt")

    asyncio.run(run())


def test_what_is_large_comes_whole() -> None:
    async def run() -> None:
        vfs = AgentVFS("agent-001")
        for data in (b"\x00\xff" * 1_000_000, "日" * 500_000):
            await vfs.write("/mem/working/big", data)
            assert await vfs.read("/mem/working/big") == data
        for n in range(2500):
            await vfs.write(f"/mem/semantic/{n:04}", "")
        assert await vfs.list("/mem/semantic") == [f"{n:04}" for n in range(2500)]

    asyncio.run(run())


def test_two_trees_by_themselves_are_two() -> None:
    async def run() -> None:
        first, second = AgentVFS("a"), AgentVFS("a")
        await first.write("/mem/working/x", "1")
        assert await second.list("/mem/working") == []

    asyncio.run(run())


def test_over_a_context_every_method_is_its_call(trees: Any) -> None:
    class Context:
        def __init__(self) -> None:
            self.seen: list[str] = []

        async def syscall(self, request: Body) -> Any:
            self.seen.append(type(request).__name__)
            return await trees.do(trees.prepare(request))

    async def run() -> None:
        context = Context()
        vfs = AgentVFS(context)
        await vfs.write("/mem/working/x", "1")
        assert await vfs.read("/mem/working/x") == "1"
        await vfs.append("/mem/working/x", "2")
        await vfs.stat("/mem/working/x")
        await vfs.list("/mem/working")
        await vfs.remove("/mem/working/x")
        assert context.seen == ["Write", "Read", "Write", "Stat", "List", "Remove"]

    asyncio.run(run())
