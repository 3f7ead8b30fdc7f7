"""One-shot tool runs: a command in a sandbox of its own, its output as bytes.

No kernel socket, always a wall limit, output bounded per stream: what comes after the bound is read and thrown away, so
that the tool ends as it would, and the result says so. Beyond `largest`, it is killed: whoever writes without end would
otherwise run until its wall limit for nothing. No network, unless it is given a way out: then every connection is
judged by whoever serves that.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec import Struct

from agent_os.kernel.egress import Egress
from agent_os.kernel.egress.addresses import Address
from agent_os.kernel.guest.environment import proxied
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import JOINED, Exit, Launcher, Process
from agent_os.sandbox.spec import Bind, Limits, SpawnSpec, Workspace

OUTPUT_BYTES = 1 << 20
WALL_SECONDS = 60.0
_PATH = "/usr/local/bin:/usr/bin:/bin"


class Captured(Struct, frozen=True):
    data: bytes
    truncated: bool
    size: int = 0  # of all that it wrote, as far as it was read


class ToolResult(Struct, frozen=True):
    code: int
    stdout: Captured
    stderr: Captured
    timed_out: bool
    out_of_memory: bool  # it was killed for its memory limit
    level: str
    too_large: bool = False  # it was killed for what it wrote
    seconds: float = 0.0


class Beside(Protocol):
    """An agent that has a process."""

    @property
    def process(self) -> Process: ...

    @property
    def runs(self) -> set[Process]:
        """What runs beside it, and ends with it."""
        ...


class WayOut(Struct, frozen=True):
    egress: Egress
    doors: Sequence[tuple[Address, int]] = ()  # endpoints of the machine, each at the same port of its own loopback


async def run_tool(
    launcher: Launcher,
    name: str,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    output_bytes: int = OUTPUT_BYTES,
    largest: int | None = None,
    cwd: str = "/work",
    workspace: Workspace | None = None,
    binds: Sequence[Bind] = (),
    sources: Mapping[str, int] | None = None,
    beside: "Beside | None" = None,
    way_out: WayOut | None = None,
) -> ToolResult:
    """Run it and wait. If this is cancelled, the tool is killed and nothing of it is left. `sources`: descriptors that
    workspace and binds name; the caller keeps them. `beside`: an agent whose workspace and mounts it sees, under the
    same uid; it ends with that agent. `way_out`: this run's own, closed with it."""
    limits = limits or Limits()
    wall = limits.wall_s or WALL_SECONDS
    lease = None
    if beside:
        theirs = beside.process.spec
        workspace, binds = theirs.workspace._replace(mode="bind"), theirs.binds
        cwd, argv = _seen_at(cwd, theirs), [_seen_at(argv[0], theirs), *argv[1:]]
        sources, lease = {JOINED: beside.process.mounts}, beside.process.lease.shared()
    spec = SpawnSpec(
        spawn_id=name,
        kind="tool",
        isolation="exec",
        argv=list(argv),
        env={"PATH": _PATH, "HOME": "/home/agent", "LANG": "C.UTF-8", **(proxied() if way_out else {}), **(env or {})},
        net="proxy" if way_out else "none",
        forward=[port for _, port in way_out.doors] if way_out else [],
        limits=limits._replace(wall_s=wall),
        cwd=cwd,
        workspace=workspace or Workspace(),
        binds=list(binds),
    )
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
    try:
        streams = in_read, out_write, err_write
        group = Group.create(name)
        process = await launcher.spawn(spec, streams=streams, sources=sources, group=group, lease=lease)
    except BaseException:
        for fd in (in_write, out_read, err_read):
            os.close(fd)
        raise
    finally:
        for fd in (in_read, out_write, err_write):
            os.close(fd)
    if beside:
        beside.runs.add(process)
    flood = asyncio.Event()
    written = asyncio.gather(
        _feed(in_write, stdin),
        _capture(out_read, output_bytes, largest, flood),
        _capture(err_read, output_bytes, largest, flood),
    )
    timed_out, began = False, time.monotonic()
    try:
        async with _served(process, way_out), asyncio.timeout(wall):
            ended = await _ended(process, flood)
    except BaseException as problem:
        ended = await process.kill()
        timed_out = isinstance(problem, TimeoutError)
        if not timed_out:
            raise
    finally:
        out_of_memory = process.ran_out_of_memory()
        if beside:
            beside.runs.discard(process)
        process.close()
        _, stdout, stderr = await written  # they end with the tool
    code, took = 124 if timed_out else ended.code, time.monotonic() - began
    level = process.ready.level
    return ToolResult(code, stdout, stderr, timed_out, out_of_memory, level, flood.is_set(), took)


def _seen_at(path: str, spec: SpawnSpec) -> str:
    """What the agent's own files are called in there, where a project below the host's /work leaves no room for the
    alias of that name."""
    places = tuple(f"{place}/" for place in spec.mounted if f"{place}/".startswith("/work/"))
    if not places or not f"{path}/".startswith("/work/") or f"{path}/".startswith(places):
        return path
    return spec.workspace.at + path.removeprefix("/work")


@asynccontextmanager
async def _served(process: Process, way_out: WayOut | None) -> AsyncGenerator[None]:
    """Nobody connects any more when this is left."""
    if way_out is None:
        yield
        return
    doors = zip(process.listeners, (None, *way_out.doors), strict=True)
    serving = [asyncio.create_task(way_out.egress.serve(listener, door)) for listener, door in doors]
    try:
        yield
    finally:
        await way_out.egress.close()
        await asyncio.gather(*serving, return_exceptions=True)  # they are over with it


async def _ended(process: Process, flood: asyncio.Event) -> Exit:
    """By itself, or killed because it wrote too much."""
    waiting, writing = asyncio.create_task(process.wait()), asyncio.create_task(flood.wait())
    try:
        await asyncio.wait((waiting, writing), return_when=asyncio.FIRST_COMPLETED)
        return await waiting if waiting.done() else await process.kill()
    finally:
        writing.cancel()
        waiting.cancel()
        await asyncio.gather(waiting, writing, return_exceptions=True)


async def _feed(fd: int, data: bytes) -> None:
    view = memoryview(data)
    os.set_blocking(fd, False)
    try:
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                await _turn(fd, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)
    except BrokenPipeError:
        return  # it ended without reading everything
    finally:
        os.close(fd)


async def _capture(fd: int, most: int, largest: int | None, flood: asyncio.Event) -> Captured:
    kept = bytearray()
    total = 0
    os.set_blocking(fd, False)
    try:
        while True:
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                await _turn(fd, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)
                continue
            if not data:
                return Captured(bytes(kept), total > most, total)
            total += len(data)
            kept += data[: most - len(kept)]
            if largest is not None and total > largest:
                flood.set()
    finally:
        os.close(fd)


async def _turn(fd: int, add: Callable[..., None], remove: Callable[[int], object]) -> None:
    """Wait until a pipe can be read or written."""
    possible = asyncio.Event()
    add(fd, possible.set)
    try:
        await possible.wait()
    finally:
        remove(fd)
