"""What an agent can read of the kernel: its rules, itself, its children, its checkpoints. Rendered at every read, so
there is nothing that could be changed."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.kernel.table import Agent, shown
from agent_os.kernel.vfs import Root

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel


def mount_views(kernel: "Kernel", agent: Agent, root: Root) -> None:
    root.mount_view("/policy", lambda: _policy(agent))
    root.mount_view("/proc", lambda: _proc(kernel, agent))
    root.mount_view("/ipc", lambda: _ipc(agent))
    root.mount_view("/state/checkpoints", lambda: kernel.checkpoints.listing(agent))


def _policy(agent: Agent) -> Mapping[str, str]:
    held = [{"handle": one.id, "capability": str(one.capability), "origin": one.origin} for one in agent.holdings]
    return {
        "capabilities.json": _json(held),
        "rules.json": _json([]),
        "mode": "strict\n",
    }


def _proc(kernel: "Kernel", agent: Agent) -> Mapping[str, str]:
    facts = {"self/status.json": _json(msgspec.to_builtins(shown(agent)))}
    facts["self/signals.json"] = _json({"mask": sorted(agent.mask), "pending": sorted(agent.pending)})
    for child in kernel.table.children(agent.id):
        facts[f"children/{child.name}.json"] = _json(msgspec.to_builtins(shown(child)))
    return facts


def _ipc(agent: Agent) -> Mapping[str, str]:
    return {"signals.json": _json({"pending": sorted(agent.pending)})}


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"
