"""A kernel as a process of its own, to be killed: `kernel_process.py HOME`, with its plan as JSON in FAULTS.

The plan names the failpoint to die at (`point`, the `at`-th time), how long effects take (`lasts`), and perhaps a
`broken` build: the test's own switches, which exist here only. The kernel boots as ever, with tools that write to the
ledger. Where it finds an outcome unknown it plays the operator and looks into the ledger. It starts the program, unless
that lives again, and ends with it.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from agent_os.abi.entries import Kind
from agent_os.abi.errors import ESRCH
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import boot
from agent_os.kernel import kernel as parts
from agent_os.kernel.gate import Gate, Passing
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.recovery import Recovery
from agent_os.kernel.table import Ended
from faults.ledger import Ledger, answer
from faults.processes import Processes

HOME = Path(sys.argv[1])
PLAN: dict[str, Any] = json.loads(os.environ["FAULTS"])
JOURNAL_POINTS = ("queued", "begun", "before_commit", "after_commit", "before_callbacks")
AGENT = "default/w"
_met: dict[str, int] = {}


def met(name: str) -> None:
    """Die here, if that is the plan; what was hit is noted first."""
    _met[name] = _met.get(name, 0) + 1
    if name == PLAN.get("point") and _met[name] == PLAN["at"]:
        note("hits", name)
        os.kill(os.getpid(), signal.SIGKILL)


def note(file: str, text: str) -> None:
    fd = os.open(HOME / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


class WatchedGate(Gate):
    def _do(self, passing: Passing) -> None:
        if passing.intent:
            met("before_act")
        super()._do(passing)


class OutcomeOnly(WatchedGate):
    """Broken on purpose: an effect is recorded when it is over, and not before."""

    def _begin(self, passing: Passing) -> None:
        self._do(passing)


class WatchedRecovery(Recovery):
    async def _settle(self, *intent: Any) -> None:
        met("settling")
        await super()._settle(*intent)
        met("settled")


class Forgetful(WatchedRecovery):
    """Broken on purpose: what recovery found out is kept in memory until all of it is done."""

    async def at_boot(self) -> None:
        self._later: list[Any] = []
        await super().at_boot()

    async def _settle(self, *intent: Any) -> None:
        self._later = getattr(self, "_later", [])
        await super()._settle(*intent)

    async def _outcome(self, *about: Any) -> None:
        self._later.append(about)

    async def settle_before(self, agent: Any) -> None:
        for about in self._later:
            await super()._outcome(*about)
        self._later.clear()
        await super().settle_before(agent)


class TestKernel(Kernel):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for tool in Ledger(HOME / "ledger").tools(PLAN["lasts"], met):
            self.tools.register(tool)
        self.guests = Processes(self, HOME / "work")  # pyright: ignore[reportAttributeAccessIssue]
        for point in JOURNAL_POINTS:
            self.journal.failpoints[point] = lambda point=point: met(point)


async def operate(kernel: Kernel) -> None:
    """Whoever is asked what became of something looks into the ledger."""
    ledger = Ledger(HOME / "ledger")
    while True:
        for seq, _ in kernel.recovery.parked():
            request = decode_any(Recorded.of(kernel.journal.read(seq)[1]).request)
            key = request["key"]
            note("parked", f"{seq} {key}")
            if ledger.has(key):
                await kernel.recovery.resolve(seq, "done", answer(request["tool"], key), "test")
            else:
                await kernel.recovery.resolve(seq, "not_done", None, "test")
        await asyncio.sleep(0.01)


def ended_before(kernel: Kernel) -> Ended | None:
    ends = [decode_any(body) for entry, body in kernel.journal.scan(AGENT) if entry.kind == Kind.EXIT and body]
    return Ended(ends[-1]["class"], ends[-1]["code"], ends[-1]["reason"], ends[-1]["result"]) if ends else None


async def main() -> None:
    (HOME / "work").mkdir(exist_ok=True)
    boot.Kernel = TestKernel
    parts.Gate = OutcomeOnly if PLAN["broken"] == "outcome only" else WatchedGate
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
