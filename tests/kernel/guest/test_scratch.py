"""A guest's /tmp on disk: whose it is, what is in it at first, and that it goes away by itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_os.abi.errors import EACCES
from agent_os.kernel.guest.scratch import scratch

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")

DIES_WITHIN = """
import os, pathlib, signal, sys
from agent_os.kernel.guest.scratch import scratch
with scratch(pathlib.Path(sys.argv[1]), "first", None) as files:
    (files / "left").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left(state: Path) -> list[str]:
    return [entry.name for entry in (state / "tmp").iterdir() if entry.is_dir()]


def test_everybody_inside_may_write_and_nobody_outside_gets_there(tmp_path: Path) -> None:
    with scratch(tmp_path, "one", None) as files:
        assert files.stat().st_mode & 0o7777 == 0o1777
        assert (tmp_path / "tmp").stat().st_mode & 0o7777 == 0o700
        assert list(files.iterdir()) == []


def test_it_belongs_to_the_uid_of_the_agent(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("uid: only root gives files away")
    with scratch(tmp_path, "one", 200_123) as files:
        assert (files.stat().st_uid, files.stat().st_gid) == (200_123, 200_123)


def test_points_are_made_for_what_is_mounted_below_tmp_and_for_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.touch()
    mounts = [("/tmp/a/b", tmp_path), ("/tmp/a/c", source), ("/data", tmp_path), ("/tmpx", tmp_path)]
    with scratch(tmp_path, "one", None, mounts) as files:
        assert sorted(str(path.relative_to(files)) for path in files.rglob("*")) == ["a", "a/b", "a/c"]
        assert (files / "a/b").is_dir()
        assert (files / "a/c").is_file()


def test_mounts_that_exclude_each_other_are_left_to_the_sandbox_to_refuse(tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.touch()
    with scratch(tmp_path, "one", None, [("/tmp/a", source), ("/tmp/a/b", tmp_path)]) as files:
        assert (files / "a").is_file()


def test_it_is_gone_at_the_end_whatever_was_made_in_it(tmp_path: Path) -> None:
    def use() -> None:
        with scratch(tmp_path, "one", None) as files:
            (files / "deep/er").mkdir(parents=True)
            (files / "deep/er/file").touch()
            (files / "deep").chmod(0)
            (files / "out").symlink_to(tmp_path)
            files.chmod(0)
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert left(tmp_path) == []
    assert tmp_path.is_dir()


@pytest.mark.integration
def test_what_a_killed_kernel_left_is_swept_and_what_is_held_is_not(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", DIES_WITHIN, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert left(tmp_path) == ["first"]  # the control
    with scratch(tmp_path, "second", None), scratch(tmp_path, "third", None):
        assert sorted(left(tmp_path)) == ["second", "third"]
    assert left(tmp_path) == []


def test_a_state_directory_that_takes_nothing_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "tmp").touch()
    with pytest.raises(EACCES) as refused, scratch(tmp_path, "one", None):
        pass
    assert str(tmp_path / "tmp") in refused.value.reason
    assert "AGENT_OS_HOME" in (refused.value.hint or "")
