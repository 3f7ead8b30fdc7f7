"""The composition root: the one place where kernel, sandbox and (later) drivers are put together.

Front doors call these functions and nothing below them. Until the kernel is a process of its own, it lives inside the
command that runs an agent.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agent_os.abi.errors import EACCES, EINVAL
from agent_os.kernel import doctor as kernel_doctor
from agent_os.kernel import guest, process
from agent_os.kernel.egress import parse_grant
from agent_os.kernel.records import Records
from agent_os.kernel.workspace import Workspaces
from agent_os.kernel.workspace import digest as digest
from agent_os.kernel.workspace.sources import check_source
from agent_os.sandbox import probe
from agent_os.sandbox.spawner import Launcher, SandboxError
from agent_os.sandbox.spec import GUEST_LIMITS, LEVELS

DEFAULT_LEVEL = "S2"
_ELSEWHERE = "AGENT_OS_HOME=/some/directory agentctl … keeps its state elsewhere"


def state_dir() -> Path:
    """Where workspaces and records live: `$AGENT_OS_HOME`, else the XDG state directory. Made on first use, 0700."""
    chosen = os.environ.get("AGENT_OS_HOME")
    xdg = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(chosen).absolute() if chosen else Path(xdg) / "agent-os"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        reason = f"the state directory {path} cannot be made: {problem.strerror}"
        raise EACCES("state.unwritable", reason, hint=_ELSEWHERE) from problem
    return path.resolve()


def host() -> process.Host:
    return process.Host(state_dir(), Path.home(), dict(os.environ))


def workspaces() -> Workspaces:
    return Workspaces(state_dir())


def order(
    argv: Sequence[str],
    *,
    workspace: str | None = None,
    mounts: Sequence[str] = (),
    net: Sequence[str] = (),
    env: Sequence[str] = (),
    timeout: str | None = None,
    min_isolation: str | None = None,
) -> process.Order:
    """What the operator wrote, checked. Raises before anything is made."""
    here = host()
    cwd = Path.cwd()
    mode, project = _workspace(workspace, here)
    wall = guest.parse_duration(timeout) if timeout else None
    return process.Order(
        argv=tuple(argv),
        cwd=cwd,
        project=project,
        mode=mode,
        mounts=tuple(process.check_mount(guest.parse_mount(text, cwd=cwd), here) for text in mounts),
        net=tuple(parse_grant(text) for text in net),
        env=guest.parse_env(env, here.env),
        limits=replace(GUEST_LIMITS, wall_s=wall),
        min_level=minimum_level(min_isolation),
    )


def _workspace(text: str | None, here: process.Host) -> tuple[process.Mode, Path | None]:
    """`DIR` and `overlay:DIR` keep writes apart, `bind:DIR` writes through, `tmpfs` is empty and gone at the end."""
    if text == "tmpfs":
        return "tmpfs", None
    if text is not None and not text.removeprefix("bind:").removeprefix("overlay:"):
        raise EINVAL("workspace.malformed", "--workspace names no directory", hint="--workspace DIR, bind:DIR or tmpfs")
    mode: process.Mode = "bind" if text and text.startswith("bind:") else "overlay"
    path = Path(text.removeprefix(f"{mode}:") if text else ".").expanduser()
    return mode, check_source(path, state=here.state, home=here.home)


def minimum_level(text: str | None = None) -> process.Level:
    """The level below which nothing starts: the flag, else `$AGENT_OS_MIN_ISOLATION`, else S2."""
    wanted = text or os.environ.get("AGENT_OS_MIN_ISOLATION") or DEFAULT_LEVEL
    for level in LEVELS:
        if level == wanted.upper():
            return level
    raise EINVAL("isolation.unknown", f"{wanted!r} is no isolation level", hint=f"one of {', '.join(LEVELS)}")


@asynccontextmanager
async def running(wanted: process.Order, streams: process.Streams) -> AsyncIterator[process.Guest]:
    """A started guest. Leaving the block ends the launcher, and with it whatever is still alive."""
    here = host()
    records = Records(here.state / "record.jsonl")
    try:
        try:
            launcher = await Launcher.start()
        except SandboxError as problem:
            error = process.explain(problem, wanted)
            records.after("-", "refused", error=str(error))
            raise error from problem
        try:
            yield await process.start(wanted, streams, here, launcher, records)
        finally:
            await launcher.close()
    finally:
        records.close()


async def examine() -> tuple[str, list[probe.Check]]:
    """Everything the doctor looks at, and the isolation level this host reaches."""
    here = host()
    level, checks = await probe.examine()
    if level != "S0":
        checks += [await kernel_doctor.workspace(here), await kernel_doctor.proxy()]
    return level, checks + kernel_doctor.installation(here, level)
