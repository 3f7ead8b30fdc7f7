"""The spare: a child made ahead has the launcher's rights and nobody's data, and nothing depends on its being there."""

import asyncio
import os
import resource
import signal
from pathlib import Path

import pytest

import agents
import leftovers
from agent_os.sandbox.confine import SPARE
from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import SpawnSpec

pytestmark = pytest.mark.integration

IDLE = "import signal; signal.pause()"


def spares() -> list[int]:
    """Pids of the spares of this process's launchers."""
    found: list[int] = []
    for pid in _descendants(os.getpid()):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == SPARE:
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in _children(task)]
    except FileNotFoundError:
        return []
    return children + [inner for child in children for inner in _descendants(child)]


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


async def the_spare() -> int:
    """The pid of the one spare, once there is one."""
    for _ in range(500):
        if found := spares():
            (spare,) = found
            return spare
        await asyncio.sleep(0.01)
    raise AssertionError("no spare was made")


async def kill_spare() -> None:
    spare = await the_spare()
    os.kill(spare, signal.SIGKILL)
    assert leftovers.becomes_true(lambda: not Path(f"/proc/{spare}").exists())


def pid_of(process: Process) -> int:
    lines = Path(f"/proc/self/fdinfo/{process.pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))


async def start(launcher: Launcher, code: str = IDLE, **env: str) -> Process:
    null = os.open("/dev/null", os.O_RDWR)
    try:
        spec = SpawnSpec(f"one-{os.urandom(4).hex()}", argv=["-c", code], env=env)
        return await launcher.spawn(spec, streams=(null, null, null))
    finally:
        os.close(null)


async def end(process: Process) -> None:
    await process.kill()
    process.close()


only_root_looks_inside = pytest.mark.skipif(os.geteuid() != 0, reason="spare: only root may look into it")


def test_the_next_agent_is_the_child_that_was_made_ahead() -> None:
    async def body(launcher: Launcher) -> None:
        spare = await the_spare()
        process = await start(launcher)
        assert pid_of(process) == spare
        assert await the_spare() != spare  # and another takes its place
        await end(process)

    agents.drive(body)


def test_agents_that_come_at_once_do_not_wait_for_spares() -> None:
    async def body(launcher: Launcher) -> None:
        spare = await the_spare()
        processes = await asyncio.gather(*(start(launcher) for _ in range(5)))
        pids = {pid_of(process) for process in processes}
        assert spare in pids
        assert len(pids) == 5
        for process in processes:
            await end(process)

    agents.drive(body)


@only_root_looks_inside
def test_a_spare_holds_no_descriptor_but_its_order_socket() -> None:
    async def body(launcher: Launcher) -> None:
        process = await start(launcher)  # an agent whose pidfd the launcher holds
        spare = await the_spare()
        # its streams, and the root that it builds, by O_PATH
        wanted = ["/dev/null"] * 3 + ["/sys/root", "socket"]
        assert leftovers.becomes_true(lambda: _descriptors(spare) == wanted), _descriptors(spare)
        await end(process)

    agents.drive(body)


def _descriptors(pid: int) -> list[str]:
    return sorted(os.readlink(entry).partition(":")[0] for entry in Path(f"/proc/{pid}/fd").iterdir())


@only_root_looks_inside
def test_a_spare_knows_nothing_of_an_earlier_agent() -> None:
    async def body(launcher: Launcher) -> None:
        secret = os.urandom(16).hex()
        process = await start(launcher, TOKEN=secret)
        assert secret.encode() in _memory(pid_of(process))  # the control: this is how it would look
        assert secret.encode() not in _memory(await the_spare())
        await end(process)

    agents.drive(body)


def _memory(pid: int) -> bytes:
    """All that a process may write to."""
    found: list[bytes] = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                first, last = (int(part, 16) for part in span.split("-"))
                memory.seek(first)
                found.append(memory.read(last - first))
    return b"".join(found)


def test_an_agent_is_started_although_its_spare_was_killed() -> None:
    async def body(launcher: Launcher) -> None:
        await kill_spare()
        process = await start(launcher, "raise SystemExit(7)")
        assert (await process.wait()).code == 7
        process.close()

    agents.drive(body)


def test_a_spare_that_died_is_not_made_again_until_somebody_asks() -> None:
    async def body(launcher: Launcher) -> None:
        await kill_spare()
        assert not leftovers.becomes_true(lambda: bool(spares()), 0.2)
        await end(await start(launcher))
        await the_spare()

    agents.drive(body)


def test_a_spare_dies_with_its_launcher() -> None:
    async def body(launcher: Launcher) -> None:
        spare = await the_spare()
        await launcher.close()
        assert not Path(f"/proc/{spare}").exists()

    agents.drive(body)


def test_the_cgroup_namespace_is_entered_after_the_group() -> None:
    """Else an agent would see the name of its group, and with a spare those of the launcher's."""

    async def body(launcher: Launcher) -> agents.Ran:
        return await agents.run(launcher, agents.spec_of("guest", ["cat", "/proc/self/cgroup"]))

    ran = agents.drive(body)
    assert ran.code == 0
    assert {line.split(":", 2)[2] for line in ran.output.splitlines()} == {"/"}


def test_a_launcher_leaves_no_picture_of_its_memory() -> None:
    """Orders pass through it, and it may have been started before its kernel set its own limits."""
    before = resource.getrlimit(resource.RLIMIT_CORE)

    async def soft_limit() -> int:
        launcher = await Launcher.start()
        try:
            return min(resource.prlimit(pid, resource.RLIMIT_CORE)[0] for pid in _descendants(os.getpid()))
        finally:
            await launcher.close()

    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        assert asyncio.run(soft_limit()) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
