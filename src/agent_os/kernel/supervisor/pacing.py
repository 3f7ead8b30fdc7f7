"""Who is started when: everybody that is due, whose supervisor lives and whose dependencies are ready, a few at a time.

In: the fleet's records, and a stir whenever something changed. Out: lives that begin, each stored under its number
before there is a process. Nothing is remembered from one look to the next but who stands in line, so a look can come at
any moment: after news, when a wait is over, and every few seconds in any case, which is the reconciler.
"""

import asyncio
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL
from agent_os.drivers.store import Put
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.graph import Graph, inverse
from agent_os.kernel.supervisor.keeping import told
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.specs import ROOT_ID, Spec
from agent_os.kernel.supervisor.terms import Priority, State
from agent_os.kernel.table import bare

if TYPE_CHECKING:
    from agent_os.kernel.supervisor.fleet import Fleet


# A fleet that is being started: who may start next, as one after the other becomes ready, is late or fails. Goes
# in: a checked graph, whom to start, and the news of each. Comes out: who is due, and who has to be given up. Each
# agent is due as soon as those before it are ready, whatever the others do. Starts nothing and waits for nothing.


class Starting:
    def __init__(self, graph: Graph, ids: Iterable[str] | None = None, ready: Collection[str] = ()) -> None:
        """`ids`: whom to start, with all they need and want; None: everybody. `ready`: who already is."""
        self._graph = graph
        asked = graph.order if ids is None else graph.pulled_in(ids)
        self._place = {one: number for number, one in enumerate(graph.order) if one in asked and one not in ready}
        self._lacks = {
            one: {other for other in graph.before(one) if other in self._place and other not in ready}
            for one in self._place
        }
        self._behind = inverse(self._lacks)
        self._due = [one for one, lacks in self._lacks.items() if not lacks]
        for one in self._due:
            del self._lacks[one]

    def due(self) -> list[str]:
        """Who may start now; each is named once, in start order."""
        due, self._due = sorted(self._due, key=self._place.__getitem__), []
        return due

    @property
    def waiting(self) -> dict[str, list[str]]:
        """Who waits, and for whom."""
        return {one: sorted(lacks, key=self._place.__getitem__) for one, lacks in self._lacks.items()}

    def ready(self, agent_id: str) -> None:
        for one in self._behind.get(agent_id, ()):
            self._lacks_no_more(one, agent_id)

    def late(self, agent_id: str) -> None:
        """It takes longer than a boot should: it holds up those that need it, and nobody else."""
        for one in self._behind.get(agent_id, ()):
            if agent_id not in self._graph.hard[one]:
                self._lacks_no_more(one, agent_id)

    def failed(self, agent_id: str) -> dict[str, str]:
        """It could not be started. Who therefore cannot either: id → whom of those it needs; each fails with
        `dependency`. Those that only come after it go on."""
        given_up: dict[str, str] = {}
        line = [agent_id]
        for broken in line:
            for one in self._behind.get(broken, ()):
                if broken not in self._graph.hard[one]:
                    self._lacks_no_more(one, broken)
                elif one in self._lacks:
                    del self._lacks[one]
                    given_up[one] = broken
                    line.append(one)
        return given_up

    def _lacks_no_more(self, agent_id: str, other: str) -> None:
        lacks = self._lacks.get(agent_id)
        if lacks is None:
            return
        lacks.discard(other)
        if not lacks:
            del self._lacks[agent_id]
            self._due.append(agent_id)


# The global start limiter: how many agents may be starting at the same moment, and who is next. Goes in: who wants
# to start, with what priority, and when a start was over. Comes out: who may start now. A slot is for the burst of
# work a start is, not for the wait until READY: whoever takes longer than a moment passes it on, so that a few
# agents that never become ready hold up nobody. Reads no clock and starts nothing.

PER_CORE = 2
HOLD_SECS = 2.0
_HEAD_START = {"low": 0.0, "normal": 10.0, "high": 20.0, "critical": 30.0}  # seconds


class Starts:
    """In a burst the higher priority goes first. A priority is a head start and no more: whoever has waited long enough
    comes before anybody who comes later."""

    def __init__(self, slots: int, hold_secs: float = HOLD_SECS) -> None:
        self._slots, self._hold = slots, hold_secs
        self._line: list[tuple[float, int, str]] = []
        self._waiting: dict[str, int] = {}  # id → its number in the line; an older one is void
        self._until: dict[str, float] = {}  # id → when its slot is passed on
        self._number = count()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def ask(self, agent_id: str, priority: Priority, now: float) -> None:
        """Stand in line. Who does already keeps the place."""
        if agent_id not in self._waiting:
            number = self._waiting[agent_id] = next(self._number)
            heappush(self._line, (now - _HEAD_START[priority], number, agent_id))

    def leave(self, agent_id: str) -> None:
        """Stopped before its turn, or started, or gone while it was starting: it needs neither place nor slot."""
        self._waiting.pop(agent_id, None)
        self._until.pop(agent_id, None)

    def admit(self, now: float) -> list[str]:
        """Who may start now. Each has a slot until it leaves, at most for a moment."""
        self._until = {one: until for one, until in self._until.items() if until > now}
        admitted: list[str] = []
        while self._line and len(self._until) < self._slots:
            _, number, agent_id = heappop(self._line)
            if self._waiting.get(agent_id) == number:
                del self._waiting[agent_id]
                self._until[agent_id] = now + self._hold
                admitted.append(agent_id)
        return admitted

    def again_at(self) -> float | None:
        """When to ask for admission again if nobody leaves before. None: nobody waits."""
        return min(self._until.values(), default=None) if self._waiting else None


EVERY_SECS = 5.0  # between two looks at the latest
BOOT_SECS = 120.0  # how long somebody may hold up those that only come after it
_GIVEN_UP = frozenset({State.FAILED, State.QUARANTINED})
DEPENDENCY = "dependency"
log = logging.getLogger("agent_os.fleet")


class _Quiet(Struct, frozen=True):
    """When nothing is due by a schedule, as far as it was looked at: a rare moment takes milliseconds to find."""

    spec: Spec
    settled: float
    since: float
    until: float


class Pacing:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._starts = Starts(PER_CORE * (os.cpu_count() or 1))
        self._opened = False
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._took = 0.0  # seconds, by the last look: in a fleet of thousands, looks take a third of the time at most
        self._since: dict[str, float] = {}  # who waits or is not ready yet → since when, monotonic
        self._walks: Counter[str] = Counter()  # supervisors whose children are being stopped
        self._line: dict[str, str] = {}  # who comes after whom in a restart of several
        self._quiet: dict[str, _Quiet] = {}  # of those with a schedule

    @property
    def opened(self) -> bool:
        return self._opened

    def open(self) -> None:
        self._opened = True
        self.stir()

    def close(self) -> None:
        self._opened = False
        if self._timer:
            self._timer.cancel()

    def stir(self) -> None:
        if self._opened and not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_later(2 * self._took, self._look)

    def over(self, agent_id: str) -> None:
        """It needs no place among those that start: it is ready, or is not to be."""
        self.leave(agent_id)
        self._since.pop(agent_id, None)
        if len(self._starts):
            self.stir()

    def leave(self, agent_id: str) -> None:
        """It gives its place among those that start to the next."""
        self._starts.leave(agent_id)

    def forget(self, agent_id: str) -> list[Put]:
        """It is declared no more."""
        self.over(agent_id)
        self._line.pop(agent_id, None)
        self._quiet.pop(agent_id, None)
        self._fleet.beginning.forget(agent_id)
        return [self._fleet.windows.forget(agent_id)]

    @contextmanager
    def walking(self, parent: str, some: bool) -> Generator[None]:
        """Children of this one are being stopped: none of them starts meanwhile."""
        if not some:
            yield
            return
        self._walks[parent] += 1
        try:
            yield
        finally:
            self._walks[parent] -= 1

    def in_line(self, pairs: Iterable[tuple[str, str]]) -> None:
        for first, then in pairs:
            self._line[then] = first

    def _look(self) -> None:
        began, self._soon = time.monotonic(), False
        if not self._opened or self._fleet.kernel.halting:
            return
        now = time.time()
        self._reconcile()
        self._fleet.windows.look(now)
        again = self._run_schedules(now)
        waiting, nearest = self._waiting(now)
        for one in self._unhindered(waiting):
            self._starts.ask(one, self._fleet.kept.specs[one].priority, time.monotonic())
        for one in self._starts.admit(time.monotonic()):
            self._fleet.kernel.start(self._begin(one))
        self._look_again(now, [again, nearest])
        self._took = time.monotonic() - began

    def _look_again(self, now: float, moments: list[float | None]) -> None:
        seconds = [EVERY_SECS, *(max(0.0, one - now) for one in moments if one is not None)]
        if (slot := self._starts.again_at()) is not None:
            seconds.append(max(0.01, slot - time.monotonic()))
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.001, min(seconds)), self._look)

    # Who.

    def _reconcile(self) -> None:
        """What should not be: a record that speaks of a life which nobody has."""
        for record in list(self._fleet.kept.records.values()):
            if record.state is State.ACTIVE and record.id not in self._fleet.lives and record.id != ROOT_ID:
                log.error("%s should live, and nothing of it is there", record.id)
                self._fleet.kernel.start(self._fleet.ending.lost(record))

    def _waiting(self, now: float) -> tuple[list[str], float | None]:
        """Whose time has come, and when that of the next one comes."""
        due: list[str] = []
        nearest: float | None = None
        for record in self._fleet.kept.records.values():
            if record.id in self._fleet.lives or not record.wanted or record.id == ROOT_ID:
                continue
            if _is_due(record, now):
                due.append(record.id)
            elif record.to_revive and record.until is not None:
                nearest = record.until if nearest is None else min(nearest, record.until)
        return due, nearest

    def _unhindered(self, due: list[str]) -> list[str]:
        """Of those whose time has come, who may start now; the others are marked as waiting, or given up."""
        fleet = self._fleet
        able = [one for one in due if one not in fleet.graph.left_out and self._may_come(one)]
        spawned = [one for one in able if fleet.spawned.is_one(one)]  # they need nobody
        return spawned + self._next_of({*able}.difference(spawned))

    def _next_of(self, coming: set[str]) -> list[str]:
        fleet = self._fleet
        if not coming:
            return []
        starting = Starting(fleet.graph, coming, ready={one for one in fleet.kept.specs if fleet.served(one)})
        for one, since in list(self._since.items()):
            if time.monotonic() - since > BOOT_SECS:
                starting.late(one)
        given_up: dict[str, str] = {}
        for record in fleet.kept.records.values():
            if record.state in _GIVEN_UP:
                given_up |= starting.failed(record.id)
        for one, broken in given_up.items():
            if one in coming:
                fleet.give_up(one, f"{DEPENDENCY}: {bare(broken)} is {fleet.kept.records[broken]}")
        free = [one for one in starting.due() if one in coming and one not in given_up]
        for one in coming.difference(free, given_up):
            self._blocked(one)
        return sorted(free, key=lambda one: fleet.kept.records[one].index)

    def _may_come(self, agent_id: str) -> bool:
        """Its supervisor lives, nobody is being stopped around it, and whoever goes before it has gone."""
        fleet = self._fleet
        parent = fleet.kept.records[agent_id].parent or ROOT_ID
        if parent in fleet.apart or self._walks[parent]:
            return False
        first = self._line.get(agent_id)
        if first is None:
            return True
        record = fleet.kept.records.get(first)
        if record is None or not record.to_revive or fleet.served(first) or fleet.graph.waits_for(first, agent_id):
            del self._line[agent_id]
            return True
        return False

    def _blocked(self, agent_id: str) -> None:
        """For people to see. Not stored: a new kernel finds the same."""
        self._since.setdefault(agent_id, time.monotonic())
        record = self._fleet.kept.records[agent_id]
        if record.state is not State.BLOCKED:
            self._fleet.kept.records[agent_id] = moves.blocked(record, DEPENDENCY)

    # By the clock.

    def _run_schedules(self, now: float) -> float | None:
        nearest: float | None = None
        for agent_id, spec in self._fleet.kept.specs.items():
            if spec.activation == "on_schedule" and self._fleet.kept.records[agent_id].wanted:
                coming = self._run_schedule(agent_id, spec, now)
                if coming is not None:
                    nearest = coming if nearest is None else min(nearest, coming)
        return nearest

    def _run_schedule(self, agent_id: str, spec: Spec, now: float) -> float | None:
        from agent_os.kernel.supervisor.schedule import Schedule  # few have one, and time zones are data of the host

        fleet, settled = self._fleet, self._fleet.kept.settled.setdefault(agent_id, now)
        quiet = self._quiet.get(agent_id)
        if quiet and quiet.spec is spec and quiet.settled == settled and quiet.since <= now < quiet.until:
            return quiet.until
        record = fleet.kept.records[agent_id]
        try:
            look = Schedule(*spec.schedule).look(settled, now, alive=record.state is not State.COMPLETED)
        except EINVAL as error:  # the host does not know its time zone any more
            log.error("%s is not started by its schedule: %s", agent_id, error.reason)
            fleet.folder.left_out.append(f"{spec.file or agent_id}: {error.reason}")
            self._quiet[agent_id] = _Quiet(spec, settled, now, math.inf)
            return None
        if look.act == "wait":
            self._quiet[agent_id] = _Quiet(spec, settled, now, math.inf if look.next is None else look.next)
            return look.next
        after = moves.called(record) if look.act == "start" else record
        facts = {"event": f"schedule {look.act}", "due": look.first, "missed": look.missed, **told(after)}
        draft = Draft(agent_id, Kind.STATE, record.incarnation, body=frames.encode_body(facts))
        puts = [*fleet.kept.keep(after), fleet.kept.settle(agent_id, look.settled)]
        fleet.kernel.journal.put(draft, sync=True, puts=puts)
        return look.next

    async def _begin(self, agent_id: str) -> None:
        """One life of whoever is due, still: others may have been faster."""
        record, spec = self._fleet.record(agent_id), self._fleet.spec(agent_id)
        due = record is not None and _is_due(record, time.time())
        if spec is None or not due or agent_id in self._fleet.lives or not self._may_come(agent_id):
            self.leave(agent_id)
            return
        self._since[agent_id] = time.monotonic()
        await self._fleet.beginning.begin(spec)


def _is_due(record: Record, now: float) -> bool:
    """Its time has come, or it only waits for others, which is looked at again and again."""
    return record.is_due(now) or (record.state, record.why) == (State.BLOCKED, DEPENDENCY)
