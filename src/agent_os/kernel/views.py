"""What an agent can read of the kernel: its rules, itself, its children, its checkpoints. Rendered at every read, so
there is nothing that could be changed."""

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.kernel import rules
from agent_os.kernel.authority.labels import CLEAN, Label, joined
from agent_os.kernel.table import Agent, shown
from agent_os.kernel.vfs import Root

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel


def mount_views(kernel: "Kernel", agent: Agent, root: Root) -> None:
    root.mount_view("/policy", lambda: _policy(kernel, agent))
    root.mount_view("/proc", lambda: _proc(kernel, agent), partial(_proc_label, kernel, agent))
    root.mount_view("/ipc", lambda: _ipc(kernel, agent), lambda path: kernel.signals.waiting(agent))
    root.mount_view(
        "/state/checkpoints", lambda: kernel.checkpoints.listing(agent), partial(kernel.checkpoints.label, agent)
    )


def _policy(kernel: "Kernel", agent: Agent) -> Mapping[str, str]:
    policy, account = kernel.authority.policies.of(agent.id), kernel.budgets.account(agent.id)
    held = [{"handle": one.id, "capability": str(one.capability), "origin": one.origin} for one in agent.holdings]
    return {
        "capabilities.json": _json(held),
        "rules.json": _json(list(rules.shown(policy, agent.parties))),
        "mode": f"{policy.mode}\n",
        "digest": f"{policy.digest.hex()}\n",
        "budget.json": _json({"limits": account.limits, "spent": account.spent, "held": account.held}),
    }


def _proc(kernel: "Kernel", agent: Agent) -> Mapping[str, str]:
    facts = {"self/status.json": _json(msgspec.to_builtins(shown(agent)))}
    facts["self/signals.json"] = _json({"mask": sorted(agent.mask), "pending": sorted(agent.pending)})
    for child in kernel.table.children(agent.id):
        facts[f"children/{child.name}.json"] = _json(msgspec.to_builtins(shown(child)))
    return facts


def _proc_label(kernel: "Kernel", agent: Agent, path: str) -> Label:
    """How a child fares is its own doing, and its reasons are its own words."""
    if path in ("", "self"):
        return CLEAN
    if path.startswith("self/"):
        return kernel.signals.waiting(agent)
    children = kernel.table.children(agent.id)
    return joined(kernel.lives.label(one) for one in children if path in ("children", f"children/{one.name}.json"))


def _ipc(kernel: "Kernel", agent: Agent) -> Mapping[str, str]:
    subs = [
        {"sub": one.name, "topic": one.pattern, "group": one.group.partition("/")[2]}
        for one in kernel.bus.broker.subscriptions(agent.id)
    ]
    return {"signals.json": _json({"pending": sorted(agent.pending)}), "subscriptions.json": _json(subs)}


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"
