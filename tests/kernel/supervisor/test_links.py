"""Links and monitors: each partner is told once, then nothing is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EDQUOT, EINVAL
from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor import links as module
from agent_os.kernel.supervisor.exits import is_normal
from agent_os.kernel.supervisor.links import Departed, Down, LinkExit, Links

CRASH = Departed("a", 7, ExitClass.ERROR, "boom")
ABNORMAL = [one for one in ExitClass if not is_normal(one)]


def test_an_exit_tells_each_partner_once_and_clears() -> None:
    links = Links()
    first, _ = links.monitor("w", "a")
    second, _ = links.monitor("v", "a")
    third, _ = links.monitor("w", "a")
    links.link("a", "p")
    told = links.exited(CRASH)
    assert told == [
        Down("w", first, CRASH),
        Down("v", second, CRASH),
        Down("w", third, CRASH),
        LinkExit("p", CRASH, fatal=True),
    ]
    assert len(links) == 0
    assert links.exited(CRASH) == []
    assert links.exited(Departed("p", 8, ExitClass.ERROR, module.LINKED)) == []


@pytest.mark.parametrize("exit_class", ABNORMAL)
def test_an_abnormal_exit_takes_the_partner_along(exit_class: ExitClass) -> None:
    links = Links()
    links.link("p", "a")
    assert links.exited(departed := Departed("a", 7, exit_class)) == [LinkExit("p", departed, fatal=True)]


@pytest.mark.parametrize("exit_class", [ExitClass.NORMAL, ExitClass.REQUESTED])
def test_a_normal_exit_travels_along_no_link_but_reaches_monitors(exit_class: ExitClass) -> None:
    links, departed = Links(), Departed("a", 7, exit_class)
    links.link("a", "p")
    links.trap_exit("q")
    links.link("a", "q")
    ref, _ = links.monitor("p", "a")
    assert links.exited(departed) == [Down("p", ref, departed)]
    assert links.partners("p") == links.partners("q") == ()


def test_who_traps_exits_is_told_instead() -> None:
    links = Links()
    links.link("a", "p")
    links.trap_exit("p")
    assert links.exited(CRASH) == [LinkExit("p", CRASH, fatal=False)]
    links.link("a", "p")
    links.trap_exit("p", on=False)
    assert links.exited(CRASH) == [LinkExit("p", CRASH, fatal=True)]


def test_trapping_ends_with_the_life_that_asked_for_it() -> None:
    links = Links()
    links.trap_exit("p")
    links.exited(Departed("p", 3, ExitClass.ERROR))
    links.link("a", "p")
    assert links.exited(CRASH) == [LinkExit("p", CRASH, fatal=True)]


def test_a_monitor_of_one_that_is_dead_fires_at_once_and_only_then() -> None:
    links = Links()
    ref, told = links.monitor("w", "a", gone=CRASH)
    assert told == Down("w", ref, CRASH)
    assert links.exited(CRASH) == []


def test_a_monitor_can_be_taken_back_by_its_owner_alone() -> None:
    links = Links()
    ref, _ = links.monitor("w", "a")
    assert not links.demonitor("v", ref)
    assert links.demonitor("w", ref)
    assert not links.demonitor("w", ref)
    assert links.exited(CRASH) == []


def test_linking_twice_is_linking_once_and_unlinking_removes_both_sides() -> None:
    links = Links()
    links.link("a", "p")
    links.link("p", "a")
    assert (len(links), links.partners("a"), links.partners("p")) == (1, ("p",), ("a",))
    links.unlink("p", "a")
    links.unlink("p", "a")
    assert (len(links), links.exited(CRASH)) == (0, [])


def test_a_watcher_that_ends_is_told_nothing_any_more() -> None:
    links = Links()
    links.monitor("w", "a")
    assert links.exited(Departed("w", 2, ExitClass.NORMAL)) == []
    assert links.exited(CRASH) == []


def test_a_ring_of_links_goes_down_and_each_of_it_once() -> None:
    links, ring = Links(), [f"n{number}" for number in range(10)]
    for one, other in zip(ring, ring[1:] + ring[:1], strict=True):
        links.link(one, other)
    line, fallen = [Departed("n0", 1, ExitClass.ERROR)], list[str]()
    for departed in line:
        fallen.append(departed.id)
        told = [one.to for one in links.exited(departed)]
        line += [Departed(one, 1, ExitClass.ERROR, module.LINKED) for one in told if one not in {x.id for x in line}]
    assert sorted(fallen) == ring
    assert len(links) == 0


def test_nobody_watches_or_is_linked_to_itself() -> None:
    with pytest.raises(EINVAL):
        Links().monitor("a", "a")
    with pytest.raises(EINVAL):
        Links().link("a", "a")


def test_one_agent_cannot_fill_the_kernel_with_monitors_or_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    links = Links()
    refs = [links.monitor("w", f"a{number}")[0] for number in range(3)]
    with pytest.raises(EDQUOT, match="3 monitors"):
        links.monitor("w", "a4")
    links.demonitor("w", refs[0])
    links.monitor("w", "a4")
    for number in range(3):
        links.link("w", f"a{number}")
    with pytest.raises(EDQUOT, match="w has 3 links"):
        links.link("x", "w")
    links.link("a0", "w")
    assert links.partners("x") == ()


IDS = st.sampled_from("abcd")
steps = st.lists(st.tuples(st.sampled_from(["monitor", "link", "unlink", "exit"]), IDS, IDS), max_size=40)


@given(steps)
def test_any_sequence_tells_exactly_those_that_a_plain_list_says(drawn: list[tuple[str, str, str]]) -> None:
    links, monitors, pairs = Links(), list[tuple[str, str]](), set[frozenset[str]]()
    for what, one, other in drawn:
        if what == "exit":
            told = links.exited(Departed(one, 1, ExitClass.SIGNAL))
            partners = {next(iter(pair - {one})) for pair in pairs if one in pair}
            assert sorted(x.to for x in told if isinstance(x, Down)) == sorted(w for w, t in monitors if t == one)
            assert sorted(x.to for x in told if isinstance(x, LinkExit)) == sorted(partners)
            monitors = [pair for pair in monitors if one not in pair]
            pairs = {pair for pair in pairs if one not in pair}
        elif one != other and what == "monitor":
            links.monitor(one, other)
            monitors.append((one, other))
        elif one != other and what == "link":
            links.link(one, other)
            pairs.add(frozenset((one, other)))
        elif what == "unlink":
            links.unlink(one, other)
            pairs.discard(frozenset((one, other)))
        assert len(links) == len(monitors) + len(pairs)
