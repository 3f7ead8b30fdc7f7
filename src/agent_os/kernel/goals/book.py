"""All goals that the kernel knows, by where they stand.

In: goals, and the word that one has moved. Out: those that wait, those at work, by their agents, and those that ended
last, each found without going through the others: ten thousand may wait. Decides nothing and stores nothing.
"""

from collections.abc import Iterable, Iterator

from agent_os.abi.errors import ESRCH
from agent_os.kernel.goals.kept import MOST_ENDED, Kept


class Book:
    def __init__(self, goals: Iterable[Kept] = ()) -> None:
        self._goals: dict[str, Kept] = {}
        self._places: dict[str, dict[str, Kept]] = {"waiting": {}, "working": {}, "ended": {}}
        self._where: dict[str, str] = {}
        self._agents: dict[str, dict[str, Kept]] = {}  # goals at work, by agent
        for one in goals:
            self.move(one)

    def move(self, one: Kept) -> None:
        """It is new, or its state is another one."""
        self.drop(one)
        place = "ended" if one.over else one.state
        self._goals[one.id] = self._places[place][one.id] = one
        self._where[one.id] = place
        if place == "working":
            self._agents.setdefault(one.agent, {})[one.id] = one

    def drop(self, one: Kept) -> None:
        self._goals.pop(one.id, None)
        place = self._where.pop(one.id, None)
        if place is not None:
            del self._places[place][one.id]
        if place == "working":
            del self._agents[one.agent][one.id]
            if not self._agents[one.agent]:
                del self._agents[one.agent]

    def find(self, goal_id: str) -> Kept:
        try:
            return self._goals[goal_id]
        except KeyError:
            hint = "agentctl queue --all lists them"
            raise ESRCH("goal.unknown", f"there is no goal {goal_id[:128]!r}", hint=hint) from None

    def get(self, goal_id: str) -> Kept | None:
        return self._goals.get(goal_id)

    def waiting(self) -> Iterator[Kept]:
        return iter(list(self._places["waiting"].values()))

    def working(self) -> list[Kept]:
        return list(self._places["working"].values())

    def ended(self) -> list[Kept]:
        """The newest last."""
        return list(self._places["ended"].values())

    def of(self, agent_id: str) -> list[Kept]:
        """At which an agent is."""
        return list(self._agents.get(agent_id, {}).values())

    def oldest(self) -> list[Kept]:
        """Of those that ended, more than are kept."""
        excess = len(self._places["ended"]) - MOST_ENDED
        ended = iter(self._places["ended"].values())
        return [next(ended) for _ in range(excess)]
