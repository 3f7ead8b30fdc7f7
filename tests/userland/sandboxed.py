"""A real spawn with the fake kernel on the agent's descriptor 3."""

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import Bind, SpawnSpec
from agents import read_all
from userland.fake_kernel import FakeKernel


async def in_sandbox(launcher: Launcher, folder: Path, spec: SpawnSpec) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output, and what the agent told its kernel at the end. The folder is its `/prog`."""
    spec = replace(spec, binds=[Bind("prog", "/prog")])
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    opened = os.open(folder, os.O_PATH)
    ours, theirs = socket.socketpair()
    with FakeKernel(theirs) as kernel:
        process = await launcher.spawn(
            spec,
            streams=(null, write, write),
            agent=ours.fileno(),
            sources={"prog": opened},
            group=Group.create(spec.spawn_id),
        )
        ours.close()
        for fd in (write, null, opened):
            os.close(fd)
        said = await asyncio.to_thread(read_all, read)
        ended = await process.wait()
        process.close()
        os.close(read)
    return ended.code, said, kernel.exit or {}
