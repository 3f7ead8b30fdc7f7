"""What this host lets us have, found by doing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import leftovers
from agent_os.sandbox import hierarchies
from agent_os.sandbox.hierarchies import Found, Hierarchy
from agent_os.sandbox.spec import Limits

V1 = Hierarchy(Path("/a"), v2=False, controllers=("memory",))
V2 = Hierarchy(Path("/b"), v2=True, controllers=("pids", "cpu"))
BARE = Hierarchy(Path("/c"), v2=True, freezes=True)


@pytest.mark.parametrize(
    ("found", "column"),
    [((), "rlimits"), ((BARE,), "rlimits"), ((V2,), "v2"), ((BARE, V1), "v1"), ((V2, V1), "v1")],
)
def test_the_column_is_whose_controllers_limit(found: tuple[Hierarchy, ...], column: str) -> None:
    assert Found(found).column == column


@pytest.mark.parametrize(
    ("v2", "name", "settings"),
    [
        (True, "memory", {"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1"}),
        (True, "pids", {"pids.max": "9"}),
        (True, "cpu", {"cpu.max": "20000 100000"}),
        (False, "memory", {"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864"}),
        (False, "pids", {"pids.max": "9"}),
        (False, "cpu", {"cpu.cfs_quota_us": "20000"}),
    ],
)
def test_each_version_is_told_in_its_own_words(tmp_path: Path, v2: bool, name: str, settings: dict[str, str]) -> None:
    """The files of a group, as the kernel would make them; a file that is not there is never created."""
    for file in settings:
        (tmp_path / file).touch()
    assert hierarchies.put(tmp_path, v2, name, Limits(memory_mb=64, pids=9, cpu_pct=20))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == settings
    (tmp_path / next(iter(settings))).unlink()
    assert not hierarchies.put(tmp_path, v2, name, Limits(memory_mb=64, pids=9, cpu_pct=20))
    assert len(list(tmp_path.iterdir())) == len(settings) - 1


@pytest.mark.parametrize(
    ("v2", "settings"), [(True, {"cpu.weight": "300", "io.weight": "300"}), (False, {"cpu.shares": "3072"})]
)
def test_a_share_is_told_in_each_version_s_words(tmp_path: Path, v2: bool, settings: dict[str, str]) -> None:
    for file in settings:
        (tmp_path / file).touch()
    assert hierarchies.weigh(tmp_path, v2, 300)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == settings
    for path in tmp_path.iterdir():
        path.unlink()
    assert not hierarchies.weigh(tmp_path, v2, 300)
    assert not list(tmp_path.iterdir())


def test_a_limit_that_is_not_set_is_not_put(tmp_path: Path) -> None:
    for v2 in (True, False):
        for name in ("memory", "cpu"):
            assert not hierarchies.put(tmp_path, v2, name, Limits(memory_mb=None, cpu_pct=None))


@pytest.mark.integration
def test_looking_leaves_nothing_behind() -> None:
    hierarchies.detect.cache_clear()
    hierarchies.detect()
    assert leftovers.cgroups(os.getpid()) == []


@pytest.mark.integration
def test_every_hierarchy_that_was_found_is_writable_and_of_use() -> None:
    for hierarchy in hierarchies.detect().hierarchies:
        assert os.access(hierarchy.parent, os.W_OK)
        assert hierarchy.controllers or hierarchy.freezes


@pytest.mark.integration
def test_groups_are_made_below_our_own_and_nowhere_else() -> None:
    """Whatever bounds the kernel must bound its agents, too."""
    own = {line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    for hierarchy in hierarchies.detect().hierarchies:
        assert any(str(hierarchy.parent).endswith(path.rstrip("/")) for path in own)
        assert str(os.getpid()) in (hierarchy.parent / "cgroup.procs").read_text().split()


@pytest.mark.integration
def test_only_the_groups_of_dead_kernels_are_swept() -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    found = hierarchies.detect().hierarchies
    if not found:
        pytest.skip("cgroup: no group this user may create")
    for hierarchy in found:
        dead, alive = (hierarchy.parent / f"agent-os-{pid}-left" for pid in (gone, os.getpid()))
        dead.mkdir()
        alive.mkdir()
        hierarchies.sweep(hierarchy.parent)
        assert (dead.exists(), alive.exists()) == (False, True)
        alive.rmdir()


@pytest.mark.integration
@pytest.mark.parametrize("alone", [True, False])
def test_we_move_into_a_leaf_only_where_all_processes_are_ours(alone: bool) -> None:
    """A v2 group passes controllers on only when no process is in it. In a delegated scope that is ours to arrange; a
    shell that happens to be in the same group is not ours to move."""
    found = next((each for each in hierarchies.detect().hierarchies if each.v2), None)
    if found is None:
        pytest.skip("cgroup: no v2 group this user may create")
    scope = found.parent / f"agent-os-{os.getpid()}-scope"
    scope.mkdir()
    other = subprocess.Popen(["sleep", "60"])
    try:
        if not alone:
            (scope / "cgroup.procs").write_text(str(other.pid))
        done = subprocess.run([sys.executable, "-c", MOVING, str(scope)], capture_output=True, text=True, check=True)
    finally:
        other.kill()
        other.wait()
        leftovers.becomes_true(lambda: not (scope / "cgroup.procs").read_text())
        scope.rmdir()  # which it could not be with a leaf left in it
    before, moved, during, after = done.stdout.splitlines()
    assert before == after == f"/{scope.name}"
    assert (moved, during.endswith("-kernel")) == (str(alone), alone)


MOVING = """
import sys
from pathlib import Path
from agent_os.sandbox import hierarchies

def where():
    line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0:"))
    print(line[line.index("/agent-os-"):], flush=True)

scope = Path(sys.argv[1])
hierarchies.write(scope / "cgroup.procs", "0")
where()
print(hierarchies._enter_leaf(scope))
where()
hierarchies._leave_leaf(scope)
where()
"""
