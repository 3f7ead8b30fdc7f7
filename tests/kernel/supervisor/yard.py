"""A kernel with a folder of programs, and agents declared there: real processes under watch."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agent_os.abi.entries import Kind
from agent_os.client.wire import Client
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Agent
from agent_os.manifest.model import AgentManifest
from kernel.serving import serving, until

QUIET = "sleep 600"
HEAD = "import asyncio, signal, time\nfrom agent_os import agent\n"
PLAIN = "@agent\nasync def p(ctx):\n    await ctx.now()\n    await ctx.sleep(600)\n"
POLICY = """
version = 1
default = "capability"
[[rule]]
id = "ask"
effect = "ask"
what = ["mem:/mem/working/asked:write"]
"""
Body = Callable[["Yard"], Awaitable[None]]


class Yard:
    """A kernel with a folder of programs, and the agents declared there."""

    def __init__(self, kernel: Kernel, client: Client, base: Path) -> None:
        self.kernel, self.client, self.base = kernel, client, base

    async def declare(self, name: str = "one", **sections: Any) -> None:
        tree = {"name": name, "role": "worker", "program": {"entry": "p.py:p"}, **sections}
        await self.kernel.fleet.apply([AgentManifest.from_dict(tree)], base=str(self.base), by="test")

    def row(self, name: str = "one") -> Agent | None:
        return next((one for one in self.kernel.table if one.name == name), None)

    def record(self, name: str = "one") -> Any:
        return self.kernel.fleet.record(f"default/{name}")

    async def started(self, name: str = "one") -> Agent:
        """It has a process, ready or not."""
        await until(lambda: (row := self.row(name)) is not None and row.watch is not None)
        row = self.row(name)
        assert row
        return row

    async def ready(self, name: str = "one") -> Agent:
        await until(lambda: self.kernel.fleet.is_ready(f"default/{name}"))
        row = self.row(name)
        assert row
        return row

    async def over(self, name: str = "one") -> dict[str, Any]:
        """How its first life ended."""
        await until(lambda: bool(self.told(Kind.EXIT, name)))
        return self.told(Kind.EXIT, name)[0]

    def told(self, kind: Kind, name: str = "one") -> list[dict[str, Any]]:
        found = self.kernel.journal.scan(f"default/{name}")
        return [decode_any(body) for entry, body in found if entry.kind == kind and body]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.told(Kind.STATE) if one.get("event") == event]


def drive(tmp_path: Path, body: Body, program: str = PLAIN, policy: str = "") -> None:
    os.chmod(tmp_path, 0o755)
    base, home = tmp_path / "base", tmp_path / "home"
    base.mkdir()
    home.mkdir(mode=0o700)
    (base / "p.py").write_text(HEAD + program)
    if policy:
        (home / "policy.toml").write_text(policy)

    async def run() -> None:
        async with asyncio.timeout(60), serving(home) as (kernel, client):
            await body(Yard(kernel, client, base))

    asyncio.run(run())


def sh(script: str) -> dict[str, Any]:
    return {"argv": ["/bin/sh", "-c", script]}


def never(**health: Any) -> dict[str, Any]:
    return {"restart_policy": "never", **health}
