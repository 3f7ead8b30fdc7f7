"""One agent's cgroups: what they cap, freeze, kill and leave behind, in every column this host has."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import agents
import leftovers
from agent_os.sandbox import cgroup, hierarchies
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.hierarchies import Column
from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import GUEST_LIMITS, Limits

pytestmark = pytest.mark.integration

# A family of which one member eats: the others must not outlive it.
BOMB = (
    "import os, signal\n"
    "for _ in range(3):\n if not os.fork(): signal.pause()\n"
    "if not os.fork():\n kept = []\n while True: kept.append(bytearray(b'x' * (1 << 20)))\n"
    "signal.pause()"
)
COLUMNS: tuple[Column, ...] = ("v2", "v1", "rlimits")


def controllers() -> frozenset[str]:
    return hierarchies.detect().controllers


def need(*names: str) -> None:
    if missing := [name for name in names if name not in controllers()]:
        pytest.skip(f"cgroup: no {', '.join(missing)} controller this user may use")


@pytest.fixture(params=COLUMNS)
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """As on a host that has this column only."""
    made = Group.create("test", column=request.param)
    if not made.places and request.param != "rlimits":
        pytest.skip(f"cgroup: nothing of {request.param} that this user may write")
    yield made
    made.remove()


def sleeper(group: Group) -> int:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    for fd in group.open_procs():
        with os.fdopen(fd, "w") as procs:
            procs.write(str(pid))
    return pid


def test_a_group_freezes_thaws_and_dies_frozen(group: Group) -> None:
    pid = sleeper(group)
    can_freeze = any(hierarchy.freezes for hierarchy, _ in group.places)
    assert group.freeze(True) == can_freeze
    assert group.freeze(False) == can_freeze
    assert group.freeze(True) == can_freeze
    os.kill(pid, signal.SIGKILL)
    group.kill()
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    group.remove()
    assert not any(path.exists() for _, path in group.places)
    assert not group.freeze(True)


def test_a_group_kills_alone_where_linux_knows_how() -> None:
    group = Group.create("test-kill", column="v2")
    try:
        if not any(hierarchy.kills for hierarchy, _ in group.places):
            pytest.skip("cgroup: no cgroup.kill this user may write")
        pid = sleeper(group)
        group.kill()
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    finally:
        group.remove()


def test_a_share_and_what_is_used_are_known_where_a_controller_is(group: Group) -> None:
    group.apply(Limits(weight=300))
    assert group.weighed == ("cpu" in group.controllers)
    assert (group.memory_used() is None) == ("memory" not in group.controllers)
    assert (group.tasks_used() is None) == ("pids" not in group.controllers)
    pid = sleeper(group)
    try:
        assert group.tasks_used() in (None, 1)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_limit_counts_only_where_it_was_written(group: Group) -> None:
    group.apply(Limits(cpu_pct=50))
    assert group.applied == group.controllers
    assert group.enforces(Limits(cpu_pct=50)) == (group.applied == set(hierarchies.CONTROLLERS))


def test_without_a_memory_cap_an_agent_is_not_capped_as_a_whole() -> None:
    group = Group.create("test-uncapped")
    try:
        group.apply(GUEST_LIMITS)
        assert "memory" not in group.applied
        assert not group.enforces(GUEST_LIMITS)
    finally:
        group.remove()


def test_a_group_that_cannot_be_made_is_an_empty_one() -> None:
    first = Group.create("test-twice")
    try:
        if not first.places:
            pytest.skip("cgroup: no group this user may create")
        second = Group.create("test-twice")
        assert (second.column, second.places) == ("rlimits", [])
        assert all(path.exists() for each, path in first.places if not each.late)
    finally:
        first.remove()


# With real agents


async def spawned(launcher: Launcher, argv: list[str], limits: Limits, column: Column | None = None) -> Process:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        spec = agents.spec_of("native", argv, limits=limits)
        return await launcher.spawn(spec, streams=(null, null, null), group=Group.create(spec.spawn_id, column))
    finally:
        os.close(null)


def test_the_level_is_what_the_controllers_are_worth() -> None:
    async def body(launcher: Launcher) -> list[str]:
        levels: list[str] = []
        for limits, column in ((Limits(), None), (GUEST_LIMITS, None), (Limits(), "rlimits")):
            process = await spawned(launcher, ["-c", "pass"], limits, column)
            await process.wait()
            process.close()
            levels.append(process.ready.level)
        return levels

    best = "S3" if controllers() == set(hierarchies.CONTROLLERS) else "S2"
    assert agents.drive(body) == [best, "S2", "S2"]


def test_a_minimum_of_s3_is_refused_without_controllers() -> None:
    async def body(launcher: Launcher) -> str:
        null = os.open(os.devnull, os.O_RDWR)
        spec = agents.spec_of("native", ["-c", "pass"], min_level="S3")
        group = Group.create(spec.spawn_id, "rlimits")
        try:
            with pytest.raises(agents.SandboxError) as caught:
                await launcher.spawn(spec, streams=(null, null, null), group=group)
        finally:
            os.close(null)
        return caught.value.why

    assert "cgroup controllers" in agents.drive(body)


@pytest.mark.parametrize("kind", ["native", "tool"])
def test_a_memory_bomb_is_killed_as_a_whole_and_told(kind: str) -> None:
    need("memory")
    argv = ["-c", BOMB] if kind == "native" else ["python3", "-c", BOMB]
    spec = agents.spec_of(kind, argv, limits=Limits(memory_mb=64, as_mb=None))

    async def body(launcher: Launcher) -> tuple[int, bool, set[int]]:
        leftovers.adopt_orphans()
        before = set(leftovers.processes())
        async with agents.started(launcher, spec) as (process, _):
            ended = await asyncio.wait_for(process.wait(), 30)
            return ended.code, process.ran_out_of_memory(), set(leftovers.processes()) - before

    assert agents.drive(body) == (128 + signal.SIGKILL, True, set())


def test_an_agent_within_its_memory_is_left_alone() -> None:
    """The control of the bomb: the same cap, half of it used, and a death that is nobody's fault."""
    spec = agents.spec_of("native", ["-c", "kept = bytearray(b'x') * (32 << 20)"], limits=Limits(memory_mb=64))

    async def body(launcher: Launcher) -> list[tuple[int, bool]]:
        found: list[tuple[int, bool]] = []
        async with agents.started(launcher, spec) as (process, _):
            found.append(((await process.wait()).code, process.ran_out_of_memory()))
        killed = await spawned(launcher, ["-c", "import signal; signal.pause()"], Limits(memory_mb=64))
        found.append(((await killed.kill()).code, killed.ran_out_of_memory()))
        killed.close()
        return found

    assert agents.drive(body) == [(0, False), (128 + signal.SIGKILL, False)]


def test_the_task_limit_of_the_group_holds_by_itself() -> None:
    """RLIMIT_NPROC would stop it at the same number; so the group's is set lower than that, from outside."""
    need("pids")
    code = (
        "import os, signal, sys\nsys.stdin.readline()\nmade = 0\n"
        "try:\n while made < 60:\n  if not os.fork(): signal.pause()\n  made += 1\n"
        "except BlockingIOError: pass\nprint(made, flush=True)"
    )

    async def body(launcher: Launcher) -> int:
        (in_read, in_write), (out_read, out_write) = os.pipe(), os.pipe()
        spec = agents.spec_of("native", ["-c", code], limits=Limits(pids=64))
        group = Group.create(spec.spawn_id)
        process = await launcher.spawn(spec, streams=(in_read, out_write, out_write), group=group)
        path = next(path for each, path in group.places if "pids" in each.controllers)
        (path / "pids.max").write_text("8")
        os.write(in_write, b"\n")
        made = int(await asyncio.to_thread(agents.read_line, out_read))
        await process.kill()
        process.close()
        for fd in (in_read, in_write, out_read, out_write):
            os.close(fd)
        return made

    assert agents.drive(body) == 7


def share_of_a_core(percent: int | None) -> float:
    code = (
        "import time\nbegan = time.monotonic()\nwhile time.monotonic() < began + 1: pass\n"
        "print(time.process_time() / (time.monotonic() - began))"
    )
    spec = agents.spec_of("native", ["-c", code], limits=Limits(cpu_pct=percent))
    return float(agents.drive(lambda box: agents.run(box, spec)).output)


def test_a_share_of_the_cpu_is_not_exceeded() -> None:
    need("cpu")
    assert 0 < share_of_a_core(20) < 0.5
    # The control: without the limit it gets more. A busy machine may not have it at once.
    assert leftovers.becomes_true(lambda: share_of_a_core(None) > 0.5, 60)


def test_all_of_an_agents_groups_are_gone_with_it() -> None:
    async def body(launcher: Launcher) -> tuple[int, list[str], list[str]]:
        process = await spawned(launcher, ["-c", "import signal; signal.pause()"], Limits())
        assert process.group
        during = leftovers.cgroups(os.getpid())
        await process.kill()
        process.close()
        joined = [path for each, path in process.group.places if not each.late]
        return len(joined), during, leftovers.cgroups(os.getpid())

    places, during, after = agents.drive(body)
    assert len(during) == places  # the control: while it runs they are seen
    assert after == []


KERNEL = """
import asyncio, os, sys
sys.path[:0] = sys.argv[1:]
import agents
from agent_os.sandbox.cgroup import Group

async def body(launcher):
    null = os.open(os.devnull, os.O_RDWR)
    spec = agents.spec_of("native", ["-c", "import signal; signal.pause()"])
    await launcher.spawn(spec, streams=(null, null, null), group=Group.create(spec.spawn_id))
    print("up", flush=True)
    await asyncio.sleep(600)

agents.drive(body)
"""


def killed_kernel() -> int:
    """The process id of a kernel that was killed while it had an agent."""
    before = set(leftovers.processes())
    tests, source = Path(agents.__file__).parent, Path(cgroup.__file__).parents[2]
    command = [sys.executable, "-c", KERNEL, str(tests), str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout
        assert kernel.stdout.readline() == "up\n"
        kernel.kill()
    assert leftovers.becomes_true(lambda: not set(leftovers.processes()) - before)
    return kernel.pid


def test_what_a_killed_kernel_leaves_is_swept_in_every_hierarchy() -> None:
    found = [each for each in hierarchies.detect().hierarchies if not each.late]  # first: to detect is to sweep
    leftovers.adopt_orphans()
    for _ in range(5):
        kernel = killed_kernel()
        if len(leftovers.cgroups(kernel)) == len(found):
            break
    else:
        pytest.fail("a killed kernel left nothing in five tries; other kernels of this machine sweep once or twice")
    for hierarchy in found:
        hierarchies.sweep(hierarchy.parent)
    assert leftovers.cgroups(kernel) == []


def test_making_the_groups_of_an_agent_is_cheap() -> None:
    """Generous, for busy machines; the figure itself is the benchmarks' business."""
    times: list[float] = []
    for number in range(30):
        began = time.perf_counter()
        group = Group.create(f"test-cost-{number}")
        group.apply(Limits())
        times.append(time.perf_counter() - began)
        group.remove()
    assert min(times) < 0.01
