"""`agentctl backup` and `restore`: taken while an agent runs, restored elsewhere, and never over something newer."""

import tarfile
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk")


def entries(desk: Desk) -> int:
    return desk.good("audit", "verify", "-o", "json").json["entries"]


def test_a_backup_of_a_running_kernel_is_restored_on_another_machine(desk: Desk, tmp_path: Path) -> None:
    desk.up()
    desk.start("worker")
    file = tmp_path / "kept.tar"
    told = desk.good("backup", file, "-o", "json").json
    assert told["ok"] is True
    assert file.stat().st_mode & 0o077 == 0
    assert desk.ask("backup", file).code == 9
    desk.good("kill", "worker")
    desk.down()

    other = Desk(tmp_path / "other")
    assert "restored" in other.good("restore", file).out
    assert entries(other) == told["entries"]
    other.up()  # the same journal goes on, signed by the same key
    assert entries(other) > told["entries"]
    other.down()
    assert desk.good("backup", "--verify-only", file).out.startswith("checked")


def test_an_agent_that_ran_goes_on_after_a_restore(desk: Desk, tmp_path: Path) -> None:
    desk.up()
    desk.start("worker")
    desk.good("backup", tmp_path / "kept.tar")
    desk.good("kill", "worker")
    desk.down()
    desk.good("restore", "--yes", tmp_path / "kept.tar")
    desk.up()
    until(lambda: '"running"' in desk.ask("inspect", "worker", "-o", "json").out)
    assert desk.good("inspect", "worker", "-o", "json").json["incarnation"] == 2
    desk.good("kill", "worker")
    desk.down()


def test_a_restore_needs_the_kernel_down(desk: Desk, tmp_path: Path) -> None:
    desk.up()
    desk.good("backup", tmp_path / "kept.tar")
    said = desk.ask("restore", tmp_path / "kept.tar")
    assert said.code == 9
    assert "agentctl down" in said.err
    desk.down()


def test_a_newer_log_is_replaced_only_when_told_and_put_aside(desk: Desk, tmp_path: Path) -> None:
    desk.up()
    desk.good("backup", tmp_path / "kept.tar")
    desk.down()
    newer = entries(desk)
    said = desk.ask("restore", tmp_path / "kept.tar")
    assert said.code == 9
    assert "would go" in said.err
    assert entries(desk) == newer
    told = desk.good("restore", "--yes", tmp_path / "kept.tar", "-o", "json").json
    assert entries(desk) < newer
    aside = Path(told["aside"])
    assert desk.good("audit", "verify", aside / "journal.db", "-o", "json").json["entries"] == newer
    desk.up()
    desk.down()


def test_another_log_is_replaced_only_when_told(desk: Desk, tmp_path: Path) -> None:
    desk.up()
    desk.good("backup", tmp_path / "kept.tar")
    desk.down()
    other = Desk(tmp_path / "other")
    other.up()
    other.down()
    assert other.ask("restore", tmp_path / "kept.tar").code == 9
    other.good("restore", "--yes", tmp_path / "kept.tar")


def test_a_damaged_home_is_restored(desk: Desk, tmp_path: Path) -> None:
    desk.up()
    desk.down()
    desk.good("backup", tmp_path / "kept.tar")  # without a kernel
    with desk.journal.open("r+b") as file:
        file.write(b"nothing that is a database")
    assert desk.ask("audit", "verify").code != 0
    desk.good("restore", tmp_path / "kept.tar")
    assert desk.good("audit", "verify").out.endswith("integrity OK\n")


def test_a_changed_backup_is_not_restored(desk: Desk, tmp_path: Path) -> None:
    desk.up()
    desk.start("worker")
    desk.good("backup", tmp_path / "kept.tar")
    desk.down()
    whole = (tmp_path / "kept.tar").read_bytes()
    at = whole.rindex(b"/mem/working/note")
    (tmp_path / "kept.tar").write_bytes(whole[:at] + b"/mem/working/nota" + whole[at + 17 :])
    before = entries(desk)
    for words in (("restore", "--yes"), ("restore", "--verify-only"), ("backup", "--verify-only")):
        said = desk.ask(*words, tmp_path / "kept.tar")
        assert said.code == 10
        assert "first bad entry" in said.out
    assert entries(desk) == before


def test_what_is_no_backup_is_told_and_changes_nothing(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.add(tmp_path / "evil", "../../evil")
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        link = tarfile.TarInfo("journal.db")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    for name in ("text", "evil.tar", "link.tar", "absent"):
        assert desk.ask("restore", tmp_path / name).code == 2, name
    assert not desk.journal.exists()
    assert desk.ask("backup", tmp_path / "b.tar").code == 3
    assert not (tmp_path / "b.tar").exists()
