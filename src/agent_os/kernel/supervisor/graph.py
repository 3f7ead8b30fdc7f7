"""Who needs whom: what is wrong with that, in which order a fleet starts, and in which it stops.

Goes in: the `[dependencies]` of every agent by id. Comes out: findings, an order in which everybody comes after whom it
waits for, levels ("waves") of it, and what hangs on an agent that died. `requires` and `binds_to` are needs; `after` is
order only, where both start; `wants` only asks for somebody to be started too. Starts nothing: see `pacing`.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from agent_os.manifest.names import PARTS, SYSTEM, resolved

_MOST_NAMED = 12
Edges = dict[str, tuple[str, ...]]


class Needs(Struct, frozen=True):
    """Names as written: an id, or a bare name of the same namespace, then of `system`."""

    requires: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    binds_to: tuple[str, ...] = ()


class Finding(Struct, frozen=True):
    """Something wrong in what was declared. Whoever knows the files adds file and line."""

    agent: str
    key: str  # of [dependencies]
    message: str
    hint: str = ""
    fatal: bool = True  # else a warning
    members: tuple[str, ...] = ()  # of a cycle


class Graph:
    """The dependencies of a fleet, checked. What is broken is left out, with whoever needs it; the rest is in order."""

    def __init__(self, fleet: Mapping[str, Needs], held: Mapping[str, str] | None = None) -> None:
        """`held`: who is not to start, and why."""
        self.findings: list[Finding] = []
        self.left_out = {one: why for one, why in (held or {}).items() if one in fleet}  # id → why
        self.hard: Edges = {}  # id → whom it needs
        self.soft: Edges = {}  # id → whom it comes after, and does not need
        self.wanted: Edges = {}
        self._bound: Edges = {}
        for agent_id, needs in fleet.items():
            self._read(agent_id, needs, fleet)
        before = {one: self.hard[one] + self.soft[one] for one in self.hard}
        self.order = self._sorted(before)

    def _read(self, agent_id: str, needs: Needs, fleet: Mapping[str, Needs]) -> None:
        bound = self._known(agent_id, "binds_to", needs.binds_to, fleet, fatal=True)
        hard = self._known(agent_id, "requires", needs.requires, fleet, fatal=True) + bound
        self.hard[agent_id], self._bound[agent_id] = hard, bound
        after = self._known(agent_id, "after", needs.after, fleet, fatal=False)
        self.soft[agent_id] = tuple(one for one in after if one not in hard)
        self.wanted[agent_id] = self._known(agent_id, "wants", needs.wants, fleet, fatal=False)

    def _known(
        self, agent_id: str, key: str, names: tuple[str, ...], fleet: Collection[str], *, fatal: bool
    ) -> tuple[str, ...]:
        if not names:
            return ()
        namespace = agent_id.partition("/")[0]
        found: list[str] = []
        for name in names:
            known = resolved(name, namespace, fleet)
            if known is None:
                self._unknown(agent_id, key, name, fleet, fatal=fatal)
            elif known not in PARTS:
                found.append(known)
        return tuple(found)

    def _unknown(self, agent_id: str, key: str, name: str, fleet: Iterable[str], *, fatal: bool) -> None:
        from agent_os.manifest.problems import nearest

        own = agent_id.partition("/")[0]
        near = nearest(name, [_as_seen_from(own, one) for one in (*fleet, *sorted(PARTS))])
        message = f"{agent_id}: {key} names {name!r}, which is not there"
        self.findings.append(Finding(agent_id, key, message, near or f"declare it, or take it out of {key}", fatal))
        if fatal:
            self.left_out.setdefault(agent_id, f"{key} names {name!r}, which is not there")

    def _sorted(self, before: Edges) -> tuple[str, ...]:
        order = _in_order(before)
        if len(order) < len(before):
            for knot in _knots(before):
                self._tangled(knot, before)
        if not self.left_out:
            return order
        self._leave_out_with_dependants()
        return _in_order({one: self._remaining(others) for one, others in before.items() if one not in self.left_out})

    def _remaining(self, ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(one for one in ids if one not in self.left_out)

    def _tangled(self, knot: list[str], before: Edges) -> None:
        path = _round(knot[0], set(knot), before)
        others = sorted(set(knot) - set(path))
        text = " → ".join(_shortened(path)) + (f" (with {', '.join(_shortened(others))})" if others else "")
        key = "after" if path[1] in self.soft[path[0]] else "requires"
        if path[1] in self._bound[path[0]]:
            key = "binds_to"
        message, hint = f"a cycle: each waits for the next: {text}", "take one of these dependencies out"
        self.findings.append(Finding(knot[0], key, message, hint, members=tuple(knot)))
        for one in knot:
            self.left_out[one] = f"it is part of a cycle: {text}"

    def _leave_out_with_dependants(self) -> None:
        needed_by = inverse(self.hard)
        broken = deque(self.left_out)
        while broken:
            one = broken.popleft()
            for dependant in needed_by.get(one, ()):
                if dependant not in self.left_out:
                    self.left_out[dependant] = f"it needs {one}, which is left out"
                    broken.append(dependant)

    def before(self, agent_id: str) -> tuple[str, ...]:
        """Whom it waits for, if both start."""
        return self._remaining(self.hard[agent_id] + self.soft[agent_id])

    def pulled_in(self, ids: Iterable[str]) -> set[str]:
        """These and everybody they need or want, as far as not left out."""
        return _reached(self._remaining(ids), lambda one: self._remaining(self.hard[one] + self.wanted[one]))

    def needed(self, agent_id: str) -> set[str]:
        """Whom it needs, and whom they need."""
        return _reached(self.hard.get(agent_id, ()), lambda one: self.hard.get(one, ()))

    def waits_for(self, agent_id: str, other: str) -> bool:
        """Whether its dependencies lead to that one, over others or not."""
        return other in _reached([agent_id], lambda one: self.before(one) if one in self.hard else ())

    def waves(self) -> list[list[str]]:
        """Levels: everybody of one can start once those before are ready."""
        level: dict[str, int] = {}
        waves: defaultdict[int, list[str]] = defaultdict(list)
        for one in self.order:
            level[one] = 1 + max((level[pred] for pred in self.before(one)), default=-1)
            waves[level[one]].append(one)
        return [waves[number] for number in range(len(waves))]

    def stop_order(self) -> tuple[str, ...]:
        return self.order[::-1]

    def stop_waves(self) -> list[list[str]]:
        """Levels of stopping: nobody goes before those that wait for it at a start."""
        return [wave[::-1] for wave in reversed(self.waves())]

    def dependants(self, agent_id: str) -> tuple[str, ...]:
        """Who is told, and not ready any more, when it dies."""
        return tuple(one for one in self.order if agent_id in self.hard[one])

    def bound_to(self, agent_id: str) -> tuple[str, ...]:
        """Who stops when it stops, for whatever reason, in the order to stop them. It is not among them."""
        gone = {agent_id}
        for one in self.order:  # whoever binds to somebody comes after that one
            if not gone.isdisjoint(self._bound[one]):
                gone.add(one)
        return tuple(one for one in self.stop_order() if one in gone and one != agent_id)


def _reached(begin: Iterable[str], near: Callable[[str], Iterable[str]]) -> set[str]:
    """These, and everybody they lead to."""
    found: set[str] = set()
    line = list(begin)
    while line:
        one = line.pop()
        if one not in found:
            found.add(one)
            line += near(one)
    return found


def inverse(edges: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    turned: dict[str, list[str]] = {}
    for one, others in edges.items():
        for other in others:
            turned.setdefault(other, []).append(one)
    return turned


def _in_order(before: Edges) -> tuple[str, ...]:
    """Each as soon as all before it are there; whoever waits for a cycle is missing. The standard library's sort takes
    three times as long, and tells one cycle where there may be several."""
    lacks = {one: len(others) for one, others in before.items()}
    behind = inverse(before)
    order = [one for one, number in lacks.items() if not number]
    for one in order:
        for other in behind.get(one, ()):
            lacks[other] -= 1
            if not lacks[other]:
                order.append(other)
    return tuple(order)


def _knots(before: Edges) -> Iterator[list[str]]:
    """Everybody who waits for itself, in groups that wait for each other (Kosaraju)."""
    place = {one: number for number, one in enumerate(before)}
    behind, taken = inverse(before), set[str]()
    for root in reversed(_finished(before)):
        if root in taken:
            continue
        taken.add(root)
        group, line = [root], [root]
        while line:
            for other in behind.get(line.pop(), ()):
                if other not in taken:
                    taken.add(other)
                    group.append(other)
                    line.append(other)
        if len(group) > 1 or root in before[root]:
            yield sorted(group, key=place.__getitem__)


def _finished(before: Edges) -> list[str]:
    """Depth first, in the order in which everything behind a node has been seen. No recursion: chains may be long."""
    seen, finished = set[str](), list[str]()
    for start in before:
        if start in seen:
            continue
        seen.add(start)
        path = [(start, iter(before[start]))]
        while path:
            node, rest = path[-1]
            following = next((one for one in rest if one not in seen), None)
            if following is None:
                finished.append(node)
                path.pop()
            else:
                seen.add(following)
                path.append((following, iter(before[following])))
    return finished


def _round(start: str, knot: set[str], before: Edges) -> list[str]:
    """The shortest way from a member of a knot back to itself."""
    line, came_from = deque([start]), dict[str, str]()
    while True:  # it is in a knot, so there is one
        node = line.popleft()
        for following in before[node]:
            if following == start:
                return _way(start, node, came_from)
            if following in knot and following not in came_from:
                came_from[following] = node
                line.append(following)


def _way(start: str, last: str, came_from: Mapping[str, str]) -> list[str]:
    way = [start]
    while last != start:
        way.append(last)
        last = came_from[last]
    return [*reversed([*way, start])]


def _shortened(names: list[str]) -> list[str]:
    if len(names) <= _MOST_NAMED:
        return names
    return [*names[: _MOST_NAMED - 2], f"… {len(names) - _MOST_NAMED + 1} more …", names[-1]]


def _as_seen_from(namespace: str, agent_id: str) -> str:
    own, _, name = agent_id.partition("/")
    return name if own in (namespace, SYSTEM) else agent_id
