"""Row 5 of the fault table, at the kernel: the disk fills up, fails to write or to sync under agents that are at work.

Nothing is done that cannot be recorded, nobody waits for an answer that never comes, everybody stands still, and what
had been acknowledged is there when the kernel is started again.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from agent_os.abi.errors import EIO
from agent_os.abi.syscalls import Exec, Read, Write
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.boot import boot
from agent_os.kernel.kernel import Kernel
from faults.inprocess import forget_peers
from faults.ledger import Ledger
from journals import RESERVE, database, opened
from peer import Peer, greeted, until
from shim_disk import ShimDisk, shim_disk

FAULTS = {"full": ("write", apsw.FullError), "write": ("write", apsw.IOError), "sync": ("sync", apsw.IOError)}


@pytest.fixture
def disk() -> Iterator[ShimDisk]:
    with shim_disk() as made:
        yield made


class Frozen:
    """A process that notes that it was stopped."""

    def __init__(self) -> None:
        self.frozen = False

    async def freeze(self) -> bool:
        self.frozen = True
        return True

    async def thaw(self) -> bool:
        return True

    async def destroy(self) -> int:
        return 0

    async def finish(self) -> None: ...

    def host_signal(self, number: int) -> None: ...


async def under_fault(kernel: Kernel, peer: Peer, disk: ShimDisk, fault: str) -> list[str]:
    """What was acknowledged."""
    told: list[str] = []
    for n in range(6):
        if n == 3:
            operation, error = FAULTS[fault]
            disk.fail[operation] = error
        try:
            await peer.ask(Write(path=f"/mem/working/{n}", data="x"))
            told.append(f"/mem/working/{n}")
        except EIO as problem:
            if problem.code != "journal":
                raise
    return told


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_stops_everything_and_loses_nothing(tmp_path: Path, disk: ShimDisk, fault: str) -> None:
    ledger = Ledger(tmp_path / "ledger")

    async def main() -> None:
        store = SqliteStore(database(tmp_path), vfs=disk.vfs_name, reserve=RESERVE)
        kernel = await boot(store=store, home=tmp_path, agents=False)
        for tool in ledger.tools():
            kernel.tools.register(tool)
        agent, peer = await greeted(kernel, caps=("tool:*:call",))
        agent.running = process = Frozen()
        told = await under_fault(kernel, peer, disk, fault)
        assert told == [f"/mem/working/{n}" for n in range(3)]
        with pytest.raises(EIO, match="journal"):
            await peer.ask(Exec(tool="opaque", params={"n": 0}))
        assert ledger.lines() == [], "it acted without being able to say so"
        await until(lambda: process.frozen)
        agent.running = None
        await forget_peers()
        disk.fail.clear()
        await kernel.close()
        store.close()

    asyncio.run(main())
    assert disk.refused > 0
    with opened(tmp_path) as journal:
        written = {entry.aseq for entry, _ in journal.scan("default/a") if entry.op == 2 and not entry.code}
        assert len(written) == 3

    async def again() -> None:
        store = SqliteStore(database(tmp_path), reserve=RESERVE)
        kernel = await boot(store=store, home=tmp_path, agents=False)
        _, peer = await greeted(kernel)
        assert [(await peer.ask(Read(path=f"/mem/working/{n}")))["data"] for n in range(3)] == ["x"] * 3
        await forget_peers()
        await kernel.close()
        store.close()

    asyncio.run(again())
