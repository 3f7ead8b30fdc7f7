"""Agents in this process on a real kernel, and a provider of models on a loopback socket."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from agent_os.abi.entries import Kind
from agent_os.abi.models import Message, ModelRequest, TextBlock
from agent_os.kernel.authority.bindings import bind
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.models.catalogue import Provider
from agent_os.kernel.recorded import Recorded
from agent_os.space import AgentContext, KernelSpace
from models.provider import KEY, MockProvider

MODEL = "mock/small"
CAP = "llm:mock/small:call"


def user(text: str = "Hello") -> Message:
    return Message(role="user", blocks=[TextBlock(text=text)])


def asked(text: str = "Hello", **fields: Any) -> ModelRequest:
    return ModelRequest(**{"model": MODEL, "messages": [user(text)], **fields})


class Bench:
    def __init__(self, space: KernelSpace, mock: MockProvider) -> None:
        self.space, self.mock = space, mock
        self.kernel: Kernel = space._kernel

    def agent(self, name: str = "a", caps: list[str] | None = None) -> AgentContext:
        return self.space.create_agent_context(name, caps=[CAP] if caps is None else caps)

    def add(self, **fields: Any) -> None:
        catalogue = self.kernel.models.catalogue
        about = {"name": "mock", "dialect": "openai", "base": f"{self.mock.url}/v1", "keys": ("mock-key",)}
        catalogue.keep(catalogue.added(Provider(**{**about, **fields})))

    def entries(self, name: str = "a") -> list[Any]:
        return [entry for entry, _ in self.kernel.journal.scan(self.kernel.table.find(name).id)]

    def recorded(self, kind: Kind, name: str = "a") -> Any:
        """What the newest entry of a kind keeps of the request."""
        found = [
            kept for entry, kept in self.kernel.journal.scan(self.kernel.table.find(name).id) if entry.kind == kind
        ]
        return msgspec.msgpack.decode(Recorded.of(found[-1]).request)

    def events(self, name: str = "a") -> list[str]:
        scan = self.kernel.journal.scan(self.kernel.table.find(name).id)
        return [msgspec.msgpack.decode(kept or b"")["event"] for entry, kept in scan if entry.kind == Kind.CHANGE]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not true():
                await asyncio.sleep(0.01)

    def spent(self, name: str = "a") -> dict[str, int]:
        return self.kernel.budgets.account(self.kernel.table.find(name).id).spent

    def held(self, name: str = "a") -> dict[str, int]:
        held = self.kernel.budgets.account(self.kernel.table.find(name).id).held
        return {key: amount for key, amount in held.items() if amount}


def bench(
    home: Path,
    work: Callable[[Bench], Awaitable[None]],
    *,
    key: str = KEY,
    models: list[str] | None = None,
    **fields: Any,
) -> None:
    """Everything that a model call needs. `models`: all that the provider knows; `key`: empty, there is none."""

    async def whole() -> None:
        with MockProvider(models=models) as mock:
            async with KernelSpace(home / "kernel") as space:
                one = Bench(space, mock)
                one.add(**fields)
                if key:
                    one.kernel.safe.add("mock-key", key.encode())
                    one.kernel.safe.bind(bind("mock-key", [f"127.0.0.1:{mock.port}"]))
                await work(one)

    asyncio.run(whole())
