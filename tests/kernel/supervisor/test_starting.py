"""A fleet that is being started: each as soon as its own predecessors are ready."""

from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.graph import Graph, Needs
from agent_os.kernel.supervisor.pacing import Starting

FLEET = Graph(
    {
        "x/db": Needs(),
        "x/cache": Needs(after=("db",)),
        "x/api": Needs(requires=("db",)),
        "x/web": Needs(requires=("api",), after=("cache",), wants=("stats",)),
        "x/stats": Needs(after=("web",)),
        "x/alone": Needs(),
    }
)


def test_each_is_due_once_as_soon_as_those_before_it_are_ready() -> None:
    starting = Starting(FLEET)
    assert starting.due() == ["x/db", "x/alone"]
    assert starting.due() == []
    starting.ready("x/db")
    assert starting.due() == ["x/cache", "x/api"]
    starting.ready("x/api")
    assert starting.due() == []
    assert starting.waiting == {"x/web": ["x/cache"], "x/stats": ["x/web"]}
    starting.ready("x/cache")
    assert starting.due() == ["x/web"]
    starting.ready("x/web")
    assert starting.due() == ["x/stats"]
    assert starting.waiting == {}


def test_starting_one_pulls_in_what_it_needs_and_wants_and_nobody_else() -> None:
    starting = Starting(FLEET, ["x/web"])
    assert starting.due() == ["x/db"]
    assert starting.waiting == {"x/api": ["x/db"], "x/web": ["x/api"], "x/stats": ["x/web"]}


def test_who_is_ready_is_neither_waited_for_nor_started() -> None:
    starting = Starting(FLEET, ["x/web"], ready={"x/db", "x/api"})
    assert starting.due() == ["x/web"]


def test_a_failure_gives_up_who_needs_it_and_lets_the_others_go_on() -> None:
    starting = Starting(FLEET)
    starting.due()
    assert starting.failed("x/db") == {"x/api": "x/db", "x/web": "x/api"}
    assert starting.due() == ["x/cache", "x/stats"]
    assert starting.waiting == {}


def test_one_that_is_late_holds_up_only_those_that_need_it() -> None:
    starting = Starting(FLEET)
    starting.due()
    starting.late("x/db")
    assert starting.due() == ["x/cache"]
    assert starting.waiting["x/api"] == ["x/db"]
    starting.ready("x/db")
    assert starting.due() == ["x/api"]


names = st.lists(st.sampled_from("abcdefgh"), max_size=2).map(tuple)
fleets = st.dictionaries(st.sampled_from("abcdefgh"), st.builds(Needs, names, names, names, names))


@given(fleets, st.data())
def test_in_any_fleet_everybody_starts_after_its_needs_or_is_given_up_for_one(
    drawn: dict[str, Needs], data: st.DataObject
) -> None:
    graph = Graph({f"x/{name}": needs for name, needs in drawn.items()})
    starting, running = Starting(graph), list[str]()
    ready, failed = set[str](), dict[str, str]()
    while True:
        running += (due := starting.due())
        for one in due:
            assert set(graph.hard[one]) <= ready
            assert all(other in ready or other in failed for other in graph.before(one))
        if not running:
            break
        one = running.pop(data.draw(st.integers(0, len(running) - 1)))
        if data.draw(st.booleans()):
            ready.add(one)
            starting.ready(one)
        else:
            failed |= {one: ""} | starting.failed(one)
    assert ready | set(failed) == set(graph.order)
    assert not ready & set(failed)
    assert all(why in failed and why in graph.hard[one] for one, why in failed.items() if why)
    assert starting.waiting == {}
