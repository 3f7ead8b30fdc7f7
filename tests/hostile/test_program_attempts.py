"""Attempts to run another program than the ones declared: by tools that start whatever they are told to."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import agents
from agent_os.sandbox import landlock
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import Workspace
from hostile.report import note

pytestmark = pytest.mark.hostile


WRAPPED = {
    "find": ["find", "/work", "-maxdepth", "0", "-exec", "/usr/bin/touch", "/work/mark", ";"],
    "env": ["env", "/usr/bin/touch", "/work/mark"],
    "xargs": ["xargs", "-a", "/dev/null", "/usr/bin/touch", "/work/mark"],
    "timeout": ["timeout", "5", "/usr/bin/touch", "/work/mark"],
    "nice": ["nice", "/usr/bin/touch", "/work/mark"],
    "setsid": ["setsid", "-w", "/usr/bin/touch", "/work/mark"],
    "sed": ["sed", "1e /usr/bin/touch /work/mark", "/etc/passwd"],
    "awk": ["awk", 'BEGIN { system("/usr/bin/touch /work/mark") }'],
    "tar": ["tar", "-cf", "/dev/null", "--checkpoint=1", "--checkpoint-action=exec=/usr/bin/touch /work/mark", "/etc"],
    "git": ["git", "-c", "alias.own=!/usr/bin/touch /work/mark", "own"],
    "vim": ["vim", "-es", "-u", "NONE", "-i", "NONE", "-c", "silent !/usr/bin/touch /work/mark", "-c", "qa!"],
}


@pytest.mark.parametrize("tool", WRAPPED)
def test_98_105_a_declared_tool_runs_no_other(tool: str, tmp_path: Path) -> None:
    if not landlock.abi():
        pytest.skip("landlock: not on this kernel, and nothing else keeps a list of programs")
    program = shutil.which(tool, path="/usr/bin:/bin")
    if program is None:
        pytest.skip(f"{tool}: not installed")

    async def both(launcher: Launcher) -> tuple[bool, bool]:
        return await marked(launcher, None), await marked(launcher, [os.path.realpath(program)])

    async def marked(launcher: Launcher, allowed: list[str] | None) -> bool:
        words = [program, *WRAPPED[tool][1:]]
        spec = agents.spec_of("tool", words, workspace=Workspace("tmpfs", "/work"), env={"HOME": "/home/agent"})
        spec = replace(spec, exec_allow=allowed)
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        process = await launcher.spawn(spec, streams=(null, write, write))
        os.close(write)
        os.close(null)
        await asyncio.to_thread(agents.read_all, read)
        await process.wait()
        found = os.path.lexists(f"/proc/self/fd/{process.workspace}/mark")
        process.close()
        os.close(read)
        return found

    unbound, bound = agents.drive(both)
    assert unbound  # the control: without a list, the other program runs
    assert not bound
    note("98c", f"{tool}, declared alone, runs an undeclared program")
