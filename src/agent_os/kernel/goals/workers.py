"""Who could work at goals, as fleet and table know it: what agents declare, whether they live, what they take.

In: the kernel's own facts. Out: candidates to pick from, the facts that a round of starts needs, and a start. Keeps
nothing and orders nothing.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_os.abi.states import Incarnation
from agent_os.kernel.authority import budget
from agent_os.kernel.goals.goal import MEMORY_MB
from agent_os.kernel.goals.matching import Candidate
from agent_os.kernel.goals.room import SLOTS, Room
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.terms import State
from agent_os.kernel.supervisor.watched import WEIGHTS
from agent_os.kernel.table import Agent

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.supervisor.specs import Spec


# How much memory there is for all agents together: the machine's, or less where our own cgroup has less. In: what
# the operating system tells. Out: MiB. Where it tells nothing, the machine's memory counts.

_GROUPS = Path("/sys/fs/cgroup")


def memory_mb(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(groups, own)]) >> 20


def _limits(groups: Path, own: Path) -> Iterator[int]:
    """Of our cgroup and all above it, in either hierarchy. A word in place of a number is no limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _above(groups, path, "memory.max")
            yield from _above(groups / "unified", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _above(groups / "memory", path, "memory.limit_in_bytes")


def _above(top: Path, path: str, file: str) -> Iterator[int]:
    place = top / path.lstrip("/")
    for folder in (place, *place.parents):
        if not folder.is_relative_to(top):
            return
        try:
            text = (folder / file).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)


_PART = (4, 5)  # of the machine's memory, for all agents together
_GIVEN_UP = (State.FAILED, State.QUARANTINED)
_FOR_ONE_CALL = {"cost": 1, "tokens": 1, "calls": 1}


def whole() -> Room:
    part, all = _PART
    return Room(SLOTS, memory_mb() * part // all)


class Workers:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel

    def candidates(self, load: Callable[[str], int], serving: Iterable[str]) -> Iterator[Candidate]:
        """Declared agents, and those of the table that have asked for a goal themselves."""
        declared = {one.id for one in self._kernel.fleet.rows() if (spec := self._spec(one.id)) and not spec.spawned}
        for agent_id in declared:
            spec = self._spec(agent_id)
            if spec and spec.runtime:
                yield _declared(spec, self.is_able(agent_id), load(agent_id))
        asked = set(serving)
        for agent in self._kernel.table.alive():
            if agent.id not in declared:
                yield Candidate(agent.id, ready=agent.id in asked, load=load(agent.id), memory_mb=_memory(agent))

    def is_able(self, agent_id: str) -> bool:
        """It is ready or about to be, or has no process and can be given one. A command that is always there asks for
        no goal."""
        spec = self._spec(agent_id)
        if spec and spec.runtime == "exec" and spec.activation == "always":
            return False
        agent = self._kernel.table.living(agent_id)
        if agent is None:
            return self.may_start(agent_id)
        ready = self._kernel.fleet.is_ready(agent_id) or (agent.watch is not None and agent.watch.ready)
        return ready or agent.life is Incarnation.STARTING

    def is_live(self, agent_id: str) -> bool:
        return self._kernel.table.living(agent_id) is not None

    def may_start(self, agent_id: str) -> bool:
        """For a goal: whoever waits for its turn or is done. An operator's stop stands, and so does a failure."""
        record, spec = self._kernel.fleet.record(agent_id), self._spec(agent_id)
        if record is None or spec is None or record.state in _GIVEN_UP:
            return False
        return record.wanted or record.is_manual

    def summon(self, agent_id: str) -> bool:
        """Whether it has a process soon. It costs nothing, and shortens nobody's wait."""
        fleet, record = self._kernel.fleet, self._kernel.fleet.record(agent_id)
        if record is None or not self.may_start(agent_id):
            return False
        if record.state in (State.COMPLETED, State.STOPPED):
            fleet.move(agent_id, moves.summoned, "called")
            fleet.stir()
        return True

    def held(self, holders: set[str]) -> Room:
        """By agents with a process for which no goal at work holds room."""
        others = [one for one in self._kernel.table.alive() if one.kind != "context" and one.id not in holders]
        return Room(len(others), sum(self._memory(one) for one in others))

    def live(self) -> frozenset[str]:
        return frozenset(one.id for one in self._kernel.table.alive())

    def has_room(self, agent_id: str, amounts: Mapping[str, float]) -> bool:
        """Whether one call, and what the goal was given, could be paid by the agent and everybody above it."""
        ledger = self._kernel.budgets
        wanted = {**_FOR_ONE_CALL, **amounts}
        return all(ledger.room(agent_id, name) >= amount for name, amount in wanted.items() if name in budget.RESOURCES)

    def limit(self, agent_id: str, resource: str) -> int | None:
        """The least that anybody of the chain may spend in all; None: without limit."""
        ledger = self._kernel.budgets
        limits = (ledger.account(one).limits.get(resource) for one in ledger.chain(agent_id))
        return min((one for one in limits if one is not None), default=None)

    def share(self, agent_id: str, priority: str | None = None) -> None:
        """Its part of the machine while it is at urgent goals; without a word, what it declares."""
        agent = self._kernel.table.living(agent_id)
        guest = getattr(agent.running, "guest", None) if agent else None
        if guest is None or guest.process.group is None:
            return
        spec = self._spec(agent_id)
        guest.process.group.share(WEIGHTS[priority or (spec.priority if spec else "normal")])

    def max_deaths(self, agent_id: str) -> int:
        spec = self._spec(agent_id)
        return spec.terms.max_deaths if spec else 3

    def _spec(self, agent_id: str) -> "Spec | None":
        return self._kernel.fleet.spec(agent_id)

    def _memory(self, agent: Agent) -> int:
        spec = self._spec(agent.id)
        return _whole_mb(spec.tree["resources"]["max_memory_mb"]) if spec else _memory(agent)


def _declared(spec: "Spec", able: bool, load: int) -> Candidate:
    tree = spec.tree
    memory_mb = _whole_mb(tree["resources"]["max_memory_mb"])
    return Candidate(spec.id, tree["labels"], tree["skills"], able, load, memory_mb)


def _memory(agent: Agent) -> int:
    """Of one that nobody declared: as its order says."""
    limits: list[Any] = agent.order.get("limit") or []
    words = (str(one).partition("=") for one in limits)
    return next((int(amount) for name, _, amount in words if name == "memory_mb" and amount.isdigit()), MEMORY_MB)


def _whole_mb(declared: Any) -> int:
    return declared if isinstance(declared, int) else MEMORY_MB
