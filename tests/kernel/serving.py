"""A kernel in this process with its control socket, and a client connected to it over that socket."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from agent_os.abi import frames
from agent_os.abi.errors import AgentOSError
from agent_os.abi.states import Incarnation
from agent_os.abi.syscalls import BY_REQUEST, Body, Write
from agent_os.client.wire import Client, connect
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel import control
from agent_os.kernel.boot import boot
from agent_os.kernel.calls import Asked
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Agent

RESERVE = 1 << 16  # bytes; tests make many homes


@asynccontextmanager
async def serving(home: Path, manifests: Path | None = None) -> AsyncGenerator[tuple[Kernel, Client]]:
    home.mkdir(mode=0o700, exist_ok=True)
    store = SqliteStore(home / "journal.db", reserve=RESERVE)
    kernel = await boot(store=store, home=home, manifests=manifests)
    listener = control.listen(home / "run" / "kernel.sock")
    server = await asyncio.get_running_loop().create_unix_server(kernel.control_protocol, sock=listener)
    try:
        async with connect(home / "run" / "kernel.sock") as client:
            yield kernel, client
    finally:
        server.close()
        await kernel.guests.close()
        await kernel.close()
        store.close()


class Caller:
    """An agent whose calls this process makes, straight at the gate."""

    def __init__(self, kernel: Kernel, name: str, parent: "Caller | None" = None) -> None:
        above = parent.agent.id if parent else None
        self.kernel, self.agent = kernel, kernel.table.admit(name, "context", parent=above, isolation="none")
        kernel.furnish(self.agent)
        self.agent.become(Incarnation.RUNNING)

    async def syscall(self, request: Body) -> Any:
        return await syscall(self.kernel, self.agent, request)

    async def write(self, path: str, data: str) -> Any:
        return await self.syscall(Write(path=path, data=data))


async def syscall(kernel: Kernel, agent: Agent, request: Body) -> Any:
    """As if the agent had sent it."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(body: msgspec.Raw, error: AgentOSError | None) -> None:
        if error:
            answered.set_exception(error)
        else:
            answered.set_result(msgspec.msgpack.decode(body))

    kernel.enter(agent, Asked(BY_REQUEST[type(request)].number, frames.encode_body(request)), answer)
    return await answered


async def chunks(client: Client, request: Body) -> list[Any]:
    """Everything beside a call, which must end well."""
    stream = client.stream(request)
    found = [chunk async for chunk in stream]
    await stream.result()
    return found


async def entries(client: Client, request: Body) -> list[dict[str, Any]]:
    return [entry for page in await chunks(client, request) for entry in page]


async def until(true: Callable[[], bool]) -> None:
    """Returns when it is; a test waits for things, never for time."""
    async with asyncio.timeout(90):
        while not true():
            await asyncio.sleep(0.01)
