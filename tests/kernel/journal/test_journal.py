"""kernel/journal/journal.py: numbers, order, groups, waiting, reading, proofs, keys, and going on after a close."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import journals
from agent_os.abi import entries
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EIO, ENOENT, AgentOSError
from agent_os.abi.tree import leaf_hash, verify_consistency, verify_inclusion
from agent_os.drivers.store import Put
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal import Draft, Journal, Signer
from agent_os.kernel.journal.writer import MOST_ENTRIES
from journals import encode, opened, result, run


@pytest.fixture(params=["disk", "memory"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "disk" else None


def test_numbers_have_no_gap_whole_and_per_agent(home: Path | None) -> None:
    with opened(home) as journal:
        for agent in ("a", "b", "a", "a"):
            journal.put_now(result(agent))
        found = [(entry.seq, entry.agent, entry.aseq) for entry, _ in journal.scan()]
    assert found == [(1, "kernel", 1), (2, "a", 1), (3, "b", 1), (4, "a", 2), (5, "a", 3)]


def test_an_entry_comes_back_as_it_was_put(home: Path | None) -> None:
    draft = Draft(
        "default/a",
        Kind.INTENT,
        inc=2,
        op=7,
        effect="o",
        ref=0,
        pos="0.3",
        seen=4,
        key="k",
        verdict=1,
        step=7,
        rule="r",
        handle=9,
        capability_digest=b"c",
        label=["pii"],
        policy_digest=b"p",
        mode="strict",
        isolation="S4",
        cost={"usd": 0.5},
        body=encode({"a": 1}),
        code=13,
    )
    with opened(home) as journal:
        entry, body = journal.read(journal.put_now(draft))
    assert body == draft.body
    for name in set(Draft.__struct_fields__) - {"body"}:
        assert getattr(entry, name) == getattr(draft, name), name


def test_the_stored_bytes_are_those_of_an_entry(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.put_now(result())
        row = journal._store.row(2)
    assert row is not None
    assert entries.encode(entries.decode(row.entry)) == row.entry
    assert len(msgspec.msgpack.decode(row.entry)) == len(Entry.__struct_fields__)


@pytest.mark.parametrize("size", [0, 2000, 3000, 1 << 20])
def test_a_body_comes_back_whatever_its_size_and_is_stored_once(home: Path | None, size: int) -> None:
    draft = Draft("a", Kind.RESULT, body=os.urandom(size))
    with opened(home) as journal:
        first, second = journal.put_now(draft), journal.put_now(draft)
        assert journal.read(first)[1] == journal.read(second)[1] == draft.body
        row = journal._store.row(first)
        assert row is not None
        assert (row.body is None) == (size > entries.INLINE_BODY)


def test_callbacks_run_on_the_loop_in_order_with_one_flush_after_a_group(home: Path | None) -> None:
    async def work(journal: Journal) -> None:
        seen: list[object] = []
        ready = asyncio.Event()
        thread = threading.get_ident()
        journal.after_group.append(lambda: seen.append("flush"))

        def done(number: int) -> None:
            assert threading.get_ident() == thread
            assert journal.read(journal_seqs[number])[0].seq == journal_seqs[number]
            seen.append(number)
            if number == 199:
                ready.set()

        journal_seqs = [journal.put(result(), sync=n % 3 == 0, done=lambda n=n: done(n)) for n in range(200)]
        await ready.wait()
        await asyncio.sleep(0)
        assert [mark for mark in seen if mark != "flush"] == list(range(200))
        assert 1 <= seen.count("flush") <= journal.counts["groups"]
        assert seen[-1] == "flush"

    with opened(home) as journal:
        run(work(journal))


@pytest.mark.parametrize("waits_for", ["telling", "told"])
def test_whoever_is_committed_first_is_told_first(home: Path | None, waits_for: str) -> None:
    """What the loop commits by itself comes behind what the writer has committed, whether the writer is about to tell
    the loop of it, or has."""

    async def work(journal: Journal) -> None:
        seen: list[str] = []
        journal._lasts = True  # in memory nothing is for the writer's thread
        go, reached, committed = threading.Event(), threading.Event(), journal._writer._committed

        def slowly(group: list[Any]) -> None:
            if waits_for == "telling":
                reached.set()
            go.wait(10)
            committed(group)
            reached.set()

        journal._writer._committed = slowly
        journal.put(result(), sync=True, done=lambda: seen.append("writer"))
        await asyncio.sleep(0)  # the writer has it
        journal.put(result(), sync=False, done=lambda: seen.append("loop"))
        if waits_for == "told":
            go.set()
        assert reached.wait(10)  # the loop does nothing meanwhile
        await asyncio.sleep(0)
        go.set()
        while len(seen) < 2:
            await asyncio.sleep(0.001)
        assert seen == ["writer", "loop"]

    with opened(home) as journal:
        run(work(journal))


def test_one_callers_mistake_does_not_keep_the_others_waiting(home: Path | None) -> None:
    async def work(journal: Journal) -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
        journal.put(result(), sync=False, done=lambda: 1 / 0)  # type: ignore[arg-type]
        await journal.record(result())
        assert [type(problem) for problem in problems] == [ZeroDivisionError]

    with opened(home) as journal:
        run(work(journal))


def test_many_who_wait_share_their_commits(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        before = journal.counts["syncs"]
        await asyncio.gather(*(journal.record(result(f"a{n}")) for n in range(500)))
        assert journal.counts["syncs"] - before <= 25

    with opened(tmp_path) as journal:
        run(work(journal))


def test_a_group_is_never_larger_than_its_limits(tmp_path: Path) -> None:
    sizes: list[int] = []
    with opened(tmp_path) as journal:
        append = journal._store.append
        journal._store.append = lambda rows, *rest, **named: (sizes.append(len(rows)), append(rows, *rest, **named))
        for number in range(3 * MOST_ENTRIES):
            journal.put(result(), sync=False)
            if number == 100:
                journal.put(Draft("a", Kind.RESULT, body=bytes(9 << 20)), sync=False)
        journal.put_now(result())
    assert sum(sizes) == 3 * MOST_ENTRIES + 2
    assert max(sizes) <= MOST_ENTRIES


def test_a_cancelled_wait_leaves_its_entry(home: Path | None) -> None:
    async def work(journal: Journal) -> None:
        task = asyncio.create_task(journal.record(result("late")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await journal.record(result())
        assert [entry.agent for entry, _ in journal.scan("late")] == ["late"]

    with opened(home) as journal:
        run(work(journal))


def test_blocking_works_on_the_loops_own_thread_and_on_many_threads(home: Path | None) -> None:
    async def on_the_loop(journal: Journal) -> int:
        return journal.put_now(result())

    with opened(home) as journal:
        assert run(on_the_loop(journal)) == 2
        threads = [threading.Thread(target=lambda: [journal.put_now(result()) for _ in range(20)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [entry.seq for entry, _ in journal.scan()] == list(range(1, 163))


def test_a_second_loop_is_served_after_the_first_is_closed(home: Path | None) -> None:
    with opened(home) as journal:
        assert [run(journal.record(result())) for _ in range(3)] == [2, 3, 4]


def test_facts_and_entry_are_one_transaction(home: Path | None) -> None:
    with opened(home) as journal:
        journal.put_now(result(), puts=[Put("vfs", "/x", b"1")])
        assert journal._store.get("vfs", "/x") == b"1"


def test_open_intents_are_those_without_an_answer(home: Path | None) -> None:
    with opened(home) as journal:
        seqs = [journal.put_now(Draft("a", Kind.INTENT, body=encode(n))) for n in range(4)]
        journal.put_now(Draft("a", Kind.OUTCOME, ref=seqs[0]))
        journal.put_now(Draft("a", Kind.PARK, ref=seqs[1]))
        journal.put_now(Draft("local:0", Kind.RESOLVE, ref=seqs[2]))
        assert [(entry.seq, body) for entry, body in journal.open_intents()] == [
            (seqs[1], encode(1)),
            (seqs[3], encode(3)),
        ]


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    for boot in (1, 2, 3):
        with opened(tmp_path) as journal:
            assert (journal.boot, journal.torn, journal.damage) == (boot, 0, None)
            journals.fill(journal, 300)
            first = journal.log_id
    with opened(tmp_path) as journal:
        assert journal.log_id == first
        assert journal.size == len(list(journal.scan()))
        agents = {entry.agent for entry, _ in journal.scan()}
        for agent in agents:
            numbers = [entry.aseq for entry, _ in journal.scan(agent)]
            assert numbers == list(range(1, len(numbers) + 1))


def test_proofs_hold_against_signed_heads(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journals.fill(journal, 3000)
    with opened(tmp_path) as journal:
        head = journal.head()
        size, root = head["size"], head["root"]
        assert size == journal.size
        for seq in (1, 2, 255, 256, 257, 1000, size - 1, size):
            row = journal._store.row(seq)
            assert row is not None
            assert verify_inclusion(leaf_hash(row.entry), seq - 1, size, journal.prove(seq), root)
        for old in (1, 255, 256, 257, 1024, 2999, size):
            assert verify_consistency(old, size, journal.consistency(old, size), journal.root(old), root)


@pytest.mark.parametrize(("seq", "size"), [(0, 5), (6, 5), (1, 10**6)])
def test_what_is_not_there_is_not_proved(home: Path | None, seq: int, size: int) -> None:
    with opened(home) as journal:
        for _ in range(9):
            journal.put_now(result())
        for ask in (lambda: journal.prove(seq, size), lambda: journal.consistency(seq, size)):
            with pytest.raises(ENOENT):
                ask()
        with pytest.raises(ENOENT, match="the newest is 10"):
            journal.read(11)


def test_a_silence_is_signed_within_a_second(home: Path | None) -> None:
    async def work(journal: Journal) -> None:
        await journal.record(result())
        await journal.record(result())
        deadline = asyncio.get_running_loop().time() + 5
        while journal.head()["size"] < journal.size:
            assert asyncio.get_running_loop().time() < deadline, "the last entries were never signed"
            await asyncio.sleep(0.02)

    with opened(home) as journal:
        run(work(journal))


def test_the_keys_file_is_its_owners_and_a_loose_one_is_refused(tmp_path: Path) -> None:
    journals.make(tmp_path, 5)
    key = tmp_path / "keys/journal.key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(EIO, match="read by others"), opened(tmp_path):
        pass


def test_another_key_is_refused(tmp_path: Path) -> None:
    journals.make(tmp_path, 5)
    with pytest.raises(EIO) as refused, opened(tmp_path, signer=Signer.new()):
        pass
    assert refused.value.code == "journal.key"


def test_a_lost_key_is_named_and_none_is_made_in_its_place(tmp_path: Path) -> None:
    journals.make(tmp_path, 5)
    (tmp_path / "keys/journal.key").unlink()
    with pytest.raises(EIO, match="key is gone"), opened(tmp_path):
        pass
    assert not (tmp_path / "keys/journal.key").exists()


def test_a_refused_journal_leaves_the_home_untouched(tmp_path: Path) -> None:
    journals.make(tmp_path, 5)
    journals.database(tmp_path).unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*/*") if path.is_file()}
    with pytest.raises(EIO, match="the anchor is not"), opened(tmp_path):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*/*") if path.is_file()} == before


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_rotated_key_signs_from_then_on(tmp_path: Path, cut_off: bool) -> None:
    new = Signer.new()
    with opened(tmp_path) as journal:
        run(journal.record(result()))
        run(journal.rotate(new))
        run(journal.record(result()))
    if cut_off:  # as if the kernel had died between the commit and the renaming of the file
        (tmp_path / "keys/journal.key").rename(tmp_path / "keys/journal.key.next")
        Signer.new().save(tmp_path / "keys/journal.key")
    with opened(tmp_path) as journal:
        assert journal.head()["key_id"] == new.key_id


def test_an_erased_body_is_gone_and_the_entry_stays(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        seq = await journal.record(Draft("a", Kind.RESULT, body=b"s" * 5000))
        digest = journal.read(seq)[0].body
        erased = await journal.erase([digest], agent="local:0", why="asked for")
        assert journal.read(seq) == (journal.read(seq)[0], None)
        assert journal.read(erased)[0].kind == Kind.REDACT

    with opened(tmp_path) as journal:
        run(work(journal))


def test_a_closed_journal_takes_nothing_and_has_signed_everything(home: Path | None) -> None:
    with opened(home) as journal:
        journal.put(result(), sync=False)
        run(journal.close())
        assert journal.head()["size"] == 2
        with pytest.raises(AgentOSError) as refused:
            journal.put(result(), sync=False)
        assert refused.value.code == "journal.closed"


def test_a_draft_that_cannot_be_encoded_takes_no_number(home: Path | None) -> None:
    with opened(home) as journal:
        with pytest.raises(TypeError):
            journal.put_now(Draft("a", Kind.RESULT, cost={"x": object()}))
        assert journal.put_now(result()) == 2


def test_failpoints_are_met_in_their_order(tmp_path: Path) -> None:
    names = ["queued", "begun", "before_commit", "after_commit", "before_callbacks"]
    met: list[str] = []
    with opened(tmp_path) as journal:
        assert journal.failpoints == {}
        journal.failpoints.update({name: lambda name=name: met.append(name) for name in names})
        journal.put_now(result())
        journal.failpoints.clear()
    # The writer runs beside the thread that queues.
    assert sorted(met, key=names.index) == names
    assert [name for name in met if name != "queued"] == names[1:]


def test_a_journal_opened_to_read_takes_nothing(tmp_path: Path) -> None:
    path = journals.make(tmp_path, 20)
    before = path.read_bytes()
    store = SqliteStore(path, read_only=True)
    journal = Journal.open(store, home=tmp_path, read_only=True)
    assert journal.read(1)[0].kind == Kind.KEY
    with pytest.raises(AgentOSError, match="read-only"):
        journal.put(result(), sync=False)
    journal.close_now()
    store.close()
    assert path.read_bytes() == before
