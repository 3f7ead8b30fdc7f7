"""`agentctl audit` against a real kernel, without one, and against a log that somebody changed."""

from pathlib import Path

import apsw
import pytest

from agent_os.abi.heads import parse_note
from cli.desk import Desk
from journals import opened, result

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]


def test_tail_shows_the_newest_entries(desk: Desk) -> None:
    said = desk.good("audit", "tail", "-n", "3").out.splitlines()
    assert len(said) == 3
    numbers = [int(line.split()[0]) for line in said]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_tail_gives_all_of_an_entry_as_json(desk: Desk) -> None:
    told = desk.good("audit", "tail", "--from", "1", "--to", "2", "-o", "json").json
    assert told["api"] == "v1"
    assert [one["kind"] for one in told["entries"]] == ["key", "boot"]
    assert len(told["entries"][0]["body_hash"]) == 64


def test_a_refusal_says_what_was_refused_and_why(desk: Desk) -> None:
    said = desk.good("audit", "tail", "--agent", "worker", "-n", "100").out
    refused = next(line for line in said.splitlines() if "REFUSED" in line)
    assert "SYS_WRITE /mem/episodic/note" in refused
    assert "EPERM" in refused


def test_head_prints_a_note_that_verifies_later(desk: Desk) -> None:
    said = desk.good("audit", "head")
    head = parse_note(said.out.encode()).head
    saved = desk.project / "head.txt"
    saved.write_text(said.out)
    desk.good("status")  # the log grows
    checked = desk.good("audit", "verify", "--head", saved)
    assert "chain ok" in checked.out
    assert "is a prefix" in checked.out
    assert checked.out.endswith("integrity OK\n")
    told = desk.good("audit", "head", "-o", "json").json
    assert told["size"] >= head.size
    assert told["log_id"] == head.log_id.hex()


def test_prove_checks_what_the_kernel_says(desk: Desk) -> None:
    assert desk.good("audit", "prove", "3").out.endswith("proof OK\n")
    told = desk.good("audit", "prove", "3", "-o", "json").json
    assert told["ok"] is True
    assert parse_note(told["head"].encode()).head.root.hex() == told["root"]
    assert desk.ask("audit", "prove", "99999999", "-o", "json").error["code"] == "ENOENT"
    assert desk.ask("audit", "prove", "99999999").code == 3


def test_consistency_shows_that_the_log_only_grew(desk: Desk) -> None:
    assert desk.good("audit", "consistency", "3").out.endswith("proof OK\n")
    told = desk.good("audit", "consistency", "3", "7", "-o", "json").json
    assert (told["first"], told["second"], told["ok"]) == (3, 7, True)
    assert desk.ask("audit", "consistency", "7", "3").code == 3


def test_an_export_verifies_elsewhere_with_the_public_key_alone(desk: Desk, tmp_path: Path) -> None:
    file, key = tmp_path / "log", tmp_path / "key"
    assert "integrity OK" in desk.good("audit", "export", file).out
    assert file.stat().st_mode & 0o077 == 0
    key.write_text((desk.home / "keys" / "journal.pub").read_text())
    elsewhere = Desk(tmp_path / "elsewhere")
    told = elsewhere.good("audit", "verify", file, "--key", key, "-o", "json").json
    assert (told["ok"], told["pinned"]) == (True, True)
    assert desk.ask("audit", "export", file).code == 9  # it is there already
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_export_without_bodies_holds_none(desk: Desk, tmp_path: Path) -> None:
    desk.good("audit", "export", tmp_path / "whole")
    desk.good("audit", "export", "--no-bodies", tmp_path / "bare")
    assert b"hello" in (tmp_path / "whole").read_bytes()
    assert b"hello" not in (tmp_path / "bare").read_bytes()
    desk.good("audit", "verify", tmp_path / "bare")


def test_a_key_of_another_journal_is_found(desk: Desk, tmp_path: Path) -> None:
    other = Desk(tmp_path / "other")
    other.up()
    other.down()
    desk.good("audit", "export", tmp_path / "log")
    checked = desk.ask("audit", "verify", tmp_path / "log", "--key", other.home / "keys" / "journal.pub")
    assert checked.code == 10


def test_a_head_that_is_none_is_refused(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "head").write_text("not a head\n")
    assert desk.ask("audit", "verify", "--head", tmp_path / "head").code == 2
    assert desk.ask("audit", "verify", "--head", tmp_path / "nothing").code == 3


@pytest.fixture
def quiet(tmp_path: Path) -> Desk:
    """A home whose kernel is down."""
    desk = Desk(tmp_path)
    desk.up()
    for _ in range(5):
        desk.good("status")
    desk.down()
    return desk


def change(desk: Desk, sql: str) -> None:
    database = apsw.Connection(str(desk.journal))
    database.execute(sql)
    database.close()


def test_verify_and_export_need_no_kernel(quiet: Desk, tmp_path: Path) -> None:
    before = quiet.good("audit", "verify", "-o", "json").json
    assert quiet.good("audit", "verify").out.endswith("integrity OK\n")
    assert "integrity OK" in quiet.good("audit", "export", tmp_path / "log").out
    assert quiet.good("audit", "verify", "-o", "json").json == before  # a kernel would have left entries


def test_the_record_can_be_read_while_no_kernel_runs(quiet: Desk) -> None:
    assert "boot" in quiet.good("audit", "tail").out
    assert quiet.good("audit", "head", "-o", "json").json["size"] > 0


@pytest.mark.parametrize(
    ("sql", "first"),
    [
        ("update entries set entry = (select entry from entries where seq = 4) where seq = 5", 5),
        ("update entries set body = x'c0' where seq = 4", 4),
        ("delete from entries where seq = 6", 6),
        ("delete from entries", 1),
    ],
    ids=["changed", "body", "deleted", "emptied"],
)
def test_a_changed_log_ends_with_ten_and_names_the_first_bad_entry(quiet: Desk, sql: str, first: int) -> None:
    change(quiet, sql)
    said = quiet.ask("audit", "verify")
    assert said.code == 10
    assert f"first bad entry {first}" in said.out
    told = quiet.ask("audit", "verify", "-o", "json")
    assert (told.code, told.json["ok"], told.json["first_bad"]) == (10, False, first)


def test_a_cut_tail_is_found_by_a_head_that_was_kept(quiet: Desk, tmp_path: Path) -> None:
    quiet.up()
    saved = tmp_path / "head.txt"
    saved.write_text(quiet.good("audit", "head").out)
    quiet.down()
    for name in ("heads", "mark"):
        (quiet.home / "anchor" / name).unlink()
    change(quiet, "delete from entries where seq > 3")
    change(quiet, "delete from kv where bucket = 'heads' or key in ('head', 'tail')")
    said = quiet.ask("audit", "verify", "--head", saved)
    assert said.code == 10
    assert "first bad entry 4" in said.out


def test_a_gap_is_reported_and_ends_with_ten_only_where_none_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    desk.home.mkdir()
    clock = iter(range(1_700_000_000_000_000_000, 1_800_000_000_000_000_000, 400_000_000))
    with monkeypatch.context() as patched:
        patched.setattr("time.time_ns", lambda: next(clock))
        with opened(desk.home) as journal:
            journal.put_now(result())
            patched.setattr("agent_os.kernel.journal.heads.EVERY_SECONDS", 1e9)
            for _ in range(10):
                journal.put_now(result())
    said = desk.good("audit", "verify")
    assert "gap  " in said.out
    assert said.out.endswith("integrity OK, with a gap in which nobody signed\n")
    strict = desk.ask("audit", "verify", "--strict", "-o", "json")
    assert (strict.code, strict.json["ok"], len(strict.json["gaps"])) == (10, True, 1)


def test_no_gap_is_no_failure(quiet: Desk) -> None:
    said = quiet.good("audit", "verify", "--strict", "--progress")
    assert said.out.endswith("integrity OK\n")
    assert "checking" not in said.err  # it was over before anything was to be told


def test_a_home_without_a_journal_is_told(tmp_path: Path) -> None:
    said = Desk(tmp_path).ask("audit", "verify")
    assert said.code == 3
    assert "no journal" in said.err
