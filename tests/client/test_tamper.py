"""The tamper table, row by row: every change to a journal is found by the offline verifier, and named where it can be.

Each class is applied at random, with a seed, 50 times here and 1,000 times in `make soak`. The controls show that an
untouched journal passes, and that a checker without the tree of signed heads is fooled.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import apsw
import msgspec
import pytest

import journals
from agent_os.abi import entries
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO
from agent_os.abi.tree import HASH, WIDTH, leaf_hash, tile_key
from agent_os.client.ranges import Finding
from agent_os.client.verify import Report, verify
from agent_os.kernel.journal import Draft, Signer
from client.forger import Forger
from journals import database, encode, fill, opened, public_key, result, run

pytestmark = pytest.mark.long
TIMES = 1000 if os.environ.get("AGENT_OS_SOAK") else 50
Change = Callable[[Forger], int | None]  # makes the change; the first bad number if it can be told


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three boots, a tile and a half, a key that followed another."""
    made = tmp_path_factory.mktemp("journal")
    for boot in range(3):
        with opened(made) as journal:
            if boot == 1:
                run(journal.rotate(Signer.new()))
            fill(journal, 130)
    return made


def check(home: Path) -> Report:
    return verify(database(home), key=public_key(home), anchor=home / "anchor/heads")


def apply(home: Path, tmp_path: Path, change: Change, check: Callable[[Path], Report] = check) -> list[str]:
    """Applies a class of changes; returns what was missed or named wrongly."""
    wrong: list[str] = []
    key = public_key(home)
    for seed in range(TIMES):
        copy = tmp_path / "copy"
        forger = Forger(home, copy, seed)
        expected = change(forger)
        forger.close()
        (copy / "keys/journal.pub").write_text(key)
        report = check(copy)
        if report.ok:
            wrong.append(f"seed {seed} missed")
        elif expected is not None and report.first_bad != expected:
            wrong.append(f"seed {seed}: {expected} is bad, {report.findings} were named")
        shutil.rmtree(copy)
    return wrong


def test_an_untouched_journal_verifies(home: Path) -> None:
    report = check(home)
    assert (report.ok, report.findings, report.gaps) == (True, [], [])
    assert (report.signed, report.pinned, len(report.keys)) == (report.entries, True, 2)
    assert report.heads >= 3
    assert report.root


def test_a_field_changed(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        seq = forger.pick("seq > 0")
        forger.change_field(seq)
        return seq

    assert apply(home, tmp_path, change) == []


def test_a_row_deleted_in_the_middle(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        seq = forger.pick(f"seq < {forger.size}")
        forger.do("delete from entries where seq = ?", seq)
        if forger.chance.random() < 0.5:  # and the gap closed
            forger.shift(seq + 1, -1)
        return seq

    assert apply(home, tmp_path, change) == []


def test_a_row_inserted(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        seq = forger.pick(f"seq < {forger.size}")
        forger.shift(seq, 1)
        made = msgspec.structs.replace(forger.entry(seq + 1), seq=seq, agent="default/new", aseq=1)
        forger.do("insert into entries values (?,?,?,?,?)", seq, made.agent, 1, entries.encode(made), None)
        return seq

    assert apply(home, tmp_path, change) == []


def test_two_rows_reordered(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        one, other = sorted([forger.pick(), forger.pick()])
        if one == other:
            one = 1
        first, second = forger.entry(one), forger.entry(other)
        bodies = [forger.ask("select body from entries where seq = ?", seq) for seq in (one, other)]
        forger.db.execute("update entries set agent = '', aseq = -seq where seq in (?, ?)", (one, other))
        forger.put(one, msgspec.structs.replace(second, seq=one))
        forger.put(other, msgspec.structs.replace(first, seq=other))
        for seq, body in zip((other, one), bodies, strict=True):
            forger.do("update entries set body = ? where seq = ?", body, seq)
        return one

    assert apply(home, tmp_path, change) == []


def test_any_bit_flipped(home: Path, tmp_path: Path) -> None:
    places = [
        ("entries", "entry", "1"),
        ("entries", "body", "body is not null"),
        ("bodies", "data", "1"),
        ("kv", "value", "bucket = 'heads'"),
        ("kv", "value", "bucket = 'tree'"),
        ("kv", "value", "bucket = 'meta' and key in ('log_id', 'head')"),
    ]

    def change(forger: Forger) -> None:
        table, column, where = forger.chance.choice(places)
        rows = forger.db.execute(f"select {column} from {table} where {where}").fetchall()
        (old,) = forger.chance.choice(rows)
        new = bytearray(old)
        new[forger.chance.randrange(len(new))] ^= 1 << forger.chance.randrange(8)
        forger.do(f"update {table} set {column} = ? where {column} = ? and {where}", bytes(new), old)

    assert apply(home, tmp_path, change) == []


def change_and_recompute(forger: Forger) -> None:
    forger.change_field(forger.pick())
    forger.rebuild_tree()


def test_a_field_changed_and_hashes_recomputed(home: Path, tmp_path: Path) -> None:
    assert apply(home, tmp_path, change_and_recompute) == []


def test_a_hash_set_to_null(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> None:
        forger.allow_null()
        forger.do(
            forger.chance.choice(
                [
                    f"update entries set entry = null where seq = {forger.pick('seq > 0')}",
                    f"update kv set value = null where bucket = 'tree' and key = '{tile_key(0, 0)}'",
                    "update kv set value = null where bucket = 'heads'",
                    "update kv set value = null where key = 'log_id'",
                    f"update kv set key = null where bucket = 'tree' and key = '{tile_key(0, 0)}'",
                    "update bodies set digest = null",
                ]
            )
        )

    assert apply(home, tmp_path, change) == []


def test_an_agent_or_a_tool_renamed(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        if forger.chance.random() < 0.5:
            agent = forger.entry(forger.pick()).agent
            seqs = [seq for (seq,) in forger.db.execute("select seq from entries where agent = ?", (agent,))]
            for seq in seqs:
                forger.put(seq, msgspec.structs.replace(forger.entry(seq), agent="default/innocent"))
            return min(seqs)
        seq = forger.pick("instr(body, cast('pay' as blob))")
        forger.replace_body(seq, encode({"tool": "look", "n": seq}))
        return seq

    assert apply(home, tmp_path, change) == []


def test_the_tail_deleted(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        seq = forger.pick("seq > 2")
        forger.do("delete from entries where seq >= ?", seq)
        forger.drop_heads_above(seq - 1)
        forger.rebuild_tree()
        return None if seq < 4 else seq

    assert apply(home, tmp_path, change) == []


def test_all_rows_deleted(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        forger.do("delete from entries")
        if forger.chance.random() < 0.7:
            forger.db.execute("delete from kv where bucket in ('tree', 'heads')")
        if forger.chance.random() < 0.3:
            forger.do("delete from kv")
        return 1

    assert apply(home, tmp_path, change) == []


def test_another_journal_in_its_place(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    journals.make(other, 450)
    (other / "keys/journal.pub").write_text(public_key(home))
    assert check(other).first_bad == 1


def test_a_body_altered(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> int:
        if forger.chance.random() < 0.5:
            seq = forger.pick("body is not null")
            new = forger.chance.choice([encode("another prompt"), b"", None])
            forger.do("update entries set body = ? where seq = ?", new, seq)
            return seq
        seq = forger.pick("body is null and length(entry) > 60 and seq % 50 = 0")
        digest = forger.entry(seq).body
        if forger.chance.random() < 0.5:
            forger.do("update bodies set data = ? where digest = ?", b"another", digest)
        else:
            forger.do("delete from bodies where digest = ?", digest)
        return seq

    assert apply(home, tmp_path, change) == []


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A journal of one boot whose entries come every 0.4 seconds, by its own clock, and are signed every few."""
    made = tmp_path_factory.mktemp("slow")
    clock = iter(range(1_700_000_000_000_000_000, 1_800_000_000_000_000_000, 400_000_000))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("agent_os.kernel.journal.heads.EVERY_ENTRIES", 2)
        patched.setattr(time, "time_ns", lambda: next(clock))
        with opened(made) as journal:
            for _ in range(300):
                journal.put_now(result())
    return made


def test_the_recorder_detached(slow: Path, tmp_path: Path) -> None:
    """Entries came and nobody signed them for over two seconds: reported as a gap, in the journal and the anchor."""
    assert (check(slow).ok, check(slow).gaps) == (True, [])

    def change(forger: Forger) -> None:
        rows = forger.db.execute("select key, value from kv where bucket = 'heads' order by key").fetchall()
        first = forger.chance.randrange(len(rows) - 10)
        gone = rows[first : first + 10]
        anchor = forger.home / "anchor/heads"
        for key, note in gone:
            forger.do("delete from kv where bucket = 'heads' and key = ?", key)
            anchor.write_bytes(anchor.read_bytes().replace(note, b""))

    missed = apply(slow, tmp_path, change, check=lambda path: _gap_as_finding(check(path)))
    assert missed == []


def _gap_as_finding(report: Report) -> Report:
    report.findings = report.gaps
    return report


@pytest.mark.parametrize("gone_on", [False, True])
def test_an_old_backup_restored(home: Path, tmp_path: Path, gone_on: bool) -> None:
    """Put back as it was, or put back and gone on with to beyond the old size: the anchor knows better."""
    now = tmp_path / "now"
    shutil.copytree(home, now)
    backup = database(now).read_bytes()
    with opened(now) as journal:
        fill(journal, 40)
        size = journal.size
    database(now).write_bytes(backup)
    with pytest.raises(EIO) as refused, opened(now):
        pass
    assert refused.value.code == "journal.damaged"
    if gone_on:
        anchors = [(now / "anchor" / name, (now / "anchor" / name).read_bytes()) for name in ("heads", "mark")]
        for path, _ in anchors:
            path.unlink()
        with opened(now) as journal:
            fill(journal, 80)
        for path, data in anchors:
            path.write_bytes(data)
    report = check(now)
    assert not report.ok
    assert report.first_bad == check(home).entries + 1 <= size


def test_signed_again_with_another_key(home: Path, tmp_path: Path) -> None:
    def change(forger: Forger) -> None:
        forger.change_field(forger.pick())
        signer = Signer.new()
        if forger.chance.random() < 0.5:
            forger.bring_in_key(signer)
            forger.do("delete from kv where bucket = 'meta' and key = 'key'")
        forger.rebuild_tree()
        forger.sign_again(signer)

    assert apply(home, tmp_path, change) == []


def test_a_whole_journal_forged_under_another_key_is_found_only_with_the_right_one(tmp_path: Path) -> None:
    """The control for the pinned key: such a forgery is a good journal of somebody else's."""
    one = tmp_path / "one"
    one.mkdir()
    journals.make(one, 60)
    key = public_key(one)
    forger = Forger(one, tmp_path / "forged", 1)
    signer = Signer.new()
    forger.change_field(forger.pick())
    forger.bring_in_key(signer)
    forger.rebuild_tree()
    forger.sign_again(signer)
    forger.close()
    forged = database(tmp_path / "forged")
    assert verify(forged).ok
    assert not verify(forged).pinned
    assert verify(forged, key=key).first_bad == 1


@pytest.mark.parametrize("wrong", ["no intent", "twice", "parked none"])
def test_an_outcome_without_intent_or_a_second_answer(tmp_path: Path, wrong: str) -> None:
    for number in range(3):
        made = tmp_path / f"{number}"
        made.mkdir()
        with opened(made) as journal:
            fill(journal, 20 * number + 5)
            seq = journal.put_now(Draft("a", Kind.INTENT))
            journal.put_now(Draft("a", Kind.OUTCOME, ref=seq))
            plain = journal.put_now(result())
            ref = {"no intent": plain, "twice": seq, "parked none": plain}[wrong]
            bad = journal.put_now(Draft("a", Kind.PARK if wrong == "parked none" else Kind.OUTCOME, ref=ref))
        assert check(made).first_bad == bad


def naive(home: Path) -> Report:
    """A checker as peers have it: entries decode, numbers have no gap, and every stored hash fits its entry."""
    report = Report()
    db = apsw.Connection(str(database(home)), flags=apsw.SQLITE_OPEN_READONLY)
    tiles = dict(db.execute("select key, value from kv where bucket = 'tree'").fetchall())
    for expected, (seq, entry, body) in enumerate(db.execute("select seq, entry, body from entries order by seq"), 1):
        index, at = divmod(seq - 1, WIDTH)
        hashes = tiles.get(tile_key(0, index)) or tiles["tail"][8:]
        fits = seq == expected and hashes[at * HASH : (at + 1) * HASH] == leaf_hash(entry)
        if not fits or (body is not None and sha256(body).digest() != entries.decode(entry).body):
            report.findings.append(Finding(seq, seq, "it does not fit its stored hash"))
    db.close()
    return report


def test_a_naive_checker_is_fooled_where_ours_is_not(home: Path, tmp_path: Path) -> None:
    assert naive(home).ok
    missed = apply(home, tmp_path, change_and_recompute, check=naive)
    assert len(missed) == TIMES
