"""What one turn of the loop puts goes to the writer together, and none of it is late, lost or out of order for that."""

import asyncio
import threading
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.drivers.store import Blob
from agent_os.drivers.store.sqlite import INDEXED, SqliteStore
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.journal.writer import MOST_ENTRIES


def draft(agent: str = "default/a") -> Draft:
    return Draft(agent, Kind.RESULT, body=b"\xc0")


def test_entries_of_one_turn_are_one_group_and_done_runs_in_their_order() -> None:
    async def main() -> None:
        journal = Journal.open(SqliteStore(None))
        before, order = journal.counts["groups"], list[int]()
        for number in range(50):
            journal.put(draft(), sync=False, done=lambda number=number: order.append(number))
        await journal.record(draft())
        assert order == list(range(50))
        assert journal.counts["groups"] == before + 1
        await journal.close()

    asyncio.run(main())


def test_an_entry_put_on_the_loop_is_committed_without_anyone_waiting_for_it() -> None:
    async def main() -> None:
        journal, came = Journal.open(SqliteStore(None)), asyncio.Event()
        journal.put(draft(), sync=False, done=came.set)
        async with asyncio.timeout(10):
            await came.wait()
        await journal.close()

    asyncio.run(main())


def test_a_blocking_put_on_the_loop_takes_what_was_gathered_before_it_along() -> None:
    async def main() -> None:
        store = SqliteStore(None)
        journal = Journal.open(store)
        await journal.record(draft())
        first = journal.put(draft(), sync=False, done=lambda: None)
        assert journal.put_now(draft()) == first + 1  # it would wait for ever if the first one were not handed over
        assert store.size() == first + 1
        await journal.close()

    asyncio.run(main())


def test_other_threads_and_a_loop_put_at_once_without_a_gap() -> None:
    async def main() -> None:
        store = SqliteStore(None)
        journal = Journal.open(store)
        await journal.record(draft())
        start = journal.size

        def blocking() -> None:
            for _ in range(100):
                journal.put_now(draft("default/b"), sync=False)

        def passing() -> None:
            for _ in range(100):
                journal.put(draft("default/c"), sync=False)

        threads = [threading.Thread(target=each) for each in (blocking, passing)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            await journal.record(draft(), sync=False)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await journal.close()
        assert [row.seq for row in store.rows(start + 1)] == list(range(start + 1, start + 301))

    asyncio.run(main())


def test_nothing_gathered_is_lost_when_the_journal_closes_or_its_loop_has_ended(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db", reserve=0)
    journal = Journal.open(store, home=tmp_path)

    async def put_and_leave() -> int:
        await journal.record(draft())
        return journal.put(draft(), sync=False, done=lambda: None)  # the loop ends before its turn does

    last = asyncio.run(put_and_leave())
    assert journal.put(draft(), sync=False) == last + 1
    journal.close_now()
    assert store.size() == last + 1


@pytest.mark.parametrize("count", [MOST_ENTRIES - 1, MOST_ENTRIES, 3 * MOST_ENTRIES + 5])
def test_a_turn_with_more_than_a_group_holds_is_several_groups(count: int) -> None:
    async def main() -> None:
        journal = Journal.open(SqliteStore(None))
        await journal.record(draft())
        groups, start = journal.counts["groups"], journal.size
        for _ in range(count):
            journal.put(draft(), sync=False, done=lambda: None)
        await journal.record(draft())
        assert journal.size == start + count + 1
        assert journal.counts["groups"] - groups >= (count + 1) // MOST_ENTRIES
        await journal.close()

    asyncio.run(main())


def test_an_entry_with_a_large_body_does_not_wait_for_the_end_of_the_turn() -> None:
    async def main() -> None:
        store = SqliteStore(None)
        journal = Journal.open(store)
        await journal.record(draft())
        last = journal.put(draft(), sync=False, blobs=[Blob(b"d" * 32, b"x")], done=lambda: None)
        deadline = asyncio.get_running_loop().time() + 10
        while store.size() < last:  # this turn does not end
            assert asyncio.get_running_loop().time() < deadline
        await journal.close()

    asyncio.run(main())


def test_what_waits_for_no_disk_is_committed_on_the_loops_own_thread(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal.open(SqliteStore(tmp_path / "journal.db", reserve=0), home=tmp_path)
        await journal.record(draft())
        threads: list[threading.Thread] = []
        journal.failpoints["after_commit"] = lambda: threads.append(threading.current_thread())
        here = threading.current_thread()
        with journal._writer._turn:  # the writer has let go of the first one
            pass
        await journal.record(draft(), sync=False)
        await journal.record(draft(), sync=True)
        await journal.record(draft(), sync=False, blobs=[Blob(b"d" * 32, b"x")])
        journal.failpoints.clear()
        assert [thread is here for thread in threads] == [True, False, False]
        await journal.close()

    asyncio.run(main())


def test_an_unsynced_entry_does_not_overtake_a_synced_one_that_the_writer_is_at() -> None:
    async def main() -> None:
        store = SqliteStore(None)
        journal = Journal.open(store)
        journal._lasts = True  # in memory nothing is for the writer's thread
        await journal.record(draft())
        begun, go_on, order = threading.Event(), threading.Event(), list[str]()

        def hold() -> None:
            journal.failpoints.clear()
            begun.set()
            go_on.wait(10)

        journal.failpoints["begun"] = hold
        first = journal.put(draft(), sync=True, done=lambda: order.append("synced"))
        await asyncio.to_thread(begun.wait, 10)
        last = asyncio.create_task(journal.record(draft(), sync=False))
        last.add_done_callback(lambda _: order.append("unsynced"))
        await asyncio.sleep(0.05)  # time enough to do it wrong
        assert (store.size(), order) == (first - 1, [])
        go_on.set()
        assert await last == first + 1
        await asyncio.sleep(0)
        assert order == ["synced", "unsynced"]
        await journal.close()

    asyncio.run(main())


@pytest.mark.long
def test_entries_committed_on_the_loop_are_signed_when_silence_follows() -> None:
    async def main() -> None:
        journal = Journal.open(SqliteStore(None))
        await journal.record(draft())
        async with asyncio.timeout(20):
            while journal.head()["size"] < journal.size:  # the writer then has nothing to wake up for
                await asyncio.sleep(0.05)
            last = await journal.record(draft(), sync=False)
            while journal.head()["size"] < last:
                await asyncio.sleep(0.05)
        await journal.close()

    asyncio.run(main())


def test_an_agents_entries_are_found_on_both_sides_of_where_the_index_ends() -> None:
    store = SqliteStore(None)
    journal = Journal.open(store)
    agents = ["default/a", "default/b", "default/c"]
    for number in range(INDEXED + 200):
        journal.put(draft(agents[number % 3]), sync=False)
    journal.close_now()
    for agent in agents:
        rows = list(store.rows_of(agent))
        assert [row.aseq for row in rows] == list(range(1, store.aseq(agent) + 1))
        assert {row.agent for row in rows} == {agent}
        assert [row.aseq for row in store.rows_of(agent, 300, 400)] == list(range(300, min(400, len(rows)) + 1))
    assert sum(store.aseq(agent) for agent in agents) == INDEXED + 200
    assert store.aseq("default/nobody") == 0
