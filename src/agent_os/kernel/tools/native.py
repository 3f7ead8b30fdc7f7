"""Tools that are syscalls under another name, for models: `agent.*` and `memory.*`.

In: parameters that fit a schema. Out: the very `Act` of the syscall, so that needs, effect and recovery are the same;
only the answer is bounded as a tool's is. Searching and reading memory is reading files of the agent's own tree.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL
from agent_os.abi.signals import KERNEL_ONLY, AgentSignal
from agent_os.abi.syscalls import Body
from agent_os.abi.tools import EffectClass, ToolSpec
from agent_os.kernel.authority.labels import CLEAN, Label, joined
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.tools.registry import Call, Deed, Registry

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent

Params = Mapping[str, Any]
Make = Callable[["Kernel", "Agent", Params, Asked], Act]
_ANY = dict[str, Any]()
_CAPABILITY = {"type": "string", "maxLength": 4096}
_AGENT = {"type": "string", "description": "its name, as agent.spawn told it", "maxLength": 128}
_KEY = {"type": "string", "description": "as notes/today", "minLength": 1, "maxLength": 512}
_SPACE = {"type": "string", "enum": ["working", "semantic", "episodic"], "description": "semantic if not given"}
_SIGNALS = [one.name for one in AgentSignal if one not in KERNEL_ONLY]


def register(registry: Registry) -> None:
    for name, description, effect, fields, required, gives, make in _ROWS:
        schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        spec = ToolSpec(
            name=name,
            description=description,
            input_schema=schema,
            output_schema={"type": "object", "required": gives.split()},
            effect=effect,
            requires=("tool:call",),
            timeout_s=3600.0,
            concurrency=1000,
            sandbox="driver",
            tags=(name.partition(".")[0],),
        )
        verify = None if effect != "verifiable" else _unseen
        registry.register(spec, Deed(_never, verify=verify, act=make, digest=b"1"))


async def _never(call: Call) -> Any:
    raise EINVAL("tool.native", f"{call.tool.id} is done as the syscall that it is")


async def _unseen(call: Call) -> Any:
    raise EINVAL("tool.native", f"{call.tool.id} is looked at as the syscall that it is")


def _asking(build: Callable[[Params], Body]) -> Make:
    def make(kernel: "Kernel", agent: "Agent", params: Params, asked: Asked) -> Act:
        from agent_os.kernel.syscalls import PREPARE  # which has a row for tools

        request = build(params)
        inner = Asked(abi.BY_REQUEST[type(request)].number, asked.raw, cap=asked.cap, request=request)
        act = PREPARE[inner.op](kernel, agent, inner)
        act.label = act.label or _clean
        return act

    return make


def _clean() -> Label:
    return CLEAN


def manifest(params: Params) -> dict[str, Any]:
    """Of a child, as SYS_SPAWN takes it."""
    if ("program" in params) == ("manifest" in params):
        raise EINVAL("agent.spawn", "give either program or manifest", hint='program: "worker.py:main"')
    made: dict[str, Any] = dict(params.get("manifest", {}))
    if "program" in params:
        made["program"] = {"runtime": "python", "entry": params["program"]}
    return {**made, "name": params["name"]} if "name" in params else made


def _spawn(params: Params) -> Body:
    return abi.Spawn(manifest=manifest(params), input=params.get("input"), caps=list(params.get("caps", ())))


def _signal(params: Params) -> Body:
    return abi.Signal(agent=params["agent"], signal=AgentSignal[params["signal"]], value=params.get("value"))


def _path(params: Params) -> str:
    key = str(params["key"])
    if ".." in key.split("/"):
        raise EINVAL("memory.key", f"{key[:100]!r} leads out of memory", hint="as notes/today")
    return key if key.startswith("/mem/") else f"/mem/{params.get('space', 'semantic')}/{key.strip('/')}"


def _store(params: Params) -> Body:
    mode = "append" if params.get("space") == "episodic" else "replace"
    return abi.Write(path=_path(params), data=params["value"], mode=mode)


def _share(params: Params) -> Body:
    return abi.Share(path=_path(params), to=params["to"], rights=params.get("rights", "r"))


def _list(kernel: "Kernel", agent: "Agent", params: Params, asked: Asked) -> Act:
    """Its own descendants; of others it is not told here."""
    found = [one for one in kernel.table if kernel.table.descends(one, agent.id)]

    def do() -> Done:
        rows = [{"agent": one.name, "state": str(one.state), "detail": one.detail} for one in found]
        return Done({"agents": rows}, label=joined(map(kernel.lives.label, found)))

    return Act(do, label=_clean)


_ROWS: list[tuple[str, str, EffectClass, dict[str, Any], list[str], str, Make]] = [
    (
        "agent.spawn",
        "Start a child agent: program (FILE.py:NAME) or a whole manifest. What it may do is part of what you may.",
        "verifiable",
        {
            "program": {"type": "string", "description": "FILE.py:NAME", "maxLength": 4096},
            "manifest": {"type": "object", "description": "in place of program", "additionalProperties": True},
            "name": {"type": "string", "maxLength": 63},
            "input": _ANY,
            "caps": {
                "type": "array",
                "items": _CAPABILITY,
                "maxItems": 100,
                "description": "capabilities, of your own",
            },
        },
        [],
        "agent level",
        _asking(_spawn),
    ),
    (
        "agent.wait",
        "Wait until a child has ended; its state, result and reason. Without a name: any child.",
        "pure",
        {"agent": _AGENT},
        [],
        "agent state",
        _asking(lambda params: abi.Wait(agent=params.get("agent"))),
    ),
    (
        "agent.signal",
        "Send a signal to another agent: SIGTERM asks it to end, SIGKILL ends it, SIGSTOP and SIGCONT hold and go on.",
        "idempotent",
        {"agent": _AGENT, "signal": {"type": "string", "enum": _SIGNALS}, "value": _ANY},
        ["agent", "signal"],
        "delivered",
        _asking(_signal),
    ),
    ("agent.list", "List your own child agents and how they are.", "pure", {}, [], "agents", _list),
    (
        "memory.store",
        "Keep a text under a key; what is there is replaced, in the episodic space added to.",
        "idempotent",
        {"key": _KEY, "value": {"type": "string", "maxLength": 1 << 20}, "space": _SPACE},
        ["key", "value"],
        "version size",
        _asking(_store),
    ),
    (
        "memory.retrieve",
        "Read what is kept under a key.",
        "pure",
        {"key": _KEY, "space": _SPACE},
        ["key"],
        "data size",
        _asking(lambda params: abi.Read(path=_path(params), length=1 << 19)),
    ),
    (
        "memory.share",
        "Let another agent see what is kept under a key; the path at which it does.",
        "idempotent",
        {"key": _KEY, "space": _SPACE, "to": _AGENT, "rights": {"type": "string", "enum": ["r", "rw"]}},
        ["key", "to"],
        "path",
        _asking(_share),
    ),
]
