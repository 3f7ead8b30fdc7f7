"""Ring 3 helpers for tests: in a real sandbox behind a real way out, or as a plain process where the walls are not the
point. Both are spoken to by the kernel's own link."""

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent_os.kernel.egress import Connection, Egress, parse_grant
from agent_os.kernel.helpers import serving
from agent_os.kernel.helpers.link import Link
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import Bind


@dataclass
class Boxed:
    """A helper in its sandbox, and what it tried to reach."""

    link: Link
    process: Process
    reached: list[Connection] = field(default_factory=list[Connection])


@asynccontextmanager
async def boxed(
    launcher: Launcher,
    which: serving.Which,
    grants: Sequence[str] = (),
    names: Mapping[str, Sequence[str]] | None = None,
    shown: Sequence[Path] = (),
    streams: tuple[int, int] | None = None,
) -> AsyncGenerator[Boxed]:
    """`shown` is bound read-only at its own place; `streams` are its descriptors 0 and 1."""
    reached: list[Connection] = []

    async def resolve(host: str, _port: int) -> Sequence[str]:
        if host not in (names or {}):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return (names or {})[host]

    binds = [Bind(f"shown{i}", str(path)) for i, path in enumerate(shown)]
    spec = serving.spec(which, f"h-{secrets.token_hex(4)}", binds=binds)
    egress = Egress(spec.spawn_id, [parse_grant(text) for text in grants], reached.append, resolve=resolve)
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    opened = {f"shown{i}": os.open(path, os.O_PATH) for i, path in enumerate(shown)}
    first, second = streams or (null, 2)
    try:
        process = await launcher.spawn(
            spec,
            streams=(first, second, 2),
            agent=theirs.fileno(),
            sources=opened,
            group=Group.create(spec.spawn_id),
        )
    finally:
        theirs.close()
        for fd in (null, *opened.values()):
            os.close(fd)
    proxy = asyncio.create_task(egress.serve(process.listeners[0]))
    link = await Link.over(ours)
    try:
        yield Boxed(link, process, reached)
    finally:
        link.end("the test is over")
        await process.kill()
        await egress.close()
        await proxy
        process.close()


@asynccontextmanager
async def plain(
    which: serving.Which, env: Mapping[str, str] | None = None, notice: Callable[[str], None] | None = None
) -> AsyncGenerator[tuple[Link, "asyncio.subprocess.Process"]]:
    """Without walls. It must end by itself when the link does."""
    ours, theirs = socket.socketpair()
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "AGENT_OS_CHROMIUM") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *serving.command(which, sys.executable),
        pass_fds=[theirs.fileno()],
        env=inherited | {"AGENT_OS_FD": str(theirs.fileno()), **(env or {})},
    )
    theirs.close()
    link = await Link.over(ours, notice)
    try:
        yield link, process
    finally:
        link.end("the test is over")
        try:
            async with asyncio.timeout(30):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
