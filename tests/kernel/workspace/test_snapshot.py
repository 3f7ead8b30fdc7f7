"""A kept state is whole, stays as it is, and what is made from it behaves as if its agent had gone on."""

import os
import stat
import time
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from agent_os.abi.errors import EACCES, EBUSY, ECONFLICT, EEXIST, EINVAL
from agent_os.kernel import beneath
from agent_os.kernel.workspace import Workspace, Workspaces
from agent_os.kernel.workspace.landing import write_json
from overlay import agent_writes, tree

pytestmark = [pytest.mark.integration, pytest.mark.both_uids("root reads and writes what no other user may")]

EDITS = """
echo changed > changed
rm gone
rm -r folder && mkdir folder && echo new > folder/new
mkdir -p deep/er && echo x > deep/er/file
ln -s changed link
echo twice > one && ln one two
chmod 750 deep
chmod 600 changed
mkfifo pipe
truncate -s 100M sparse
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    top = tmp_path / "project"
    (top / "folder").mkdir(parents=True)
    for name in ("changed", "gone", "same", "folder/old"):
        (top / name).write_text("old\n")
    return top


@pytest.fixture
def kept(tmp_path: Path) -> Workspaces:
    return Workspaces(tmp_path / "state")


@pytest.fixture
def origin(kept: Workspaces, project: Path) -> Workspace:
    workspace = kept.create(project, name="first", mode="overlay", agent_uid=None)
    agent_writes(workspace, EDITS)
    return workspace


def facts(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a tree that a later copy must neither lose nor touch."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *sorted(top.rglob("*"))):
        info = path.lstat()
        marks = {} if path.is_symlink() else {name: os.getxattr(path, name) for name in os.listxattr(path)}
        found[str(path.relative_to(top))] = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_rdev, marks)
    return found


def test_a_copy_holds_all_that_its_origin_holds(kept: Workspaces, origin: Workspace) -> None:
    copy = kept.copy(origin, name="second", agent_uid=None)
    assert facts(copy.upper) == facts(origin.upper)
    assert tree(copy.upper) == tree(origin.upper)
    assert copy.diff() == origin.diff()
    assert {change.path: change.kind for change in copy.diff()}["folder/old"] == "delete"
    assert os.stat(copy.upper / "one").st_ino == os.stat(copy.upper / "two").st_ino
    assert os.stat(copy.upper / "sparse").st_blocks < 100


def test_the_next_agent_sees_what_the_first_one_left(kept: Workspaces, origin: Workspace) -> None:
    copy = kept.copy(origin, name="second", agent_uid=None)
    agent_writes(
        copy,
        """
        [ ! -e gone ] && [ ! -e folder/old ] && [ "$(cat folder/new)" = new ] && [ "$(cat changed)" = changed ]
        [ "$(cat same)" = old ] && [ "$(cat link)" = changed ] && [ -p pipe ]
        echo more > two && [ "$(cat one)" = more ]
        echo again > gone && rm changed && rmdir deep 2>/dev/null || rm -r deep
        """,
    )
    found = {change.path: change.kind for change in copy.diff()}
    assert (found["gone"], found["changed"]) == ("modify", "delete")
    assert "deep" not in found


def test_what_happens_to_a_copy_never_reaches_its_origin(kept: Workspaces, origin: Workspace) -> None:
    before = facts(origin.upper)
    copy = kept.copy(origin, name="second", agent_uid=None)
    agent_writes(copy, "echo other > changed; rm -r folder deep one; echo y >> two")
    assert facts(origin.upper) == before
    copy.discard()
    assert facts(origin.upper) == before


def test_a_copy_of_a_copy_is_the_same_again(kept: Workspaces, origin: Workspace) -> None:
    second = kept.copy(origin, name="second", agent_uid=None)
    origin.discard()
    third = kept.copy(second, name="third", agent_uid=None)
    assert facts(third.upper) == facts(second.upper)


def test_what_the_project_changed_since_the_origin_began_is_a_conflict(
    kept: Workspaces, origin: Workspace, project: Path
) -> None:
    (project / "changed").write_text("the operator's\n")
    copy = kept.copy(origin, name="second", agent_uid=None)
    report = copy.commit(paths=["changed", "deep"])
    assert [conflict.path for conflict in report.conflicts] == ["changed"]
    assert (project / "changed").read_text() == "the operator's\n"
    assert (project / "deep" / "er" / "file").read_text() == "x\n"


def test_a_copy_commits_as_its_origin_would(kept: Workspaces, origin: Workspace, project: Path) -> None:
    copy = kept.copy(origin, name="second", agent_uid=None)
    report = copy.commit()
    assert [change.path for change in report.refused] == ["pipe"]
    assert not report.conflicts
    assert (project / "changed").read_text() == "changed\n"
    assert sorted(path.name for path in (project / "folder").iterdir()) == ["new"]
    assert not (project / "gone").exists()


def test_what_its_origin_committed_is_no_conflict_for_a_copy(
    kept: Workspaces, origin: Workspace, project: Path
) -> None:
    origin.commit(paths=["changed", "deep"])
    copy = kept.copy(origin, name="second", agent_uid=None)
    assert not {"changed", "deep/er/file"} & {change.path for change in copy.diff()}
    agent_writes(copy, "echo further > changed; echo further > deep/er/file")
    (project / "deep" / "er" / "file").write_text("the operator's\n")
    report = copy.commit(paths=["changed", "deep"])
    assert [conflict.path for conflict in report.conflicts] == ["deep/er/file"]
    assert (project / "changed").read_text() == "further\n"


def test_setuid_bits_stay_behind(kept: Workspaces, origin: Workspace) -> None:
    (origin.upper / "deep" / "er" / "file").chmod(0o6755)
    copy = kept.copy(origin, name="second", agent_uid=None)
    assert stat.S_IMODE((copy.upper / "deep" / "er" / "file").stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_everything_in_a_copy_belongs_to_its_new_agent(kept: Workspaces, origin: Workspace) -> None:
    copy = kept.copy(origin, name="second", agent_uid=200123)
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in (copy.upper, copy.work, *copy.upper.rglob("*"))}
    assert owners == {(200123, 200123)}
    assert stat.S_IMODE(copy.path.stat().st_mode) == 0o711


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_what_cannot_be_read_is_named_and_nothing_is_left(kept: Workspaces, origin: Workspace) -> None:
    (origin.upper / "deep" / "er" / "file").chmod(0)
    with pytest.raises(EACCES) as caught:
        kept.copy(origin, name="second", agent_uid=None)
    assert "deep/er/file" in caught.value.reason
    assert sorted(os.listdir(kept.root)) == ["first"]


def test_a_project_that_is_no_longer_the_same_directory_is_refused(
    kept: Workspaces, origin: Workspace, project: Path
) -> None:
    project.rename(project.with_name("moved"))
    project.mkdir()
    with pytest.raises(ECONFLICT):
        kept.copy(origin, name="second", agent_uid=None)


def test_a_link_in_the_layer_leads_no_copy_outside(kept: Workspaces, origin: Workspace, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("SECRET")
    (origin.upper / "out").symlink_to(tmp_path / "secret")
    copy = kept.copy(origin, name="second", agent_uid=None)
    assert (copy.upper / "out").is_symlink()
    assert not any("SECRET" in content for content in tree(copy.upper).values())


# --- without an overlay


def test_a_copied_project_still_knows_what_its_agent_changed(kept: Workspaces, project: Path) -> None:
    origin = kept.create(project, name="first", mode="copy", agent_uid=None)
    (origin.upper / "changed").write_text("changed\n")
    (origin.upper / "gone").unlink()
    (origin.upper / "added").symlink_to("changed")
    before = origin.diff()
    assert {change.path: change.kind for change in before} == {
        "changed": "modify",
        "gone": "delete",
        "added": "symlink",
    }
    (project / "same").write_text("the operator's\n")  # none of the agent's doing, and stays so
    copy = kept.copy(origin, name="second", agent_uid=None)
    assert copy.diff() == before
    (copy.upper / "same").write_text("the agent's\n")
    assert "same" in {change.path for change in copy.diff()}
    assert copy.commit(paths=["same"]).conflicts
    assert origin.diff() == before


# --- names


def test_a_state_is_kept_under_its_name_even_if_it_is_empty(kept: Workspaces, project: Path) -> None:
    plain = kept.create(project, name="run-1", mode="overlay", agent_uid=None)
    named = kept.create(project, name="run-2", mode="overlay", agent_uid=None).keep_as("before-tests")
    assert (named.name, named.meta.snapshot) == ("before-tests", True)
    for workspace in (plain, named):
        aged(workspace, 3600)
    kept.create(project, name="run-3", mode="overlay", agent_uid=None)  # sweeps what nobody decides about
    assert sorted(workspace.name for workspace in kept.list()) == ["before-tests", "run-3"]
    assert kept.open("before-tests").diff() == []


def aged(workspace: Workspace, seconds: int) -> None:
    then = time.time_ns() - seconds * 10**9
    with beneath.closing(beneath.open_root(workspace.path)) as home:
        write_json(home, "meta.json", asdict(replace(workspace.meta, created=then, made=0)))


def test_a_new_copy_of_an_old_state_is_young(kept: Workspaces, project: Path) -> None:
    old = kept.create(project, name="run-1", mode="overlay", agent_uid=None).keep_as("old")
    aged(old, 3600)
    copy = kept.copy(kept.open("old"), name="run-2", agent_uid=None)
    assert copy.meta.created == kept.open("old").meta.created
    kept.create(project, name="run-3", mode="overlay", agent_uid=None)
    assert kept.open("run-2")
    assert kept.latest(project).name == "run-3"


@pytest.mark.parametrize("name", ["", "../up", "a/b", "Big", "x" * 65, "-dash", "nul\0", "two words"])
def test_a_name_that_is_none_is_refused(kept: Workspaces, origin: Workspace, name: str) -> None:
    with pytest.raises(EINVAL):
        origin.keep_as(name)
    with pytest.raises(EINVAL):
        kept.copy(origin, name=name, agent_uid=None)
    assert [workspace.name for workspace in kept.list()] == ["first"]


def test_no_name_is_taken_twice(kept: Workspaces, origin: Workspace) -> None:
    other = kept.copy(origin, name="second", agent_uid=None)
    with pytest.raises(EEXIST):
        other.keep_as("first")
    with pytest.raises(EEXIST):
        kept.copy(origin, name="second", agent_uid=None)
    assert origin.diff()


def test_a_state_may_be_copied_by_many_but_not_while_somebody_changes_it(kept: Workspaces, origin: Workspace) -> None:
    with origin.hold(shared=True), origin.hold(shared=True), pytest.raises(EBUSY):
        origin.discard()
    with origin.hold(), pytest.raises(EBUSY), origin.hold(shared=True):
        pass
    with origin.hold(), pytest.raises(EBUSY):
        origin.keep_as("named")
