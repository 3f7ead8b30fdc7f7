"""/work of a real agent: the kernel's calls and the agent's own programs see the same files, and nothing beyond."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

import agents
from agent_os.abi.errors import EACCES, AgentOSError
from agent_os.abi.syscalls import Read, Remove, Write
from agent_os.sandbox.spawner import Launcher, lease_uid
from agent_os.sandbox.spec import GUEST_LIMITS, Workspace

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("an agent sees the same tree for every user")]

AGENT = """
ln -s /etc/hostname out; ln -s ../../.. up; mkdir d; echo mine > d/own; chmod 600 d/own; echo ready
while ! test -e go; do sleep 0.02; done
cat made/by/kernel; echo more >> made/by/kernel; rm made/by/kernel; stat -c %u made/by; echo over; sleep 60
"""


async def _sources(mode: str, tmp_path: Path, lease: Any, opened: contextlib.ExitStack, root_mode: bool) -> Any:
    project, kept = tmp_path / "project", tmp_path / "kept"
    project.mkdir()
    kept.mkdir(0o711)
    for part in ("upper", "work"):
        (kept / part).mkdir()
        os.chown(kept / part, lease.host_uid, lease.host_uid if root_mode else -1)
    named = {"tmpfs": {}, "bind": {"lower": project}, "overlay": {"lower": project, "upper": kept}}[mode]
    fds = {name: os.open(path, os.O_PATH) for name, path in named.items()}
    for fd in fds.values():
        opened.callback(os.close, fd)
    return fds


@pytest.mark.parametrize("mode", ["tmpfs", "bind", "overlay"])
def test_kernel_and_agent_share_the_workspace_and_nothing_else(trees: Any, tmp_path: Path, mode: str) -> None:
    async def body(launcher: Launcher) -> str:
        lease = lease_uid(launcher.root_mode)
        with contextlib.ExitStack() as opened:
            sources = await _sources(mode, tmp_path, lease, opened, launcher.root_mode)
            workspace = Workspace(mode, "/work")  # pyright: ignore
            spec = agents.spec_of("guest", ["sh", "-c", AGENT], limits=GUEST_LIMITS, workspace=workspace)
            async with agents.started(launcher, spec, sources, lease) as (process, output):
                trees.root().mount_directory("/work", process.workspace)
                try:
                    return await talk(output)
                finally:
                    trees.root().unmount("/work")

    async def call(request: Any) -> Any:
        return await trees.do(trees.prepare(request))

    async def talk(output: int) -> str:
        assert await asyncio.to_thread(agents.read_line, output) == "ready\n"
        assert (await call(Read(path="/work/d/own")))["data"] == b"mine\n"
        for path in ("/work/out", "/work/up/etc/passwd"):
            with pytest.raises(EACCES):
                await call(Read(path=path))
            with pytest.raises(AgentOSError):
                await call(Write(path=path, data="x"))
        await call(Write(path="/work/made/by/kernel", data="hello "))
        await call(Write(path="/work/made/by/kernel", data="agent\n", mode="append"))
        await call(Write(path="/work/go", data=""))
        lines = [await asyncio.to_thread(agents.read_line, output) for _ in range(3)]
        await call(Write(path="/work/made/by/kernel", data="again"))
        await call(Remove(path="/work/d/own"))
        return "".join(lines)

    # The agent could append to, remove and own what the kernel wrote: it is its own file.
    assert agents.drive(body).splitlines() == ["hello agent", "1000", "over"]
