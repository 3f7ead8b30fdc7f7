"""Calls on their way: the lane of every key and model, who waits there, how urgent it is, and what becomes of an agent.

In: calls as they were weighed, and what happens to agents: they wait for each other, are stopped, killed, end. Out:
lanes, and what waits in them. A killed agent's calls have left the queues when `kill` returns. Sends nothing itself.
"""

import asyncio
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from agent_os.abi.models import Usage
from agent_os.kernel.counting import Moments, Words
from agent_os.kernel.goals.goal import PRIORITIES
from agent_os.kernel.models.breaker import Breaker
from agent_os.kernel.models.buckets import Buckets
from agent_os.kernel.models.call import RANKS, Call, Place
from agent_os.kernel.models.calling import Plan
from agent_os.kernel.models.catalogue import Provider
from agent_os.kernel.models.keys import Key
from agent_os.kernel.models.lane import Lane
from agent_os.kernel.models.queue import LOCAL_SLOTS, REMOTE_SLOTS, Queue
from agent_os.kernel.models.sizes import Sizes
from agent_os.kernel.models.waits import Urgency, Waits
from agent_os.kernel.supervisor.terms import Priority

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent


class Used:
    """What models have taken since the kernel began, each by its full name."""

    def __init__(self) -> None:
        self.input, self.output = Words(), Words()  # tokens
        self.cost = Words()  # millionths of a dollar
        self.queued = Moments()

    def add(self, model: str, usage: Usage) -> None:
        if usage.input or usage.output:
            self.input.add(model, usage.input)
            self.output.add(model, usage.output)


class Traffic:
    """The gateway as far as calls wait."""

    def __init__(self, kernel: "Kernel", weights: Mapping[str, float], learned: Mapping[str, Any]) -> None:
        """`weights` of tenants may change at any time. `learned`: sizes of programs, as an earlier kernel kept them."""
        self._kernel, self._weights = kernel, weights
        self.sizes = Sizes.unpacked(dict(learned))
        self.waits = Waits()
        self._lanes: dict[tuple[str, str], Lane] = {}  # by key and model
        self._breakers: dict[tuple[str, str], Breaker] = {}  # by base URL and model
        self._stopped: set[str] = set()
        self._working: dict[str, Counter[asyncio.Task[Any]]] = {}  # by agent
        self._numbers = count(1)
        self.used = Used()

    def stamped(self, agent: "Agent", plan: Plan) -> Call:
        """As its queue sees it. An agent says none of this itself."""
        program, type_ = self._program(agent)
        return Call(
            f"{agent.id}#{next(self._numbers)}",
            agent.id,
            program,
            type_,
            agent.namespace,
            plan.prompt,
            plan.max_output,
            self.priority_of(agent),
            plan.deadline,
        )

    def _program(self, agent: "Agent") -> tuple[str, str]:
        """The agent at the root of the subtree, and what it was declared as."""
        root, table = agent, self._kernel.table
        while root.parent and (above := table.row(root.parent)) is not None:
            root = above
        spec = self._kernel.fleet.spec(root.id)
        if spec is None:
            return root.id, root.program or root.name
        return root.id, f"{spec.tree['name']}@{str(spec.tree.get('version', '')).partition('.')[0]}"

    def priority_of(self, agent: "Agent") -> Priority:
        """That of its goals, where it works on some; else what its manifest says."""
        ranks = [PRIORITIES.index(one.priority) for one in self._kernel.scheduler.of(agent.id)]
        if ranks:
            return PRIORITIES[min(ranks)]
        spec = self._kernel.fleet.spec(agent.id)
        return spec.priority if spec else "normal"

    def lane(self, plan: Plan, key: Key) -> Lane:
        provider, model = plan.named.provider, plan.named.model
        name = (key.name or provider.name, plan.named.full)
        if (found := self._lanes.get(name)) is None:
            now = asyncio.get_running_loop().time()
            slots = provider.slots or (LOCAL_SLOTS if plan.info.local else REMOTE_SLOTS)
            if plan.info.scripted:
                slots = REMOTE_SLOTS
            breaker = self._breakers.setdefault((provider.base, model), Breaker())
            buckets = Buckets.configured(now, **provider.limits)
            queue = Queue(self.sizes, buckets, slots=slots, weights=self._weights, breaker=breaker, waits=self.waits)
            found = self._lanes[name] = Lane(queue)
            for agent in self._stopped:
                found.stop(agent)
        return found

    def places(self) -> list[tuple[str, str, Place]]:
        """Calls that wait: key, model, and where each stands."""
        now = asyncio.get_running_loop().time()
        return [(*name, place) for name, lane in self._lanes.items() for place in lane.queue.places(now)]

    def lanes(self) -> list[dict[str, Any]]:
        """Every key and model that was called: how much waits and flies, and what the key is known to allow."""
        now = asyncio.get_running_loop().time()
        return [
            {
                "key": key,
                "model": model,
                "waiting": len(lane.queue),
                "in_flight": lane.queue.in_flight,
                "slots": lane.queue.slots.now,
                "limits": {
                    kind: {"capacity": one.capacity, "rate": one.rate, "level": one.refill(now), "told": one.told_rate}
                    for kind, one in lane.queue.buckets.by_kind.items()
                },
            }
            for (key, model), lane in self._lanes.items()
        ]

    # What becomes of its agent.

    @contextmanager
    def under_way(self, agent: str) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None
        mine = self._working.setdefault(agent, Counter())
        mine[task] += 1
        try:
            yield
        finally:
            del mine[task]
            if not mine:
                self._working.pop(agent, None)

    @contextmanager
    def lends(self, waiter: "Agent", on: Sequence[str]) -> Generator[None]:
        """While an agent waits for others of its tenant, they are as urgent as it is."""
        lent = [one for one in on if one != waiter.id and one.partition("/")[0] == waiter.namespace]
        own = Urgency(RANKS[self.priority_of(waiter)])
        for one in lent:
            self.waits.begin(waiter.id, one, own)
        self._reconsider(lent)
        try:
            yield
        finally:
            for one in lent:
                self.waits.end(waiter.id, one)
            self._reconsider(lent)

    def _reconsider(self, agents: Sequence[str]) -> None:
        if agents and self._lanes:
            now = asyncio.get_running_loop().time()
            for lane in self._lanes.values():
                for agent in agents:
                    lane.queue.reconsider(agent, now)
                lane.stir()

    def prioritize(self, agent: str, priority: Priority) -> None:
        """From its next call on, which is every call that waits."""
        now = asyncio.get_running_loop().time()
        for lane in self._lanes.values():
            lane.queue.prioritize(agent, priority, now)
            lane.stir()

    def kill(self, agent: str) -> None:
        """Its calls that wait are gone when this returns; connections of others close within this turn of the loop."""
        for task in list(self._working.get(agent, ())):
            task.cancel()

    def stop(self, agent: str) -> None:
        self._stopped.add(agent)
        for lane in self._lanes.values():
            lane.stop(agent)

    def go_on(self, agent: str) -> None:
        self._stopped.discard(agent)
        for lane in self._lanes.values():
            lane.go_on(agent)

    def ended(self, agent: "Agent", *, whole: bool) -> None:
        """For good. If it was the root of its program, that is over."""
        self._stopped.discard(agent.id)
        program, type_ = self._program(agent)
        if program == agent.id and self._lanes:
            now = asyncio.get_running_loop().time()
            for lane in self._lanes.values():
                lane.queue.program_done(program, type_, now, whole=whole)

    def limited(self, provider: Provider) -> None:
        """An operator says what its keys allow, from now on; or says it no more, and it is learned."""
        now = asyncio.get_running_loop().time()
        for (_, model), lane in self._lanes.items():
            if model.startswith(f"{provider.name}/"):
                lane.queue.buckets = Buckets.configured(now, **provider.limits)
                lane.stir()

    def _clear_lanes(self, provider: str) -> None:
        """A provider is not what it was. Where calls are under way, they go on as they began."""
        for name in [one for one in self._lanes if one[1].startswith(f"{provider}/")]:
            if not len(self._lanes[name].queue) and not self._lanes[name].queue.in_flight:
                self._lanes.pop(name).close()

    def _close_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.close()
