"""space.py: the kernel inside somebody's own program."""

import ast
import asyncio
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agent_os
from agent_os import AgentKernelPanic, AgentRuntime, AgentSignal, AgentVFS, KernelSpace
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EISOLATION, EPERM, ESRCH

QUICK_START = """
from agent_os import KernelSpace, AgentSignal, AgentVFS

# Create kernel
kernel = KernelSpace()

# Create agent context (user space)
ctx = kernel.create_agent_context("agent-001")

# Agent operations go through syscalls
await ctx.write("/mem/working/task.txt", "Analyze data")
data = await ctx.read("/mem/working/task.txt")

# Signal handling
ctx.signals.signal(AgentSignal.SIGSTOP)  # Pause for inspection
ctx.signals.signal(AgentSignal.SIGCONT)  # Resume

# Policy violation = kernel panic (non-catchable)
# kernel.panic("Policy violation: unauthorized action")
"""


def run(program: str) -> dict[str, Any]:
    """A program with `await` at its top, as in a notebook."""
    names: dict[str, Any] = {}
    code = compile(program, "<quick start>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def main() -> None:
        waiting = eval(code, names)
        if inspect.isawaitable(waiting):
            await waiting
        await names["kernel"].close()

    asyncio.run(main())
    return names


def test_the_promised_quick_start_runs_as_it_is_written() -> None:
    assert run(QUICK_START)["data"] == "Analyze data"


def test_it_runs_where_nothing_can_be_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert run(QUICK_START)["data"] == "Analyze data"


def test_a_fresh_interpreter_of_another_platform_imports_no_linux_part() -> None:
    program = (
        f"import sys; sys.platform = 'darwin'\nimport ast, asyncio\nsource = {QUICK_START!r}\n"
        + inspect.cleandoc(
            """
        names = {}
        async def main():
            await eval(compile(source, "q", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            await names["kernel"].close()
        asyncio.run(main())
        assert names["data"] == "Analyze data"
        assert not any(name.startswith("agent_os.sandbox") for name in sys.modules), "the sandbox needs Linux"
        """
        )
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_isolated_agents_are_refused_elsewhere_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            monkeypatch.setattr(sys, "platform", "darwin")
            with pytest.raises(EISOLATION) as caught:
                await kernel.spawn(["true"])
            assert "Linux VM" in caught.value.hint

    asyncio.run(main())


def test_a_stopped_context_waits_and_goes_on() -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            ctx = kernel.create_agent_context("a")
            ctx.signals.signal(AgentSignal.SIGSTOP)
            waiting = asyncio.create_task(ctx.write("/mem/working/x", "y"))
            await asyncio.sleep(0)
            assert kernel.agents()[0].state == "paused"
            assert not waiting.done()
            ctx.signals.signal(AgentSignal.SIGCONT)
            assert (await waiting).version == 1

    asyncio.run(main())


def test_a_killed_context_answers_no_more() -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            ctx = kernel.create_agent_context("a")
            ctx.signals.signal(AgentSignal.SIGKILL)
            with pytest.raises(ESRCH):
                await ctx.read("/mem/working/x")

    asyncio.run(main())


@pytest.mark.parametrize("by", ["signal", "panic"])
def test_a_violation_cannot_be_swallowed(by: str) -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            ctx = kernel.create_agent_context("a")
            other = kernel.create_agent_context("b")
            if by == "signal":
                ctx.signals.signal(AgentSignal.SIGPOLICY, "forbidden")
            else:
                with pytest.raises(AgentKernelPanic):
                    kernel.panic("forbidden", agent="a")
            with pytest.raises(AgentKernelPanic) as caught:
                await ctx.read("/mem/working/x")
            assert not isinstance(caught.value, Exception)  # so `except Exception` does not catch it
            await other.write("/mem/working/x", "y")

    asyncio.run(main())


def test_a_context_is_recorded_as_not_isolated() -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            ctx = kernel.create_agent_context("a")
            await ctx.write("/mem/working/x", "y")
            own = [entry for entry, _ in kernel.journal.scan("default/a", 1)]
            assert [Kind(one.kind) for one in own] == [Kind.SPAWN, Kind.OUTCOME]
            assert {one.isolation for one in own} == {"none"}

    asyncio.run(main())


def test_contexts_do_not_see_each_other_and_hold_only_the_starting_set() -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            one, two = kernel.create_agent_context("one"), kernel.create_agent_context("two")
            await one.write("/mem/working/secret", "mine")
            assert [item.name for item in await two.list("/mem/working")] == []
            with pytest.raises(EPERM):
                await two.write("/mem/episodic/x", "y")
            able = kernel.create_agent_context("able", caps=["mem:/mem/episodic/**:read,write"])
            await able.write("/mem/episodic/x", "y", mode="create")

    asyncio.run(main())


def test_what_a_home_keeps_is_there_again(tmp_path: Path) -> None:
    async def main() -> None:
        caps = ["mem:/mem/semantic/**:read,write"]
        async with KernelSpace(home=tmp_path / "home") as kernel:
            await kernel.create_agent_context("a", caps=caps).write("/mem/semantic/fact", "kept")
        async with KernelSpace(home=tmp_path / "home") as kernel:
            assert await kernel.create_agent_context("a", caps=caps).read("/mem/semantic/fact") == "kept"

    asyncio.run(main())


def test_the_file_view_works_on_a_context_and_alone() -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            ctx = kernel.create_agent_context("a")
            for files in (AgentVFS(ctx), AgentVFS("agent-001")):
                await files.write("/mem/working/x", "y")
                assert await files.read("/mem/working/x") == "y"

    asyncio.run(main())


@pytest.mark.integration
def test_the_runtime_view_acts_on_isolated_agents(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "from agent_os import agent\n\n@agent\nasync def slow(ctx):\n    await ctx.sleep(600)\n"
    )
    order = {"file": str(tmp_path / "slow.py"), "function": "slow", "cwd": str(tmp_path), "python": sys.executable}

    async def main() -> None:
        runtime = AgentRuntime()
        try:
            agent = await runtime.spawn({**order, "environment": dict(os.environ)})
            assert [row.name for row in runtime.list_agents()] == [agent]
            assert runtime.get_status(agent) == "running"
            await runtime.pause(agent)
            assert runtime.get_status(agent) == "paused"
            await runtime.resume(agent)
            assert runtime.get_status(agent) == "running"
            await runtime.terminate(agent)
            assert runtime.get_status(agent) in ("completed", "failed")
        finally:
            await runtime.kernel.close()

    asyncio.run(main())


def test_every_public_name_resolves() -> None:
    for name in agent_os.__all__:
        assert getattr(agent_os, name) is not None
