"""What one manifest lets its agent do, taken alone: one layer of several, and the one that its author wrote.

In: a manifest and what the agent wants. Out: the first step that refuses and why, or None. A request is allowed only if
every layer allows it, so a None from here is no permission: handles, policy and budget decide as well.
"""

from collections.abc import Collection
from typing import NamedTuple

from agent_os.manifest.model import AgentManifest

EFFECTS = ("files", "network", "shell")  # what a tool declares that it touches; its name says nothing


class Refused(NamedTuple):
    step: str
    reason: str


def tool_refusal(
    manifest: AgentManifest, tool: str, effects: Collection[str] = (), *, allowed: Collection[str] = ()
) -> Refused | None:
    """The steps in their order: capability switch, deny list, allow list, sandbox. `allowed`: effects that the walls of
    this agent let through besides what its switches say."""
    if not manifest.capabilities.can_exec_tools:
        return Refused("capability", "tools are switched off: can_exec_tools is false")
    if any(_is_like(tool, one) for one in manifest.tools_deny):
        return Refused("deny", f"{tool} is among tools_deny")
    if not any(_is_like(tool, one) for one in manifest.tools):
        return Refused("allow", f"{tool} is not among tools")
    open_to = {*allowed, *(("network",) if manifest.capabilities.can_network else ())}
    for effect in effects:
        if effect not in EFFECTS:
            return Refused("sandbox", f"{tool} declares an effect {effect!r} that nobody knows")
        if effect not in open_to:
            return Refused("sandbox", f"{tool} touches {effect}, which this agent may not")
    return None


def send_refusal(manifest: AgentManifest, kind: str, target: str = "", *, parent: str | None = None) -> Refused | None:
    """`kind`: process, service, broadcast or kernel. Ids are written as the manifest writes them."""
    can = manifest.capabilities
    if not can.can_ipc:
        return Refused("capability", "messages are switched off: can_ipc is false")
    if kind == "process" and can.ipc_scope.reaches(target, parent=parent):
        return None
    if kind == "service" and ("*" in can.services or target in can.services):
        return None
    if kind == "broadcast" and can.ipc_scope.word == "all":
        return None
    named = f" {target}" if target else ""
    return Refused("scope", f"the scope {can.ipc_scope} does not reach {kind}{named}")


def topic_refusal(manifest: AgentManifest, action: str, topic: str) -> Refused | None:
    """`action`: publish or subscribe. Topics are open only where they are listed, in every scope."""
    if not manifest.capabilities.can_ipc:
        return Refused("capability", "messages are switched off: can_ipc is false")
    key = {"publish": "topics_publish", "subscribe": "topics_subscribe"}[action]
    listed: list[str] = getattr(manifest, key)
    if any(one == "*" or _covers(one.split("."), topic.split(".")) for one in listed):
        return None
    return Refused("allow", f"{topic} is not among {key}")


def _is_like(name: str, pattern: str) -> bool:
    """At most one star, for any text."""
    begin, star, end = pattern.partition("*")
    if not star:
        return name == pattern
    return name.startswith(begin) and name.endswith(end) and len(name) >= len(begin) + len(end)


def _covers(pattern: list[str], topic: list[str]) -> bool:
    if pattern[-1] == ">":
        return len(topic) >= len(pattern) and _covers_each(pattern[:-1], topic)
    return len(pattern) == len(topic) and _covers_each(pattern, topic)


def _covers_each(pattern: list[str], topic: list[str]) -> bool:
    return all(one in ("*", level) for one, level in zip(pattern, topic, strict=False))
