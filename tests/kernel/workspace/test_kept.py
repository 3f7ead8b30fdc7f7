"""kernel/workspace: what an agent wrote over a real overlay, shown, committed, discarded."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_os.abi.errors import EBUSY, ECONFLICT, EEXIST, EINVAL, EIO, ENOENT, ENOSPC
from agent_os.kernel.workspace import Workspace, Workspaces, digest, new_name, snapshot
from agent_os.kernel.workspace.changes import Change
from agent_os.kernel.workspace.landing import Report
from overlay import agent_writes, tree

pytestmark = [pytest.mark.integration, pytest.mark.both_uids("root reads and writes what no other user may")]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    top = tmp_path / "project"
    (top / "lib" / "deep").mkdir(parents=True)
    (top / "lib" / "deep" / "one").write_text("one")
    (top / "lib" / "two").write_text("two")
    (top / "main.py").write_text("print('old')\n")
    (top / "gone").write_text("gone")
    (top / "run.sh").write_text("true\n")
    return top


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return Workspaces(tmp_path / "state")


@pytest.fixture
def workspace(workspaces: Workspaces, project: Path) -> Workspace:
    return workspaces.create(project, name="fix-1", mode="overlay", agent_uid=None)


@pytest.fixture(params=["overlay", "copy"])
def either(request: pytest.FixtureRequest, workspaces: Workspaces, project: Path) -> Workspace:
    return workspaces.create(project, name="fix-1", mode=request.param, agent_uid=None)


def writes(workspace: Workspace, script: str) -> None:
    """The same script as an agent would run it in either mode."""
    if workspace.meta.mode == "overlay":
        agent_writes(workspace, script)
    else:
        subprocess.run(["sh", "-ec", script], cwd=workspace.upper, check=True)


def kinds(changes: list[Change]) -> dict[str, str]:
    return {change.path: change.kind for change in changes}


def test_the_diff_names_what_changed_and_nothing_else(either: Workspace) -> None:
    writes(
        either,
        "echo more >> main.py; rm gone; mkdir new; echo n > new/file; chmod 755 run.sh; ln -s main.py link;"
        "touch lib/two",
    )
    assert kinds(either.diff()) == {
        "main.py": "modify", "gone": "delete", "new": "add", "new/file": "add", "run.sh": "mode", "link": "symlink",
    }  # fmt: skip


def test_hashes_and_sizes_are_those_of_the_contents(workspace: Workspace) -> None:
    agent_writes(workspace, "printf new > main.py")
    [change] = workspace.diff()
    assert change.size == 3
    assert change.sha256_old == hashlib.sha256(b"print('old')\n").hexdigest()
    assert change.sha256_new == hashlib.sha256(b"new").hexdigest()


def test_a_commit_makes_the_project_what_the_agent_saw(either: Workspace, project: Path) -> None:
    writes(
        either,
        "echo more >> main.py; rm gone; mkdir -p new/er; echo n > new/er/file; chmod 755 run.sh; ln -s main.py link;"
        "rm -r lib; echo flat > lib; mv main.py moved.py; chmod 555 new/er; find . | sort > /dev/null",
    )
    before = tree(project)
    report = either.commit(dry_run=True)
    assert tree(project) == before
    assert kinds(report.committed) == kinds(either.diff())
    report = either.commit()
    assert report.complete
    assert tree(project) == {
        "moved.py": "print('old')\nmore\n", "run.sh": "true\n", "link": "-> main.py", "lib": "flat\n",
        "new": "directory", "new/er": "directory", "new/er/file": "n\n",
    }  # fmt: skip
    assert stat.S_IMODE((project / "new/er").stat().st_mode) == 0o555
    assert stat.S_IMODE((project / "run.sh").stat().st_mode) == 0o755
    assert either.diff() == []


def test_a_replaced_directory_loses_what_the_agent_no_longer_saw(workspace: Workspace, project: Path) -> None:
    agent_writes(
        workspace,
        "rm -r lib; mkdir lib; echo new > lib/three; echo changed > lib/two; mkdir lib/deep; echo x > lib/deep/x",
    )
    found = kinds(workspace.diff())
    assert found == {"lib/three": "add", "lib/two": "modify", "lib/deep/one": "delete", "lib/deep/x": "add"}
    assert workspace.commit().complete
    assert {p for p in tree(project) if p.startswith("lib/")} == {"lib/three", "lib/two", "lib/deep", "lib/deep/x"}


def test_a_renamed_directory_is_its_deletion_and_its_addition(either: Workspace, project: Path) -> None:
    writes(either, "mv lib library")
    assert either.commit().complete
    assert not (project / "lib").exists()
    assert (project / "library/deep/one").read_text() == "one"


def test_the_file_form_of_a_deletion_is_understood(workspace: Workspace) -> None:
    (workspace.upper / "gone").touch()
    try:
        os.setxattr(workspace.upper / "gone", "user.overlay.whiteout", b"")
    except OSError as error:
        pytest.skip(f"no user xattrs here: {error}")
    assert kinds(workspace.diff()) == {"gone": "delete"}


# Every kind of protected file that sandbox.md §6 names.
PROTECTED = """
.git/config .git/hooks/pre-commit sub/.git/config sub/hooks/post-checkout .gitattributes .gitmodules .envrc conftest.py
sub/conftest.py sitecustomize.py evil.pth package.json .npmrc Makefile .mcp.json AGENTS.md CLAUDE.md .vscode/tasks.json
.claude/settings.json .github/workflows/ci.yml .bashrc .profile .zshenv run.agent.toml .agent.toml .agents/a.toml
.GIT/config
""".split()


def test_no_protected_file_reaches_the_project_without_a_person(workspace: Workspace, project: Path) -> None:
    script = "\n".join(f"mkdir -p \"$(dirname '{path}')\"; echo evil > '{path}'" for path in PROTECTED)
    agent_writes(workspace, script + "\necho fine > ordinary.py")
    report = workspace.commit()
    for path in PROTECTED:
        assert not (project / path).exists(), path
    assert (project / "ordinary.py").read_text() == "fine\n"
    assert set(PROTECTED) <= {change.path for change in report.withheld}
    assert all(change.protected for change in report.withheld)
    assert not report.complete
    # Positive control: with the permission every one of them arrives, and only then.
    assert workspace.commit(allow_protected=True).complete
    for path in PROTECTED:
        assert (project / path).read_text() == "evil\n"


def test_removing_a_directory_with_protected_files_keeps_them_and_their_directories(
    workspace: Workspace, project: Path
) -> None:
    (project / "lib/.git").mkdir()
    (project / "lib/.git/config").write_text("mine")
    agent_writes(workspace, "rm -r lib")
    report = workspace.commit()
    assert (project / "lib/.git/config").read_text() == "mine"
    assert not (project / "lib/two").exists()
    assert {change.path for change in report.withheld} == {"lib", "lib/.git", "lib/.git/config"}


def test_names_that_could_forge_a_line_survive_and_are_shown_escaped(either: Workspace, project: Path) -> None:
    for name in ["new\nline", "\x1b[31mred", "rtl\u202etxt", "back\\slash"]:
        (either.upper / name).write_text("x")
    with open(os.fsencode(either.upper) + b"/\xff\xfe", "w") as file:
        file.write("raw")
    shown = {change.shown for change in either.diff()}
    assert shown == {r"new\nline", r"\x1b[31mred", r"rtl\u202etxt", r"back\\slash", r"\xff\xfe"}
    assert either.commit().complete
    assert (project / "new\nline").exists()
    with open(os.fsencode(project) + b"/\xff\xfe") as file:
        assert file.read() == "raw"


def unless_it_waits(workspace: Workspace, pipe: Path) -> Report:
    """A commit. Whoever opens a pipe that nobody writes to waits for ever; then the pipe is opened, and this fails."""
    reports: list[Report] = []
    committing = threading.Thread(target=lambda: reports.append(workspace.commit()))
    committing.start()
    committing.join(30)
    waits = committing.is_alive()
    while committing.is_alive():
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        committing.join(0.1)
    assert not waits, "it waited for somebody at the other end of a pipe"
    return reports[0]


def test_pipes_sockets_and_outward_links_are_refused_and_never_waited_for(either: Workspace, project: Path) -> None:
    os.mkfifo(either.upper / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.chdir(either.upper):  # a socket's name has at most 107 bytes
            listener.bind("sock")
        (either.upper / "out").symlink_to("/etc/passwd")
        (either.upper / "up").symlink_to("../../x")
        (either.upper / "in").symlink_to("lib/two")
        report = unless_it_waits(either, either.upper / "pipe")
    assert {change.path for change in report.refused} == {"pipe", "sock", "out", "up"}
    assert all(change.refused for change in report.refused)
    assert {change.path for change in report.committed} == {"in"}
    assert not any(os.path.lexists(project / name) for name in ["pipe", "sock", "out", "up"])


def test_a_directory_replaced_by_something_refused_is_not_emptied(workspace: Workspace, project: Path) -> None:
    agent_writes(workspace, "rm -r lib; ln -s /etc lib")
    before = tree(project)
    report = workspace.commit()
    assert tree(project) == before
    assert {change.path for change in report.refused} == {"lib", "lib/deep", "lib/deep/one", "lib/two"}


def test_setuid_and_xattrs_are_left_behind(workspace: Workspace, project: Path) -> None:
    agent_writes(workspace, "echo x > tool; chmod 6755 tool; mkdir d; chmod 3777 d")
    try:
        os.setxattr(workspace.upper / "tool", "user.planted", b"1")
    except OSError as error:
        pytest.skip(f"no user xattrs here: {error}")
    assert stat.S_IMODE((workspace.upper / "tool").stat().st_mode) == 0o6755
    workspace.commit()
    assert stat.S_IMODE((project / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((project / "d").stat().st_mode) == 0o777
    assert os.listxattr(project / "tool") == []


def test_hard_links_become_files(workspace: Workspace, project: Path) -> None:
    agent_writes(workspace, "echo x > a; ln a b")
    workspace.commit()
    assert (project / "a").stat().st_nlink == 1
    assert (project / "b").read_text() == "x\n"


def test_a_file_larger_than_the_disk_stops_the_commit_before_the_first_write(either: Workspace, project: Path) -> None:
    try:
        os.truncate(_touched(either.upper / "huge"), 8 << 40)
    except OSError as error:
        pytest.skip(f"no file of 8 TiB on this file system: {error}")
    (either.upper / "small").write_text("small")
    with pytest.raises(ENOSPC, match="huge"):
        either.commit()
    assert not (project / "small").exists()
    assert {change.path for change in either.commit(paths=["small"]).committed} == {"small"}


def _touched(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize(
    ("agent", "host"),
    [
        ("echo agent >> main.py", "echo host >> main.py"),
        ("rm main.py", "echo host >> main.py"),
        ("echo agent > fresh", "echo host > fresh"),
        ("echo agent >> main.py", "rm main.py"),
        ("chmod 755 main.py", "chmod 700 main.py"),
        ("rm -r lib", "echo host >> lib/two"),
        ("rm -r lib", "echo host > lib/new"),
        ("echo agent > lib/deep/one", "rm -r lib"),
    ],
)
def test_an_entry_the_host_changed_too_is_left_alone_and_the_others_land(
    either: Workspace, project: Path, agent: str, host: str
) -> None:
    writes(either, agent + "; echo fine > other")
    subprocess.run(["sh", "-ec", host], cwd=project, check=True)
    before = tree(project)
    report = either.commit()
    assert report.conflicts
    assert all(conflict.code == "workspace.changed" for conflict in report.conflicts)
    after = tree(project)
    assert after.pop("other") == "fine\n"
    unlisted = {path for path in before if path not in {c.path for c in report.committed}}
    assert {path: after[path] for path in unlisted} == {path: before[path] for path in unlisted}
    for conflict in report.conflicts:
        assert after.get(conflict.path) == before.get(conflict.path)


def test_the_same_change_on_both_sides_is_no_conflict(either: Workspace, project: Path) -> None:
    writes(either, "echo same > main.py")
    (project / "main.py").write_text("same\n")
    assert either.diff() == []
    assert either.commit().complete


def test_moving_a_file_is_no_conflict(workspace: Workspace, project: Path) -> None:
    agent_writes(workspace, "mv main.py program.py; ln lib/two lib/again")
    report = workspace.commit()
    assert report.complete, report.conflicts
    assert (project / "lib/again").read_text() == "two"


def test_what_landed_once_is_not_offered_again_after_the_host_goes_on_editing(
    workspace: Workspace, project: Path
) -> None:
    agent_writes(workspace, "echo agent > main.py; echo all: > Makefile")
    workspace.commit()
    (project / "main.py").write_text("edited after the commit\n")
    assert kinds(workspace.diff()) == {"Makefile": "add"}
    assert workspace.commit(allow_protected=True).complete
    assert (project / "main.py").read_text() == "edited after the commit\n"


@pytest.mark.parametrize("first", [{}, {"paths": ["run.sh"]}])
def test_the_first_of_two_commits_is_no_conflict_for_the_second(
    workspaces: Workspaces, project: Path, first: dict[str, list[str]]
) -> None:
    os.link(project / "run.sh", project / "Makefile")
    workspace = workspaces.create(project, name="twice", mode="overlay", agent_uid=None)
    agent_writes(workspace, "echo a >> run.sh; echo b > Makefile; mv main.py AGENTS.md; mv gone went")
    assert not workspace.commit(**first).conflicts
    report = workspace.commit(allow_protected=True)
    assert report.complete, report.conflicts
    assert (project / "AGENTS.md").read_text() == "print('old')\n"
    assert (project / "Makefile").read_text() == "b\n"
    assert (project / "went").read_text() == "gone"


# Dies, as by SIGKILL, right after the given number of entries.
_CRASH = """
import os, sys
from pathlib import Path
from agent_os.kernel.workspace import Workspaces
left = [int(sys.argv[2])]
def progress(change):
    left[0] -= 1
    if left[0] <= 0:
        os._exit(9)
Workspaces(Path(sys.argv[1])).open("fix-1").commit(progress=progress)
"""


@pytest.mark.parametrize("entries", range(1, 9))
def test_a_commit_that_was_killed_is_resumed(
    tmp_path: Path, workspaces: Workspaces, workspace: Workspace, project: Path, entries: int
) -> None:
    os.link(project / "lib/two", project / "twin")  # replacing one of the pair changes the other's ctime
    workspace.discard()
    workspace = workspaces.create(project, name="fix-1", mode="overlay", agent_uid=None)
    agent_writes(
        workspace,
        "echo a > lib/two; echo b > twin; rm gone; mkdir d; chmod 755 d; echo c > d/c; mkdir d/e;"
        "echo f > d/e/f; echo m >> main.py",
    )
    expected = kinds(workspace.diff())
    crashed = subprocess.run(
        [sys.executable, "-c", _CRASH, str(tmp_path / "state"), str(entries)], check=False, env=_env()
    )
    assert crashed.returncode == 9
    report = workspace.commit()
    assert report.complete, report.conflicts
    assert set(kinds(report.committed)) == set(expected)
    assert (project / "lib/two").read_text() == "a\n"
    assert (project / "twin").read_text() == "b\n"
    assert (project / "d/e/f").read_text() == "f\n"
    assert stat.S_IMODE((project / "d").stat().st_mode) == 0o755
    assert not [path for path in tree(project) if ".agent-os-" in path]
    assert workspace.diff() == []


def test_a_temporary_file_left_by_a_crash_is_removed(workspace: Workspace, project: Path) -> None:
    agent_writes(workspace, "echo a >> main.py; echo b > lib/new")
    state = str(workspace.path.parent.parent)
    assert subprocess.run([sys.executable, "-c", _CRASH, state, "1"], check=False, env=_env()).returncode == 9
    identity = json.loads((workspace.path / "intent.json").read_text())["id"]
    (project / f".agent-os-{identity}-7").write_text("half")
    assert workspace.commit().complete
    assert not [path for path in tree(project) if ".agent-os-" in path]


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


# Swaps the directory `lib` and a link to a directory outside, as fast as it can.
_SWAP = """
import os, sys
os.chdir(sys.argv[1])
os.symlink(sys.argv[2], "other")
print("go", flush=True)
import ctypes
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"lib", -100, b"other", 2)
"""


def test_a_directory_swapped_for_a_link_during_the_commit_never_lets_a_write_out(
    tmp_path: Path, workspaces: Workspaces, project: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)  # the link is in the middle of the path, where O_NOFOLLOW does not look
    naive = 0
    for attempt in range(12):
        workspace = workspaces.create(project, name=f"race-{attempt}", mode="overlay", agent_uid=None)
        for number in range(15):
            (workspace.upper / "lib/deep").mkdir(parents=True, exist_ok=True)
            (workspace.upper / "lib/deep" / f"planted-{attempt}-{number}").write_text("x")
        with subprocess.Popen(
            [sys.executable, "-c", _SWAP, str(project), str(outside)], stdout=subprocess.PIPE
        ) as swapper:
            assert swapper.stdout
            swapper.stdout.readline()
            try:
                workspace.commit()
                naive += _naive_writes(project, outside / "deep", until_lost=not naive)
            finally:
                swapper.kill()
        if (project / "other").is_symlink():
            (project / "other").unlink()
        else:
            if (project / "lib").is_symlink():
                (project / "lib").unlink()
            else:  # the agent's own directory took the place of the link
                shutil.rmtree(project / "lib")
            (project / "other").rename(project / "lib")
        assert os.listdir(outside / "deep") == []
    assert naive > 0, "positive control: checking first and writing afterwards must lose this race"


def _naive_writes(project: Path, outside: Path, *, until_lost: bool) -> int:
    """The same by check and write: how often it wrote outside, cleaned up again. On a busy machine it takes a while."""
    number, deadline = 0, time.monotonic() + 60
    while number < 300 or (until_lost and not os.listdir(outside) and time.monotonic() < deadline):
        number += 1
        target = project / "lib/deep" / f"naive-{number % 300}"
        try:
            if not (project / "lib").is_symlink():
                target.write_text("x")
        except OSError:
            continue
    lost = 0
    for name in os.listdir(outside):
        if name.startswith("naive-"):
            (outside / name).unlink()
            lost += 1
    return lost


def test_committed_files_belong_to_the_owner_of_their_directory(workspaces: Workspaces, project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: ownership by an agent's uid")
    os.chown(project / "lib", 12345, 23456)
    workspace = workspaces.create(project, name="owned", mode="overlay", agent_uid=200007)
    assert workspace.upper.stat().st_uid == workspace.work.stat().st_uid == 200007
    (workspace.upper / "lib").mkdir()
    (workspace.upper / "lib").chmod(0o755)
    (workspace.upper / "lib/new").write_text("x")
    (workspace.upper / "lib/sub").mkdir()
    (workspace.upper / "lib/link").symlink_to("new")
    for path in workspace.upper.rglob("*"):
        os.chown(path, 200007, 200007, follow_symlinks=False)
    assert workspace.commit().complete
    for name in ["new", "sub", "link"]:
        info = (project / "lib" / name).lstat()
        assert (info.st_uid, info.st_gid) == (12345, 23456), name


def test_what_an_agent_wrote_goes_with_it_to_another_uid(either: Workspace, workspaces: Workspaces) -> None:
    uid = 200008 if os.geteuid() == 0 else None
    writes(either, "echo new >new; rm gone; echo changed >lib/two")
    before = either.diff()
    with either.hold():
        other = workspaces.hand_over(either, uid)
    assert [path.name for path in workspaces.root.iterdir()] == ["fix-1"]
    assert other.meta == replace(either.meta, agent_uid=uid, copied=other.meta.copied)
    assert (len(before), digest(other.diff())) == (3, digest(before))
    if uid is not None:
        assert {path.lstat().st_uid for path in (other.work, other.upper, *other.upper.rglob("*"))} == {uid}
    assert other.commit().complete
    assert (other.project / "lib/two").read_text() == "changed\n"


def test_a_hand_over_that_fails_leaves_all_as_it_was(
    either: Workspace, workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes(either, "echo new >new")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(snapshot, "copy_layer", full)
    with either.hold(), pytest.raises(ENOSPC):
        workspaces.hand_over(either, None)
    assert [path.name for path in workspaces.root.iterdir()] == ["fix-1"]
    assert [change.path for change in workspaces.open("fix-1").diff()] == ["new"]


def test_while_the_agent_runs_one_may_look_but_not_decide(workspace: Workspace) -> None:
    (workspace.upper / "new").write_text("x")
    assert not workspace.running
    with workspace.hold():
        assert workspace.running
        assert kinds(workspace.diff()) == {"new": "add"}
        with pytest.raises(EBUSY, match="still running"):
            workspace.commit()
        with pytest.raises(EBUSY):
            workspace.discard()
    assert workspace.commit().complete


def test_only_the_diff_that_was_shown_is_committed(workspace: Workspace, project: Path) -> None:
    (workspace.upper / "Makefile").write_text("shown")
    shown = digest(workspace.diff())
    (workspace.upper / "Makefile").write_text("other")
    with pytest.raises(ECONFLICT):
        workspace.commit(allow_protected=True, expect=shown)
    assert not (project / "Makefile").exists()
    assert workspace.commit(allow_protected=True, expect=digest(workspace.diff())).complete


def test_a_patch_shows_text_and_no_control_characters(workspace: Workspace) -> None:
    agent_writes(workspace, r"printf 'print(1)\n\033[2Jgone\n' > main.py; printf '\0bin' > binary; rm gone")
    patches = {change.path: workspace.patch(change) for change in workspace.diff()}
    assert patches["main.py"] == textwrap.dedent("""\
        --- a/main.py
        +++ b/main.py
        @@ -1 +1,2 @@
        -print('old')
        +print(1)
        +\\x1b[2Jgone
        """)
    assert "binary" in patches["binary"]
    assert "+++ /dev/null" in patches["gone"]


def test_discard_leaves_nothing(either: Workspace, workspaces: Workspaces, project: Path) -> None:
    before = tree(project)
    writes(either, "mkdir -p shut/in; echo x > shut/in/x; chmod 0 shut/in shut; ln -s / root")
    either.discard()
    assert os.listdir(workspaces.root) == []
    assert tree(project) == before
    with pytest.raises(ENOENT):
        either.discard()


def test_a_directory_nobody_may_read_is_refused_not_skipped_in_silence(workspace: Workspace) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every directory")
    agent_writes(workspace, "mkdir shut; echo x > shut/x; chmod 0 shut")
    refused = {change.path: change.refused for change in workspace.diff() if change.refused}
    assert "Permission denied" in (refused["shut"] or "")


def test_a_failed_creation_leaves_nothing(workspaces: Workspaces, tmp_path: Path) -> None:
    with pytest.raises(ENOENT, match="nowhere"):
        workspaces.create(tmp_path / "nowhere", name="a", mode="overlay", agent_uid=None)
    assert os.listdir(workspaces.root) == []


def test_a_name_is_taken_once(workspaces: Workspaces, workspace: Workspace, project: Path) -> None:
    with pytest.raises(EEXIST, match="fix-1"):
        workspaces.create(project, name="fix-1", mode="overlay", agent_uid=None)
    assert os.listdir(workspaces.root) == ["fix-1"]


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "A", "a/b", "x" * 65, "a\n"])
def test_a_name_that_is_no_name_is_refused(workspaces: Workspaces, project: Path, name: str) -> None:
    with pytest.raises(EINVAL):
        workspaces.create(project, name=name, mode="overlay", agent_uid=None)
    with pytest.raises(ENOENT):
        workspaces.open(name)


def test_an_unknown_name_suggests_the_nearest(workspaces: Workspaces, workspace: Workspace) -> None:
    with pytest.raises(ENOENT, match="fix-2") as caught:
        workspaces.open("fix-2")
    assert caught.value.code == "workspace.unknown"
    assert "fix-1" in caught.value.hint


def test_the_latest_is_that_of_the_project_one_is_in(
    workspaces: Workspaces, workspace: Workspace, project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    newer = workspaces.create(other, name="newer", mode="overlay", agent_uid=None)
    workspaces.create(other, name="bound", mode="bind", agent_uid=None)
    assert [found.name for found in workspaces.list()] == ["fix-1", "newer", "bound"]
    assert workspaces.latest().name == newer.name
    assert workspaces.latest(project / "lib").name == "fix-1"
    with pytest.raises(ENOENT, match="no workspace"):
        workspaces.latest(tmp_path)


def test_a_bound_workspace_has_nothing_to_decide(workspaces: Workspaces, project: Path) -> None:
    with pytest.raises(EINVAL, match="bind"):
        workspaces.create(project, name="bound", mode="bind", agent_uid=None).diff()


def test_another_directory_under_the_same_path_is_not_written_to(workspace: Workspace, project: Path) -> None:
    (workspace.upper / "new").write_text("x")
    project.rename(project.with_name("moved"))
    project.mkdir()
    with pytest.raises(ECONFLICT, match="no longer"):
        workspace.commit()
    project.rmdir()
    project.symlink_to("moved")
    with pytest.raises(EIO):
        workspace.commit()


def test_the_remains_of_a_crash_are_swept(workspaces: Workspaces, workspace: Workspace, project: Path) -> None:
    for draft in (".new-dead", ".new-now", ".new-left", ".new-unlocked", ".gone-dead", ".gone-now"):
        (workspaces.root / draft).mkdir()
    for draft in (".new-left", ".new-unlocked"):
        (workspaces.root / draft / "lock").touch()
    for dead in (".new-dead", ".new-left", ".gone-dead"):
        os.utime(workspaces.root / dead, (0, 0))
    workspaces.create(project, name="next", mode="overlay", agent_uid=None)
    # Some may be in the making, one in the middle of being removed.
    assert sorted(os.listdir(workspaces.root)) == [".gone-now", ".new-now", ".new-unlocked", "fix-1", "next"]


def test_a_discard_and_a_new_workspace_do_not_trip_over_each_other(workspaces: Workspaces, project: Path) -> None:
    problems: list[Exception] = []

    def come_and_go(name: str) -> None:
        try:
            for _ in range(10):
                workspaces.create(project, name=name, mode="copy", agent_uid=None).discard()
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=come_and_go, args=(f"w-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_damaged_workspace_is_named(workspaces: Workspaces, workspace: Workspace) -> None:
    (workspace.path / "meta.json").write_text("{")
    assert workspaces.list() == []
    with pytest.raises(EIO, match="fix-1"):
        workspaces.open("fix-1")


@pytest.mark.parametrize(
    ("command", "stem"), [("fix", "fix"), ("/usr/bin/python3.11 x.py", "python3"), ("", "agent"), ("./Ü!.sh", "agent")]
)
def test_names_are_made_from_the_command(command: str, stem: str) -> None:
    name = new_name(command)
    assert name.startswith(f"{stem}-")
    assert len(name) == len(stem) + 5


def test_copy_mode_knows_a_file_the_host_added_meanwhile(workspaces: Workspaces, project: Path) -> None:
    workspace = workspaces.create(project, name="copied", mode="copy", agent_uid=None)
    (project / "appeared").write_text("host")
    (project / "lib/two").unlink()
    (project / "main.py").write_text("edited by the host")
    assert workspace.diff() == []
    (workspace.upper / "gone").unlink()
    assert kinds(workspace.diff()) == {"gone": "delete"}


def test_an_old_empty_workspace_that_nobody_holds_is_swept(tmp_path: Path) -> None:
    """A killed kernel leaves one behind; the next run removes it, but never one that is new, held or has changes."""
    project = tmp_path / "project"
    project.mkdir()
    kept = Workspaces(tmp_path / "state")
    made = {name: kept.create(project, name=name, mode="overlay", agent_uid=None) for name in ("old", "held", "full")}
    (made["full"].upper / "file").write_text("work")
    for workspace in made.values():
        meta = json.loads((workspace.path / "meta.json").read_text())
        meta["created"] -= 3600 * 10**9
        (workspace.path / "meta.json").write_text(json.dumps(meta))
    with made["held"].hold():
        kept.create(project, name="new", mode="overlay", agent_uid=None)
        kept.create(project, name="next", mode="overlay", agent_uid=None)
    assert sorted(workspace.name for workspace in kept.list()) == ["full", "held", "new", "next"]


def test_sparse_files_cannot_keep_the_kernel_reading(tmp_path: Path) -> None:
    """Holes cost an agent nothing; together they are bounded, and what is beyond is refused unread."""
    project = tmp_path / "project"
    project.mkdir()
    workspace = Workspaces(tmp_path / "state").create(project, name="sparse", mode="overlay", agent_uid=None)
    for number in range(40):
        (workspace.upper / f"s{number:02}").touch()
        os.truncate(workspace.upper / f"s{number:02}", 1500 << 20)
    found = workspace.diff()
    assert len(found) == 40
    assert sum(change.sha256_new is not None for change in found) <= 1
    assert "holes" in (found[-1].refused or "")
