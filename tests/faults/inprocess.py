"""A kernel in the test's own process whose agents are real processes: for faults that the kernel survives."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import peer
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import boot
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Agent
from faults.ledger import Ledger
from faults.processes import Processes
from kernel.authority.ruled import ruled

# Otherwise a person would be asked about every act that follows a look at a file.
TRUSTED = """
[[source]]
what = ["tool:*:call", "file:/**:read,write,delete", "mem:/**:read,write,delete"]
integrity = "trusted"
"""
Test = Callable[[Kernel, Processes], Awaitable[None]]


class _KernelWithProcesses:
    """Called with a test and a home: boots there, runs the test, ends everything. The same home again: restarts."""

    ledger: Ledger

    def __call__(self, test: Test, home: Path, *, crash: bool = False) -> None:
        """`crash`: the kernel is not closed but abandoned, its agents killed, as by a kill -9."""
        asyncio.run(self._run(test, home, crash))

    async def _run(self, test: Test, home: Path, crash: bool) -> None:
        self.ledger = ledger = Ledger(home / "ledger")
        (home / "work").mkdir(exist_ok=True)

        class Made(Kernel):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                for tool in ledger.tools():
                    self.tools.register(tool)
                ruled(self, TRUSTED)
                self.guests = Processes(self, home / "work")  # pyright: ignore[reportAttributeAccessIssue]

        store = SqliteStore(home / "journal.db", reserve=1 << 16)
        usual, boot.Kernel = boot.Kernel, Made
        try:
            kernel = await boot.boot(store=store, home=home, agents=False)
        finally:
            boot.Kernel = usual
        processes: Any = kernel.guests
        try:
            async with asyncio.timeout(60):
                await test(kernel, processes)
        finally:
            await forget_peers()
            if crash:
                await _abandon(kernel, processes)
            else:
                await kernel.close()
            store.close()


async def forget_peers() -> None:
    """What `peer` otherwise does for the kernels that it made."""
    await asyncio.gather(*(one.leave() for one in peer._peers))  # pyright: ignore[reportPrivateUsage]
    for sock in peer._sockets:  # pyright: ignore[reportPrivateUsage]
        sock.close()
    peer._peers.clear()  # pyright: ignore[reportPrivateUsage]
    peer._sockets.clear()  # pyright: ignore[reportPrivateUsage]


async def _abandon(kernel: Kernel, processes: Processes) -> None:
    """What a killed kernel leaves: nothing more is recorded, and its agents are gone."""
    kernel.journal.close_now()
    kernel.halting = True
    for process in processes.started:
        await process.destroy()
    for connection in list(kernel.connections):
        connection.transport.abort()
    for task in list(kernel._tasks):  # pyright: ignore[reportPrivateUsage]
        task.cancel()
    await asyncio.sleep(0.05)
    kernel.vfs.shutdown()


kernel_with_processes = _KernelWithProcesses()


async def started(kernel: Kernel, program: str, home: Path, **env: object) -> Agent:
    words = {"ACKS": str(home / "acks"), **{name: str(value) for name, value in env.items()}}
    name = program.replace("_", "-")
    return await kernel.guests.start({"program": program, "env": words}, name=name)


def acks(home: Path) -> dict[str, list[str]]:
    """What the programs noted, over all their lives."""
    told: dict[str, list[str]] = defaultdict(list)
    if os.path.exists(home / "acks"):
        for line in (home / "acks").read_text().splitlines():
            name, value = line.split(maxsplit=1)
            told[name].append(value)
    return told
