"""The real daemon, to be killed: `daemon_process.py HOME SOCKET READY-FD`, with its plan as JSON in FAULTS.

It is `agent_os.daemon` with its launchers and sandboxes. What a test adds: tools that write to the ledger, points to
die at, an operator who looks into the ledger, and, where the plan wants it, a disk that loses power instead.
"""

import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from agent_os.daemon import process as daemon
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import boot, gate, guests, process, records
from agent_os.kernel import kernel as parts
from agent_os.kernel.checkpoints import Checkpoints
from agent_os.kernel.journal import Journal, check
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.vfs import Vfs
from agent_os.sandbox.spawner import Launcher
from faults import points
from faults.ledger import Ledger
from faults.points import HOME, PLAN, NeverSyncs, OutcomeOnly, WatchedActing, WatchedRecovery, met, watch
from shim_disk import ShimDisk

RESERVE = 1 << 16


def watch_spawns() -> None:
    """From the order to the process that runs, in the order in which they are passed."""
    watch(guests.Guests, "_spawn", before="spawn_admitted")
    watch(process, "plan", after="spawn_planned")
    watch(records.Records, "before", after="spawn_recorded")
    watch(Launcher, "spawn", after="spawn_made")
    watch(guests.Guests, "_run", after="spawn_running")
    watch(guests.Guests, "start", after="spawn_started")


def watch_checkpoints() -> None:
    watch(Vfs, "work_hashes", before="checkpoint_still", after="checkpoint_hashed")
    watch(Vfs, "snapshot", after="checkpoint_kept")
    watch(Checkpoints, "_facts", after="checkpoint_known")


class ChildFirst(guests.Guests):
    """The scheduler at its worst: a child is over before its parent's call has returned."""

    async def start(self, order: dict[str, Any], **options: Any) -> Any:
        agent = await super().start(order, **options)
        if options.get("parent") and not agent.order.get("again"):
            await agent.gone.wait()
            met("child_over")
        return agent


class PowerLoss:
    """A disk whose unsynced writes are gone when the machine is: the record becomes what a power loss leaves of it."""

    def __init__(self) -> None:
        self.disk = ShimDisk()
        points.deadly = self.strike

    def strike(self) -> None:
        with tempfile.TemporaryDirectory(dir=HOME.parent) as image:  # stays: we die in it
            points.note("lost", str(self.disk.image(HOME, Path(image))))
            for name in ("journal.db", "journal.db-wal"):
                (HOME / name).write_bytes(Path(image, name).read_bytes())
            (HOME / "journal.db-shm").unlink(missing_ok=True)
            points.die()


class TornTail:
    """The machine stops in the middle of the last group: a part of what it wrote of that is on disk."""

    def __init__(self, journal: Journal) -> None:
        self._wal, self._before = HOME / "journal.db-wal", 0
        self._usual = journal.failpoints["before_commit"]
        journal.failpoints["before_commit"] = self.look
        points.deadly = self.strike

    def look(self) -> None:
        self._before = self._wal.stat().st_size
        self._usual()

    def strike(self) -> None:
        size = self._wal.stat().st_size
        first = self._before + 24
        cut = random.Random(PLAN["at"]).randrange(first, size) if first < size else size  # the file may have begun anew
        os.truncate(self._wal, cut)
        points.note("lost", str(size - cut))
        points.die()


def store_of(home: Path) -> SqliteStore:
    kind = NeverSyncs if PLAN["broken"] == "no sync" else SqliteStore
    vfs = PowerLoss().disk.vfs_name if PLAN.get("power") else None
    return kind(home / "journal.db", reserve=RESERVE, vfs=vfs)


class WatchedKernel(Kernel):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for tool in Ledger(HOME / "ledger").tools(PLAN["lasts"], met):
            self.tools.register(tool)
        points.watch_journal(self.journal)
        if PLAN.get("tear"):
            TornTail(self.journal)
        self.start(points.operate(self))


def main() -> int:
    boot.Kernel = WatchedKernel
    gate.Acting = OutcomeOnly if PLAN["broken"] == "outcome only" else WatchedActing
    parts.Recovery = WatchedRecovery
    daemon._store = store_of  # pyright: ignore[reportPrivateUsage]
    if PLAN["broken"] == "no check":
        check.damage = lambda store, tiles, *_: tiles.load(store.size())  # pyright: ignore
    watch_spawns()
    watch_checkpoints()
    if PLAN.get("child_first"):
        guests.Guests = ChildFirst
    os.environ["AGENT_OS_HOME"] = str(HOME)
    return daemon.main(["--home", str(HOME), "--socket", sys.argv[2], "--ready-fd", sys.argv[3]])


sys.exit(main())
