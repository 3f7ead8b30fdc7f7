"""The table of what operators may ask: each request, and the file whose `PREPARE` understands it.

A file is loaded when one of its requests first comes, or when the kernel has time after its start. The syscalls of
agents are in `syscalls.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_os.abi import doors, syscalls
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel.calls import Act

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Any], Act]
_S, _D = syscalls, doors
FILES: dict[str, tuple[type, ...]] = {
    "operator": (_S.Status, _S.ListAgents, _S.Inspect, _S.Run, _S.Tell, _S.Hold, _S.Snapshot, _S.Await, _S.Down)
    + (_S.Logs, _S.Release, _S.Panic, _S.Leave, _S.Work),
    "beside": (_S.Beside,),
    "front": (_D.Gateway, _D.Doctor),
    "auditing": (_S.Events, _S.Head, _S.Prove, _S.Consistency, _S.Export, _S.Backup, _S.CheckpointOf, _S.Replay)
    + (_S.Resolve,),
    "metrics": (_D.Metrics,),
    "remembering": (_D.Memory,),
    "safe": (_S.Secrets,),
    "asking": (_S.Approvals, _S.Decide, _S.Budgets, _S.Limit, _S.Cost),
    "granting": (_S.Capabilities, _S.Grant, _S.Revoke, _S.Explain),
    "rules": (_S.Rules, _S.ApplyRules),
    "supervisor.doors": (_S.Apply, _S.Delete, _S.Start, _S.Stop, _S.Restart, _S.Reach),
    "supervisor.looking": (_S.Declared, _S.History),
    "supervisor.bonds": (_S.Links,),
    "goals.desk": (_S.Submit, _S.Prioritize, _S.Queue, _S.LookAtGoal, _S.Withdraw),
    "health": (_S.Health,),
    "bus.office": (_S.Post, _S.Bus, _S.DeadLetters, _S.Listen, _S.Topics),
    "tools.doors": (_S.ToolsOf, _S.ToolCall),
    "tools.servers": (_S.Mcp,),
    "models.desk": (_S.Models,),
    "tokens": (_D.Tokens, _D.Session, _D.Whoami),
    "outside": (_D.Clients,),
}


class Handlers(dict[int, Prepare]):
    """Number → what understands it. The file of some is loaded when one of its calls first comes."""

    def __init__(self, attribute: str, files: Mapping[str, Iterable[int]], known: Mapping[int, Prepare]) -> None:
        super().__init__(known)
        self._attribute = attribute
        self._file_of = {number: file for file, numbers in files.items() for number in numbers}

    def __missing__(self, number: int) -> Prepare:
        found = getattr(import_module(f"agent_os.kernel.{self._file_of[number]}"), self._attribute)
        self.update(found | self)
        return found[number]


PREPARE = Handlers("PREPARE", {file: [BY_REQUEST[kind].number for kind in kinds] for file, kinds in FILES.items()}, {})
