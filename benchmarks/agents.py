"""What the benchmarks share: agents as the kernel starts them, and the plain processes they are compared with."""

import asyncio
import os
import resource
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import SpawnSpec

IDLE = "import signal; signal.pause()"
_TRUE = "/bin/true"


@asynccontextmanager
async def launcher() -> AsyncIterator[Launcher]:
    running = await Launcher.start()
    try:
        yield running
    finally:
        await running.close()


def name() -> str:
    return f"bench-{secrets.token_hex(4)}"


def native(code: str) -> SpawnSpec:
    return SpawnSpec(name(), argv=["-c", code])


async def start(launcher: Launcher, spec: SpawnSpec, *, grouped: bool = False, stdout: int | None = None) -> Process:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        group = Group.create(spec.spawn_id) if grouped else None
        return await launcher.spawn(spec, streams=(null, null if stdout is None else stdout, null), group=group)
    finally:
        os.close(null)


def can_group() -> bool:
    """Whether this host gives an agent a cgroup of its own."""
    group = Group.create(name())
    if group:
        group.remove()
    return group is not None


async def end(processes: Sequence[Process]) -> None:
    """All killed at once; returns when nothing of them is left."""
    await asyncio.gather(*(process.kill() for process in processes))
    for process in processes:
        process.close()


async def spawn_and_end(launcher: Launcher, spec: SpawnSpec, *, grouped: bool = False) -> float:
    """Milliseconds until it is ready; its end is awaited but not counted."""
    began = time.perf_counter()
    process = await start(launcher, spec, grouped=grouped)
    took = (time.perf_counter() - began) * 1000
    await process.wait()
    process.close()
    return took


def pid_of(process: Process) -> int:
    info = Path(f"/proc/self/fdinfo/{process.pidfd}").read_text()
    return int(next(line for line in info.splitlines() if line.startswith("Pid:")).split()[1])


def plain_spawn(*argv: str) -> int:
    """The cheapest way Linux and Python have to start a program: no copy of the address space."""
    return os.posix_spawn(argv[0], argv, {})


def fork_exec_true() -> None:
    os.waitpid(plain_spawn(_TRUE), 0)


def raise_descriptor_limit() -> tuple[int, int]:
    """The soft limit to the hard one, for launchers started from here on; what it was and what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard
