"""The manifest: every key there is, its default and what it means, in the order in which people write them.

`AgentManifest` is a plain value. Made in a program or read from a file it is complete and checked: switches follow
their lists, `agency = "role"` is worked out, and the limits that seed 4 keeps among the capabilities are the same
numbers as in `[resources]` and `[budget]`. Its TOML and its JSON read back as an equal value. Starts nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Annotated, Any

from agent_os.manifest import checks, settling
from agent_os.manifest.agency import Agency
from agent_os.manifest.capabilities import AgentCapabilities, access, topic
from agent_os.manifest.problems import ManifestError, Problem
from agent_os.manifest.roles import (
    AgentPriority,
    AgentRestartPolicy,
    AgentRole,
    InterfaceProtocol,
    Response,
    ResponseMode,
    Role,
)
from agent_os.manifest.sections import Rows, Section, dotted
from agent_os.manifest.values import (
    OFF,
    UNLIMITED,
    Above,
    Flag,
    List,
    Mebibytes,
    Name,
    Number,
    Seconds,
    Text,
    Texts,
    Whole,
    Word,
    agent_id,
    exit_code,
)

_VERSION = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?")
_ENTRY = re.compile(r"[^\s:]+(?::[A-Za-z_]\w*)?")
_ABSOLUTE = re.compile(r"/[^\0]*")
_PLACE = re.compile(r"[^:\0]*")  # an order separates by colons what it says of a mount
_READY = re.compile(r"notify|immediate|(?:log|exec):.+|port:[0-9]{1,5}", re.DOTALL)


@dataclass(kw_only=True)
class Mount(Section):
    """Something of the host that the agent sees at a path."""

    path: Annotated[str, Text("where the agent sees it", form=_ABSOLUTE, example='"/data"')]
    kind: Annotated[str, Word("what it is", ("dir", "store", "memory"))] = "dir"
    source: Annotated[str, Text("host folder, store or index name", form=_PLACE, example='"/srv/data"')] = ""
    rights: Annotated[str, Word("read, or read and write", ("r", "rw"), also={"ro": "r"})] = "r"


@dataclass(kw_only=True)
class Loop(Section):
    """Bounds of one run of the model loop."""

    turns: Annotated[int, Whole("model calls", least=1)] = 50
    tool_calls: Annotated[int, Whole("tool calls")] = 200
    wall_secs: Annotated[int | float, Above("seconds on the clock")] = 1800
    max_output: Annotated[int, Whole("tokens of one answer", least=1)] = 4096
    window: Annotated[int, Whole("tokens of the model's context; 0: as far as it is known")] = 0
    fallback: Annotated[list[str], List("models to try while the first is out of service")] = field(
        default_factory=list[str]
    )


@dataclass(kw_only=True)
class Program(Section):
    """What runs. A supervisor may have none."""

    runtime: Annotated[
        str,
        Word(
            "how it runs; empty: from entry, argv or model",
            ("", "python", "exec", "model"),
            later=("node", "wasm", "container", "remote"),
        ),
    ] = ""
    model: Annotated[str, Text('the model, as "provider/name"; a python program finds it as ctx.usual_model')] = ""
    goal: Annotated[str, Text("what a model agent is to do; empty: what is submitted")] = ""
    instructions: Annotated[str, Text("what a model agent is told before its goal")] = ""
    output_schema: Annotated[str, Text("JSON Schema file that a model agent's result is held to")] = ""
    entry: Annotated[str, Text('python: "module:function"', form=_ENTRY, example='"crawler.py:crawl"')] = ""
    inputs: Annotated[dict[str, str], Texts("what a goal, or a python function, is given by name")] = field(
        default_factory=dict[str, str]
    )
    argv: Annotated[list[str], List("exec: any command")] = field(default_factory=list[str])
    env: Annotated[dict[str, str], Texts("its environment; never secrets")] = field(default_factory=dict[str, str])
    working_dir: Annotated[str, Text("where it starts", form=_ABSOLUTE, example='"/work"')] = "/work"
    loop: Loop = field(default_factory=Loop)


@dataclass(kw_only=True)
class Sandbox(Section):
    """The walls it must have."""

    min_level: Annotated[str, Word("lowest isolation; lower only by the operator", ("S1", "S2", "S3", "S4"))] = "S2"
    isolation: Annotated[str, Word("untrusted native code must use exec", ("warm", "exec"))] = "warm"
    workspace: Annotated[str, Word("what is behind /work", ("tmpfs", "overlay", "bind"))] = "tmpfs"


@dataclass(kw_only=True)
class AgentResources(Section):
    """Limits of one incarnation. A wish: the smaller of this and what its ancestors allow holds."""

    max_memory_mb: Annotated[int | None, Mebibytes("memory, in MiB", none=UNLIMITED)] = 256
    max_concurrent_requests: Annotated[int, Whole("requests at once, with interface.reentrant", least=1)] = 100
    priority: Annotated[AgentPriority, Word("weight of cpu and io: 25, 100, 300, 800", AgentPriority)] = (
        AgentPriority.NORMAL
    )
    cpu_quota: Annotated[int | float | None, Number("cores", none=UNLIMITED)] = 1.0
    max_cpu_secs: Annotated[int | float | None, Seconds("cpu time", none=UNLIMITED)] = 300
    max_tasks: Annotated[int | None, Whole("processes and threads", none=UNLIMITED)] = 64
    max_open_files: Annotated[int | None, Whole("open files", none=UNLIMITED)] = 256
    max_disk_mb: Annotated[int | None, Mebibytes("what it may write and keep, in MiB", none=UNLIMITED)] = 1024
    max_runtime_secs: Annotated[int | float | None, Seconds("time on the clock", none=UNLIMITED)] = None


@dataclass(kw_only=True)
class Budget(Section):
    """What the id may spend; its ancestors pay too, and a restart refills nothing."""

    tool_calls: Annotated[int | None, Whole("tool calls", none=UNLIMITED)] = 1000
    messages: Annotated[int | None, Whole("messages sent", none=UNLIMITED)] = 5000
    model_calls: Annotated[int | None, Whole("calls of models", none=UNLIMITED)] = None
    tokens: Annotated[int | None, Whole("tokens of models", none=UNLIMITED)] = None
    usd: Annotated[int | float | None, Number("money, in US dollars", none=UNLIMITED)] = None
    per: Annotated[str, Word("when it is filled again", ("run", "hour", "day", "month"))] = "day"
    on_exhausted: Annotated[str, Word("what then", ("refuse", "pause", "stop"))] = "refuse"


@dataclass(kw_only=True)
class AgentInterface(Section):
    """How others ask it for something."""

    protocol: Annotated[
        InterfaceProtocol,
        Word(
            "ipc: mailbox; rest: invoke route of the gateway; mcp: tool of our server",
            InterfaceProtocol,
            later=["grpc"],
        ),
    ] = InterfaceProtocol.IPC
    request_topic: Annotated[str | None, Text("topic on which requests come", absent=True)] = None
    response_mode: Annotated[ResponseMode, Response("where answers go")] = ResponseMode.DIRECT
    request_schema: Annotated[str, Text("JSON Schema file of requests, checked by the kernel")] = ""
    response_schema: Annotated[str, Text("JSON Schema file of answers")] = ""
    timeout_secs: Annotated[int | float, Above("how long a request may take")] = 60
    max_queue: Annotated[int, Whole("requests that wait; one more is told to come again")] = 1000
    reentrant: Annotated[bool, Flag("more than one request at a time")] = False
    max_deliveries: Annotated[int, Whole("tries of one message, then it is a dead letter", least=1)] = 5
    max_deaths: Annotated[int, Whole("deaths with one message in hand, then it is a dead letter", least=1)] = 3


@dataclass(kw_only=True)
class Backoff(Section):
    """How long to wait before a restart: base, doubled each time, at most cap."""

    base_ms: Annotated[int, Whole("the first wait, in milliseconds")] = 100
    cap_ms: Annotated[int, Whole("the longest wait, in milliseconds")] = 30_000
    jitter: Annotated[str, Word("equal: half of it is random; none: for tests", ("equal", "none"))] = "equal"


@dataclass(kw_only=True)
class AgentHealth(Section):
    """When it counts as well, and what happens when it dies."""

    check_interval_secs: Annotated[int | float, Above("time between checks")] = 30
    timeout_secs: Annotated[int | float, Above("how long a check may take")] = 5
    restart_policy: Annotated[AgentRestartPolicy, Word("which ends are followed by a start", AgentRestartPolicy)] = (
        AgentRestartPolicy.ON_FAILURE
    )
    max_restarts: Annotated[int, Whole("restarts without becoming stable, then it has failed")] = 5
    stable_secs: Annotated[int | float, Seconds("ready for so long forgives earlier restarts")] = 60
    failure_threshold: Annotated[int, Whole("failed checks in a row that count", least=1)] = 3
    success_threshold: Annotated[int, Whole("good checks in a row that count", least=1)] = 1
    start_timeout_secs: Annotated[int | float, Above("how long it may take to be ready")] = 60
    watchdog_secs: Annotated[int | float | None, Seconds("longest silence between syscalls", none=OFF)] = None
    max_repeat_calls: Annotated[int | None, Whole("same call in a row: a loop", none=OFF)] = None
    ready: Annotated[
        str,
        Text(
            "notify, immediate (usual for exec), log:<regex>, exec:<cmd> or port:<number>",
            form=_READY,
            example='"log:^listening"',
        ),
    ] = "notify"
    success_exit_codes: Annotated[list[int], List("normal ends", exit_code, says="list of exit codes")] = field(
        default_factory=lambda: [0]
    )
    no_restart_exit_codes: Annotated[
        list[int], List("ends that are never followed by a start", exit_code, says="list of exit codes")
    ] = field(default_factory=list[int])
    force_restart_exit_codes: Annotated[
        list[int], List("ends that always are", exit_code, says="list of exit codes")
    ] = field(default_factory=list[int])
    backoff: Backoff = field(default_factory=Backoff)
    on_failure: Annotated[list[str], List("ids to start when it has failed", agent_id)] = field(
        default_factory=list[str]
    )


@dataclass(kw_only=True)
class AgentDependencies(Section):
    """Whom it needs. Names are ids; a bare one is of its own namespace, then of `system`."""

    requires: Annotated[list[str], List("must be ready first", agent_id)] = field(default_factory=list[str])
    after: Annotated[list[str], List("order only, when both start", agent_id)] = field(default_factory=list[str])
    wants: Annotated[list[str], List("started if possible; goes on without", agent_id)] = field(
        default_factory=list[str]
    )
    binds_to: Annotated[list[str], List("as requires, and stops when it stops", agent_id)] = field(
        default_factory=list[str]
    )


@dataclass(kw_only=True)
class Supervision(Section):
    """How it treats its children; roles supervisor and service."""

    strategy: Annotated[
        str,
        Word("who is started anew with a dead child", ("one_for_one", "one_for_all", "rest_for_one"), later=["pool"]),
    ] = "one_for_one"
    intensity: Annotated[int, Whole("restarts of all children within the period; one more ends it", most=1000)] = 10
    period_secs: Annotated[int | float, Above("the period")] = 60
    children: Annotated[list[str], List("its children, in the order in which they start", agent_id)] = field(
        default_factory=list[str]
    )


@dataclass(kw_only=True)
class Hooks(Section):
    """Commands around its life."""

    on_start: Annotated[str, Text("run before it")] = ""
    on_stop: Annotated[str, Text("run inside the grace, before the shutdown notice")] = ""


@dataclass(kw_only=True)
class Lifecycle(Section):
    """When it starts, and how it is stopped."""

    activation: Annotated[
        str, Word("when it starts", ("always", "on_message", "manual", "on_schedule"), also={"cron": "on_schedule"})
    ] = "always"
    schedule: Annotated[str, Text("cron expression, with on_schedule")] = ""
    timezone: Annotated[str, Text("zone of the schedule")] = "UTC"
    drain_secs: Annotated[int | float, Seconds("requests in flight may take so long to finish")] = 30
    grace_secs: Annotated[int | float, Seconds("from the shutdown notice to the kill")] = 10
    checkpoint: Annotated[str, Word("who keeps its state", ("auto", "manual", "none"))] = "auto"
    hooks: Hooks = field(default_factory=Hooks)


@dataclass(kw_only=True)
class AgentManifest(Section):
    """What an agent is, what it needs, and how it is treated."""

    schema: Annotated[int, Whole("version of this format", least=1, most=1)] = 1
    name: Annotated[str, Name("unique in its namespace")]
    namespace: Annotated[str, Name("the tenant: owner of fair share and budgets")] = "default"
    version: Annotated[str, Text("semantic version", form=_VERSION, example='"1.2.3"')] = "0.1.0"
    description: Annotated[str, Text("for people")] = ""
    role: Annotated[AgentRole, Role("its place in the tree; root only by boot")]
    base_role: Annotated[AgentRole, Role("for custom: whose rules hold")] = AgentRole.WORKER
    tools: Annotated[list[str], List("tools it may call; ['*']: all that is allowed")] = field(
        default_factory=list[str]
    )
    tools_deny: Annotated[list[str], List("tools it may not call, whatever else says so")] = field(
        default_factory=list[str]
    )
    topics_publish: Annotated[list[str], List("topics; '*' one level, '>' the rest", topic)] = field(
        default_factory=list[str]
    )
    topics_subscribe: Annotated[list[str], List("topics; '*' one level, '>' the rest", topic)] = field(
        default_factory=list[str]
    )
    skills: Annotated[list[str], List("words a goal is matched against")] = field(default_factory=list[str])
    filesystem_access: Annotated[
        list[str], List("ro:PATH or rw:PATH; plain is ro, relative is below /work", access)
    ] = field(default_factory=list[str])
    mounts: Annotated[list[Mount], Rows("what it sees of the host", Mount)] = field(default_factory=list[Mount])
    program: Program = field(default_factory=Program)
    sandbox: Sandbox = field(default_factory=Sandbox)
    capabilities: AgentCapabilities = field(default_factory=AgentCapabilities)
    agency: Agency = field(default_factory=Agency)
    resources: AgentResources = field(default_factory=AgentResources)
    budget: Budget = field(default_factory=Budget)
    interface: AgentInterface = field(default_factory=AgentInterface)
    health: AgentHealth = field(default_factory=AgentHealth)
    dependencies: AgentDependencies = field(default_factory=AgentDependencies)
    supervision: Supervision = field(default_factory=Supervision)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    labels: Annotated[dict[str, str], Texts("anything, for people and selectors")] = field(
        default_factory=dict[str, str]
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        settling.settle(self)
        if flaws := list(checks.flaws(self)):
            raise ManifestError([Problem("", 0, dotted(one.key), one.message, one.hint) for one in flaws])

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "AgentManifest":
        """From a file: JSON if its name ends so, else TOML. ManifestError: all that is wrong with it, with lines."""
        from agent_os.manifest import reading

        return reading.load(path).manifest

    @classmethod
    def from_toml(cls, text: str | bytes, file: str = "") -> "AgentManifest":
        from agent_os.manifest import reading

        return reading.from_toml(text, file).manifest

    @classmethod
    def from_json(cls, text: str | bytes, file: str = "") -> "AgentManifest":
        from agent_os.manifest import reading

        return reading.from_json(text, file).manifest

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], file: str = "") -> "AgentManifest":
        """What a caller hands in, with every spelling that a file may have."""
        from agent_os.manifest import reading

        return reading.from_dict(tree, file).manifest

    def to_toml(self, *, full: bool = False) -> str:
        """What differs from the defaults, or everything."""
        from agent_os.manifest.writing import to_toml

        return to_toml(self, full=full)

    def to_json(self) -> str:
        """Everything, in seed 4's shape."""
        from agent_os.manifest.writing import section_json

        return section_json(self)
