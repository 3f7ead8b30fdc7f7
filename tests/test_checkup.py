"""The doctor's look at the installation: each check finds what is wrong, says the narrow fix, and nothing else."""

import os
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_os import checkup
from agent_os.checkup import Found, Mend, clock, holder, mend, model_keys, modes, newest_note, packages, port, record
from agent_os.sandbox.probe import Check
from cli.desk import Desk

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """With all that has a mode, as a kernel leaves it."""
    home = tmp_path / "home"
    for folder in (home, home / "run", home / "keys"):
        folder.mkdir(mode=0o700)
    for name in ("operator.token", "keys/journal.key"):
        (home / name).write_text("secret")
        (home / name).chmod(0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "run/k"))
        (home / "run/k").chmod(0o600)
        yield home


def looked(home: Path, where: Path | None = None) -> dict[str, Found]:
    return {one.check.name: one for one in modes(home, where or home / "run/k")}


def test_a_home_as_a_kernel_leaves_it_is_well(home: Path) -> None:
    found = looked(home)
    assert list(found) == ["state", "socket", "token", "keys"]
    assert {(one.check.status, one.mends) for one in found.values()} == {("ok", ())}


def test_a_home_that_is_not_there_is_no_fault_and_is_not_made(tmp_path: Path) -> None:
    assert {one.check.status for one in modes(tmp_path / "none", tmp_path / "none/run/k")} == {"ok"}
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("path", "mode", "name", "fixed"),
    [
        ("", 0o755, "state", 0o700),
        ("", 0o770, "state", 0o700),
        ("run", 0o711, "socket", 0o700),
        ("run/k", 0o666, "socket", 0o600),
        ("operator.token", 0o644, "token", 0o600),
        ("operator.token", 0o440, "token", 0o400),
        ("keys/journal.key", 0o620, "keys", 0o600),
    ],
)
def test_what_is_open_to_others_fails_and_the_fix_is_what_closes_it(
    home: Path, path: str, mode: int, name: str, fixed: int
) -> None:
    (home / path).chmod(mode)
    found = looked(home)
    assert {key for key, one in found.items() if one.check.status == "fail"} == {name}
    (one,) = found[name].mends
    assert found[name].check.fix == str(one) == f"chmod {one.mode:o} {home / path}"
    assert f"({mode:o})" in found[name].check.cause
    mend(one)
    assert stat.S_IMODE((home / path).stat().st_mode) == fixed  # narrower, never wider
    assert looked(home)[name].check.status == "ok"


def test_a_link_is_told_and_not_followed(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("x")
    other.chmod(0o644)
    (home / "operator.token").unlink()
    (home / "operator.token").symlink_to(other)
    found = looked(home)["token"]
    assert (found.check.status, found.mends) == ("fail", ())
    with pytest.raises(PermissionError):
        mend(Mend(0o600, home / "operator.token"))
    assert stat.S_IMODE(other.stat().st_mode) == 0o644


def test_a_directory_that_is_not_ours_to_close_is_never_mended(home: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / "k"))
        (shared / "k").chmod(0o600)
        shared.chmod(0o1777)
        assert looked(home, shared / "k")["socket"].check.status == "ok"
        shared.chmod(0o777)
        found = looked(home, shared / "k")["socket"]
        assert (found.check.status, found.mends) == ("fail", ())
        assert "AGENT_OS_SOCKET" in found.check.fix


def test_who_has_the_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert (holder(number) or "").startswith(f"process {os.getpid()} (")
        set_so = port(number, None)
        assert (set_so.status, f"process {os.getpid()}" in set_so.cause) == ("warn", True)
        assert set_so.fix == "agentctl config set port NUMBER"
        ours = {"url": f"http://127.0.0.1:{number}", "pid": os.getpid()}
        assert port(number, ours) == Check("port", "ok", f"the dashboard has {number}")
        beside = port(number, {"url": "http://127.0.0.1:1", "pid": 1})
        assert (beside.status, f"has {number}" in beside.cause) == ("ok", True)
    assert holder(number) is None
    assert port(number, None).cause == f"{number} is free for the dashboard"


def test_agentctl_and_the_kernel_are_of_one_version() -> None:
    facts: dict[str, Any] = {"version": checkup.agent_os.__version__, "pid": 7, "journal": "ok"}
    assert checkup.version(facts).status == "ok"
    other = checkup.version({**facts, "version": "0.0.9"})
    assert (other.status, other.fix) == ("warn", "agentctl down && agentctl up --detach")
    assert "0.0.9" in other.cause
    assert checkup.version({**facts, "journal": "no space"}).status == "fail"


def test_keys_of_models_are_told_by_name_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-never-to-be-seen")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    providers = [
        {"name": "anthropic", "keys": ["anthropic"], "missing": []},
        {"name": "openai", "keys": ["openai"], "missing": ["openai"]},
        {"name": "ollama", "keys": [], "missing": []},
    ]
    found = model_keys({"providers": providers})
    assert found.cause == "keys for anthropic; none for openai; set in this environment: OPENAI_API_KEY"
    assert "sk-never" not in repr(found) + repr(model_keys(None))


def test_packages_of_other_versions_than_the_lock_says_are_told(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("click==0.0.1 \\\n    --hash=sha256:00\nnot-installed-here==1.0 ; sys_platform == 'win32'\n")
    found = packages(lock)
    assert found.status == "warn"
    assert "click " in found.cause
    assert "(lock: 0.0.1)" in found.cause
    assert "not-installed-here" not in found.cause
    assert packages().status == "ok"  # of this checkout


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a kernel that has ended."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.up()
    desk.down()
    return desk.home


@pytest.fixture
def copied(kept: Path, tmp_path: Path) -> Path:
    import shutil

    (kept / "run").mkdir(exist_ok=True)
    return Path(shutil.copytree(kept, tmp_path / "copy"))


def told(home: Path) -> dict[str, Check]:
    return {one.name: one for one in record(home)}


@pytest.mark.integration
def test_a_whole_record_is_well(copied: Path) -> None:
    found = told(copied)
    assert {name: one.status for name, one in found.items()} == dict.fromkeys(
        ("journal", "anchor", "clock", "sqlite"), "ok"
    )
    assert not list(copied.glob(".doctor-*"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("sql", "fails"),
    [
        ("delete from entries where seq > 2", {"journal", "anchor"}),
        ("delete from entries where seq = 2", {"journal"}),
    ],
)
def test_a_record_that_was_cut_is_found(copied: Path, sql: str, fails: set[str]) -> None:
    db = sqlite3.connect(copied / "journal.db")
    db.execute(sql)
    db.commit()
    db.close()
    found = told(copied)
    assert {name for name, one in found.items() if one.status == "fail"} == fails
    assert "agentctl restore" in found["journal"].fix


@pytest.mark.integration
def test_a_record_that_is_gone_or_no_database_is_found(copied: Path) -> None:
    (copied / "journal.db").write_bytes(b"something else")
    assert told(copied)["journal"].status == "fail"
    (copied / "journal.db").unlink()
    assert "is gone" in told(copied)["journal"].cause


@pytest.mark.integration
def test_an_anchor_that_was_forged_or_emptied_is_found(copied: Path) -> None:
    anchor, public = copied / "anchor/heads", copied / "keys/journal.pub"
    whole, key = anchor.read_bytes(), public.read_text()
    anchor.write_bytes(whole.replace(b"boot 1", b"boot 9"))
    assert "is not signed by" in told(copied)["anchor"].cause
    anchor.write_bytes(b"")
    assert told(copied)["anchor"].status == "fail"
    anchor.write_bytes("nonsense\n— x\n".encode())
    assert "something else" in told(copied)["anchor"].cause
    anchor.write_bytes(whole)
    assert told(copied)["anchor"].status == "ok"
    public.write_text("x" + key)
    assert told(copied)["anchor"].status == "fail"


@pytest.mark.integration
def test_a_clock_behind_what_was_signed_is_found(copied: Path) -> None:
    note = newest_note(copied)
    assert note is not None
    signed = note.head.wall_ns / 1e9
    assert clock(note, signed).status == "ok"
    assert clock(note, signed - 30).status == "ok"
    assert clock(note, signed - 3600).status == "fail"
    assert clock(None, time.time()).status == "ok"
    assert clock(None, 0).status == "fail"
