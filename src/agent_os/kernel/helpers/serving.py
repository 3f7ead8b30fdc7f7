"""A Ring 3 helper that runs: its sandbox, its link, and the way out that is served for it.

In: how it is started, and who decides about its connections. Out: a `Helped`, of which tools ask; when its link ends,
or whoever it works for does, nothing of it is left.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from agent_os.abi.errors import EISOLATION
from agent_os.kernel.egress import Egress
from agent_os.kernel.helpers import starting
from agent_os.kernel.helpers.link import Answered, Link
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spawner import Process, SandboxError
from agent_os.sandbox.spec import Bind

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

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
    which: starting.Which,
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
    spec = starting.spec(which, f"{name}-{which}-{next(_numbers)}", env=env, binds=binds)
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    opened: dict[str, int] = {}
    try:
        for bind in binds:
            opened[bind.fd] = os.open(bind.dst, os.O_PATH | os.O_CLOEXEC)
        launcher = await kernel.guests.launcher()
        process = await launcher.spawn(
            spec,
            streams=(*(streams or (null, null)), null),
            agent=theirs.fileno(),
            sources=opened,
            group=Group.create(spec.spawn_id),
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
