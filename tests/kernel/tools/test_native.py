"""`agent.*` and `memory.*`: syscalls under another name, with no more authority than those have."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EINVAL, EPERM, ETYPE, AgentOSError
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.kernel import Kernel
from kernel.serving import Caller
from kernel.tools.workers import Worker, run


def test_an_agent_lists_waits_for_and_signals_its_own_children_and_no_strangers(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker, stranger = Worker(kernel, tmp_path), Worker(kernel, tmp_path, "stranger")
        child = Caller(kernel, "child", worker)
        Caller(kernel, "grandchild", child)
        listed = (await worker.call("agent.list"))["agents"]
        assert sorted(one["agent"] for one in listed) == ["child", "grandchild"]
        assert (await stranger.call("agent.list"))["agents"] == []
        with pytest.raises(AgentOSError) as caught:
            await asyncio.wait_for(stranger.call("agent.wait", agent="child"), 30)
        assert caught.value.name in ("ECHILD", "ESRCH")
        with pytest.raises(EPERM):
            await stranger.call("agent.signal", agent="child", signal="SIGKILL")
        assert child.agent in kernel.table.alive()

    run(test)


@pytest.mark.parametrize("signal", ["SIGPOLICY", "SIGTRUST", "9", "sigkill"])
def test_signals_that_are_the_kernels_own_cannot_be_sent(tmp_path: Path, signal: str) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        Caller(kernel, "child", worker)
        with pytest.raises(ETYPE):
            await worker.call("agent.signal", agent="child", signal=signal)

    run(test)


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({}, EINVAL),
        ({"program": "a.py:a", "manifest": {}}, EINVAL),
        ({"program": "a.py:a", "name": "x" * 64}, ETYPE),
        ({"program": "a.py:a", "caps": ["x"] * 101}, ETYPE),
        ({"program": "a.py:a", "root": True}, ETYPE),
    ],
)
def test_what_is_no_child_is_refused_before_anything_starts(
    tmp_path: Path, params: dict[str, Any], kind: type[AgentOSError]
) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        with pytest.raises(kind):
            await worker.call("agent.spawn", **params)
        assert kernel.table.children(worker.agent.id) == []

    run(test)


def test_spawning_needs_the_right_to_spawn_beside_the_tool(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        with pytest.raises(AgentOSError) as caught:
            await worker.call("agent.spawn", program="a.py:a", name="kid")
        assert caught.value.name == "EPERM", caught.value
        assert kernel.table.children(worker.agent.id) == []

    run(test)


@pytest.mark.parametrize("key", ["../../work/a", "/mem/../work/a", "a/../../b", "/mem/semantic/../../policy/x"])
@pytest.mark.parametrize("tool", ["memory.store", "memory.retrieve", "memory.share"])
def test_a_key_of_memory_stays_in_memory(tmp_path: Path, tool: str, key: str) -> None:
    more: dict[str, Any] = {"memory.store": {"value": "x"}, "memory.share": {"to": "other"}}.get(tool, {})

    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        (tmp_path / "a").write_text("untouched")
        with pytest.raises(EINVAL) as caught:
            await worker.call(tool, key=key, **more)
        assert caught.value.code == "memory.key"
        assert (tmp_path / "a").read_text() == "untouched"

    run(test)


def test_memory_of_another_place_needs_its_own_right(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)  # which may use /mem/semantic
        for key in ("/mem/episodic/day", "/mem/shared/other/x"):
            with pytest.raises(EPERM):
                await worker.call("memory.store", key=key, value="x")
        worker.agent.holdings.grant(parse("mem:/mem/episodic/**:read,write"), "operator")
        await worker.call("memory.store", key="day", space="episodic", value="one")
        await worker.call("memory.store", key="day", space="episodic", value="two")
        found = await worker.call("memory.retrieve", key="day", space="episodic")
        assert "one" in str(found["data"])
        assert "two" in str(found["data"])

    run(test)


def test_a_long_value_is_told_in_part_and_kept_whole(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        await worker.call("memory.store", key="long", value="a" * 200_000)
        found = await worker.whole("memory.retrieve", key="long")
        assert found["cut"]
        assert len(found["value"]["data"]) < 70_000
        part = await worker.call("tool.output", blob=found["blob"], offset=100_000, limit=10)
        assert part["text"] == "a" * 10
        with pytest.raises(ETYPE):
            await worker.call("memory.store", key="long", value="a" * ((1 << 20) + 1))

    run(test)
