"""Signals on real processes: what is reported is true, masks defer and never discard, a hold outlives everything."""

import asyncio
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EPERM, ESRCH
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Sigmask, Signal, Write
from agent_os.kernel import signals as module
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.signals import KERNEL
from faults.inprocess import acks, kernel_with_processes, started
from faults.processes import Processes
from faults.world import SOAK
from peer import greeted, until, with_kernel

ROUNDS = 5000 if SOAK else 1000


def test_only_the_kernel_sends_what_is_the_kernels_and_strangers_need_a_capability() -> None:
    async def test(kernel: Kernel) -> None:
        await greeted(kernel, "target")
        _, stranger = await greeted(kernel, "stranger")
        _, able = await greeted(kernel, "able", caps=("agent:target:signal",))
        for signal in (AgentSignal.SIGPOLICY, AgentSignal.SIGTRUST):
            with pytest.raises(EPERM, match="kernel only"):
                await able.ask(Signal(agent="target", signal=signal))
        with pytest.raises(EPERM, match="agent:target:signal"):
            await stranger.ask(Signal(agent="target", signal=AgentSignal.SIGUSR2))
        assert await able.ask(Signal(agent="target", signal=AgentSignal.SIGUSR2)) == {"delivered": True}
        with pytest.raises(ESRCH):
            await able.ask(Signal(agent="nobody", signal=AgentSignal.SIGUSR2))

    with_kernel(test)


def test_a_mask_defers_what_agents_send_and_nothing_of_the_operators() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel, "target")
        _, able = await greeted(kernel, "able", caps=("agent:target:signal",))
        await peer.ask(Sigmask(block=[AgentSignal.SIGUSR2]))
        assert await able.ask(Signal(agent="target", signal=AgentSignal.SIGUSR2)) == {"delivered": False}
        assert await kernel.signals.send(KERNEL, agent, AgentSignal.SIGUSR2)

    with_kernel(test)


def test_a_parent_needs_nothing_to_signal_what_descends_from_it() -> None:
    async def test(kernel: Kernel) -> None:
        _, parent = await greeted(kernel, "parent")
        await greeted(kernel, "child", parent="default/parent")
        await greeted(kernel, "grandchild", parent="default/child")
        assert await parent.ask(Signal(agent="grandchild", signal=AgentSignal.SIGUSR2)) == {"delivered": True}

    with_kernel(test)


def test_every_delivery_is_an_entry_of_the_target_in_the_order_it_sees_them() -> None:
    """Also where an answer and a signal are committed together."""

    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        for n in range(20):
            asking = asyncio.create_task(peer.ask(Write(path=f"/mem/working/{n}", data="x")))
            await asyncio.sleep(0)
            await kernel.signals.send(KERNEL, agent, AgentSignal.SIGUSR2, n)
            await asking
        kinds = [entry.kind for entry, _ in kernel.journal.scan(agent.id) if entry.kind in (Kind.SIGNAL, Kind.OUTCOME)]
        assert kinds.count(Kind.SIGNAL) == 20
        assert agent.delivered == 40

    with_kernel(test)


def test_sigterm_ends_who_does_not_end_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.1)

    async def test(kernel: Kernel) -> None:
        agent, _ = await greeted(kernel)
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGTERM)
        assert agent.exit is None
        await until(lambda: agent.exit is not None)
        assert agent.exit
        assert agent.exit.exit_class is ExitClass.REQUESTED

    with_kernel(test)


@pytest.mark.integration
def test_who_was_asked_to_end_is_made_to_also_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.5)

    async def first(kernel: Kernel, processes: Processes) -> None:
        for name in ("asked", "not-asked"):
            env = {"ACKS": str(tmp_path / name)}
            await kernel.guests.start({"program": "stays", "env": env}, name=name)
            await until(lambda name=name: (tmp_path / name).exists())
        await kernel.signals.send(KERNEL, kernel.table.find("asked"), AgentSignal.SIGTERM)
        assert kernel.table.find("asked").exit is None

    async def second(kernel: Kernel, processes: Processes) -> None:
        asked = kernel.table.find("asked")
        ended = await kernel.wait_for(asked)
        assert "SIGTERM" in ended["reason"]
        assert len(processes.started) == 2, "it was started once, and made to end"
        assert kernel.table.find("not-asked").exit is None

    kernel_with_processes(first, tmp_path, crash=True)
    kernel_with_processes(second, tmp_path)


def test_an_agents_sigcont_does_not_lift_a_hold() -> None:
    async def test(kernel: Kernel) -> None:
        agent, _ = await greeted(kernel, "target")
        other, _ = await greeted(kernel, "other")
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGSTOP)
        await kernel.signals.send(other, agent, AgentSignal.SIGCONT)
        assert (agent.state, agent.held) == ("paused", True)
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGCONT)
        assert (agent.state, agent.held) == ("running", False)

    with_kernel(test)


@pytest.mark.integration
def test_a_thousand_stops_and_continues_lose_no_answer(tmp_path: Path) -> None:
    async def test(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "counting", tmp_path)
        await until(lambda: "count" in acks(tmp_path))
        for _ in range(ROUNDS // 2):
            await kernel.signals.send(KERNEL, agent, AgentSignal.SIGSTOP)
            assert agent.state == "paused"
            await kernel.signals.send(KERNEL, agent, AgentSignal.SIGCONT)
        before = len(acks(tmp_path)["count"])
        await until(lambda: len(acks(tmp_path)["count"]) > before)
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGUSR2)
        ended = await kernel.wait_for(agent)
        told = [int(count) for count in acks(tmp_path)["count"]]
        assert told == list(range(1, len(told) + 1)), "an answer was lost, or came twice"
        assert ended["result"] == len(told)
        stops = [
            decode_any(body)["signal"] for entry, body in kernel.journal.scan(agent.id) if entry.kind == Kind.SIGNAL
        ]
        assert stops[:-1] == [AgentSignal.SIGSTOP, AgentSignal.SIGCONT] * (ROUNDS // 2)

    kernel_with_processes(test, tmp_path)


@pytest.mark.integration
def test_what_a_mask_defers_survives_the_kernel(tmp_path: Path) -> None:
    async def first(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "masks", tmp_path)
        sender, _ = await greeted(kernel, "sender")
        await until(lambda: "masked" in acks(tmp_path))
        assert not await kernel.signals.send(sender, agent, AgentSignal.SIGUSR2, "old")
        assert not await kernel.signals.send(sender, agent, AgentSignal.SIGUSR2, "last")
        await kernel.left(sender, module.Ended(ExitClass.NORMAL, 0))

    async def second(kernel: Kernel, processes: Processes) -> None:
        agent = kernel.table.find("masks")
        await until(lambda: len(acks(tmp_path)["masked"]) == 2 and agent.detail == "")
        assert agent.mask == {AgentSignal.SIGUSR2}
        assert agent.pending
        sender, _ = await greeted(kernel, "sender")
        assert not await kernel.signals.send(sender, agent, AgentSignal.SIGUSR2, "newest")
        act = kernel.vfs.write(agent.files, Write(path="/mem/working/go", data="1"))
        act.do()
        ended = await kernel.wait_for(agent)
        assert (ended["state"], ended["result"]) == ("completed", ["newest"]), ended

    kernel_with_processes(first, tmp_path, crash=True)
    kernel_with_processes(second, tmp_path)


@pytest.mark.integration
def test_a_hold_is_there_before_the_agent_runs_again(tmp_path: Path) -> None:
    async def first(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "counting", tmp_path)
        await until(lambda: "count" in acks(tmp_path))
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGSTOP)

    async def second(kernel: Kernel, processes: Processes) -> None:
        agent = kernel.table.find("counting")
        assert (agent.state, agent.held, processes.started) == ("paused", True, [])
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGCONT)
        assert len(processes.started) == 1
        again = kernel.table.find("counting")
        before = len(acks(tmp_path)["count"])
        await until(lambda: len(acks(tmp_path)["count"]) > before)
        await kernel.signals.send(KERNEL, again, AgentSignal.SIGUSR2)
        assert (await kernel.wait_for(agent))["state"] == "completed"

    async def third(kernel: Kernel, processes: Processes) -> None:
        assert processes.started == []

    kernel_with_processes(first, tmp_path, crash=True)
    kernel_with_processes(second, tmp_path)
    kernel_with_processes(third, tmp_path)


@pytest.mark.integration
def test_one_that_stands_still_over_a_restart_can_be_killed(tmp_path: Path) -> None:
    async def first(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "counting", tmp_path)
        await until(lambda: "count" in acks(tmp_path))
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGSTOP)

    async def second(kernel: Kernel, processes: Processes) -> None:
        agent = kernel.table.find("counting")
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGKILL)
        assert agent.exit
        assert processes.started == []

    kernel_with_processes(first, tmp_path, crash=True)
    kernel_with_processes(second, tmp_path)
