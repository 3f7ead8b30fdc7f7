"""One-shot tool runs: a command in a sandbox of its own, its output as bytes.

No kernel socket, no network, always a wall limit, output bounded per stream: what comes after the bound is read and
thrown away, so that the tool ends as it would, and the result says so.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import Limits, SpawnSpec

OUTPUT_BYTES = 1 << 20
WALL_SECONDS = 60.0
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Captured:
    data: bytes
    truncated: bool


@dataclass(frozen=True)
class ToolResult:
    code: int
    stdout: Captured
    stderr: Captured
    timed_out: bool
    out_of_memory: bool  # it was killed for its memory limit
    level: str


async def run_tool(
    launcher: Launcher,
    name: str,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    output_bytes: int = OUTPUT_BYTES,
) -> ToolResult:
    """Run it and wait. If this is cancelled, the tool is killed and nothing of it is left."""
    limits = limits or Limits()
    wall = limits.wall_s or WALL_SECONDS
    spec = SpawnSpec(
        spawn_id=name,
        kind="tool",
        isolation="exec",
        argv=list(argv),
        env={"PATH": _PATH, "HOME": "/home/agent", "LANG": "C.UTF-8", **(env or {})},
        limits=replace(limits, wall_s=wall),
    )
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
    try:
        process = await launcher.spawn(spec, streams=(in_read, out_write, err_write), group=Group.create(name))
    except BaseException:
        for fd in (in_write, out_read, err_read):
            os.close(fd)
        raise
    finally:
        for fd in (in_read, out_write, err_write):
            os.close(fd)
    streams = asyncio.gather(_feed(in_write, stdin), _capture(out_read, output_bytes), _capture(err_read, output_bytes))
    timed_out = False
    try:
        async with asyncio.timeout(wall):
            ended = await process.wait()
    except BaseException as problem:
        ended = await process.kill()
        timed_out = isinstance(problem, TimeoutError)
        if not timed_out:
            raise
    finally:
        out_of_memory = process.ran_out_of_memory()
        process.close()
        _, stdout, stderr = await streams  # they end with the tool
    code = 124 if timed_out else ended.code
    return ToolResult(code, stdout, stderr, timed_out, out_of_memory, process.ready.level)


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


async def _capture(fd: int, most: int) -> Captured:
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
                return Captured(bytes(kept), total > most)
            total += len(data)
            kept += data[: most - len(kept)]
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
