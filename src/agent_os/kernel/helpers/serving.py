"""A Ring 3 helper that runs: its sandbox, its link, and the way out that is served for it.

In: how it is started, and who decides about its connections. Out: a `Helped`, of which tools ask; when its link ends,
or whoever it works for does, nothing of it is left.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct

from agent_os.abi.errors import EISOLATION
from agent_os.kernel.egress import Egress
from agent_os.kernel.helpers.link import Answered, Link
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Process, SandboxError
from agent_os.sandbox.spec import PROXY_PORT, Bind, Level, Limits, SpawnSpec, Workspace

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel


# How a helper is started: its command, its limits, and the spec of its sandbox. Pure. In: which helper, and what
# else it must see. Out: a `SpawnSpec` for the launcher; descriptor 3 is the socket of a `Link`. A helper holds no
# secret and no grant of its own: its listener must be served by the egress of the agent that it works for, and it
# must end with that agent.

Which = Literal["mcp", "browser"]
# Our package is loaded by its place, as for agents (kernel/programs): the folder around it is not shown.
BOOT = """
import sys, importlib, importlib.util as util
place, module = sys.argv[1:3]
if util.find_spec("agent_os") is None:
    spec = util.spec_from_file_location("agent_os", f"{place}/__init__.py", submodule_search_locations=[place])
    sys.modules["agent_os"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["agent_os"])
sys.exit(importlib.import_module(module).main())
"""
MODULES: Mapping[Which, str] = {"mcp": "agent_os.userland.mcp_client", "browser": "agent_os.userland.browser"}
# Chromium reserves terabytes of addresses and has a hundred threads; a page is held by the memory of all of it.
LIMITS: Mapping[Which, Limits] = {
    "mcp": Limits(memory_mb=512, as_mb=None, pids=128, fsize_mb=256, tmp_mb=256),
    "browser": Limits(memory_mb=2048, as_mb=None, pids=512, nofile=1000, fsize_mb=512, tmp_mb=1024),
}
_PACKAGE = Path(__file__).resolve().parent.parent.parent
_PATH = "/usr/local/bin:/usr/bin:/bin"


def command(which: Which, python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-c", BOOT, str(_PACKAGE), MODULES[which])


def spec(
    which: Which,
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    binds: Sequence[Bind] = (),
    limits: Limits | None = None,
    min_level: Level = "S2",
) -> SpawnSpec:
    """Its own empty workspace in memory; the way out is the proxy's port of its own loopback."""
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    own = {
        "PATH": _PATH,
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "AGENT_OS": "1",
        "AGENT_OS_FD": "3",
    }
    own |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}  # for loopback addresses as well: its own has nothing else
    return SpawnSpec(
        spawn_id=name,
        kind="native",
        isolation="exec",
        argv=list(command(which)),
        env=own | dict(env or {}),
        net="proxy",
        workspace=Workspace("tmpfs"),
        binds=list(binds),
        limits=limits or LIMITS[which],
        exec_memfd=True,  # JIT compilers of browsers and of servers need it
        min_level=min_level,
    )


T = TypeVar("T", bound=Struct)
_numbers = count(1)


class Helped:
    """A helper that runs: `drivers.tools.helpers.Helper`."""

    def __init__(self, link: Link, process: Process, egress: Egress, serving: "asyncio.Task[None]") -> None:
        self.link, self._process, self._egress, self._serving = link, process, egress, serving
        self._over: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return not self.link.ended.done() and not self._process.exited.done()

    async def ask(self, op: int, request: Struct, answer: type[T], *, seconds: float, limit: int = 0) -> Answered[T]:
        return await self.link.ask(op, request, answer, seconds=seconds, limit=limit)

    async def end(self, why: str) -> None:
        """Nothing of it is left when this returns."""
        self._over = self._over or asyncio.create_task(self._end(why))
        await asyncio.shield(self._over)

    async def _end(self, why: str) -> None:
        self.link.end(why)
        await self._process.kill()
        await self._egress.close()
        with suppress(Exception):  # it served a process that is gone
            await self._serving
        self._process.close()


async def start(
    kernel: "Kernel",
    which: Which,
    name: str,
    egress: Egress,
    *,
    env: Mapping[str, str] | None = None,
    shown: Sequence[str] = (),
    streams: tuple[int, int] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Helped:
    """`shown`: folders of the host, read only and at their own place. `streams`: its descriptors 0 and 1, which the
    caller keeps. EISOLATION: there is no sandbox for it."""
    binds = [Bind(f"shown{number}", path) for number, path in enumerate(shown)]
    wanted = spec(which, f"{name}-{which}-{next(_numbers)}", env=env, binds=binds)
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    opened: dict[str, int] = {}
    try:
        for bind in binds:
            opened[bind.fd] = os.open(bind.dst, os.O_PATH | os.O_CLOEXEC)
        launcher = await kernel.guests.launcher()
        process = await launcher.spawn(
            wanted,
            streams=(*(streams or (null, null)), null),
            agent=theirs.fileno(),
            sources=opened,
            group=Group.create(wanted.spawn_id),
        )
    except (SandboxError, OSError, AttributeError) as problem:
        ours.close()
        raise EISOLATION("tool.helper", f"no sandbox could be made for {which}: {problem}", ran=False) from None
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        for fd in (null, *opened.values()):
            os.close(fd)
    serving = asyncio.create_task(egress.serve(process.listeners[0]))
    helped = Helped(await Link.over(ours, notice), process, egress, serving)
    helped.link.ended.add_done_callback(lambda why: kernel.start(helped.end(why.result())))
    return helped
