"""A fleet that is being started: who may start next, as one after the other becomes ready, is late or fails.

Goes in: a checked graph, whom to start, and the news of each. Comes out: who is due, and who has to be given up. Each
agent is due as soon as those before it are ready, whatever the others do. Starts nothing and waits for nothing.
"""

from collections.abc import Collection, Iterable

from agent_os.kernel.supervisor.graph import Graph, inverse


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
