"""One agent's door to models: what an operator gives by `--model`, what its programs are told, and the door itself.

In: words of an operator, or what an agent holds. Out: capabilities, dialects and hosts for its plan, and a `Doors` for
its proxy. Whoever may call a provider's models reaches that provider by the door alone: a tunnel would take a key of
somebody else's along.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent_os.kernel.allowance import ENTRY
from agent_os.kernel.authority.capability import Capability, of
from agent_os.kernel.authority.redaction import Needles
from agent_os.kernel.egress.models import ModelDoor, Told
from agent_os.kernel.egress.visit import Doors
from agent_os.kernel.models.catalogue import Catalogue, Provider
from agent_os.kernel.models.passage import Dialect

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent

_BOTH = ("call", "embed")


def granted(catalogue: Catalogue, words: Iterable[str]) -> list[Capability]:
    """What `--model` gives. EINVAL, ENOENT: there is no such model."""
    return [of("llm", _target(catalogue, word), _BOTH) for word in words]


def _target(catalogue: Catalogue, word: str) -> str:
    provider, slash, model = word.partition("/")
    if slash and model == "*":
        return f"{catalogue.provider(provider).name}/*"
    return catalogue.named(word).full


def told(kernel: "Kernel", agent_id: str) -> Told:
    """As it is now. What is granted later finds the door open, and the program untold."""
    names = {
        str(one.capability.target).partition("/")[0]
        for one in kernel.authority.holdings(agent_id).of_kind("llm")
        if not one.revoked
    }
    its = [one for one in kernel.models.catalogue if one.dialect != "scripted" and names & {"*", "**", one.name}]
    dialects: set[Dialect] = {_spoken(one) for one in its}
    return Told(tuple(sorted(dialects)), tuple(dict.fromkeys(_host(one) for one in its if one.host)))


def _spoken(provider: Provider) -> Dialect:
    return "anthropic" if provider.dialect == "anthropic" else "openai"


def _host(provider: Provider) -> str:
    return f"[{provider.host}]" if ":" in provider.host else provider.host


def door(kernel: "Kernel", agent: "Agent", others: Doors | None) -> Doors:
    """Of every agent: one that may call none is told so, and what would change that."""

    def needles() -> Needles:
        return kernel.safe.needles() if kernel.safe.exists else Needles(())

    async def before(size: int) -> None:
        """A call takes two entries, and its body is kept. Whoever has written its share waits; without room, none."""
        await asyncio.sleep(agent.allowance.spend(2 * ENTRY + size))
        if kernel.room.low():
            raise kernel.room.refusal()

    return ModelDoor(agent, kernel.models, needles, others, before)
