"""A kernel as a process of its own, to be killed: `kernel_process.py HOME`, with its plan as JSON in FAULTS.

The kernel boots as ever, with tools that write to the ledger. Where it finds an outcome unknown it plays the operator
and looks into the ledger. It starts the program, unless that lives again, and ends with it.
"""

import asyncio
import json
from typing import Any

import uvloop

from agent_os.abi.entries import Kind
from agent_os.abi.errors import ESRCH
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import boot, gate
from agent_os.kernel import kernel as parts
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Ended
from faults.inprocess import TRUSTED
from faults.ledger import Ledger
from faults.points import (
    HOME,
    PLAN,
    Forgetful,
    OutcomeOnly,
    WatchedActing,
    WatchedRecovery,
    met,
    note,
    operate,
    watch_journal,
)
from faults.processes import Processes
from kernel.authority.ruled import ruled

AGENT = "default/w"


class TestKernel(Kernel):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for tool in Ledger(HOME / "ledger").tools(PLAN["lasts"], met):
            self.tools.register(tool)
        ruled(self, TRUSTED)
        self.guests = Processes(self, HOME / "work")  # pyright: ignore[reportAttributeAccessIssue]
        watch_journal(self.journal)


def ended_before(kernel: Kernel) -> Ended | None:
    ends = [decode_any(body) for entry, body in kernel.journal.scan(AGENT) if entry.kind == Kind.EXIT and body]
    return Ended(ends[-1]["class"], ends[-1]["code"], ends[-1]["reason"], ends[-1]["result"]) if ends else None


async def main() -> None:
    (HOME / "work").mkdir(exist_ok=True)
    boot.Kernel = TestKernel
    gate.Acting = OutcomeOnly if PLAN["broken"] == "outcome only" else WatchedActing
    parts.Recovery = Forgetful if PLAN["broken"] == "recovery not logged" else WatchedRecovery
    print("booting", flush=True)
    kernel = await boot.boot(store=SqliteStore(HOME / "journal.db", reserve=1 << 16), home=HOME, agents=False)
    operator = asyncio.create_task(operate(kernel))
    try:
        agent = kernel.table.find("w")
    except ESRCH:
        agent = None
    if agent is None and (ended := ended_before(kernel)):
        result = ended.result
    else:
        agent = agent or await kernel.guests.start({"program": PLAN["program"], "env": PLAN["env"]}, name="w")
        result = await kernel.wait_for(agent)
        if result["state"] != "completed":
            note("failed", json.dumps(result, default=str))
        result = result["result"]
    operator.cancel()
    note("result", json.dumps(result))
    await kernel.close()


uvloop.run(main())
