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
from agent_os import AgentKernelPanic, AgentRuntime, AgentSignal, AgentVFS, CapabilityManager, KernelSpace, Scheduler
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EACCES, EAPPROVAL, EINVAL, EISOLATION, EPERM, EPOLICY, ESRCH

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


@pytest.mark.integration
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


def test_the_capability_view_grants_checks_revokes_and_tells() -> None:
    async def main() -> None:
        async with KernelSpace() as kernel:
            manager, ctx = CapabilityManager(kernel), kernel.create_agent_context("a")
            kernel.create_agent_context("b")
            with pytest.raises(EPERM):
                await ctx.write("/mem/episodic/x", "y", mode="create")
            assert not manager.check("a", "mem:/mem/episodic/x:write")
            token = manager.grant("a", "mem:/mem/episodic/*:read,write")
            assert manager.check("a", "mem:/mem/episodic/x:read,write")
            assert not manager.check("a", "mem:/mem/episodic/x:delete")
            assert not manager.check("b", "mem:/mem/episodic/x:read")
            await ctx.write("/mem/episodic/x", "y", mode="create")
            with pytest.raises(EPERM):
                await manager.revoke("b", token)
            await manager.revoke("a", token)
            assert not manager.check("a", "mem:/mem/episodic/x:read")
            with pytest.raises(EACCES, match="revoked"):
                await ctx.read("/mem/episodic/x")
            manager.grant("a", "tool:x:call")
            await manager.revoke("a", "capability://tool/x?action=call")
            assert not manager.check("a", "tool:x:call")
            told = [(one.kind, one.handle == token, one.allowed) for one in manager.audit("a")]
            assert told[:5] == [
                ("decision", False, False),
                ("grant", True, True),
                ("outcome", True, True),
                ("revoke", True, True),
                ("decision", False, False),
            ]
            with pytest.raises(EINVAL, match="more than one"):
                manager.check("a", "mem:/mem/**:read")

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


FORBIDDEN = """
version = 1
default = "capability"
mode = "strict"

[[rule]]
id = "no-diary"
effect = "forbid"
what = ["mem:/mem/working/diary:read,write"]

[[rule]]
id = "careful"
effect = "ask"
what = ["mem:/mem/working/ledger:write"]
"""


def test_the_scheduler_view_submits_prioritizes_and_shows_the_queue() -> None:
    async def test() -> None:
        async with KernelSpace() as kernel:
            scheduler = Scheduler(kernel)
            helper = kernel.create_agent_context("helper")
            assert await helper.goal(timeout=0) is None
            assert await scheduler.submit({"text": "second", "agent": "helper"}) == "default/helper"
            assert await scheduler.submit({"text": "first", "agent": "helper", "priority": "high"}) == "default/helper"
            assert [(one.goal, one.position, one.picked_by) for one in scheduler.get_queue()] == [
                ("first", 1, "named"),
                ("second", 2, "named"),
            ]
            await scheduler.prioritize(scheduler.get_queue()[1].id, "critical")
            taken = await helper.goal()
            assert taken
            assert (taken.text, taken.priority) == ("second", "critical")
            await helper.finish(taken, 7)
            await scheduler.prioritize("helper", "low")
            assert [(one.goal, one.priority) for one in scheduler.get_queue()] == [("first", "low")]
            with pytest.raises(EINVAL, match="'urgent' is no priority") as wrong:
                await scheduler.prioritize("helper", "urgent")
            assert "critical, high, normal, low" in wrong.value.hint
            with pytest.raises(ESRCH):
                await scheduler.prioritize("nobody", "low")

    asyncio.run(test())


def test_a_goal_of_a_home_waits_for_the_next_kernel_on_it(tmp_path: Path) -> None:
    async def first() -> None:
        async with KernelSpace(tmp_path) as kernel:
            kernel.create_agent_context("helper")
            await Scheduler(kernel).submit({"text": "later", "agent": "helper", "inputs": {"n": 1}})

    async def second() -> None:
        async with KernelSpace(tmp_path) as kernel:
            taken = await kernel.create_agent_context("helper").goal()
            assert taken
            assert (taken.text, taken.inputs) == ("later", {"n": 1})

    asyncio.run(first())
    asyncio.run(second())


def test_a_context_hears_of_the_end_of_another_that_it_monitors() -> None:
    async def test() -> None:
        async with KernelSpace() as kernel:
            watcher = kernel.create_agent_context("watcher", caps=["agent:*:inspect"])
            target = kernel.create_agent_context("target")
            heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            watcher.on("monitor_down", lambda delivered: heard.set_result(delivered.value))
            ref = await watcher.monitor("target")
            target.signals.signal(AgentSignal.SIGKILL)
            down = await asyncio.wait_for(heard, 30)
            assert (down["ref"], down["agent"], down["class"]) == (ref, "default/target", "requested")

    asyncio.run(test())


def test_what_a_rule_forbids_is_the_last_that_a_context_does(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(FORBIDDEN)

    async def main() -> None:
        async with KernelSpace(tmp_path) as kernel:
            ctx, other = kernel.create_agent_context("a"), kernel.create_agent_context("b")
            await ctx.write("/mem/working/x", "1")
            with pytest.raises(EPOLICY, match="no-diary"):
                await ctx.write("/mem/working/diary", "1")
            for _ in range(2):
                with pytest.raises(AgentKernelPanic, match="no-diary"):
                    await ctx.write("/mem/working/x", "2")
            await other.write("/mem/working/x", "1")  # it alone
            ended = await kernel.wait("a")
            assert (ended["state"], "no-diary" in ended["reason"]) == ("failed", True)
            with pytest.raises(EPERM, match="quarantined"):
                kernel.create_agent_context("a")
            told = [(Kind(entry.kind), entry.verdict, entry.rule) for entry, _ in kernel.journal.scan("default/a", 1)]
            assert (Kind.DECISION, Verdict.FORBID, "no-diary") in told
            assert [kind for kind, _, _ in told[-3:]] == [Kind.SIGNAL, Kind.STATE, Kind.EXIT]

    asyncio.run(main())


def test_what_must_be_asked_about_is_refused_where_nobody_can_answer(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(FORBIDDEN)

    async def main() -> None:
        async with KernelSpace(tmp_path) as kernel:
            ctx = kernel.create_agent_context("a")
            with pytest.raises(EAPPROVAL, match="nobody can be asked"):
                await ctx.write("/mem/working/ledger", "1")
            await ctx.write("/mem/working/x", "1")

    asyncio.run(main())


def test_every_public_name_resolves() -> None:
    for name in agent_os.__all__:
        assert getattr(agent_os, name) is not None


def test_a_context_holds_nothing_of_who_had_its_name_before(tmp_path: Path) -> None:
    async def main() -> None:
        for end in (True, False):
            async with KernelSpace(tmp_path) as kernel:
                ctx = kernel.create_agent_context("a", caps=["mem:/mem/semantic/**:write"])
                await ctx.write("/mem/semantic/x", "1")
                if end:
                    ctx.signals.signal(AgentSignal.SIGKILL)
                    again = kernel.create_agent_context("a")
                    with pytest.raises(EPERM):
                        await again.write("/mem/semantic/x", "2")
            async with KernelSpace(tmp_path) as kernel:  # the program ended without a word
                ctx = kernel.create_agent_context("a")
                with pytest.raises(EPERM):
                    await ctx.write("/mem/semantic/x", "2")
                await ctx.write("/mem/working/x", "2")

    asyncio.run(main())


def test_what_a_manager_grants_and_takes_back_is_on_the_record_as_an_operators_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with KernelSpace(tmp_path) as kernel:
            manager, ctx = CapabilityManager(kernel), kernel.create_agent_context("a")
            token = manager.grant("a", "mem:/mem/semantic/**:write")
            await ctx.write("/mem/semantic/x", "1")
            await manager.revoke("a", token)
            with pytest.raises(EACCES):
                await ctx.write("/mem/semantic/x", "2")
            told = [(one.kind, one.handle) for one in manager.audit("a") if one.kind in ("grant", "revoke")]
            assert told == [("grant", token), ("revoke", token)]

    asyncio.run(main())
