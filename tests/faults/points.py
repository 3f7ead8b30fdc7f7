"""What a kernel that is to be killed has beside its own parts: points to die at, a ledger, broken builds, an operator.

For processes of tests only. HOME is the first argument; the plan is JSON in FAULTS: the failpoint to die at (`point`,
the `at`-th time), how long effects take (`lasts`), and perhaps a `broken` build.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_os.drivers.store import Blob, Put, Row
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.acting import Acting
from agent_os.kernel.journal import Journal
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.passing import Passing
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.recovery import Recovery
from faults.ledger import Ledger, answer

HOME = Path(sys.argv[1])
PLAN: dict[str, Any] = json.loads(os.environ["FAULTS"])
JOURNAL_POINTS = ("queued", "begun", "before_commit", "after_commit", "before_callbacks")
_met: dict[str, int] = {}


def note(file: str, text: str) -> None:
    fd = os.open(HOME / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


deadly = die  # what happens at the point of the plan


def met(name: str) -> None:
    """Die here, if that is the plan; what was hit is noted first."""
    _met[name] = _met.get(name, 0) + 1
    if name and name == PLAN["point"] and _met[name] == PLAN["at"]:
        note("hits", name)
        deadly()


def watch(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
    """Makes the beginning or the good end of a function a point."""
    usual = getattr(owner, name)

    async def waiting(*args: Any, **options: Any) -> Any:
        met(before)
        result = await usual(*args, **options)
        met(after)
        return result

    def plain(*args: Any, **options: Any) -> Any:
        met(before)
        result = usual(*args, **options)
        met(after)
        return result

    setattr(owner, name, waiting if inspect.iscoroutinefunction(usual) else plain)


def watch_journal(journal: Journal) -> None:
    for point in JOURNAL_POINTS:
        journal.failpoints[point] = lambda point=point: met(point)


class WatchedActing(Acting):
    def do(self, passing: Passing) -> None:
        if passing.intent:
            met("before_act")
        super().do(passing)


class OutcomeOnly(WatchedActing):
    """Broken on purpose: an effect is recorded when it is over, and not before."""

    def begin(self, passing: Passing) -> None:
        self.do(passing)


class WatchedRecovery(Recovery):
    async def _settle(self, *intent: Any) -> None:
        met("settling")
        await super()._settle(*intent)
        met("settled")


class Forgetful(WatchedRecovery):
    """Broken on purpose: what recovery found out is kept in memory until all of it is done."""

    async def at_boot(self, *others: Any) -> None:
        self._later: list[Any] = []
        await super().at_boot(*others)

    async def _settle(self, *intent: Any) -> None:
        self._later = getattr(self, "_later", [])
        await super()._settle(*intent)

    async def _outcome(self, *about: Any, undone: bool = False) -> None:
        self._later.append(about)

    async def settle_before(self, agent: Any) -> None:
        for about in self._later:
            await super()._outcome(*about)
        self._later.clear()
        await super().settle_before(agent)


class NeverSyncs(SqliteStore):
    """Broken on purpose: intents are committed with NORMAL."""

    def append(self, rows: Sequence[Row], puts: Sequence[Put], blobs: Sequence[Blob], *, sync: bool) -> None:
        super().append(rows, puts, blobs, sync=False)


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
