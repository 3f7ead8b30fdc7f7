"""Every step of launcher and child can fail, and then nothing is left: no process, cgroup, mount, uid or descriptor."""

import asyncio
import errno
import gc
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import leftovers
from agent_os.sandbox import cgroup, spawner
from agent_os.sandbox.confine import AHEAD, STEPS
from agent_os.sandbox.spawner import Launcher, Lease, Process, SandboxError, lease_uid
from agent_os.sandbox.spec import SpawnSpec, Workspace

pytestmark = pytest.mark.integration

ROOT = os.geteuid() == 0
LAUNCHER_STEPS = ("L2", "L3", "L4", "L5", "L6", "L7", "L8")
CHILD_STEPS = (*(f"C{n}" for n in range(1, 17)), "cwd")
SECONDS = 60


def nothing_left(act: Callable[[], Awaitable[None]]) -> None:
    """Do it in a fresh event loop and compare what there was before with what there is after."""
    leftovers.adopt_orphans()
    gc.collect()  # what an earlier test forgot must not vanish between the two counts
    before = counted()
    asyncio.run(asyncio.wait_for(act(), SECONDS))
    gone = leftovers.becomes_true(lambda: counted()["processes"] == before["processes"])
    assert gone, leftovers.processes()
    assert counted() == before


def counted() -> dict[str, object]:
    return {
        "processes": leftovers.processes(),
        "cgroups": leftovers.cgroups(os.getpid()),
        "mounts": Path("/proc/self/mounts").read_text(),
        "descriptors": leftovers.descriptors(),
        "leases": leases(),
    }


def leases() -> int:
    """How many uids this process holds: open descriptors of the file whose bytes are locked."""
    return sum(target == spawner._LEASES for target in leftovers.descriptors().values())


async def spawn(launcher: Launcher, *argv: str, name: str = "step", lease: Lease | None = None) -> Process:
    """A guest that needs every step: a cgroup, a bound workspace, a network listener."""
    group = cgroup.Group.create(name)
    directory = os.open("/usr/share", os.O_PATH)
    null = os.open("/dev/null", os.O_RDWR)
    spec = SpawnSpec(
        spawn_id=name,
        kind="guest",
        isolation="exec",
        argv=list(argv),
        env={"PATH": "/usr/bin:/bin"},
        net="proxy",
        workspace=Workspace("tmpfs", "/work"),
    )
    try:
        streams, sources = (null, null, null), {"extra": directory}
        return await launcher.spawn(spec, streams=streams, sources=sources, group=group, lease=lease)
    finally:
        os.close(directory)
        os.close(null)


async def works(launcher: Launcher) -> None:
    """The positive control: the same spawn succeeds where no step was told to fail."""
    process = await spawn(launcher, "sh", "-c", "exit 7", name="after")
    assert (await process.wait()).code == 7
    process.close()


def test_a_spawn_in_which_no_step_fails_leaves_nothing_either() -> None:
    async def act() -> None:
        launcher = await Launcher.start()
        try:
            await works(launcher)
        finally:
            await launcher.close()

    nothing_left(act)


@pytest.mark.parametrize("step", LAUNCHER_STEPS)
def test_a_launcher_step_that_fails_is_named_and_leaves_nothing(step: str) -> None:
    async def act() -> None:
        with pytest.raises(SandboxError) as caught:
            await Launcher.start(fail_at=step)
        assert (caught.value.word, caught.value.step, caught.value.errno) == ("setup", step, errno.EIO)
        assert "failpoint" in caught.value.why

    nothing_left(act)


def python_that_finds(folder: Path, python: str) -> Path:
    """An interpreter for `Launcher.start` that also finds modules in `folder`: the launcher adds our package alone."""
    wrapper = folder / "python"
    wrapper.write_text(
        "#!/bin/sh\n# called with -Ps -S -c CODE and CODE's own arguments\n"
        'shift 3; code=$1; shift\nexec "$(cat "${0%/*}/real")" -I -S -B -c '
        '"import sys; sys.path.insert(0, \'${0%/*}\'); $code" "$@"\n'
    )
    (folder / "real").write_text(python)
    wrapper.chmod(0o755)
    return wrapper


def test_a_preload_that_starts_a_thread_is_refused(tmp_path: Path) -> None:
    """L1. A second thread would not be in the forked children, and no user namespace can be entered with one."""
    python = str(python_that_finds(tmp_path, sys.executable))
    quiet = "def run(argv):\n    return 0\n"
    busy = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    raw = "import _thread, time\n_thread.start_new_thread(time.sleep, (600,))\n"  # threading does not know of it
    for name, text in (("quiet", quiet), ("busy", busy + quiet), ("raw", raw + quiet)):
        (tmp_path / f"{name}_preload.py").write_text(text)

    async def act() -> None:
        await (await Launcher.start(entry="quiet_preload:run", python=python)).close()
        for name in ("busy", "raw"):
            with pytest.raises(SandboxError) as caught:
                await Launcher.start(entry=f"{name}_preload:run", python=python)
            assert (caught.value.word, caught.value.step) == ("setup", "L1")
            assert "thread" in caught.value.why

    nothing_left(act)


@pytest.mark.parametrize("entry", ["no_such_module:run", "agent_os.userland.native:no_such_function"])
def test_a_preload_that_cannot_be_imported_is_told_and_leaves_nothing(entry: str) -> None:
    async def act() -> None:
        with pytest.raises(SandboxError) as caught:
            await Launcher.start(entry=entry)
        assert "no_such" in caught.value.why

    nothing_left(act)


def test_every_child_step_has_its_failpoint_test() -> None:
    assert sorted(name for name, _ in AHEAD + STEPS) == sorted(CHILD_STEPS)


@pytest.mark.parametrize("step", CHILD_STEPS)
def test_a_child_step_that_fails_is_named_and_leaves_nothing_and_others_go_on(step: str) -> None:
    async def act() -> None:
        failing, sound = await Launcher.start(fail_at=step), await Launcher.start()
        try:
            before = counted()
            for attempt in ("first", "second"):  # the second shows that the launcher outlived the first
                with pytest.raises(SandboxError) as caught:
                    await spawn(failing, "true", name=attempt)
                assert (caught.value.word, caught.value.step, caught.value.errno) == ("setup", step, errno.EIO)
                assert leftovers.becomes_true(lambda: counted() == before), (counted(), before)
            await works(sound)
        finally:
            await failing.close()
            await sound.close()

    nothing_left(act)


def test_a_command_that_cannot_be_executed_is_named_and_leaves_nothing() -> None:
    async def act() -> None:
        launcher = await Launcher.start()
        try:
            before = counted()
            with pytest.raises(SandboxError) as caught:
                await spawn(launcher, "/no/such/program")
            assert (caught.value.step, caught.value.errno) == ("exec", errno.ENOENT)
            assert leftovers.becomes_true(lambda: counted() == before), (counted(), before)
            await works(launcher)
        finally:
            await launcher.close()

    nothing_left(act)


def test_a_failed_spawn_gives_its_uid_back() -> None:
    if not ROOT:
        pytest.skip("uid: user mode has one for all")

    async def act() -> None:
        failing = await Launcher.start(fail_at="C9")
        lease = lease_uid(True)
        try:
            assert not can_be_leased(lease.uid)
            with pytest.raises(SandboxError) as caught:
                await spawn(failing, "true", lease=lease)
            assert caught.value.step == "C9"
            assert can_be_leased(lease.uid)
        finally:
            await failing.close()

    nothing_left(act)


def can_be_leased(uid: int) -> bool:
    probe = os.open(spawner._LEASES, os.O_RDWR)
    try:
        spawner._lock_byte(probe, uid)
    except BlockingIOError:
        return False
    finally:
        os.close(probe)
    return True
