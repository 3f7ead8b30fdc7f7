"""The gateway as the kernel sees it: a process that somebody else starts, and that asks like any other client.

In: an operator's wish. Out: where it listens. The kernel needs none of it; the composition root may give it one.
"""

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from agent_os.abi.doors import Doctor, Gateway
from agent_os.abi.errors import ENOSYS
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.table import Actor

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel


class Front(Protocol):
    def facts(self) -> Mapping[str, Any] | None:
        """`url` and `pid` while it runs."""
        ...

    def start(self, wanted: Gateway) -> Awaitable[None]:
        """Returns when it listens; an error says why it cannot."""
        ...

    def stop(self) -> Awaitable[None]: ...


def _gateway(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    wanted = cast("Gateway", asked.request)
    front = kernel.front
    if front is None:
        raise ENOSYS("gateway.none", "this kernel is embedded in a program and has no gateway", hint="agentctl up")

    async def do() -> Done:
        if wanted.do == "start":
            await front.start(wanted)
        elif wanted.do == "stop":
            await front.stop()
        return Done({"gateway": front.facts()})

    return Act(do)


def _doctor(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    examine = kernel.examine
    if examine is None:
        raise ENOSYS("doctor.none", "this kernel is embedded in a program", hint="agentctl doctor")

    async def do() -> Done:
        return Done(await examine())

    return Act(do)


PREPARE = {BY_REQUEST[Gateway].number: _gateway, BY_REQUEST[Doctor].number: _doctor}
