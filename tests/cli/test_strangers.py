"""A directory that somebody else filled: what lies in it runs nothing and holds up nobody, just because a command is
given there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.client import config, verify
from cli.desk import SECONDS, Desk

INSTALLED = Path(sys.executable).with_name("agentctl")
PLANTED = "msgspec"  # which everything of ours imports


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a module that says that it ran, where a command is given."""
    project = tmp_path / "cloned"
    project.mkdir()
    (project / f"{PLANTED}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(project)
    subprocess.run([sys.executable, "-m", "agent_os.client.ranges"], capture_output=True, timeout=SECONDS)
    assert ran(tmp_path), "so it would be"
    (tmp_path / "ran").unlink()
    return project


def ran(top: Path) -> bool:
    return (top / "ran").exists()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.down()


@pytest.mark.integration
def test_an_mcp_server_takes_no_library_from_the_project_it_is_started_in(
    stranger: Path, tmp_path: Path, desk: Desk
) -> None:
    desk.up()
    desk.good("mcp", "register", "mine")
    serve = [INSTALLED, "mcp", "serve", "--as", "mine"]
    said = subprocess.run(serve, env=desk.env, cwd=stranger, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
    assert said.returncode == 0
    assert not ran(tmp_path)


@pytest.mark.integration
def test_a_kernel_takes_no_library_from_the_project_it_is_started_in(
    stranger: Path, tmp_path: Path, desk: Desk
) -> None:
    up = [INSTALLED, "up", "--detach", "--no-ui"]
    assert subprocess.run(up, env=desk.env, cwd=stranger, timeout=SECONDS, check=False).returncode == 0
    assert not ran(tmp_path)


@pytest.mark.integration
def test_who_helps_to_verify_takes_no_library_from_the_current_directory(stranger: Path, tmp_path: Path) -> None:
    helper = verify._start_helper(tmp_path / "journal.db", (1, 1), [])
    assert helper.stdout
    with helper, helper.stdout:
        helper.stdout.read()
    assert helper.returncode != 9
    assert not ran(tmp_path)


def test_a_pipe_or_a_device_for_a_projects_file_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / config.PROJECT
    file.write_text('min_isolation = "S3"\n')
    assert config.setting("min_isolation", project=True).value == "S3"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(EINVAL, match="no plain file"):
        config.setting("min_isolation", project=True)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(EINVAL, match="no plain file"):
        config.setting("min_isolation", project=True)
    file.unlink()
    file.write_text("#" * 100_000)
    with pytest.raises(EINVAL, match="no plain file"):
        config.setting("min_isolation", project=True)
