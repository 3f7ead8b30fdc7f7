"""The agents of manifests: what is wanted of each, and that it is so.

In: manifests that people declared or agents spawned, an operator's word, the news of health and of ends. Out: agents
that are started and stopped in order.
What lasts of each is its `Record`, stored before anybody acts on it; whether it lives again is for `decide` to say.
`pacing` starts whoever is due, `ending` carries out what was decided about an end. Agents without a manifest are none
of its business.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EEXIST, EIO, ESRCH
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put
from agent_os.kernel import signals
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.beginning import Beginning
from agent_os.kernel.supervisor.declaring import Declaring, Report
from agent_os.kernel.supervisor.ending import Ending, Verdict
from agent_os.kernel.supervisor.graph import Graph
from agent_os.kernel.supervisor.keeping import Kept, told
from agent_os.kernel.supervisor.life import Life, is_permanent
from agent_os.kernel.supervisor.order import Sibling
from agent_os.kernel.supervisor.pacing import Pacing
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.scanning import Folder
from agent_os.kernel.supervisor.spawned import Spawned, gone
from agent_os.kernel.supervisor.specs import ROOT_ID, Spec
from agent_os.kernel.supervisor.stopping import Stopping
from agent_os.kernel.supervisor.terms import OVER, RestartPolicy, State
from agent_os.kernel.table import Agent, Ended, bare
from agent_os.lazy import lazy

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.supervisor import orders_of
    from agent_os.manifest.model import AgentManifest
else:
    orders_of = lazy("agent_os.kernel.supervisor.orders_of")


# An operator's word about agents of manifests: start, stop, restart, wait. Each returns only when it is true. In:
# the name of a declared agent. Out: its record as it then is, or why it cannot be so. What is wanted is stored
# before anything is done about it; the doing is the fleet's. Cancelled, what was asked for goes on.


class Commands:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    async def start(self, agent_id: str, by: str) -> Record:
        """By hand: clears the counters. Whoever it needs is started too. Returns when it is ready, or done already;
        EBUSY: it cannot be."""
        record = self._fleet.require(agent_id)
        for one in (record.id, *self._fleet.graph.needed(record.id)):
            self._require_startable(self._fleet.kept.records[one])
        declared = [] if self._fleet.spawned.is_one(record.id) else [record.id]
        needed = self._fleet.graph.pulled_in(declared) - {record.id}
        for one in needed:
            other = self._fleet.kept.records[one]
            needs_it = other.state in (State.STOPPED, State.FAILED) and one in self._fleet.graph.needed(record.id)
            if needs_it or other.is_manual:
                await self._fleet.note(moves.by_hand(other), "start", by=by, for_=record.id)
        await self._fleet.note(moves.by_hand(record), "start", by=by)
        self._fleet.stir()
        return await self._until_ready(record.id)

    def _require_startable(self, record: Record) -> None:
        """EBUSY: whatever is done, it would not start."""
        above = self._fleet.kept.records.get(record.parent or ROOT_ID)
        if above and above.id != ROOT_ID and not above.to_revive:
            name = bare(above.id)
            reason = f"{bare(record.id)} starts with its supervisor {name}, which is {above}"
            raise EBUSY("supervisor", reason, hint=f"agentctl start {name}")
        if why := self._fleet.graph.left_out.get(record.id):
            hint = "mend the manifest, then agentctl apply -f FILE"
            raise EBUSY("dependency", f"{bare(record.id)} cannot start: {why}", hint=hint)

    async def stop(
        self, agent_id: str, by: str, grace: float | None = None, force: bool = False, reason: str = ""
    ) -> Record:
        """It is to stop, and to stay so. Returns when nothing of it is left; one that has ended stays as it is. A
        second stop may only shorten the first."""
        record = self._fleet.require(agent_id)
        if record.state in OVER:
            return record
        await self._fleet.carried_on(self._stop(record, by, grace, force, reason))
        return self._as_it_is(record)

    async def _stop(self, record: Record, by: str, grace: float | None, force: bool, reason: str) -> None:
        why = reason or f"stopped by {by}"
        for one in self._fleet.graph.bound_to(record.id):
            await self._fleet.stopping.aside(one, f"{bare(record.id)}, to which it is bound, stops", comes_back=False)
        await self._fleet.note(moves.to_stop(self._fleet.kept.records[record.id]), "stop", by=by, reason=reason)
        await self._fleet.stopping.end(record.id, why, grace=grace, force=force)

    def _as_it_is(self, record: Record) -> Record:
        """Now; of one that was spawned, and is over, as its end left it."""
        return self._fleet.record(record.id) or gone(record, self._fleet.kernel.table.row(record.id))

    async def restart(self, agent_id: str, by: str, grace: float | None = None, reason: str = "") -> Record:
        """A new life of the same agent. Clears its counters. Returns when it is ready."""
        record = self._fleet.require(agent_id)
        self._require_startable(record)
        await self._fleet.carried_on(self._restart(record, by, grace, reason))
        return await self._until_ready(record.id)

    async def _restart(self, record: Record, by: str, grace: float | None, reason: str) -> None:
        await self._fleet.note(moves.by_hand(record), "restart", by=by, reason=reason)
        await self._fleet.stopping.end(record.id, reason or f"restarted by {by}", grace=grace)
        self._fleet.stir()

    async def reach(self, agent_id: str, state: str) -> Record:
        """Wait until it is ready, running, or over. EBUSY: it is over, and will not be what is waited for."""
        record = self._fleet.require(agent_id)
        if state == "ready":
            return await self._until_ready(record.id)

        def reached() -> bool:
            now = self._fleet.record(record.id)
            return now is None or now.state in OVER or (state == "running" and self._runs(record.id))

        await self._fleet.until(reached)
        now = self._as_it_is(record)
        if state == "running" and not self._runs(record.id):
            raise EBUSY("state", f"{bare(record.id)} is {now}", hint=f"agentctl start {bare(record.id)}")
        return now

    def _runs(self, agent_id: str) -> bool:
        life = self._fleet.lives.get(agent_id)
        return bool(life and life.begun.is_set() and life.agent and not life.agent.exit)

    async def _until_ready(self, agent_id: str) -> Record:
        def settled() -> bool:
            record = self._fleet.kept.records.get(agent_id)
            return record is None or record.state in OVER or self._fleet.is_ready(agent_id)

        await self._fleet.until(settled)
        record = self._fleet.require(agent_id)
        if not self._fleet.is_ready(agent_id) and record.state is not State.COMPLETED:
            hint = f"agentctl history {bare(agent_id)} says why"
            raise EBUSY("state", f"{bare(agent_id)} is {record}", hint=hint)
        return record


# Budgets that are filled again: by the hour, the day, the month, or with each run. In: what manifests declare, and
# the wall clock. Out: at the beginning of a window, limits that leave an agent all of its allowance over what it
# has spent by then, on the record like any other limit. A restart is no new window, and neither is a new kernel:
# which window was last filled is stored. Spends nothing.

WINDOWS = "windows"  # bucket: id → the window that was last filled
_FORMS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
_EVERY = 1.0  # seconds between two looks at all of them


class Windows:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._filled = {key: value.decode() for key, value in fleet.kernel.store.items(WINDOWS)}
        self._looked = 0.0

    def look(self, now: float) -> None:
        if 0 <= now - self._looked < _EVERY:
            return
        self._looked = now
        for agent_id in self._filled.keys() & self._fleet.kept.specs.keys():
            self.fill(self._fleet.kept.specs[agent_id], now)

    def fill(self, spec: Spec, now: float) -> None:
        """If a window has begun since it was last filled. The first is filled by its start."""
        current, last = self._window(spec, now), self._filled.get(spec.id)
        if current == last:
            return
        limits = self.limits(spec)
        put = Put(WINDOWS, spec.id, current.encode())
        self._filled[spec.id] = current
        kernel = self._fleet.kernel
        if last is None or not limits:
            body = frames.encode_body({"event": "window", "window": current})
            kernel.journal.put(Draft(spec.id, Kind.BUDGET, body=body), sync=False, puts=[put])
            return
        cost = kernel.budgets.limit(spec.id, limits)
        body = frames.encode_body({"event": "window", "window": current, **cost})
        kernel.journal.put(Draft(spec.id, Kind.BUDGET, cost=cost, body=body), sync=True, puts=[put])

    def limits(self, spec: Spec) -> dict[str, int]:
        """All of its allowance, over what it has spent by now."""
        account = self._fleet.kernel.budgets.account(spec.id)
        return {one: account.used(one) + limit for one, limit in orders_of.allowance(spec.manifest).items()}

    def forget(self, agent_id: str) -> Put:
        self._filled.pop(agent_id, None)
        return Put(WINDOWS, agent_id, None)

    def _window(self, spec: Spec, now: float) -> str:
        per = str(spec.tree["budget"]["per"])
        if per in _FORMS:
            return datetime.fromtimestamp(now, UTC).strftime(_FORMS[per])
        run = self._fleet.kernel.store.get("lives", spec.id) or b"1"
        return f"run {run.decode()}"


class Fleet:
    def __init__(self, kernel: "Kernel") -> None:
        self.kernel = kernel
        self.kept = Kept(kernel.store)
        self.lives: dict[str, Life] = {}
        self.folder = Folder(self)
        self.graph = self._graph()
        self.apart = {one for one in self.kept.specs if self.is_supervisor(one)}  # whose children wait for them
        self._ready: dict[str, float] = {}  # id → since when, monotonic
        self._news = asyncio.Event()
        self._declaring, self._commands = Declaring(self), Commands(self)
        self.pacing, self.ending, self.stopping = Pacing(self), Ending(self), Stopping(self)
        self.spawned, self.windows, self.beginning = Spawned(self), Windows(self), Beginning(self)

    # Look.

    def spec(self, agent_id: str) -> Spec | None:
        return self.kept.specs.get(agent_id)

    def record(self, agent_id: str) -> Record | None:
        return self.kept.records.get(agent_id)

    def rows(self) -> list[Record]:
        """Root first, each before its children, children by start index. Whose parent no manifest declares comes
        last."""
        found: list[Record] = []
        known = self.kept.records
        strays = moves.in_order(one for one in known.values() if one.parent and one.parent not in known)
        line = [*reversed(strays), known[ROOT_ID]]
        while line:
            found.append(one := line.pop())
            line += reversed(self.kept.children(one.id))
        return found

    def is_ready(self, agent_id: str) -> bool:
        """It is, and so is everybody that it needs."""
        if agent_id == ROOT_ID:
            return True
        return agent_id in self._ready and all(self.served(one) for one in self.graph.hard.get(agent_id, ()))

    def served(self, agent_id: str) -> bool:
        """Whether those that need it can go on: it is ready, or has done what it was there for."""
        record = self.kept.records.get(agent_id)
        return agent_id in self._ready or (record is not None and record.state is State.COMPLETED)

    def lived(self, agent_id: str) -> Record | None:
        """Its record, if that speaks of a life: at boot of one that is over."""
        record = self.kept.records.get(agent_id)
        return record if record and record.state is State.ACTIVE and self.was_made(record) else None

    def was_made(self, record: Record) -> bool:
        """Whether there ever was somebody of that number: a life is stored before there is a process."""
        return record.incarnation == int(self.kernel.store.get("incarnations", record.id) or 0)

    def will_live(self, agent_id: str) -> bool:
        record = self.kept.records.get(agent_id)
        return record is not None and record.id in self.kept.specs and record.to_revive

    def require_own(self, agent_id: str) -> None:
        """EEXIST: somebody else wants the name of a declared agent."""
        if agent_id in self.kept.specs and agent_id not in self.lives:
            name = bare(agent_id)
            if self.spawned.is_one(agent_id):
                raise EEXIST("id", f"{name} is going to live again", hint="choose another name")
            reason = f"{name} is declared by a manifest"
            raise EEXIST("agent.declared", reason, hint=f"agentctl start {name}, or choose another name")

    @property
    def busy(self) -> bool:
        """Somebody lives, or will without anybody's doing."""
        return bool(self.lives) or any(
            one.id != ROOT_ID
            and one.id not in self.graph.left_out
            and (one.to_revive or (one.wanted and self.kept.specs[one.id].is_called))
            for one in self.kept.records.values()
        )

    def is_supervisor(self, agent_id: str) -> bool:
        spec = self.kept.specs.get(agent_id)
        return spec is not None and (bool(spec.children) or self.kept.has_children(agent_id))

    def returns(self, agent_id: str) -> bool:
        """Whether it starts again when its supervisor does. Whoever is never restarted does not."""
        spec = self.kept.specs.get(agent_id)
        return spec is not None and spec.terms.policy is not RestartPolicy.NEVER

    def siblings(self, parent: str) -> tuple[Sibling, ...]:
        """By start index."""
        return tuple(
            Sibling(one.id, self.kept.specs[one.id].terms.policy, one.state) for one in self.kept.children(parent)
        )

    def require(self, name: str) -> Record:
        """The record of a declared agent; ESRCH else."""
        record = self.kept.records.get(name) or self.kept.records.get(f"default/{name}")
        record = record or self.kept.records.get(f"system/{name}")
        if record is None or record.id == ROOT_ID:
            raise ESRCH("agent.undeclared", f"no manifest declares {name[:127]!r}", hint="agentctl apply -f FILE")
        return record

    def grace(self, agent_id: str) -> float:
        """How long it may take to end after it was asked to."""
        life, spec = self.lives.get(agent_id), self.kept.specs.get(agent_id)
        if life and life.grace is not None:
            return life.grace
        return spec.grace_secs if spec else signals.GRACE_SECONDS

    # The news of health.

    def ready(self, agent: Agent) -> None:
        """It can serve; only the first time of a life counts, or the first after it could not."""
        life = self.lives.get(agent.id)
        if agent.exit or life is None or life.agent not in (None, agent) or life.fate or agent.id in self._ready:
            return
        self._ready[agent.id] = time.monotonic()
        body = frames.encode_body({"event": "ready"})
        with suppress(EIO):  # a journal that failed has told everybody
            self.kernel.journal.put(Draft(agent.id, Kind.STATE, agent.incarnation, body=body), sync=False)
        self.pacing.over(agent.id)
        self.stir()

    def unready(self, agent: Agent, why: str) -> None:
        """It cannot serve. Nothing is done to it for that."""
        life = self.lives.get(agent.id)
        if life and life.agent is agent and self._ready.pop(agent.id, None) is not None:
            body = frames.encode_body({"event": "unready", "why": why})
            with suppress(EIO):
                self.kernel.journal.put(Draft(agent.id, Kind.STATE, agent.incarnation, body=body), sync=False)
            self.stir()

    async def strike(self, agent: Agent, exit_class: ExitClass, reason: str) -> None:
        """A deadline passed: its incarnation ends with that class. Returns when it is gone."""
        life = self.lives.get(agent.id)
        if agent.exit or life is None or life.agent not in (None, agent) or life.fate:
            return
        life.doomed(exit_class, reason)
        with suppress(ESRCH):  # it was faster
            await self.kernel.end(agent, Ended(exit_class, -1, reason))

    def ready_secs(self, agent_id: str) -> float | None:
        since = self._ready.pop(agent_id, None)
        return None if since is None else time.monotonic() - since

    # Declare.

    async def apply(
        self, manifests: "Iterable[AgentManifest]", *, base: str, by: str, prune: bool = False, dry_run: bool = False
    ) -> Report:
        """All of these, or with any problem none; stored when this returns. What changed and lives is restarted."""
        specs = [Spec.of(one, base) for one in manifests]
        return await self._declaring.apply(specs, by=by, prune=prune, dry_run=dry_run)

    async def apply_files(
        self, files: dict[str, str], *, by: str, prune: bool = False, dry_run: bool = False
    ) -> Report:
        """The same from texts by their absolute paths, so that a problem has its file and its line."""
        return await self._declaring.apply_files(files, by=by, prune=prune, dry_run=dry_run)

    async def delete(self, ids: Sequence[str], by: str, *, dry_run: bool = False) -> Report:
        """Stop these in order, and forget them. Returns when nothing of them is left."""
        return await self._declaring.delete(ids, by, dry_run=dry_run)

    def declared(self) -> None:
        """What is declared has changed."""
        self.graph = self._graph()
        self.apart |= {one for one in self.kept.specs if self.is_supervisor(one) and one not in self.lives}
        self.apart &= self.kept.specs.keys()
        self.stir()

    def _graph(self) -> Graph:
        """Of the declared: whoever is spawned needs nobody but its parent."""
        declared = {agent_id: spec.needs for agent_id, spec in self.kept.specs.items() if not spec.spawned}
        return Graph(declared, self.folder.held)

    # An operator's word.

    async def start(self, agent_id: str, by: str) -> Record:
        """By hand: clears the counters. Returns when it is ready, or done already; EBUSY: it cannot be."""
        return await self._commands.start(agent_id, by)

    def called(self, agent_id: str) -> None:
        """A message waits for one that messages start. It costs nothing, and revives nobody that was stopped."""
        record = self.kept.records.get(agent_id)
        if record and record.state is State.COMPLETED and self.move(agent_id, moves.called, "message"):
            self.stir()

    async def stop(
        self, agent_id: str, by: str, grace: float | None = None, force: bool = False, reason: str = ""
    ) -> Record:
        """It is to stop, and to stay so. Returns when nothing of it is left."""
        return await self._commands.stop(agent_id, by, grace, force, reason)

    async def restart(self, agent_id: str, by: str, grace: float | None = None, reason: str = "") -> Record:
        """A new life of the same agent. Clears its counters. Returns when it is ready."""
        return await self._commands.restart(agent_id, by, grace, reason)

    async def reach(self, agent_id: str, state: str) -> Record:
        """Wait until it is ready, running, or over. EBUSY: it is over, and will not be what is waited for."""
        return await self._commands.reach(agent_id, state)

    async def renew(self, agent_id: str) -> None:
        """Its manifest has changed: if it lives, its next life is the new one's. Whom it spawned ends with the old one:
        what they hold is part of what that was given."""
        row = self.kernel.table.row(agent_id)
        if life := self.lives.get(agent_id):
            life.anew = True
        await self.stopping.end(agent_id, "its manifest was changed")
        if row:
            await self.kernel.lives.end_children(row)
        self.stir()

    async def condemn(self, agent_id: str, why: str) -> None:
        """It violated a rule in a life that is over. If it was to live again, or already does, it does not."""
        if agent_id not in self.kept.specs:
            return
        if life := self.lives.get(agent_id):
            life.doomed(ExitClass.POLICY, why)
        else:
            self.move(agent_id, lambda record: moves.condemned(record, why), "quarantined")
        await self.stopping.end(agent_id, why, force=True)

    async def release(self, agent_id: str) -> None:
        """An operator has ended its quarantine. It does not start by that."""
        record = self.kept.records.get(agent_id)
        if record and record.state is State.QUARANTINED:
            await self.note(moves.released(record), "release")

    # Ends.

    def ended(self, agent: Agent, ended: Ended, *, asked: bool = False) -> Verdict | None:
        """Asked by `lives` when an incarnation is gone, before that is written. None: it is none of ours."""
        life = self.lives.get(agent.id)
        if agent.id not in self.kept.specs or (life and life.stillborn):
            return None
        return self.ending.of(agent, ended, asked=asked)

    async def next_life(self, agent: Agent) -> None:
        """Returns when an agent that is to live again does, or has been given up."""

        def settled() -> bool:
            record = self.kept.records.get(agent.id)
            life = self.lives.get(agent.id)
            return record is None or record.state in OVER or bool(life and life.agent not in (None, agent))

        await self.until(settled)

    async def end_family(self, agent_id: str) -> None:
        """It does not live again, and perhaps has no life whose end would take along whom it spawned in the last."""
        if row := self.kernel.table.row(agent_id):
            await self.kernel.lives.end_children(row)
        else:
            await self.spawned.disown(agent_id, f"its parent {bare(agent_id)} has ended")

    # What happens by itself.

    async def at_boot(self) -> None:
        """Whoever lived when the last kernel died, and of whom nothing is on the record but that it was to begin."""
        for record in list(self.kept.records.values()):
            if record.state is State.ACTIVE and record.id != ROOT_ID:
                await self.ending.lost(record)

    def open(self) -> None:
        """From here on whoever is due is started."""
        self.pacing.open()

    def close(self) -> None:
        """Nobody is, any more."""
        self.pacing.close()

    async def closed(self) -> None:
        """The same, and whoever is being started is, or is not, when this returns."""
        self.pacing.close()
        for life in list(self.lives.values()):
            await life.begun.wait()

    async def shut(self, grace_s: float) -> None:
        """The system goes down."""
        await self.stopping.shut(grace_s)

    def stir(self) -> None:
        """Something has changed: whoever waits looks again, and whoever is due is started."""
        self._tell()
        self.pacing.stir()

    def _tell(self) -> None:
        """Whoever waits looks again."""
        self._news.set()
        self._news = asyncio.Event()

    async def carried_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Whoever waits for it may go away: it is done all the same."""
        await asyncio.shield(self.kernel.start(work))

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._news.wait()

    async def note(
        self, record: Record, event: str, puts: Sequence[Put] = (), *, kind: Kind = Kind.STATE, **facts: Any
    ) -> None:
        """A record as it is from now on, stored when this returns."""
        facts = {name.rstrip("_"): value for name, value in facts.items() if value}
        body = frames.encode_body({"event": event, **facts, **told(record)})
        draft = Draft(record.id, kind, record.incarnation, body=body)
        kept = self._kept(record)
        self._is_news(record)
        await self.kernel.journal.record(draft, sync=True, puts=[*puts, *kept])

    def move(self, agent_id: str, move: Callable[[Record], Record], event: str) -> bool:
        """The same without waiting for it, for what a new kernel would find out by itself. False: no such move."""
        try:
            record = move(self.kept.records[agent_id])
        except EBUSY:
            return False
        body = frames.encode_body({"event": event, **told(record)})
        draft = Draft(agent_id, Kind.STATE, record.incarnation, body=body)
        with suppress(EIO):
            self.kernel.journal.put(draft, sync=False, puts=self._kept(record))
        self._is_news(record)
        return True

    def _kept(self, record: Record) -> list[Put]:
        """As it is now, or that it is no more."""
        if not self.spawned.is_done(record):
            return self.kept.keep(record)
        return [*self.kernel.lives.buried(record.id), *self.spawned.dropped(record.id)]

    def _is_news(self, record: Record) -> None:
        if record.state in OVER and (row := self.kernel.table.row(record.id)):
            row.lasting = False  # it was to live again, and is not
        self._tell()

    def begin_life(self, agent_id: str) -> Life:
        """A life is about to be. Its number is that which its row will have."""
        row = self.kernel.table.row(agent_id)
        known = int(self.kernel.store.get("incarnations", agent_id) or 0)
        life = self.lives[agent_id] = Life((row.incarnation if row else known) + 1)
        return life

    def not_started(self, agent: Agent, problem: BaseException) -> None:
        """Told before its end is: whether trying again promises anything."""
        if life := self.lives.get(agent.id):
            life.refused, life.stillborn = is_permanent(problem), life.asked_for

    def began(self, agent: Agent, life: Life) -> None:
        """It has its process. One that was quick to end is being decided about already."""
        if self.lives.get(agent.id) is life:
            life.agent = agent
            self.beginning.began(agent)
            self.apart.discard(agent.id)
        life.begun.set()
        self.stir()

    def forget_life(self, agent_id: str, life: Life) -> None:
        """It will not be."""
        if self.lives.get(agent_id) is life:
            del self.lives[agent_id]
        life.begun.set()
        self.pacing.over(agent_id)
        self.stir()

    async def wake(self, agent: Agent) -> None:
        """It stood still without a process, and may have one now. Returns when it does, or cannot."""
        self.kernel.table.forget(agent)
        if life := self.lives.get(agent.id):
            life.agent = None
            life.begun.clear()
            await self.beginning.carry_on(agent.id, life)

    def give_up(self, agent_id: str, why: str) -> None:
        """It cannot even be started."""
        self.pacing.over(agent_id)
        self.move(agent_id, lambda record: moves.failed(record, why), "given up")
        self.kernel.start(self.end_family(agent_id))
        self.stir()

    async def carry_out(self, agent_id: str, verdict: Verdict) -> None:
        """What follows from an end, once that is on the record."""
        await self.ending.carry_out(agent_id, verdict.decision, verdict.forgotten)
