"""Rows by id, numbers that never come back, and a clock that stands still with its agent."""

import asyncio
from pathlib import Path

import pytest

from agent_os.abi.errors import EBUSY, EEXIST, EINVAL, ESRCH
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import table as module
from agent_os.kernel.table import Clock, Ended, Table, qualified


def ended(table: Table, name: str) -> None:
    table.find(name).exit = Ended(ExitClass.NORMAL, 0)


def table(path: Path | None = None) -> Table:
    return Table(SqliteStore(path, reserve=0))


def test_numbers_ascend_and_never_come_back(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db", reserve=0)
    first = Table(store)
    pids = [first.admit(name, "native").pid for name in ("a", "b")]
    ended(first, "a")
    again = first.admit("a", "native")
    assert [*pids, again.pid] == [2, 3, 4], "1 is root's"
    assert (again.incarnation, again.restarted_from) == (2, pids[0])
    store.append([], first.puts(again), [], sync=True)
    second = Table(store)
    later = second.admit("a", "native")
    assert (later.pid, later.incarnation, later.restarted_from) == (5, 3, again.pid)
    store.close()


def test_an_id_has_one_living_row() -> None:
    rows = table()
    rows.admit("a", "native")
    with pytest.raises(EEXIST):
        rows.admit("a", "guest")
    ended(rows, "a")
    rows.admit("a", "guest")


def test_a_row_is_found_by_its_id_and_is_living_until_it_ends() -> None:
    rows = table()
    agent = rows.admit("a", "native")
    assert rows.row(agent.id) is rows.living(agent.id) is agent
    ended(rows, "a")
    assert (rows.row(agent.id), rows.living(agent.id)) == (agent, None)
    assert rows.row("default/b") is rows.row(None) is None


def test_a_full_table_admits_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROCESSES", 2)
    rows = table()
    rows.admit("a", "native")
    rows.admit("b", "native")
    with pytest.raises(EBUSY):
        rows.admit("c", "native")
    ended(rows, "a")
    rows.admit("c", "native")


def test_ten_thousand_short_agents_in_a_row_live_under_a_limit_of_64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N-09, S-35: only who lives counts, and who ended leaves no row behind for ever."""
    monkeypatch.setattr(module, "MOST_ENDED", 100)
    rows = table()
    rows.most = 64
    for number in range(63):
        rows.admit(f"long{number}", "native")
    for number in range(10_000):
        rows.admit(f"short{number}", "native")
        with pytest.raises(EBUSY, match="64 agents are alive"):
            rows.admit("one-too-many", "native")
        ended(rows, f"short{number}")
        rows.find(f"short{number}").gone.set()
    assert len(list(rows)) <= 63 + 102


def test_rows_of_agents_that_ended_long_ago_are_dropped_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENDED", 10)
    table = Table(SqliteStore(None))
    lives, again = table.admit("lives", "native"), table.admit("again", "native")
    again.exit, again.lasting = Ended(ExitClass.LOST, -1), True
    again.gone.set()
    for number in range(100):
        agent = table.admit(f"a{number}", "native")
        agent.exit = Ended(ExitClass.NORMAL, 0)
        agent.gone.set()
    kept = list(table)
    assert len(kept) <= 2 + 10 + 1
    assert (kept[0], kept[1], kept[-1].name) == (lives, again, "a99")
    assert table.over("default/a0")


@pytest.mark.parametrize("name", ["", "A", "a b", "../a", "a/b/c/", "-a", "x" * 64, "é"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(EINVAL):
        qualified(name)


def test_names_are_found_with_and_without_their_namespace_and_a_near_one_is_suggested() -> None:
    rows = table()
    agent = rows.admit("worker", "native")
    assert rows.find("worker") is rows.find("default/worker") is agent
    with pytest.raises(ESRCH) as caught:
        rows.find("wroker")
    assert "worker" in str(caught.value.hint)


def test_descent_is_followed_and_a_circle_does_not_hang() -> None:
    rows = table()
    rows.admit("a", "native", parent="default/c")
    rows.admit("b", "native", parent="default/a")
    c = rows.admit("c", "native", parent="default/b")
    assert rows.descends(c, "default/a")
    assert not rows.descends(c, "default/x")


def test_an_agent_goes_by_the_names_of_all_above_it_also_when_their_rows_are_gone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db", reserve=0)
    rows = Table(store)
    boss = rows.admit("boss", "native")
    helper = rows.admit("helper", "native", parent=boss.id)
    x = rows.admit("x", "native", parent=helper.id)
    assert (boss.names, x.names) == (("boss",), ("x", "helper", "boss"))
    store.append((), [put for one in (boss, helper, x) for put in rows.puts(one)], (), sync=True)
    later = Table(store)
    assert later.names("default/x") == x.names
    assert later.admit("y", "native", parent=x.id).names == ("y", *x.names)
    assert later.names("default/nobody") == ("nobody",)
    store.close()


def test_states_follow_the_life() -> None:
    agent = table().admit("a", "native")
    assert agent.state == "pending"
    agent.become(Incarnation.RUNNING)
    assert agent.state == "running"
    agent.detail = "parked"
    assert agent.state == "paused"
    agent.detail = ""
    agent.become(Incarnation.SUSPENDED)
    assert agent.state == "paused"
    with pytest.raises(EBUSY):
        agent.become(Incarnation.STARTING)
    agent.exit = Ended(ExitClass.SIGNAL, -9)
    assert agent.state == "failed"


def test_a_clock_stands_still_while_its_agent_does() -> None:
    async def main() -> None:
        clock = Clock()
        sleeping = asyncio.create_task(clock.sleep(0.2))
        await asyncio.sleep(0.05)
        clock.stop()
        stood_at = clock.seconds
        await asyncio.sleep(0.4)
        assert not sleeping.done()
        assert clock.seconds == stood_at
        began = asyncio.get_running_loop().time()
        clock.go_on()
        await sleeping
        assert asyncio.get_running_loop().time() - began >= 0.1

    asyncio.run(main())


def test_an_unused_name_is_one_that_nobody_has_had_or_is_about_to_have(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db", reserve=0)
    rows = Table(store)
    rows.admit("alive", "native")
    gone = rows.admit("gone", "native")
    ended(rows, "gone")
    store.append([], rows.puts(gone), [], sync=True)
    with rows.claimed("default/starting", "default/alive"):
        names = ("alive", "gone", "starting", "free")
        assert rows.unused(iter(names)) == "free"
        assert rows.unused(iter(names), "elsewhere") == "alive", "names are of a namespace"
        assert Table(store).unused(iter(("gone", "free"))) == "free", "another kernel on the same store"
    assert rows.unused(iter(names)) == "starting", "given back"
    store.close()
