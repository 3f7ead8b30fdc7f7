"""Keys of providers: which one a call uses, and which ones the provider has refused.

In: a provider, an agent, and the program that it works in. Out: a key, for one call. Keys are secrets of the safe,
bound to the provider's host and to agents; a program stays on one, because prompts are cached by key. None is kept
here: the safe is asked for every call, so one that was rotated, unbound or removed is not used again.
"""

import asyncio
import logging
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO, ENOENT
from agent_os.kernel.journal import Draft
from agent_os.kernel.models.catalogue import Provider

if TYPE_CHECKING:
    from agent_os.kernel.authority.secrets import Given
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent

log = logging.getLogger("agent_os.models")


class Key(Struct, frozen=True):
    """For one call. Without a name: none is needed."""

    name: str = ""
    version: int = 0
    value: str | None = None

    def __repr__(self) -> str:
        return f"Key({self.name!r}, {self.version})"


class Keys:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._bad: set[tuple[str, int]] = set()  # name and version: what was rotated is another

    async def pick(self, provider: Provider, agent: "Agent", program: str) -> Key:
        """EIO `auth` says what adds one. EPERM: it is not bound for this."""
        if not provider.keys:
            return Key()
        safe = self._kernel.safe
        if not safe.is_open:  # which may take a moment; for most calls it is
            await asyncio.to_thread(safe.open)
        first = crc32(program.encode()) % len(provider.keys)
        pool = [*provider.keys[first:], *provider.keys[:first]]
        given = [self._given(provider, name, agent) for name in pool]
        good = [one for one in given if (one.name, one.version) not in self._bad] or given
        return Key(good[0].name, good[0].version, good[0].value.decode())

    async def of_operator(self, provider: Provider) -> Key:
        """For the operator's own call: whoever it is bound for."""
        if not provider.keys:
            return Key()
        safe, name = self._kernel.safe, provider.keys[0]
        if not safe.is_open:  # which may take a moment; for most calls it is
            await asyncio.to_thread(safe.open)
        bound = [one for shown in safe.listed() if shown.name == name for one in shown.bindings]
        agents = [word.rstrip("*") or "operator" for one in bound for word in one.agents]
        given = self._use(provider, name, agents[0] if agents else "operator")
        return Key(given.name, given.version, given.value.decode())

    def _given(self, provider: Provider, name: str, agent: "Agent") -> "Given":
        return self._use(provider, name, agent.name)

    def _use(self, provider: Provider, name: str, agent: str) -> "Given":
        try:
            return self._kernel.safe.use(name, agent, provider.host, provider.port, "POST")
        except ENOENT:
            raise EIO("auth", f"no key is set for {provider.name}", hint=adding(provider, name)) from None

    def marked(self, key: Key, provider: Provider, agent: "Agent") -> None:
        """The provider refuses it. The operator is told once."""
        if not key.name or (key.name, key.version) in self._bad:
            return
        self._bad.add((key.name, key.version))
        log.warning("%s refuses the key %s (version %d)", provider.name, key.name, key.version)
        facts = {"event": "model.key_refused", "provider": provider.name, "secret": key.name, "version": key.version}
        self._kernel.journal.put(Draft(agent.id, Kind.CHANGE, body=frames.encode_body(facts)), sync=False)

    def is_bad(self, name: str, version: int) -> bool:
        return (name, version) in self._bad


def adding(provider: Provider, name: str) -> str:
    """The commands that give a provider its key."""
    header = " --header x-api-key" if provider.dialect == "anthropic" else ""
    return f"agentctl secrets set {name} < FILE && agentctl secrets bind {name} --host {provider.target}{header}"
