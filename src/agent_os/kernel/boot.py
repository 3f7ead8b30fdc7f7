"""The table of contents: every part of the kernel started, one line each, in order."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.drivers.store import Store
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tooling import Tool


async def boot(
    *,
    store: Store,
    home: Path | None,
    tools: Sequence[Tool] = (),
    auto: bool = False,
    env: Mapping[str, str] | None = None,
    agents: bool = True,
) -> Kernel:
    journal = Journal.open(store, home=home)  # verified before anything is believed
    kernel = Kernel(store, journal, home=home, env=env or {}, auto=auto)  # table, files, gate, signals, tools
    for tool in tools:  # before anything is settled: recovery may have to ask them
        kernel.tools.register(tool)
    about = frames.encode_body({"pid": os.getpid(), "entries": store.size()})
    await journal.record(Draft("kernel", Kind.BOOT, body=about), sync=True)  # from here on it is on the record
    if agents:
        from agent_os.kernel import auditing, operator  # need Linux; embedding programs do not

        kernel.guests = operator.Guests(kernel)  # launchers, processes, their streams
        kernel.operations = {**operator.PREPARE, **auditing.PREPARE}  # what operators may ask
    await kernel.recovery.at_boot()  # what was under way is settled; who was alive lives again
    return kernel
