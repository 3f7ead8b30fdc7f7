"""A checkpoint is a moment that a replay can start from, and says what there was at it."""

import json
import os
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Checkpoint, List, Now, Read, Sigmask, Write
from agent_os.kernel import checkpoints as module
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.table import Ended
from faults.inprocess import acks, kernel_with_processes, started
from faults.processes import Processes
from kernel.authority.ruled import rule, ruled
from peer import agent as admitted
from peer import greeted, until, with_kernel

pytestmark = pytest.mark.uid_free("the kernel decides the same for every user")


def test_it_holds_what_there_was(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel, caps=("file:/work/**:read",))
        (tmp_path / "file").write_text("x")
        agent.files.mount_directory("/work", os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
        await peer.ask(Write(path="/mem/working/a", data="1"))
        await peer.ask(Write(path="/mem/working/a", data="2"))
        await peer.ask(Sigmask(block=[AgentSignal.SIGUSR2]))
        made = await peer.ask(Checkpoint(name="here", state={"n": 1}))
        [facts] = kernel.checkpoints.of(agent.id)
        assert (made["checkpoint"], made["at"], facts["state"]) == ("here", facts["aseq"], {"n": 1})
        assert facts["versions"] == {"/mem/working/a": 2}
        assert facts["mask"] == [AgentSignal.SIGUSR2]
        assert list(facts["work"]) == ["file"]
        assert agent.state == "running"

    with_kernel(test)


@pytest.mark.parametrize(
    ("cap", "forbidden", "hashed"),
    [
        ("mem:/state/**:read", "", []),
        ("file:/work:read", "", []),
        ("file:/work/open/**:read", "", ["open/x"]),
        ("file:/work/**:read", "", ["key", "open/x"]),
        ("file:/work/**:read", "file:/work/key:read", ["open/x"]),
        ("file:/work/**:read", "file:/work/**:read", []),
    ],
)
def test_it_tells_no_hash_of_what_the_agent_may_not_read(
    tmp_path: Path, cap: str, forbidden: str, hashed: list[str]
) -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel, caps=(cap,))
        (tmp_path / "open").mkdir()
        for name in ("key", "open/x"):
            (tmp_path / name).write_text("hunter2")
        agent.files.mount_directory("/work", os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
        if forbidden:
            ruled(kernel, rule("forbid", forbidden))
        await peer.ask(Checkpoint(name="here"))
        shown = await peer.ask(Read(path="/state/checkpoints/here.json", text=True))
        assert sorted(json.loads(shown["data"])["work"]) == hashed
        assert ("from:file:/work" in kernel.authority.labels.of(agent.id).words()) is bool(hashed)
        assert not agent.quarantined

    with_kernel(test)


def test_the_agent_sees_its_own_and_no_others() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "a", caps=("mem:/state/**:read",))
        _, other = await greeted(kernel, "b", caps=("mem:/state/**:read",))
        await peer.ask(Checkpoint(name="mine", state=1))
        shown = await peer.ask(Read(path="/state/checkpoints/mine.json", text=True))
        assert json.loads(shown["data"])["state"] == 1
        assert (await other.ask(List(path="/state/checkpoints")))["entries"] == []

    with_kernel(test)


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "x" * 129])
def test_a_bad_name_is_refused(name: str) -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        with pytest.raises(EINVAL, match="checkpoint"):
            await peer.ask(Checkpoint(name=name))
        assert (await peer.ask(Checkpoint(name="x" * 128)))["checkpoint"]

    with_kernel(test)


def test_with_a_state_a_replay_starts_there_and_without_at_the_beginning() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        for n in range(3):
            await peer.ask(Now(), pos=f"0:{n + 1}")
        await peer.ask(Checkpoint(name="without"), pos="0:4")
        assert len(list(kernel.recovery.history(agent))) == 4
        await peer.ask(Checkpoint(name="with", state=7), pos="0:5")
        assert list(kernel.recovery.history(agent)) == []
        assert agent.delivered == 0
        await peer.ask(Now(), pos="with@0:1")
        assert [entry.pos for entry, _ in kernel.recovery.history(agent)] == ["with@0:1"]

    with_kernel(test)


def test_one_of_an_earlier_life_is_none_of_this_one() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        await peer.ask(Checkpoint(name="old", state=1))
        await kernel.left(agent, Ended(ExitClass.NORMAL, 0))
        again, _ = await admitted(kernel, "a")
        assert kernel.checkpoints.newest_with_state(again) is None
        assert list(kernel.recovery.history(again)) == []

    with_kernel(test)


@pytest.mark.integration
def test_an_agent_that_can_give_a_state_is_asked_for_it_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY", 50)

    async def test(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "remembers", tmp_path, STEPS=400)
        await until(lambda: len(kernel.checkpoints.of(agent.id)) >= 2 and len(acks(tmp_path)["step"]) > 200)
        await processes.started[0].destroy()
        ended = await kernel.wait_for(agent)
        assert (ended["state"], ended["result"]) == ("completed", 400), ended
        began = [int(value) for value in acks(tmp_path)["began"]]
        assert began[0] == 0
        assert began[1] >= 40, "it began at the beginning again"

    kernel_with_processes(test, tmp_path)


@pytest.mark.integration
def test_a_state_survives_the_kernel(tmp_path: Path) -> None:
    async def first(kernel: Kernel, processes: Processes) -> None:
        agent = await started(kernel, "remembers", tmp_path, STEPS=100_000)
        await until(lambda: "step" in acks(tmp_path))
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGUSR1, "kept")
        await until(lambda: bool(kernel.checkpoints.of(agent.id)))
        taken = [entry for entry, _ in kernel.journal.scan(agent.id) if entry.op == 26]
        assert [entry.kind for entry in taken] == [Kind.OUTCOME]

    async def second(kernel: Kernel, processes: Processes) -> None:
        [facts] = kernel.checkpoints.of("default/remembers")
        await until(lambda: len(acks(tmp_path)["began"]) == 2)
        assert int(acks(tmp_path)["began"][1]) == facts["state"] > 0
        agent = kernel.table.find("remembers")
        await until(lambda: agent.detail == "")
        count = len(acks(tmp_path)["step"])
        await until(lambda: len(acks(tmp_path)["step"]) > count)

    kernel_with_processes(first, tmp_path, crash=True)
    kernel_with_processes(second, tmp_path)
