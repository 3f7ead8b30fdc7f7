"""The table of contents: every part of the kernel started, one line each, in order."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL
from agent_os.drivers.store import Store
from agent_os.kernel import governing, operations
from agent_os.kernel.authority.policy.layers import Current
from agent_os.kernel.authority.policy.loading import ORGANISATION
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tooling import Tool
from agent_os.kernel.tools import doors as tooling

if TYPE_CHECKING:
    from agent_os.sandbox.spawner import Launcher


async def boot(
    *,
    store: Store,
    home: Path | None,
    tools: Sequence[Tool] = (),
    install: Callable[[Kernel], None] = lambda kernel: None,
    idle_exit: float | None = None,
    env: Mapping[str, str] | None = None,
    agents: bool = True,
    organisation: Path = ORGANISATION,
    manifests: Path | None = None,
    launcher: "Launcher | None" = None,
) -> Kernel:
    journal = Journal.open(store, home=home)  # verified before anything is believed
    policy = await _policy(journal, home, organisation)  # without its rules nothing runs
    # table, files, gate, signals, tools
    kernel = Kernel(store, journal, home=home, env=env or {}, idle_exit=idle_exit, policy=policy)
    kernel.fleet.folder.place = manifests
    for tool in tools:  # before anything is settled: recovery may have to ask them
        kernel.tools.register(tool)
    install(kernel)  # drivers, which only the composition root knows
    tooling.restore(kernel)  # what agents had added
    about = frames.encode_body({"pid": os.getpid(), "entries": store.size()})
    await journal.record(Draft("kernel", Kind.BOOT, body=about), sync=True)  # from here on it is on the record
    kernel.governing = governing.Governing(kernel, organisation)
    await journal.record(kernel.governing.at_boot(), sync=True)
    if agents:
        # These need Linux; embedding programs do not.
        from agent_os.kernel.guests import Guests

        kernel.guests = Guests(kernel, launcher)  # launchers, processes, their streams
        kernel.operations = operations.PREPARE  # what operators ask
    outsiders = kernel.outside.restore if agents else None  # programs elsewhere that may come again
    await kernel.recovery.at_boot(outsiders)  # what was under way is settled; who was alive lives again
    kernel.scheduler.stir()  # goals that wait go on waiting, or start
    if agents:
        await kernel.fleet.spawned.leave_no_orphans()
        await kernel.fleet.folder.scan()  # the operator's manifests; what is broken is left out
        kernel.tokens.open()  # who may come in, and until when
        kernel.fleet.open()  # whoever a manifest declares is started, in the order of their needs
    kernel.bus.open()  # messages that wait start whoever they start
    kernel.start(kernel.governing.watch())  # a changed policy file is in force a moment later
    kernel.start(kernel.governing.watch_covers())  # what is covered stays so, or whoever would see it ends
    return kernel


async def _policy(journal: Journal, home: Path | None, organisation: Path) -> Current:
    try:
        return governing.current(home, organisation)
    except EINVAL as error:
        await journal.record(governing.broken("kernel", error, "boot"), sync=True)
        await journal.close()
        raise
