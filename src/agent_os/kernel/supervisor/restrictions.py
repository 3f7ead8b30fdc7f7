"""What a manifest takes away, as rules of a policy: tools that are denied, and tools that wait for a person.

In: an agent whose order has its manifest. Out: the text of a policy file, in the layer of manifests, or nothing. A
capability can only give; what must hold whatever is given, also for all that descend from the agent, is a rule about
its name. Decides nothing.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent_os.kernel.authority.policy.loading import Text
from agent_os.kernel.table import Agent

if TYPE_CHECKING:
    from agent_os.manifest.model import AgentManifest

_HEAD = 'version = 1\ndefault = "capability"\n'


def name_of(agent: Agent) -> str:
    """How records and refusals call it."""
    return f"manifest of {agent.name}"


def texts(agent: Agent) -> list[Text]:
    """At most one."""
    if "manifest" not in agent.order:
        return []
    from agent_os.kernel.supervisor.admission import manifest_of  # which is about spawning, and needs the gate's parts

    manifest = manifest_of(agent)
    rules = "".join(_rules(manifest, agent.name)) if manifest else ""
    return [Text(name_of(agent), f"{_HEAD}{rules}".encode())] if rules else []


def _rules(manifest: "AgentManifest", name: str) -> Iterator[str]:
    from agent_os.manifest import granting

    can = manifest.capabilities
    if manifest.tools_deny:
        more = 'violation = "refuse"\nreason = "it is among tools_deny"\n'
        yield _rule(f"{name} tools_deny", "forbid", granting.calls(manifest.tools_deny), name, more)
    if can.approval:
        yield _rule(f"{name} approval", "ask", granting.calls(can.approval), name, 'reason = "it is among approval"\n')


def _rule(rule_id: str, effect: str, what: Sequence[str], name: str, more: str) -> str:
    lists = f"what = {json.dumps(list(what))}\nagents = {json.dumps([name])}\n"
    return f'[[rule]]\nid = {json.dumps(rule_id)}\neffect = "{effect}"\n{lists}{more}'
