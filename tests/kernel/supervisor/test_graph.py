"""Dependencies: what is refused, in which order a fleet starts and stops, and how fast that is known."""

import time
from collections.abc import Callable
from graphlib import TopologicalSorter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.graph import Graph, Needs
from agent_os.manifest.names import PARTS


def fleet(**needs: Needs) -> Graph:
    return Graph({f"default/{name}": one for name, one in needs.items()})


def ids(*names: str) -> tuple[str, ...]:
    return tuple(f"default/{name}" for name in names)


@pytest.mark.parametrize("key", ["requires", "after", "binds_to"])
def test_everybody_comes_after_whom_it_waits_for_and_stops_before(key: str) -> None:
    graph = fleet(c=Needs(**{key: ("b",)}), b=Needs(**{key: ("a",)}), a=Needs())
    assert graph.order == ids("a", "b", "c")
    assert graph.stop_order() == ids("c", "b", "a")
    assert not graph.findings


def test_a_want_pulls_in_and_orders_nothing() -> None:
    graph = fleet(a=Needs(wants=("b",)), b=Needs(wants=("a",)), c=Needs(after=("b",)))
    assert not graph.findings
    assert graph.pulled_in(ids("a")) == set(ids("a", "b"))
    assert graph.pulled_in(ids("c")) == set(ids("c"))


def test_needs_and_waits_are_followed_over_others() -> None:
    graph = fleet(a=Needs(requires=("b",)), b=Needs(requires=("c",), after=("d",)), c=Needs(), d=Needs())
    assert graph.needed("default/a") == set(ids("b", "c"))
    assert graph.needed("default/c") == graph.needed("default/nobody") == set()
    assert graph.waits_for("default/a", "default/d")
    assert not graph.waits_for("default/d", "default/a")


def test_waves_are_as_early_as_can_be_and_stop_the_other_way_round() -> None:
    graph = fleet(
        web=Needs(requires=("db", "cache")),
        db=Needs(),
        cache=Needs(after=("db",)),
        log=Needs(),
        last=Needs(after=("web",)),
    )
    assert [sorted(wave) for wave in graph.waves()] == [
        sorted(ids("db", "log")),
        [*ids("cache")],
        [*ids("web")],
        [*ids("last")],
    ]
    assert [wave[::-1] for wave in graph.stop_waves()][::-1] == graph.waves()


@pytest.mark.parametrize("key", ["requires", "binds_to"])
def test_an_unknown_need_is_an_error_that_leaves_out_who_has_it_and_who_needs_that_one(key: str) -> None:
    graph = fleet(
        a=Needs(**{key: ("data-bas",)}),
        b=Needs(requires=("a",)),
        c=Needs(binds_to=("b",)),
        d=Needs(after=("a",), wants=("b",)),
        database=Needs(),
    )
    [finding] = graph.findings
    assert (finding.agent, finding.key, finding.fatal) == ("default/a", key, True)
    assert "'data-bas'" in finding.message
    assert finding.hint == "did you mean `database`?"
    assert set(graph.left_out) == set(ids("a", "b", "c"))
    assert graph.left_out["default/c"] == "it needs default/b, which is left out"
    assert set(graph.order) == set(ids("d", "database"))
    assert graph.pulled_in(ids("a", "d")) == set(ids("d"))


@pytest.mark.parametrize("key", ["after", "wants"])
def test_an_unknown_name_that_is_not_needed_is_a_warning(key: str) -> None:
    graph = fleet(a=Needs(**{key: ("nobody",)}))
    [finding] = graph.findings
    assert (finding.agent, finding.key, finding.fatal) == ("default/a", key, False)
    assert (graph.order, graph.left_out) == (ids("a"), {})


def test_a_cycle_is_refused_with_its_members_and_the_rest_starts() -> None:
    graph = fleet(
        a=Needs(requires=("b",)),
        b=Needs(after=("c",)),
        c=Needs(binds_to=("a",)),
        hangs=Needs(requires=("c",)),
        goes=Needs(after=("a",)),
    )
    [finding] = graph.findings
    assert finding.members == ids("a", "b", "c")
    assert (finding.agent, finding.key) == ("default/a", "requires")
    assert "default/a → default/b → default/c → default/a" in finding.message
    assert finding.hint
    assert graph.order == ids("goes")
    assert set(graph.left_out) == set(ids("a", "b", "c", "hangs"))


def test_one_that_waits_for_itself_is_a_cycle() -> None:
    [finding] = fleet(a=Needs(after=("a",))).findings
    assert (finding.members, finding.key) == (ids("a"), "after")
    assert "default/a → default/a" in finding.message


def test_each_cycle_is_named_and_everybody_of_it() -> None:
    graph = fleet(
        a=Needs(after=("b",)),
        b=Needs(after=("a", "c")),
        c=Needs(after=("b",)),
        x=Needs(binds_to=("y",)),
        y=Needs(requires=("x",)),
        between=Needs(after=("a",)),
    )
    assert sorted(finding.members for finding in graph.findings) == [ids("a", "b", "c"), ids("x", "y")]
    assert {finding.key for finding in graph.findings} == {"after", "binds_to"}
    assert any("(with default/c)" in finding.message for finding in graph.findings)
    assert graph.order == ids("between")


def test_a_long_cycle_is_found_and_told_in_one_line() -> None:
    many = 5000
    graph = Graph({f"default/n{n}": Needs(requires=(f"n{(n + 1) % many}",)) for n in range(many)})
    [finding] = graph.findings
    assert len(finding.members) == many
    assert len(finding.message) < 400
    assert graph.order == ()


def test_parts_of_the_kernel_are_always_there() -> None:
    graph = fleet(a=Needs(requires=("message-bus", "system/tool-registry"), after=("cron-service",)))
    assert (graph.findings, graph.order) == ([], ids("a"))
    assert len(PARTS) == 6


def test_a_death_is_told_to_who_needs_it_and_stops_who_is_bound() -> None:
    graph = fleet(
        db=Needs(),
        api=Needs(requires=("db",)),
        sidecar=Needs(binds_to=("db",)),
        metrics=Needs(binds_to=("sidecar",)),
        late=Needs(after=("db",)),
        friend=Needs(wants=("db",)),
    )
    assert set(graph.dependants("default/db")) == set(ids("api", "sidecar"))
    assert graph.bound_to("default/db") == ids("metrics", "sidecar")
    assert graph.bound_to("default/metrics") == ()


KEYS = ("requires", "after", "wants", "binds_to")
names = st.lists(st.sampled_from("abcdefgh"), max_size=2).map(tuple)
any_needs = st.builds(Needs, names, names, names, names)


@given(st.dictionaries(st.sampled_from("abcdefg"), any_needs))
def test_any_fleet_is_split_into_an_order_that_holds_and_a_rest_that_has_a_reason(drawn: dict[str, Needs]) -> None:
    graph = fleet(**drawn)
    assert {*graph.order, *graph.left_out} == set(ids(*drawn))
    assert not set(graph.order) & set(graph.left_out)
    assert len(graph.order) + len(graph.left_out) == len(drawn)
    place = {one: number for number, one in enumerate(graph.order)}
    for one in graph.order:
        assert all(place[other] < place[one] for other in graph.before(one))
        assert all(other in place for other in graph.hard[one])
    reachable = _reachable({one: graph.hard[one] + graph.soft[one] for one in ids(*drawn)})
    in_cycles = {member for finding in graph.findings for member in finding.members}
    assert in_cycles == {one for one in ids(*drawn) if one in reachable[one]}
    for finding in graph.findings:
        for one, other in pairwise(finding.members):
            assert other in reachable[one]
            assert one in reachable[other]
    assert sorted(one for wave in graph.waves() for one in wave) == sorted(graph.order)


def _reachable(edges: dict[str, tuple[str, ...]]) -> dict[str, set[str]]:
    reach = {one: set(others) for one, others in edges.items()}
    for middle in reach:
        for one in reach:
            if middle in reach[one]:
                reach[one] |= reach[middle]
    return reach


def seconds(what: Callable[[], object]) -> float:
    begun = time.perf_counter()
    what()
    return time.perf_counter() - begun


def test_a_thousand_agents_with_three_dependencies_each_are_ordered_in_a_few_times_a_bare_sort() -> None:
    """How many milliseconds that is, `make bench ARGS=supervision` says."""
    chance = Random(6)
    thousand = {
        f"default/n{n}": Needs(requires=tuple(f"n{chance.randrange(n)}" for _ in range(3)) if n else ())
        for n in range(1000)
    }
    bare = {one: tuple(f"default/{name}" for name in needs.requires) for one, needs in thousand.items()}
    assert len(Graph(thousand).order) == 1000
    whole = sort = 1.0
    for _ in range(20):  # others may use this machine: what it can do is what it did once
        whole = min(whole, seconds(lambda: Graph(thousand)))
        sort = min(sort, seconds(lambda: tuple(TopologicalSorter(bare).static_order())))
    assert whole <= 5 * sort, f"{whole / sort:.1f} times the bare sort"
