"""The composition root: the one place where kernel, sandbox and (later) drivers are put together.

Front doors call these functions and nothing below them. Until the kernel is a process of its own, it lives inside the
command that runs an agent.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from agent_os.abi.errors import EACCES, EINVAL, ESRCH, ETIMEDOUT, AgentOSError
from agent_os.kernel import doctor as kernel_doctor
from agent_os.kernel import door, guest, plan, process
from agent_os.kernel.egress import parse_grant
from agent_os.kernel.records import Records
from agent_os.kernel.workspace import Workspace, Workspaces
from agent_os.kernel.workspace import digest as digest
from agent_os.kernel.workspace.sources import check_source
from agent_os.sandbox import probe
from agent_os.sandbox.spawner import Launcher, SandboxError
from agent_os.sandbox.spec import LEVELS

DEFAULT_LEVEL = "S2"
_TO_LOOK, _TO_ACT = 2.0, 30.0  # seconds another kernel has to answer
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


def host() -> plan.Host:
    return plan.Host(state_dir(), Path.home(), dict(os.environ))


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
    limit: Sequence[str] = (),
    min_isolation: str | None = None,
    origin: str | None = None,
    snapshot: str | None = None,
    tty: tuple[int, int] | None = None,
) -> plan.Order:
    """What the operator wrote, checked. Raises before anything is made."""
    here = host()
    cwd = Path.cwd()
    state = workspaces().open(origin) if origin is not None else None
    mode, project = _restored(state, workspace, here) if state else _workspace(workspace, here)
    if snapshot is not None:
        _check_snapshot(snapshot, mode)
    wall = guest.parse_duration(timeout) if timeout else None
    return plan.Order(
        argv=tuple(argv),
        cwd=cwd,
        project=project,
        mode=mode,
        mounts=tuple(plan.check_mount(guest.parse_mount(text, cwd=cwd), here) for text in mounts),
        net=tuple(parse_grant(text) for text in net),
        env=guest.parse_env(env, here.env),
        limits=guest.parse_limits(limit, wall),
        min_level=minimum_level(min_isolation),
        origin=state,
        snapshot=snapshot,
        tty=tty,
    )


def _workspace(text: str | None, here: plan.Host) -> tuple[plan.Mode, Path | None]:
    """`DIR` and `overlay:DIR` keep writes apart, `bind:DIR` writes through, `tmpfs` is empty and gone at the end."""
    if text == "tmpfs":
        return "tmpfs", None
    if text is not None and not text.removeprefix("bind:").removeprefix("overlay:"):
        raise EINVAL("workspace.malformed", "--workspace names no directory", hint="--workspace DIR, bind:DIR or tmpfs")
    mode: plan.Mode = "bind" if text and text.startswith("bind:") else "overlay"
    path = Path(text.removeprefix(f"{mode}:") if text else ".").expanduser()
    return mode, check_source(path, state=here.state, home=here.home)


def _restored(state: Workspace, text: str | None, here: plan.Host) -> tuple[plan.Mode, Path | None]:
    """A state goes over the very project it was made over."""
    mode, project = _workspace(text or str(state.project), here)
    if mode != "overlay" or project != state.project:
        reason = f"{state.name} is a state of {state.project} and can go over nothing else"
        raise EINVAL("snapshot.project", reason, hint="leave --workspace out")
    return mode, project


def _check_snapshot(name: str, mode: plan.Mode) -> None:
    if mode != "overlay":
        reason = f"a {mode} workspace leaves no state that could be kept"
        raise EINVAL("snapshot.nothing", reason, hint="--snapshot without --workspace bind: or tmpfs")
    workspaces().require_free(name)


def minimum_level(text: str | None = None) -> plan.Level:
    """The level below which nothing starts: the flag, else `$AGENT_OS_MIN_ISOLATION`, else S2."""
    wanted = text or os.environ.get("AGENT_OS_MIN_ISOLATION") or DEFAULT_LEVEL
    for level in LEVELS:
        if level == wanted.upper():
            return level
    raise EINVAL("isolation.unknown", f"{wanted!r} is no isolation level", hint=f"one of {', '.join(LEVELS)}")


@asynccontextmanager
async def running(wanted: plan.Order, streams: process.Streams) -> AsyncIterator[process.Guest]:
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
            started = await process.start(wanted, streams, here, launcher, records)
            async with door.opened(here.state, started):
                yield started
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


async def agents() -> list[dict[str, Any]]:
    """The status of every running agent of this operator. One whose kernel does not answer is listed all the same."""
    state = state_dir()

    async def look(name: str) -> dict[str, Any] | None:
        try:
            return await door.ask(state, name, {"do": "status"}, _TO_LOOK)
        except ESRCH:
            return None
        except ETIMEDOUT as error:
            return {"name": name, "state": "silent", "kernel": error.detail.get("kernel")}

    found = await asyncio.gather(*map(look, door.names(state)))
    return sorted((one for one in found if one), key=lambda one: -one.get("age", 0.0))


async def tell(name: str, what: Literal["kill", "pause", "resume"]) -> dict[str, Any]:
    """Have a running agent killed, held or let go; returns when it is so."""
    try:
        return await door.ask(state_dir(), name, {"do": what}, _TO_ACT)
    except ESRCH as error:
        raise _ended(name) or error from None


async def snapshot(name: str, as_name: str) -> Workspace:
    """Keep the state of an agent, running or ended, under another name."""
    kept = workspaces()
    if name in door.names(state_dir()):
        with suppress(ESRCH):  # it has ended meanwhile, and its state is kept
            await door.ask(state_dir(), name, {"do": "snapshot", "as": as_name}, None)
            return kept.open(as_name)
    origin = kept.open(name)
    with origin.hold(shared=True):
        return kept.copy(origin, name=as_name, agent_uid=origin.meta.agent_uid, keep=True)


def _ended(name: str) -> ESRCH | None:
    """A better word for an agent that is not running but left something."""
    try:
        workspaces().open(name)
    except AgentOSError:
        return None
    return ESRCH("agent.ended", f"{name} has ended", hint=f"agentctl diff {name} shows what it changed")
