"""A kernel with a folder of manifests: agents declared, looked at and struck, all of them real processes."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_os.abi.entries import Kind
from agent_os.abi.syscalls import Apply, Body
from agent_os.client.wire import Client
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.running import Run as Running
from agent_os.kernel.supervisor.record import Record
from kernel.serving import serving, until

LONG = '["/bin/sh", "-c", "exec sleep 1000"]'
QUICK = "[health]\nbackoff = { base_ms = 20, cap_ms = 200, jitter = 'none' }\n"


def sh(script: str) -> str:
    """A program for a manifest."""
    return f"[program]\nargv = ['/bin/sh', '-c', '''{script}''']\n"


def health(**keys: object) -> str:
    """With waits that a test has time for."""
    words = "".join(f"{key} = {value!r}\n" for key, value in keys.items())
    return f"{QUICK}{words}"


class World:
    def __init__(self, top: Path) -> None:
        self.home, self.project = top / "home", top / "project"
        self.project.mkdir(exist_ok=True)
        self.kernel: Kernel
        self.client: Client

    def manifest(self, name: str, text: str = "", *, role: str = "worker", top: str = "") -> Path:
        """A file. Without a program it sleeps; a supervisor without one has none."""
        program = "" if "[program]" in text or role == "supervisor" else f"[program]\nargv = {LONG}\n"
        agency = 'agency = "role"\n' if role == "supervisor" else ""
        path = self.project / f"{name}.agent.toml"
        path.write_text(f'name = "{name}"\nrole = "{role}"\n{agency}{top}{program}{text}')
        return path

    @asynccontextmanager
    async def up(self, *, scans: bool = False) -> AsyncGenerator["World"]:
        """`scans`: what lies in the folder is declared at boot."""
        async with serving(self.home, self.project if scans else None) as (self.kernel, self.client):
            yield self

    async def call(self, request: Body) -> Any:
        return await self.client.call(request)

    async def apply(self, *names: str, **how: Any) -> dict[str, Any]:
        """The files of these, or all there are."""
        files = [self.project / f"{name}.agent.toml" for name in names] or sorted(self.project.glob("*.agent.toml"))
        return await self.call(Apply(files={str(one): one.read_text() for one in files}, **how))

    def record(self, name: str) -> Record:
        record = self.kernel.fleet.record(name if "/" in name else f"default/{name}")
        assert record is not None, name
        return record

    def pid(self, name: str) -> int:
        return self.kernel.table.find(name).pid

    def host_pid(self, name: str) -> int:
        """Of its pid 1, as the host counts."""
        running = self.kernel.table.find(name).running
        assert isinstance(running, Running)
        pid = running.guest.status().pid
        assert pid is not None
        return pid

    def alive(self) -> set[str]:
        return {one.name for one in self.kernel.table.alive()}

    async def ready(self, *names: str) -> None:
        for name in names:
            agent_id = self.record(name).id
            await until(lambda agent_id=agent_id: self.kernel.fleet.is_ready(agent_id))

    async def state(self, name: str, *states: str) -> None:
        """Returns when it is in one of these, and the record says so."""
        await until(lambda: str(self.record(name)).partition("(")[0] in states)
        await until(lambda: self.kernel.store.size() == self.kernel.journal.next_seq - 1)

    async def lives(self, name: str, incarnation: int) -> None:
        """Returns when that life of it is ready."""
        agent_id = self.record(name).id
        fleet = self.kernel.fleet
        await until(lambda: self.record(name).incarnation >= incarnation and fleet.is_ready(agent_id))

    def strike(self, name: str, number: int = signal.SIGKILL) -> None:
        """From outside, as the host's own killer does."""
        running = self.kernel.table.find(name).running
        assert running is not None
        running.host_signal(number)

    def told(self, name: str, *kinds: Kind) -> list[dict[str, Any]]:
        """What the journal tells of it, oldest first."""
        agent_id = self.record(name).id
        found = ((entry, body) for entry, body in self.kernel.journal.scan(agent_id) if body)
        wanted = kinds or (Kind.STATE, Kind.EXIT, Kind.SPAWN)
        return [decode_any(body) for entry, body in found if entry.kind in wanted]

    def exits(self, name: str) -> list[dict[str, Any]]:
        return self.told(name, Kind.EXIT)

    def decisions(self, name: str) -> list[str]:
        return [one["decision"]["act"] for one in self.exits(name)]

    def order_of(self, *names: str) -> list[str]:
        """These, in the order in which their processes were first made."""
        wanted = {self.record(name).id: name for name in names}
        found: dict[str, None] = {}
        for entry, _ in self.kernel.journal.scan():
            if entry.kind == Kind.SPAWN and entry.agent in wanted:
                found.setdefault(wanted[entry.agent])
        return list(found)


def in_world(top: Path, test: Callable[[World], Awaitable[None]], seconds: float = 120) -> None:
    async def main() -> None:
        async with asyncio.timeout(seconds):
            async with World(top).up() as world:
                await test(world)

    asyncio.run(main())
