"""Spawns agents for tests: a launcher, a spec, and what came out of it."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Exit, Launcher, Lease, Process
from agent_os.sandbox.spawner import SandboxError as SandboxError
from agent_os.sandbox.spec import SpawnSpec

PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Ran:
    code: int
    output: str  # stdout and stderr together
    process: Process
    exit: Exit


def drive(body: Callable[[Launcher], Coroutine[Any, Any, Any]], **simulate: Any) -> Any:
    """Run a coroutine with a launcher of its own; the launcher and every agent are gone afterwards."""

    async def with_launcher() -> Any:
        launcher = await Launcher.start(**simulate)
        try:
            return await body(launcher)
        finally:
            await launcher.close()

    return asyncio.run(with_launcher())


def spec_of(kind: str, argv: list[str], **fields: Any) -> SpawnSpec:
    env = {"PATH": PATH} | fields.pop("env", {})
    return SpawnSpec(spawn_id=f"t-{secrets.token_hex(4)}", kind=kind, argv=argv, env=env, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def started(
    launcher: Launcher, spec: SpawnSpec, sources: Mapping[str, int] | None = None, lease: Lease | None = None
) -> AsyncIterator[tuple[Process, int]]:
    """A running agent and the end of the pipe it writes to."""
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        group = Group.create(spec.spawn_id)
        streams = (null, write, write)
        process = await launcher.spawn(spec, streams=streams, sources=sources, group=group, lease=lease)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
        os.close(null)
    try:
        yield process, read
    finally:
        await process.kill()
        process.close()
        os.close(read)


async def run(
    launcher: Launcher, spec: SpawnSpec, sources: Mapping[str, int] | None = None, lease: Lease | None = None
) -> Ran:
    """Run an agent to its end."""
    async with started(launcher, spec, sources, lease) as (process, output):
        text = await asyncio.to_thread(read_all, output)
        ended = await process.wait()
    return Ran(ended.code, text, process, ended)


def read_all(fd: int) -> str:
    parts: list[bytes] = []
    while data := os.read(fd, 65536):
        parts.append(data)
    return b"".join(parts).decode(errors="replace")


def read_line(fd: int) -> str:
    """Wait for one line: how a test knows that an agent has come so far."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return line.decode()
