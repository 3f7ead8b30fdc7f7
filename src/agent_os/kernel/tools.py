"""One-shot tool runs: a command in a sandbox of its own, its output as bytes.

No kernel socket, no network, always a wall limit, output bounded per stream: what comes after the bound is read and
thrown away, so that the tool ends as it would, and the result says so.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent_os.sandbox.limits import Group
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
    feeding = asyncio.create_task(asyncio.to_thread(_feed, in_write, stdin))
    reading = [asyncio.create_task(asyncio.to_thread(_capture, fd, output_bytes)) for fd in (out_read, err_read)]
    timed_out = False
    try:
        async with asyncio.timeout(wall):
            ended = await process.wait()
    except TimeoutError:
        timed_out = True
        ended = await process.kill()
    finally:
        await process.kill()
        process.close()
        stdout, stderr = await asyncio.gather(*reading)  # the streams end with the tool
        await feeding
    return ToolResult(124 if timed_out else ended.code, stdout, stderr, timed_out, process.ready.level)


def _feed(fd: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        return  # it ended without reading everything
    finally:
        os.close(fd)


def _capture(fd: int, most: int) -> Captured:
    kept = bytearray()
    total = 0
    try:
        while data := os.read(fd, 65536):
            total += len(data)
            kept += data[: most - len(kept)]
    finally:
        os.close(fd)
    return Captured(bytes(kept), total > most)
