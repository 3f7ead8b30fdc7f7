"""What a manifest asks for, as capabilities: seed 4's fields are shorthand, and this writes them out.

In: a complete `AgentManifest`, and the id of its parent where that is known. Out: `Wanted`, in the order of the keys:
the text of a capability, the key it comes from, and whether it adapts. What is written out is granted whole or the
spawn is refused; `"*"` means all that the other layers allow. Grants nothing: the kernel proves each one.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import quote

from agent_os.manifest.capabilities import AgentCapabilities, CapabilityCeiling
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.roles import AgentRole
from agent_os.manifest.sections import keys_of
from agent_os.manifest.settling import runtime

_HTTPS, _HTTP = "443", "80"
_WORK = "/work"
_SHELL = "capability://shell?action=execute"
_RUNNERS = ("shell.execute", "python.execute")  # tools that need it; to name one is to ask for both

_MEMORY = {"memory.retrieve": "read", "memory.search": "read", "memory.share": "share", "memory.store": "write"}


class Wanted(NamedTuple):
    key: str  # of the manifest
    capability: str
    adapts: bool = False  # to what the other layers allow


def wanted(manifest: AgentManifest, parent: str | None = None) -> list[Wanted]:
    """Everything beyond what every agent has. A switch that is false takes its kind away."""
    can = manifest.capabilities
    found: list[Wanted] = []
    if can.can_exec_tools:
        found += [Wanted("tools", _text("tool", name, "call"), name == "*") for name in manifest.tools]
        found += [Wanted("tools", _SHELL, False) for name in manifest.tools if _runs_programs(name)]
        found += [one for name in manifest.tools for one in _memory(name)]
    if can.can_ipc:
        found += _messages(manifest, parent)
    found += [one for path in manifest.filesystem_access for one in _files(path)]
    if can.can_network:
        found += [_host(endpoint) for endpoint in can.network]
    found += [Wanted("capabilities.secrets", _text("secret", name, "use"), name == "*") for name in can.secrets]
    found += _models(manifest)
    if can.can_spawn and manifest.agency.allowed_roles and manifest.agency.max_children != 0:
        most = manifest.agency.max_children
        found.append(Wanted("agency", f"capability://agent?action=spawn{'' if most is None else f'&max={most}'}"))
    return list({one.capability: one for one in reversed(found)}.values())[::-1]


def calls(tools: Sequence[str]) -> list[str]:
    """Calls of these tools, as capabilities: what is denied, or asked about, is named by the same words."""
    return [_text("tool", name, "call") for name in tools]


def allowed(ceiling: CapabilityCeiling, parent: str, *, adapting: bool = True) -> list[str]:
    """What children may hold at most, by the same words. `adapting`: also what is written as a star."""
    lists = {key: getattr(ceiling, key) for key in ("tools", "topics_publish", "topics_subscribe", "filesystem_access")}
    can = AgentCapabilities(**{key: getattr(ceiling, key) for key in keys_of(AgentCapabilities)})
    can.can_spawn = False  # agency says more of it than a text could
    whole = AgentManifest(name="ceiling", role=AgentRole.WORKER, capabilities=can, **lists)
    return [one.capability for one in wanted(whole, parent) if adapting or not one.adapts]


def _runs_programs(name: str) -> bool:
    return name != "*" and any(fnmatchcase(runner, name.partition("@")[0]) for runner in _RUNNERS)


def _memory(name: str) -> Iterator[Wanted]:
    """An agent's own memory, as far as the tools that it names work with it."""
    actions = [] if name == "*" else [does for one, does in _MEMORY.items() if fnmatchcase(one, name.partition("@")[0])]
    if actions:
        for space in ("episodic", "semantic"):
            yield Wanted("tools", _text("mem", f"/mem/{space}/**", ",".join(sorted(set(actions)))), adapts=True)


def _messages(manifest: AgentManifest, parent: str | None) -> Iterator[Wanted]:
    for key, action in (("topics_publish", "publish"), ("topics_subscribe", "subscribe")):
        for name in getattr(manifest, key):
            yield Wanted(key, _text("ipc", f"topic/{_tokens(name)}", action), name == "*")
    yield from _direct(manifest.capabilities, parent)


def _tokens(name: str) -> str:
    """In a capability a last star would be everything below; here it is one token."""
    if name in ("*", ">"):
        return "**"
    if name.endswith(".>"):
        return f"{name[:-1]}**"
    return f"{name[:-1]}+" if name.endswith(".*") else name


def _direct(can: AgentCapabilities, parent: str | None) -> Iterator[Wanted]:
    scope = can.ipc_scope
    if scope.word == "all":
        yield Wanted("capabilities.ipc_scope", _text("ipc", "agent/**", "send"), adapts=True)
    if scope.word == "parent" and parent is not None:
        yield Wanted("capabilities.ipc_scope", _text("ipc", f"agent/{parent}", "send"))
    for name in scope.peers:
        yield Wanted("capabilities.ipc_peers", _text("ipc", f"agent/{name}", "send"))
    for name in can.services:
        whole = name == "*"
        yield Wanted("capabilities.services", _text("ipc", f"agent/{'**' if whole else name}", "send"), whole)


def _files(written: str) -> Iterator[Wanted]:
    """A path may be a file or a directory: both are named, unless it ends with a slash."""
    if written == "*":
        yield Wanted("filesystem_access", _text("file", "/**", "delete,read,write"), adapts=True)
        return
    actions = "read,write" if written.startswith("rw:") else "read"
    path = written[3:] if written[:3] in ("ro:", "rw:") else written
    path = path if path.startswith("/") else f"{_WORK}/{path.removeprefix('./')}"
    base = "/".join(["", *(part for part in path.split("/") if part not in ("", "."))])
    if base and not path.endswith("/") and not base.endswith("*"):
        yield Wanted("filesystem_access", _text("file", base, actions))
    yield Wanted("filesystem_access", _text("file", base if base.endswith("*") else f"{base}/**", actions))


def _host(endpoint: str) -> Wanted:
    host, colon, port = endpoint.rpartition(":")
    host, port = (host, port) if colon else (endpoint, _HTTPS)
    limits = "" if port == _HTTPS else f"&port={port}" + ("&scheme=http" if port == _HTTP else "")
    return Wanted("capabilities.network", _text("http", host, "*") + limits, host == "*")


def _models(manifest: AgentManifest) -> Iterator[Wanted]:
    for name in manifest.capabilities.models:
        yield Wanted("capabilities.models", _text("llm", name, "call"), name == "*")
    if runtime(manifest.program) in ("model", "python") and manifest.program.model:
        yield Wanted("program.model", _text("llm", manifest.program.model, "call"))
    if runtime(manifest.program) == "model":
        for name in manifest.program.loop.fallback:
            yield Wanted("program.loop.fallback", _text("llm", name, "call"))


def _text(kind: str, target: str, actions: str) -> str:
    """The URI form, which holds every target."""
    return f"capability://{kind}/{quote(target.removeprefix('/'), safe='/*+.:@-_~')}?action={actions}"
