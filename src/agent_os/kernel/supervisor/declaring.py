"""Declaring agents: a set of manifests held against what is declared already, checked as one, and stored as one.

In: specs, or the texts of manifest files. Out: a `Report` of what is new, changed, the same or gone, or one error with
everything that is wrong, and then nothing has changed. Starts nobody: what is wanted is on the record, and the fleet
sees to it.
"""

import asyncio
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EINVAL, AgentOSError
from agent_os.drivers.store import Put
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.graph import Graph, Needs
from agent_os.kernel.supervisor.keeping import told
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.specs import ROOT_ID, Spec
from agent_os.kernel.supervisor.terms import State
from agent_os.kernel.table import OURS, bare
from agent_os.lazy import lazy
from agent_os.manifest.names import PARTS, resolved

if TYPE_CHECKING:
    from agent_os.kernel.supervisor import orders_of
    from agent_os.kernel.supervisor.fleet import Fleet
    from agent_os.manifest.problems import Problem
    from agent_os.manifest.reading import Read
else:
    orders_of = lazy("agent_os.kernel.supervisor.orders_of")

_MOST_SHOWN = 200  # changed keys of one agent
Tree = Mapping[str, Any]


class Change(Struct):
    id: str
    file: str
    change: str  # new, changed, same, gone
    keys: list[tuple[str, Any, Any]] = field(default_factory=list[tuple[str, Any, Any]])  # key, before, after


class Report(Struct):
    """What applying came to, or would."""

    agents: list[Change] = field(default_factory=list[Change])
    warnings: list[str] = field(default_factory=list[str])
    applied: bool = True

    def of(self, change: str) -> list[str]:
        return [one.id for one in self.agents if one.change == change]


class Declaring:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._one = asyncio.Lock()  # what is checked holds until it is stored

    async def apply_files(self, files: Mapping[str, str], *, by: str, prune: bool, dry_run: bool) -> Report:
        from agent_os.manifest.fleet import read_texts

        known = [one for one in self._declared() if not prune or not self._from(one, files)]
        read = await asyncio.to_thread(read_texts, files, known=known)  # a thousand take seconds
        read.settle()
        specs = await asyncio.to_thread(_specs, read.by_file)
        reads = {one.manifest.id: one for one in read.read.values()}
        report = await self.apply(specs, by=by, prune=prune, dry_run=dry_run, reads=reads)
        report.warnings = [*map(str, read.warnings), *report.warnings]
        return report

    def _declared(self) -> dict[str, Spec]:
        """Whoever an agent spawned is that one's business: nobody declares, needs or prunes it."""
        return {agent_id: spec for agent_id, spec in self._fleet.kept.specs.items() if not spec.spawned}

    def _from(self, agent_id: str, files: Mapping[str, str]) -> bool:
        return self._fleet.kept.specs[agent_id].base in set(map(_folder, files))

    async def apply(
        self,
        specs: Sequence[Spec],
        *,
        by: str,
        prune: bool = False,
        dry_run: bool = False,
        reads: "Mapping[str, Read] | None" = None,
    ) -> Report:
        """`prune`: whoever was declared from one of the same folders and is not among these goes."""
        async with self._one:
            return await self._apply(specs, by, prune, dry_run, reads or {})

    async def _apply(
        self, specs: Sequence[Spec], by: str, prune: bool, dry_run: bool, reads: "Mapping[str, Read]"
    ) -> Report:
        problems = await asyncio.to_thread(_impossible, specs, reads)  # before anything is looked at: that may change
        fleet, wanted = self._fleet, {one.id: one for one in specs}
        folders = {one.base for one in specs}
        known = self._declared()
        gone = [one for one, spec in known.items() if prune and spec.base in folders and one not in wanted]
        after = {**{one: spec for one, spec in known.items() if one not in gone}, **wanted}
        report = Report(
            [*(self._change(one) for one in specs), *(Change(one, known[one].file, "gone") for one in gone)]
        )
        parents = self._check(wanted, after, report, reads, problems)
        report.warnings += self._moved(parents, wanted)
        report.applied = not dry_run
        if dry_run:
            return report
        if gone:
            await self._forget(gone, by)
        changed = [one.id for one in report.agents if one.change == "changed"]
        fewer = {one.id for one in report.agents if one.change == "changed" and _is_fewer_children(one)}
        begin = {one for one in changed if _has_failed(fleet.kept.records[one])}  # by being stored, with what is new
        await self._store([after[one.id] for one in report.agents if one.change in ("new", "changed")], parents, by)
        for one in [one for one in changed if one not in begin]:
            fleet.kernel.start(fleet.spawned.narrow(wanted[one]) if one in fewer else fleet.renew(one))
        fleet.folder.let_go(specs)
        return report

    def _change(self, spec: Spec) -> Change:
        before = self._fleet.kept.specs.get(spec.id)
        if before is None:
            return Change(spec.id, spec.file, "new")
        if before.same(spec):
            return Change(spec.id, spec.file, "same")
        keys = list(_different(before.tree, spec.tree))[:_MOST_SHOWN]
        if before.base != spec.base:
            keys.append(("(folder)", before.base, spec.base))
        return Change(spec.id, spec.file, "changed", keys)

    def _moved(self, parents: Mapping[str, tuple[str, int]], wanted: Mapping[str, Spec]) -> Iterable[str]:
        """Who has another supervisor from now on without being among those that are declared."""
        for agent_id in self._declared().keys() & parents.keys() - wanted.keys():
            before, after = self._fleet.kept.records[agent_id].parent, parents[agent_id][0]
            if before != after:
                yield f"{bare(agent_id)} is moved from {bare(before or ROOT_ID)} to {bare(after)}"

    # What must hold of all together.

    def _check(
        self,
        wanted: Mapping[str, Spec],
        after: Mapping[str, Spec],
        report: Report,
        reads: "Mapping[str, Read]",
        problems: "list[Problem]",
    ) -> dict[str, tuple[str, int]]:
        """Everything that is wrong, in one error. Else who is whose child, and its place among them."""
        from agent_os.manifest.problems import ManifestError

        problems += self._taken(wanted, reads)
        parents, twice = _parents(after)
        for agent_id, key, message in twice:
            problems.append(_problem(after[agent_id], reads.get(agent_id), key, message))
        above = {} if twice else parents
        graph = Graph({agent_id: _needs(spec, above.get(agent_id)) for agent_id, spec in after.items()})
        for found in graph.findings:
            if found.fatal:
                key = ("dependencies", found.key)
                problems.append(_problem(after[found.agent], reads.get(found.agent), key, found.message, found.hint))
            elif found.agent in wanted:
                report.warnings.append(f"{found.message}; {found.hint}")
        if problems:
            raise ManifestError(sorted(problems))
        return parents

    def _taken(self, wanted: Mapping[str, Spec], reads: "Mapping[str, Read]") -> "Iterable[Problem]":
        """Names that agents have whom nobody declared."""
        for agent_id in filter(self._fleet.spawned.is_one, wanted):
            message = f"{bare(agent_id)} was spawned by {bare(self._fleet.kept.records[agent_id].parent or ROOT_ID)}"
            hint = f"agentctl stop {bare(agent_id)}, or choose another name"
            yield _problem(wanted[agent_id], reads.get(agent_id), ("name",), message, hint)
        for row in self._fleet.kernel.table.alive():
            if row.id in wanted and row.id not in self._fleet.kept.specs:
                message = f"{row.name} runs already, and was not declared"
                hint = f"agentctl kill {row.name}, or choose another name"
                yield _problem(wanted[row.id], reads.get(row.id), ("name",), message, hint)

    # Stored.

    async def _store(self, specs: Sequence[Spec], parents: Mapping[str, tuple[str, int]], by: str) -> None:
        """One entry for all of it: a kernel that dies here finds everything, or nothing."""
        fleet = self._fleet
        if not specs:
            return
        puts: list[Put] = []
        highest = max((one.index for one in fleet.kept.children(ROOT_ID)), default=0)
        for spec in specs:
            puts.append(fleet.kept.declare(spec))
            old = fleet.kept.records.get(spec.id)
            parent, index = parents.get(spec.id, (ROOT_ID, 0))
            if parent == ROOT_ID:
                highest += 1
                index = old.index if old and old.parent == ROOT_ID else highest
            record = _first(spec, parent, index) if old is None else _again(old, parent, index)
            puts += fleet.kept.keep(record)
            if spec.activation == "on_schedule" and spec.id not in fleet.kept.settled:
                puts.append(fleet.kept.settle(spec.id, time.time()))
        puts += self._move(parents, {one.id for one in specs})
        body = {"event": "apply", "by": by, "agents": {one.id: told(fleet.kept.records[one.id]) for one in specs}}
        fleet.declared()
        await fleet.kernel.journal.record(
            Draft("kernel", Kind.CHANGE, body=frames.encode_body(body)), sync=True, puts=puts
        )

    def _move(self, parents: Mapping[str, tuple[str, int]], others: Collection[str]) -> list[Put]:
        """Whoever was declared before and is somebody else's child by now, in its next life at the latest."""
        fleet, puts = self._fleet, list[Put]()
        for record in list(fleet.kept.records.values()):
            if record.id == ROOT_ID or record.id in others or fleet.spawned.is_one(record.id):
                continue
            parent, index = parents.get(record.id, (ROOT_ID, record.index))
            if (record.parent, record.index) != (parent, index):
                puts += fleet.kept.keep(replace(record, parent=parent, index=index))
                if record.parent != parent:
                    fleet.kernel.start(fleet.renew(record.id))
        return puts

    # Gone.

    async def delete(self, ids: Sequence[str], by: str, *, dry_run: bool = False) -> Report:
        fleet = self._fleet
        async with self._one:
            gone = [fleet.require(one).id for one in ids]
            if spawned := [one for one in gone if fleet.spawned.is_one(one)]:
                name, above = bare(spawned[0]), bare(fleet.kept.records[spawned[0]].parent or ROOT_ID)
                reason = f"{name} was spawned by {above}, and no manifest declares it"
                raise EBUSY("agent.spawned", reason, hint=f"agentctl stop {name} ends it for good")
            report = Report([Change(one, fleet.kept.specs[one].file, "gone") for one in gone], applied=not dry_run)
            self._require_unneeded(gone)
            if not dry_run:
                await self._forget(gone, by)
        return report

    def _require_unneeded(self, gone: Sequence[str]) -> None:
        fleet = self._fleet
        for one in gone:
            needed_by = [other for other in fleet.graph.dependants(one) if other not in gone]
            children = [other.id for other in fleet.kept.children(one) if not fleet.spawned.is_one(other.id)]
            below = [other for other in children if other not in gone]
            if needed_by or below:
                other = bare((needed_by or below)[0])
                what = "needs it" if needed_by else "is its child"
                hint = f"agentctl delete {bare(one)} {other}"
                raise EBUSY("agent.needed", f"{bare(one)} cannot go: {other} {what}", hint=hint)

    async def _forget(self, gone: Iterable[str], by: str) -> None:
        fleet = self._fleet
        gone = [one for one in fleet.graph.stop_order() if one in set(gone)] + [
            one for one in gone if one in fleet.graph.left_out
        ]
        for one in gone:
            await fleet.stop(one, by)
        for one in gone:
            await fleet.stop(one, by)  # somebody may have started it while others stopped; nothing waits from here on
            buried = fleet.kernel.lives.buried(one)
            puts = [*fleet.kept.drop(one), *buried, orders_of.disowned(one), *fleet.pacing.forget(one)]
            body = frames.encode_body({"event": "delete", "by": by, "agent": one})
            await fleet.kernel.journal.record(Draft("kernel", Kind.CHANGE, body=body), sync=True, puts=puts)
        fleet.declared()


def _specs(by_file: "Mapping[str, Read]") -> list[Spec]:
    return [Spec.of(one.manifest, _folder(file), file) for file, one in by_file.items()]


def _folder(file: str) -> str:
    """By its own name: what is a link today may lead elsewhere tomorrow."""
    return os.path.realpath(os.path.dirname(file))


def _impossible(specs: Sequence[Spec], reads: "Mapping[str, Read]") -> "list[Problem]":
    """What is wrong with each by itself. Of a thousand that takes a while, and needs nothing of the kernel."""
    problems: list[Problem] = []
    for spec in specs:
        try:
            if spec.id in (ROOT_ID, *PARTS) or bare(spec.id) in OURS:
                raise EINVAL("manifest", f"name: {bare(spec.id)} is the kernel's own", hint="choose another name")
            orders_of.require_possible(spec)
            _require_room(spec)
        except AgentOSError as error:
            key, _, message = error.reason.partition(": ")
            problems.append(_problem(spec, reads.get(spec.id), tuple(key.split(".")), message or key, error.hint))
    return problems


def _require_room(spec: Spec) -> None:
    most = spec.manifest.agency.max_children
    if most is not None and len(spec.children) > most:
        reason = f"supervision.children: it lists {len(spec.children)} children, and may have {most}"
        raise EINVAL("manifest", reason, hint="[agency] max_children = …")


def _is_fewer_children(change: Change) -> bool:
    """Nothing else changed: that is no reason to start it anew."""
    if [key for key, _, _ in change.keys] != ["agency.max_children"]:
        return False
    _, before, after = change.keys[0]
    return isinstance(after, int) and (not isinstance(before, int) or after < before)


def _first(spec: Spec, parent: str, index: int) -> Record:
    """Whoever waits for a person or for the clock is not due by being declared."""
    record = Record(spec.id, parent, index)
    if spec.activation == "manual":
        return replace(record, wanted=False, state=State.STOPPED, why=moves.MANUAL)
    return replace(record, state=State.COMPLETED) if spec.is_called else record


def _again(old: Record, parent: str, index: int) -> Record:
    """A changed manifest is another chance for whoever had failed; who was stopped stays so."""
    placed = replace(old, parent=parent, index=index)
    return moves.by_hand(placed) if _has_failed(old) else placed


def _has_failed(record: Record) -> bool:
    return record.wanted and record.state is State.FAILED


def _parents(
    specs: Mapping[str, Spec],
) -> tuple[dict[str, tuple[str, int]], list[tuple[str, tuple[str | int, ...], str]]]:
    """Child → its supervisor and its place; and who is claimed by two, by itself, or in a circle."""
    found: dict[str, tuple[str, int]] = {}
    wrong: list[tuple[str, tuple[str | int, ...], str]] = []
    for agent_id, spec in specs.items():
        for number, name in enumerate(spec.children):
            child, key = resolved(name, agent_id.partition("/")[0], specs), ("supervision", "children", number)
            if child is None or child not in specs:
                wrong.append((agent_id, key, f"there is no agent {name}"))
            elif child.partition("/")[0] != agent_id.partition("/")[0]:
                wrong.append((agent_id, key, f"{child} is of another namespace, and so nobody's here to supervise"))
            elif child in found:
                wrong.append((agent_id, key, f"{name} is a child of {bare(found[child][0])} already"))
            else:
                found[child] = (agent_id, number)
    for child in found:
        line, above = {child}, found[child][0]
        while above in found and above not in line:
            line.add(above)
            above = found[above][0]
        if above == child:
            wrong.append((child, ("supervision", "children"), "it is its own supervisor, over others"))
    return found, wrong


def _needs(spec: Spec, place: tuple[str, int] | None) -> Needs:
    """Whom it waits for; a child for its supervisor as well, so that one cannot wait for it."""
    return replace(spec.needs, after=(*spec.needs.after, place[0])) if place else spec.needs


def _problem(spec: Spec, read: "Read | None", key: tuple[str | int, ...], message: str, hint: str = "") -> "Problem":
    from agent_os.manifest.checks import Found
    from agent_os.manifest.problems import Problem

    if read:
        return read.located(Found(key, message, hint))
    return Problem(spec.file, 0, ".".join(map(str, key)), f"{spec.id}: {message}" if not spec.file else message, hint)


def _different(before: Any, after: Any, at: str = "") -> Iterable[tuple[str, Any, Any]]:
    """Key by key, with dots."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        one, other = dict[str, Any](before), dict[str, Any](after)  # pyright: ignore[reportUnknownArgumentType]
        for key in {**one, **other}:
            yield from _different(one.get(key), other.get(key), f"{at}.{key}" if at else key)
    elif before != after:
        yield at, before, after
