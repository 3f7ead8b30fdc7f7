"""kernel/journal/heads.py: when a head is made, and what reaches the anchor and the mark, and when."""

from pathlib import Path

import pytest

from agent_os.abi.heads import parse_note, split_notes
from agent_os.kernel.journal.heads import Heads, Signer, pack_mark, read_anchor, read_mark
from journals import database, opened, public_key, result


def anchored(home: Path) -> list[int]:
    return [parse_note(note).head.size for note in split_notes((home / "anchor/heads").read_bytes())]


def test_a_head_is_due_every_thousand_entries_or_every_second() -> None:
    heads = Heads(b"L" * 16, 1, Signer.new())
    assert not heads.due(0)
    assert heads.due(1)
    heads.make(1, b"R" * 32)
    assert not heads.due(1)
    assert heads.wait(1) is None
    assert not heads.due(1000)
    assert heads.due(1001)
    wait = heads.wait(2)
    assert wait is not None
    assert 0 < wait <= 1


def test_a_head_reaches_the_anchor_only_when_it_is_synced(tmp_path: Path) -> None:
    heads = Heads(b"L" * 16, 1, Signer.new())
    heads.begin(tmp_path)
    heads.make(5, b"R" * 32)
    assert anchored(tmp_path) == []
    heads.synced(5, b"R" * 32)
    assert anchored(tmp_path) == [5]
    assert read_mark(tmp_path) == (5, b"R" * 32)
    heads.close()


def test_the_anchor_never_knows_more_than_was_synced(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        synced: list[int] = []
        append = journal._store.append

        def watched(rows, puts, blobs, *, sync):
            append(rows, puts, blobs, sync=sync)
            if sync and rows:
                synced.append(rows[-1].seq)

        journal._store.append = watched
        for number in range(6000):
            journal.put(result(), sync=number % 2500 == 0)
        journal.put_now(result(), sync=False)
        assert max(anchored(tmp_path)) <= max([1, *synced])
    assert anchored(tmp_path)[-1] == 6002


def test_half_a_note_left_by_a_kill_does_not_spoil_the_next(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.put_now(result())
    anchor = tmp_path / "anchor/heads"
    whole = anchor.read_bytes()
    for cut in (1, 20, 100, len(whole) // 2):
        anchor.write_bytes(whole[:-cut])
        with opened(tmp_path) as journal:
            journal.put_now(result())
        assert [head.size for head in read_anchor(tmp_path)] == anchored(tmp_path)
        whole = anchor.read_bytes()


@pytest.mark.parametrize("data", [b"", b"x", pack_mark(5, b"R" * 32)[:-1], b"\0" * 48])
def test_a_mark_that_was_cut_off_is_no_mark(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "anchor").mkdir()
    (tmp_path / "anchor/mark").write_bytes(data)
    assert read_mark(tmp_path) is None


def test_the_public_key_is_there_to_be_copied(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        assert public_key(tmp_path).startswith(f"agent-os/{journal.log_id.hex()}+")
    assert database(tmp_path).exists()
