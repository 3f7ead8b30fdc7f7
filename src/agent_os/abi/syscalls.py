"""The syscall table as data: number, name, what goes in, what comes out, and what may happen twice.

Dispatcher, client, userland and the reference page derive from it. Numbers are never reused. 1–63 are what agents may
ask, 64–127 belong to capabilities, budgets and secrets, 128–255 are operator operations, answered on the control
socket only. A body is a msgpack map with the field names of its struct; a field that the struct does not have is an
error, never ignored.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from agent_os.abi.body import Body as Body
from agent_os.abi.doors import Clients, Doctor, Gateway, Memory, Metrics, Session, Tokens, Whoami
from agent_os.abi.models import ModelRequest

FIRST_OPERATOR = 128
_NIL = Raw(b"\xc0")
_DAY_MS = 24 * 3600 * 1000
# Seconds. What is no number (`nan`) or has no end would stop every other clock of the kernel.
Grace = Annotated[float, Meta(ge=0, le=10**9)]


class Effect(StrEnum):
    """What a crash between the beginning of a call and its recorded outcome means for it."""

    PURE = "p"  # nothing happened; do it again
    IDEMPOTENT = "i"  # doing it again with the same key changes nothing
    VERIFIABLE = "v"  # whether it happened can be found out
    OPAQUE = "o"  # only a person can tell
    TOOL = "t"  # as the tool declares


class Syscall(Struct, frozen=True):
    number: int
    name: str
    request: type[Body]
    result: str  # what comes back, for readers
    effect: Effect
    summary: str
    stream: Literal["", "out", "in", "both"] = ""  # chunks beside the reply: from the kernel, to it
    large: bool = False  # its body and its answer may have more than a frame holds, and come in parts then

    @property
    def operator(self) -> bool:
        return self.number >= FIRST_OPERATOR


# What agents ask. Paths are VFS paths, resolved in the root bound to the calling socket.


class Read(Body):
    path: str | None = None
    handle: int | None = None
    offset: int = 0
    length: int | None = None
    version: int | None = None
    text: bool = False  # of a workspace file: UTF-8 or EINVAL


class Write(Body):
    path: str | None = None
    handle: int | None = None
    data: Any = b""  # bytes or text; what was written is what is read
    mode: Literal["replace", "append", "create"] = "replace"
    if_version: int | None = None
    stream: bool = False  # the data follows in chunks; it appears at END


class Open(Body):
    path: str
    flags: Literal["r", "w", "rw"] = "r"


class Close(Body):
    handle: int


class Exec(Body):
    """`tool` is a name, or `name@^1.2`. The answer is what the tool gave, its long texts cut; with `whole` it is a map
    as `abi.tools.ToolResult`, which also tells of the cuts and where all of it lies."""

    tool: str
    params: dict[str, Any] = {}
    dry_run: bool = False
    whole: bool = False
    wait_ms: int | None = None  # how long for a person, then EAPPROVAL approval.waiting; nil: while the question stands
    state: str = ""  # of an outside client: as approval.waiting gave it, for the same call


class Signal(Body):
    agent: str
    signal: int
    value: Any = None


class CheckPolicy(Body):
    op: int
    body: dict[str, Any] = {}


class Exit(Body):
    status: int = 0
    result: Any = None
    failure: str | None = None  # what went wrong, in a sentence


class Spawn(Body):
    manifest: dict[str, Any]
    input: Any = None
    caps: list[str] = []


class Wait(Body):
    agent: str | None = None  # any child


Lane = Literal["high", "normal", "low"]


class Send(Body):
    """A message to one agent. Who sends it, what that carries and how it is isolated is said by the kernel. Of a
    `stream`, which is all with the same `corr`, 64 messages or 256 KiB may be unacknowledged; then the call waits."""

    to: str
    payload: Raw = _NIL  # any value, at most 256 KiB
    type: Literal["event", "request", "response", "stream"] = "event"
    schema: str = ""
    lane: Lane = "normal"  # high needs `urgent`
    corr: str | None = None
    reply_to: str | None = None
    trace: str | None = None  # nil: its id
    ttl_ms: int = _DAY_MS
    deadline_ms: int | None = None  # from now
    key: str | None = None  # of two with the same key from one sender, one is handled
    more: list[Raw] = []  # payloads of further messages, alike in all else but the key, which they have none of


class Recv(Body):
    """Messages and events that wait for the caller. They are in its hand for `visible_ms`, or until SYS_ACK. Each has
    id, seq, sent_ns, sender, labels, isolation, to, type, schema, payload, lane, corr, reply_to, trace, ttl_ms,
    deadline_ms (what is left), key, deliveries and sub."""

    lanes: list[Lane] = []  # empty: all
    max: int = 1
    wait_ms: int | None = 0  # nil: for as long as it takes
    ack: list[str] = []  # done with these, before anything new is given
    visible_ms: int = 30_000


class Ack(Body):
    """What became of messages in hand. `nack`: again, after `delay_ms`. `extend`: in hand for `delay_ms` more, 30 s if
    that is 0. `reject`: a dead letter. `unknown` counts those that the caller does not have."""

    ids: list[str]
    verb: Literal["ack", "nack", "extend", "reject"] = "ack"
    delay_ms: int = 0
    reason: str = ""


class Subscribe(Body):
    """Events of a topic or filter (`*` one token, `>` the rest) come by SYS_RECV, or with `credit` as PUSH frames: so
    many at a time may be without SYS_ACK. In a group each event goes to one of its members. Any start but `new` needs
    `replay`."""

    topic: str = ""
    group: str = ""
    start: Literal["new", "first", "seq", "time"] = "new"
    at: int = 0  # the first sequence number, or nanoseconds of the wall clock
    sub: str = ""  # with `end`: of the subscription that is over; with `credit` alone: of the one that has another now
    end: bool = False
    credit: int = 0  # messages, at most 1,024


class Publish(Body):
    topic: str
    payload: Raw = _NIL
    schema: str = ""
    lane: Lane = "normal"
    corr: str | None = None
    trace: str | None = None
    ttl_ms: int = _DAY_MS
    key: str | None = None


class Request(Body):
    """A message whose response is waited for. `to` is an agent, or `topic/T`: then the least busy of those whose
    manifest has T as its `request_topic`. ETIMEDOUT: none came in time, and one that comes later is a dead letter.
    EDEADLK: whoever is asked waits for the caller."""

    to: str
    payload: Raw = _NIL
    schema: str = ""
    lane: Lane = "normal"
    trace: str | None = None
    deadline_ms: int = 60_000
    key: str | None = None


class Reply(Body):
    """The response to a request in hand, which is acknowledged with it."""

    request: str
    payload: Raw = _NIL
    schema: str = ""
    error: str | None = None  # a sentence: it could not be done


class Pipe(Body):
    """Agents one after the other, each asked with what the one before it gave. A stage has `agent`, `returns` (the type
    of what it gives; empty: none) and `checks`, each a list of types that may pass, nil for any. The first refusal ends
    it, and its detail names the `stage`; no later one has seen anything."""

    stages: list[dict[str, Any]]
    input: Raw = _NIL
    types: dict[str, Any] = {}  # by name, the JSON Schema of each that is not registered yet
    deadline_ms: int = 30_000  # for all of them


class Share(Body):
    path: str
    to: str
    rights: Literal["r", "rw"] = "r"
    ttl_s: int | None = None
    end: bool = False  # take it back


class List(Body):
    path: str
    after: str = ""
    max: int = 1000


class Stat(Body):
    path: str


class Remove(Body):
    path: str
    if_version: int | None = None


class Watch(Body):
    path: str
    recursive: bool = True
    since: int | None = None  # a journal sequence number
    end: bool = False


class Checkpoint(Body):
    name: str
    state: Any = None
    work: bool = True


class Sleep(Body):
    ms: int | None = None
    until_ns: int | None = None  # wall clock


class Now(Body):
    pass


class Random(Body):
    n: int = 16


class ApproveWait(Body):
    request: str
    wait_ms: int = 0


class Elevate(Body):
    """For more than the agent holds. It waits for a person; whatever is granted ends by itself."""

    caps: list[str]
    reason: str
    ttl_ms: int = 900_000


class Sigmask(Body):
    block: list[int] = []
    unblock: list[int] = []


class Ready(Body):
    pass


class Alive(Body):
    """The answer to a `ping` notice, or a word of one's own accord."""

    ok: bool = True
    why: str = ""  # it is not well


class Link(Body):
    """Both ways: if one of the two ends abnormally, so does the other, unless it traps exits."""

    agent: str
    end: bool = False  # unlink


class Monitor(Body):
    """One notice `monitor_down` with `ref`, `agent`, `pid`, `reason`, `class` and `detail` when it ends, or has."""

    agent: str = ""
    ref: int = 0  # with `end`: of the monitor that is over
    end: bool = False


class Trap(Body):
    """From now on the end of a linked agent is a notice `link_exit`."""

    on: bool = True


class Take(Body):
    """The next goal that was submitted for the caller; nothing, if none came in time."""

    wait_ms: int | None = None  # None: for as long as it takes


class Finish(Body):
    """A goal that the caller took is done, or has failed."""

    goal: str
    result: Any = None
    failure: str | None = None  # what went wrong, in a sentence


class Ask(Body):
    """A question to a person, who answers with a value; `schema` is that of the value, nil for text. EAPPROVAL: it was
    refused, expired or was cancelled, as its `outcome` says."""

    question: str
    schema: dict[str, Any] | None = None
    timeout_ms: int = 900_000


class Event(Body):
    """For people and other programs who look on, in the record. `kind` begins with `agent.`."""

    kind: str
    facts: dict[str, Any] = {}


class Left(Body):
    """What is left of the caller's budgets, and of those above it that bind it sooner."""


class Tools(Body):
    """What the caller may call, by name: each of `tools` as `abi.tools.ToolInfo`. A program outside is also told of
    `agents` that it may ask as if they were tools, by SYS_REQUEST: agent.NAME."""

    query: str = ""  # words of name, description or tags
    tag: str = ""


class Register(Body):
    """A tool for the caller and its descendants: `spec` as `abi.tools.ToolSpec`. Each call of it is a run of `code`, a
    Python program, in a sandbox of its own: it finds the parameters as JSON on its standard input and prints its result
    as JSON."""

    spec: dict[str, Any]
    code: str


class Think(ModelRequest, Body):
    """One model call. Its fields, and those of the reply, are in `abi/models.py`. With `stream` the events of the
    answer come as chunks before the reply, which is then `{reply, cuts}`: `cuts` has block and length of each text."""


# What operators ask.


class Status(Body):
    pass


class ListAgents(Body):
    all: bool = False  # ended ones as well


class Inspect(Body):
    agent: str


class Run(Body):
    """Start an agent and follow it. The client's chunks are its input: bytes, [rows, columns] of a resized terminal, or
    ["close", stream]: 0, the input has ended; 1 or 2, nobody reads that output any more. The kernel's chunks are
    ["started", facts], then [stream, bytes], ["notice", text], and at the end [what, entries] as in `Work`."""

    order: dict[str, Any]  # kernel/plan.py reads it: argv or file, cwd, env, workspace, mounts, net, limits …
    detach: bool = False


class Beside(Body):
    """Run a command in the sandbox of a running agent, with what the agent has and no more, and follow it. Chunks are
    those of `Run`; the client's ["signal", n] sends it SIGTERM (15) or SIGKILL (9). It ends with its client, and with
    the agent."""

    agent: str
    argv: list[Any]  # words: text, or bytes where that is no UTF-8
    env: list[Any] = []  # NAME=VALUE in the same way, beside what the agent finds in its own
    timeout: str | None = None  # 10s, 5m, 1h


class Tell(Body):
    """Send a signal, as the operator: nothing masks it. The reply comes when it is true."""

    agent: str
    signal: int
    reason: str = ""  # for whoever looks on, and the record


class Hold(Body):
    agent: str
    hold: bool = True  # False: let go
    reason: str = ""


class Snapshot(Body):
    agent: str
    name: str


class Await(Body):
    agent: str


class Down(Body):
    grace_s: Grace = 10.0


class Resolve(Body):
    """What really became of an effect whose outcome is unknown."""

    agent: str
    seq: int
    verdict: Literal["done", "not_done", "fail"]
    result: Any = None


class Events(Body):
    """Entries in order, as maps: the kernel's chunks are lists of them. With `follow`, for ever."""

    agent: str | None = None
    start: int = 0
    end: int | None = None
    last: int | None = None
    follow: bool = False
    bodies: bool = False


class Head(Body):
    """With `most` also `heads`: so many of those that were signed before, the newest first, each without its note."""

    most: int = 0
    below: int | None = None  # only heads of fewer entries than these: `size` of the last one that was listed


class Prove(Body):
    seq: int
    size: int | None = None


class Consistency(Body):
    first: int
    second: int | None = None


class Export(Body):
    """The kernel's chunks are the bytes of the file (abi/exports.py)."""

    end: int | None = None  # as of this entry
    bodies: bool = True


class CheckpointOf(Body):
    agent: str
    name: str = ""  # empty: the next number


class Replay(Body):
    """Dry: the program runs against its record, and nothing it asks for happens."""

    agent: str
    at: int | None = None  # up to this entry


class Backup(Body):
    """The kernel's chunks are [name, size] of a file, then its bytes, for each file of the copy."""


class Logs(Body):
    agent: str
    follow: bool = False
    last: int | None = None  # lines
    skip: int = 0  # bytes that are known already
    newest: bool = False  # only what its newest life writes
    since_ns: int = 0  # wall clock: what was written since then, to the second


class Release(Body):
    agent: str
    reason: str = ""


class Panic(Body):
    reason: str
    agent: str | None = None


class Leave(Body):
    adopt: bool = False  # `up`: stay, though somebody's run started you


class Work(Body):
    """Kept states of workspaces: all of them, or one looked at, committed, discarded. The kernel's chunks are
    [what, entries] (changes, committed, withheld, refused, conflicts, failed), ["patch", index, text] and
    ["progress", number]."""

    do: Literal["list", "diff", "commit", "discard"]
    name: str = ""  # empty: the latest one of `directory`
    directory: Any = ""
    patch: bool = False
    allow_protected: bool = False
    paths: list[Any] = []
    dry_run: bool = False
    digest: str | None = None  # of what the operator was shown


class Approvals(Body):
    """What waits for a person."""

    agent: str | None = None
    all: bool = False  # also what was answered, expired or cancelled lately


class Decide(Body):
    """A person's answer. `digest` is that of the question as it was shown; another one is refused."""

    approval: str
    outcome: Literal["approve", "deny"]
    digest: str
    scope: Literal["once", "session", "always"] = "once"
    reason: str = ""
    value: Any = None  # the answer to SYS_ASK


class Budgets(Body):
    agent: str | None = None


class Limit(Body):
    """What an agent and all below it may spend. Money is in millionths of a dollar."""

    agent: str
    limits: dict[str, int | None]  # by resource: cost, tokens, bytes, count, calls; None: without limit
    more: bool = False  # so much on top of what it may spend now
    reason: str = ""


class Cost(Body):
    """What was spent, added up from the record."""

    by: list[Literal["agent", "model", "day", "hour", "minute"]] = []  # empty: by agent
    since_ns: int = 0  # wall clock


class Secrets(Body):
    """The safe: names, ages, bindings and uses; never a value. One that is set or rotated comes in chunks of bytes
    beside the call, so that no record of the call can hold it."""

    do: Literal["list", "set", "rotate", "bind", "unbind", "remove"]
    name: str = ""
    hosts: list[str] = []  # to bind it to: `api.example.com`, `*.example.com`, `api.example.com:8443`
    header: str = ""  # where in a request it goes; neither: `authorization: Bearer VALUE`
    field: str = ""
    template: str = ""  # with `{}` where the value goes
    methods: list[str] = []  # empty: GET, HEAD, POST
    agents: list[str] = []  # empty: every agent that is given it


class Rules(Body):
    """The policy in force: its files, and what it says of one agent, or of everybody. The kernel's chunks are
    ["rules", entries]."""

    agent: str | None = None


class ApplyRules(Body):
    """New rules for the operator's own file, in chunks of bytes beside the call; without any, the files are read again
    as they are. What cannot be understood changes nothing."""

    back: bool = False  # the rules before the newest, in place of any that are sent
    digest: str | None = None  # of the policy that they are to replace; ECONFLICT: another one is in force


class Models(Body):
    """Providers of models, aliases, prices and limits. A key is the name of a secret, never its value."""

    do: Literal["list", "add", "remove", "alias", "price", "limit", "share", "test"]
    name: str = ""  # of a provider, an alias, a tenant (`share`), or for `price` and `test` a model: `provider/name`
    dialect: Literal["", "anthropic", "openai", "ollama"] = ""
    base: str = ""
    keys: list[str] = []
    api: Literal["auto", "chat", "responses"] = "auto"
    local: bool | None = None
    slots: int | None = None
    model: str | None = None  # what an alias stands for; nil: nothing any more
    prices: dict[str, float] = {}  # dollars for a million tokens: input, output, cached_read, cache_write; request
    limits: dict[str, float] = {}  # in a minute: requests, tokens, input_tokens, output_tokens; none: what is learned
    weight: float | None = None  # of a tenant's share; nil: 1, as anybody's


class Capabilities(Body):
    """What is held: by one agent, or by all; and people's answers that still stand."""

    agent: str | None = None
    tree: bool = False  # also what it was derived from, and what was derived from that


class Grant(Body):
    agent: str
    capability: str
    ttl_ms: int | None = None
    uses: int | None = None


class Revoke(Body):
    """What they opened is closed when the answer comes; a process with a mount is killed."""

    handles: list[str] = []  # c-12 of a capability, q-7 of a standing approval
    future_only: bool = False  # leave what is mounted to whoever has it
    reason: str = ""


class Explain(Body):
    """Every step of the gate, for an act that is written as a capability, for a child that an agent would spawn by a
    manifest, or for an entry of the journal."""

    agent: str = ""
    capability: str = ""
    manifest: dict[str, Any] = {}
    seq: int = 0


class Apply(Body):
    """Declare agents: all of these, or with any problem none. Each manifest comes as it is written, so that a problem
    has its line; its folder is where the agent works. Stored before anything is started, which goes on after the
    answer; one that runs and is changed is restarted. Each of `agents` has id, file, change (new, changed, same, gone)
    and keys, a list of [key, before, after]; `warnings` are sentences."""

    files: dict[str, str]  # absolute path → text; `.json` is JSON, the rest TOML
    prune: bool = False  # whoever was declared from one of the same folders and is not among these goes
    dry_run: bool = False  # only say what would change


class Delete(Body):
    """Stop declared agents in order, and forget them. Their record and their changes stay. The answer, when they are
    gone, is that of OP_APPLY."""

    agents: list[str]
    dry_run: bool = False


class Start(Body):
    """Start a declared agent by hand: clears its counters. The reply comes when it is ready, or cannot be."""

    agent: str


class Stop(Body):
    """The reply comes when nothing of it is left. One that has ended stays as it is."""

    agent: str
    grace_s: Grace | None = None  # None: as its manifest says
    force: bool = False  # neither drain nor ask
    reason: str = ""


class Restart(Body):
    """Stop, then start: a new life of the same agent. Clears its counters. The reply comes when it is ready."""

    agent: str
    grace_s: Grace | None = None
    reason: str = ""


class Declared(Body):
    """The agents of manifests, also those without a process, root first, children in the order of their start. Each
    has id, role, parent, index, wanted, state, why, until, incarnation, pid, consecutive, max_restarts,
    restarts_remaining, exhausted, policy, activation, strategy, ready, needs (whom it requires that cannot serve),
    health (a sentence), file (of those that are asked for by name); times are seconds of the wall clock."""

    agents: list[str] = []  # empty: all
    manifests: bool = False  # with the key `manifest`, its TOML
    labels: dict[str, str] = {}  # only those that have all of these


class History(Body):
    """The lives of an agent, oldest first: how each began and ended, and what was decided then. Each of `lives` has
    incarnation, level, began_ns, ready_ns, ended_ns, class, code, reason, decision, why, delay_ms; nil where it
    has not come to that."""

    agent: str
    last: int | None = None  # so many lives; at most the last 400


class Reach(Body):
    """Wait until a declared agent is ready, running, or over: stopped, completed, failed or quarantined. EBUSY: it is
    over, and will not be what is waited for."""

    agent: str
    state: Literal["ready", "running", "over"] = "over"


class Health(Body):
    """How the agents of manifests are. `overall` is a sentence; each of `agents` has agent, ready, waiting, health (a
    sentence), startup (how READY is known), checks, repeats (equal calls in a row) and uses: resource, value, limit."""

    agents: list[str] = []  # empty: all


class Submit(Body):
    """A goal: text, or a map with `text`, `agent`, `tenant`, `priority`, `deadline`, `budget`, `memory_mb`, `inputs`.
    The answer comes when the record holds it."""

    goal: Any


class Prioritize(Body):
    """Of one goal by its id, or of all goals of an agent."""

    target: str
    priority: str


class Queue(Body):
    """Goals that wait, first in order first, and those at which agents are."""

    all: bool = False  # also those that ended lately


class LookAtGoal(Body):
    goal: str
    wait: bool = False  # until it is over


class Withdraw(Body):
    """Take a goal away that still waits."""

    goal: str
    reason: str = ""


class Links(Body):
    """Who is linked to whom, and who monitors whom, as ids with their pids."""

    agent: str | None = None


class Post(Body):
    """A message of the operator to an agent, or an event on a topic. `wait`: for the response, which is the answer.
    `protocol`: only if the agent's manifest says that it is asked this way, and for no longer than it says."""

    to: str = ""
    topic: str = ""
    payload: Raw = _NIL
    schema: str = ""
    lane: Lane = "normal"
    key: str | None = None
    ttl_ms: int = _DAY_MS
    wait: bool = False
    deadline_ms: int = 60_000
    protocol: Literal["", "rest", "mcp"] = ""


class Bus(Body):
    """Mailboxes with what waits in them, subscriptions with their lag, open requests, dead letters by reason."""

    agent: str | None = None


class DeadLetters(Body):
    """Dead letters, oldest first: looked at, delivered once more, or dropped."""

    do: Literal["list", "redeliver", "drop"] = "list"
    letters: list[str] = []
    agent: str | None = None  # whose they were


class Topics(Body):
    """Topics that lose nothing: while a subscriber is too far behind, publishers are refused. `topic` says or takes
    back that those of a filter are; without it nothing changes."""

    topic: str = ""
    reliable: bool = True


class Listen(Body):
    """Events of a topic or filter, from now on: each of the kernel's chunks is one, as in SYS_RECV. The operator holds
    nobody up: one that reads too slowly is told of a gap."""

    topic: str
    start: Literal["new", "first", "seq", "time"] = "new"
    at: int = 0


class ToolsOf(Body):
    """The tools there are, by name, with health and figures. `agent`: what that one may call."""

    query: str = ""
    tag: str = ""
    agent: str | None = None
    name: str = ""  # all versions of one, each with its whole spec


class ToolCall(Body):
    """Call a tool as the operator, or with `agent` as that agent and by what it holds."""

    tool: str
    params: dict[str, Any] = {}
    agent: str | None = None
    dry_run: bool = False


class Mcp(Body):
    """Servers of the Model Context Protocol. `add` starts one and approves of the tools it has now; `test` asks it anew
    and holds what it lists against that; `approve` takes the listing of this digest, as `test` told it. A server is a
    command, which runs as a guest, or an address."""

    do: Literal["list", "add", "test", "approve", "remove"] = "list"
    name: str = ""
    order: dict[str, Any] = {}  # of a command, as of `Run`
    url: str = ""
    secret: str = ""  # brought to the address; it is bound to that host
    connect_s: float = 30.0
    call_s: float = 60.0
    listing: str = ""  # the digest that is approved of


_P, _I, _V, _O, _T = Effect.PURE, Effect.IDEMPOTENT, Effect.VERIFIABLE, Effect.OPAQUE, Effect.TOOL

TABLE: tuple[Syscall, ...] = (
    Syscall(1, "SYS_READ", Read, "data, version, size", _P, "Read an entry, or a part of it.", "out"),
    Syscall(2, "SYS_WRITE", Write, "version, size", _I, "Replace, append to or create an entry.", "in"),
    Syscall(3, "SYS_OPEN", Open, "handle", _P, "Get a handle to an entry."),
    Syscall(4, "SYS_CLOSE", Close, "", _P, "Give a handle back."),
    Syscall(5, "SYS_EXEC", Exec, "the tool's result", _T, "Run a tool.", "out"),
    Syscall(6, "SYS_SIGNAL", Signal, "delivered", _I, "Send a signal; answered when it is true."),
    Syscall(7, "SYS_CHECKPOLICY", CheckPolicy, "verdict, step, code, missing", _P, "Ask whether a call would pass."),
    Syscall(8, "SYS_EXIT", Exit, "no reply", _I, "End, with a result."),
    Syscall(9, "SYS_SPAWN", Spawn, "agent, level", _V, "Start a child agent."),
    Syscall(10, "SYS_WAIT", Wait, "agent, state, status, result, reason", _P, "Wait for a child to end."),
    Syscall(11, "SYS_SEND", Send, "id, seq, duplicate, ids", _I, "Send a message; answered once it is durable."),
    Syscall(12, "SYS_RECV", Recv, "messages", _P, "Get what was sent, or wait for it."),
    Syscall(13, "SYS_ACK", Ack, "unknown", _I, "Say what became of messages."),
    Syscall(14, "SYS_SUBSCRIBE", Subscribe, "sub", _I, "Hear of a topic, or not any more."),
    Syscall(15, "SYS_PUBLISH", Publish, "id, seq, duplicate", _I, "Tell everybody who subscribed."),
    Syscall(16, "SYS_REQUEST", Request, "the response, as in SYS_RECV", _I, "Ask an agent, and wait for its response."),
    Syscall(17, "SYS_REPLY", Reply, "late", _I, "Answer a request."),
    Syscall(18, "SYS_PIPE", Pipe, "output, type", _I, "Ask agents one after the other, with checks in between."),
    Syscall(19, "SYS_THINK", Think, "the reply, and what it cost", _P, "Call a model.", "out", large=True),
    Syscall(21, "SYS_SHARE", Share, "path", _I, "Let another agent see an entry."),
    Syscall(22, "SYS_LIST", List, "entries, more", _P, "List a directory, in order."),
    Syscall(23, "SYS_STAT", Stat, "kind, size, version, modified, rights, labels", _P, "Look at one entry."),
    Syscall(24, "SYS_REMOVE", Remove, "", _I, "Remove an entry."),
    Syscall(25, "SYS_WATCH", Watch, "watch", _P, "Get notices of changes."),
    Syscall(26, "SYS_CHECKPOINT", Checkpoint, "checkpoint", _I, "Keep the present state under a name."),
    Syscall(27, "SYS_SLEEP", Sleep, "", _P, "Wait; the time left survives a restart."),
    Syscall(28, "SYS_NOW", Now, "wall_ns, mono_ns", _P, "The time, the same again in a replay."),
    Syscall(29, "SYS_RANDOM", Random, "bytes", _P, "Random bytes, the same again in a replay."),
    Syscall(30, "SYS_APPROVE_WAIT", ApproveWait, "decision, by, at", _P, "Wait for a person's decision."),
    Syscall(31, "SYS_SIGMASK", Sigmask, "mask", _I, "Defer signals of other agents."),
    Syscall(32, "SYS_READY", Ready, "", _P, "Say that one can serve; only the first time counts."),
    Syscall(33, "SYS_ALIVE", Alive, "", _P, "Say that one is alive, and whether one is well."),
    Syscall(34, "SYS_LINK", Link, "", _I, "End together with another agent, or stop doing so."),
    Syscall(35, "SYS_MONITOR", Monitor, "ref", _I, "Be told when another agent ends, or not any more."),
    Syscall(36, "SYS_TRAP", Trap, "", _I, "Be told when a linked agent ends, and live on."),
    Syscall(37, "SYS_TAKE", Take, "id, text, inputs, priority, deadline", _P, "Wait for the next goal."),
    Syscall(38, "SYS_FINISH", Finish, "", _I, "Say that a goal is done."),
    Syscall(39, "SYS_ELEVATE", Elevate, "granted, expires_ns", _I, "Ask a person for more than one holds."),
    Syscall(40, "SYS_ASK", Ask, "value, by", _I, "Ask a person, and wait for the answer."),
    Syscall(41, "SYS_EVENT", Event, "", _P, "Tell whoever looks on."),
    Syscall(42, "SYS_LEFT", Left, "share, resource, left", _P, "What is left to spend."),
    Syscall(43, "SYS_TOOLS", Tools, "tools", _P, "List the tools that one may call."),
    Syscall(44, "SYS_REGISTER", Register, "name, version, digest", _I, "Add a tool for oneself and one's children."),
    Syscall(128, "OP_STATUS", Status, "the kernel at this moment", _P, "Look at the kernel."),
    Syscall(129, "OP_LIST", ListAgents, "agents", _P, "List agents."),
    Syscall(130, "OP_INSPECT", Inspect, "everything on one agent", _P, "Look at one agent."),
    Syscall(131, "OP_RUN", Run, "the outcome", _O, "Start an agent and follow it.", "both"),
    Syscall(132, "OP_SIGNAL", Tell, "processes, survivors, seconds", _I, "Send a signal that nothing masks."),
    Syscall(133, "OP_HOLD", Hold, "was", _I, "Hold an agent still, or let it go on."),
    Syscall(134, "OP_SNAPSHOT", Snapshot, "snapshot", _I, "Keep the state of a workspace under a name."),
    Syscall(135, "OP_WAIT", Await, "agent, state, status, result, reason", _P, "Wait for an agent to end."),
    Syscall(136, "OP_DOWN", Down, "no reply: the connection ends", _I, "Stop all agents, then the kernel."),
    Syscall(137, "OP_RESOLVE", Resolve, "", _I, "Say what became of an effect with unknown outcome."),
    Syscall(138, "OP_EVENTS", Events, "entries", _P, "Read the journal.", "out"),
    Syscall(139, "OP_HEAD", Head, "the newest signed head; heads", _P, "The newest signed head, and those before."),
    Syscall(140, "OP_PROVE", Prove, "proof", _P, "Prove that an entry is in the log."),
    Syscall(141, "OP_CONSISTENCY", Consistency, "proof", _P, "Prove that one head continues another."),
    Syscall(142, "OP_EXPORT", Export, "what the offline verifier reads", _P, "Export the log.", "out"),
    Syscall(143, "OP_CHECKPOINT", CheckpointOf, "checkpoint", _I, "Ask an agent for a checkpoint."),
    Syscall(144, "OP_REPLAY", Replay, "calls, first difference", _P, "Run an agent against its record."),
    Syscall(145, "OP_BACKUP", Backup, "a consistent copy", _P, "Copy journal and store.", "out"),
    Syscall(146, "OP_LOGS", Logs, "output", _P, "Read an agent's output.", "out"),
    Syscall(147, "OP_RELEASE", Release, "", _I, "End a quarantine."),
    Syscall(148, "OP_PANIC", Panic, "", _I, "Quarantine an agent, or hold all and halt."),
    Syscall(149, "OP_LEAVE", Leave, "ending", _I, "Say that this client is done."),
    Syscall(150, "OP_WORK", Work, "states, changes or a report", _I, "Look at, commit or discard changes.", "out"),
    Syscall(151, "OP_TOKENS", Tokens, "tokens, token", _I, "List tokens, add one or remove it."),
    Syscall(152, "OP_SESSION", Session, "code, session or ticket", _I, "Let a browser in, or out."),
    Syscall(153, "OP_WHOAMI", Whoami, "name, role, boot, version, via", _P, "Say who the caller is here."),
    Syscall(154, "OP_METRICS", Metrics, "counters, gauges, histograms", _P, "Count what happened and what there is."),
    Syscall(155, "OP_GATEWAY", Gateway, "gateway", _I, "Start the gateway, stop it, or look at it."),
    Syscall(156, "OP_DOCTOR", Doctor, "level, ok, checks", _P, "Examine this machine."),
    Syscall(157, "OP_EXEC", Beside, "code, ending, seconds", _O, "Run a command in an agent's sandbox.", "both"),
    Syscall(160, "OP_APPROVALS", Approvals, "approvals", _P, "List what waits for a person's decision."),
    Syscall(161, "OP_DECIDE", Decide, "the approval", _I, "Approve or deny a call that waits."),
    Syscall(162, "OP_BUDGETS", Budgets, "accounts", _P, "Look at what may be spent, and what is."),
    Syscall(163, "OP_LIMIT", Limit, "the account", _I, "Say how much an agent may spend."),
    Syscall(164, "OP_COST", Cost, "rows, total", _P, "Add up what was spent."),
    Syscall(170, "OP_SECRETS", Secrets, "names, bindings, uses", _I, "Keep, bind, rotate or remove secrets.", "in"),
    Syscall(180, "OP_CAPABILITIES", Capabilities, "capabilities, standing", _P, "Look at who holds what."),
    Syscall(181, "OP_GRANT", Grant, "the capability", _I, "Give an agent a capability."),
    Syscall(182, "OP_REVOKE", Revoke, "revoked, closed, killed", _I, "Take capabilities back, with all they opened."),
    Syscall(183, "OP_EXPLAIN", Explain, "verdict, steps", _P, "Say what the gate answers, step by step."),
    Syscall(190, "OP_RULES", Rules, "the policy in force", _P, "Look at the policy in force.", "out"),
    Syscall(191, "OP_APPLY_RULES", ApplyRules, "the policy in force", _I, "Change the operator's rules.", "in"),
    Syscall(195, "OP_MODELS", Models, "providers, aliases, waiting", _I, "Say which models there are, and try them."),
    Syscall(200, "OP_APPLY", Apply, "agents, warnings, applied", _I, "Declare agents by their manifests."),
    Syscall(201, "OP_DELETE", Delete, "agents", _I, "Stop declared agents and forget them."),
    Syscall(202, "OP_START", Start, "agent, state, incarnation, pid", _I, "Start a declared agent."),
    Syscall(203, "OP_STOP", Stop, "agent, state, was, seconds", _I, "Stop a declared agent, and keep it so."),
    Syscall(204, "OP_RESTART", Restart, "agent, state, incarnation, pid", _I, "Give an agent a new life."),
    Syscall(205, "OP_DECLARED", Declared, "agents", _P, "Look at the declared agents."),
    Syscall(206, "OP_HISTORY", History, "agent, lives", _P, "Look at the lives of one agent."),
    Syscall(207, "OP_REACH", Reach, "agent, state, why", _P, "Wait until an agent is ready, or over."),
    Syscall(210, "OP_HEALTH", Health, "overall, agents", _P, "Look at the health of agents."),
    Syscall(215, "OP_SUBMIT", Submit, "id, agent, picked_by", _I, "Give a goal to the agent it fits best."),
    Syscall(216, "OP_PRIORITIZE", Prioritize, "goals", _I, "Say how urgent goals are."),
    Syscall(217, "OP_QUEUE", Queue, "waiting, working, ended", _P, "Look at the goals."),
    Syscall(218, "OP_GOAL", LookAtGoal, "the goal", _P, "Look at one goal, or wait for its end."),
    Syscall(219, "OP_WITHDRAW", Withdraw, "the goal", _I, "Take back a goal that waits."),
    Syscall(220, "OP_LINKS", Links, "links, monitors", _P, "Look at links and monitors."),
    Syscall(225, "OP_POST", Post, "id, or the response", _I, "Send a message as the operator."),
    Syscall(226, "OP_BUS", Bus, "mailboxes, subscriptions, requests, dead", _P, "Look at the bus."),
    Syscall(227, "OP_DEAD", DeadLetters, "letters", _I, "Look at dead letters, redeliver or drop them."),
    Syscall(228, "OP_LISTEN", Listen, "events", _P, "Follow a topic.", "out"),
    Syscall(229, "OP_TOPICS", Topics, "reliable", _I, "Say which topics lose nothing."),
    Syscall(230, "OP_MEMORY", Memory, "entries or content", _I, "Look at an agent's memory, or change it.", "both"),
    Syscall(240, "OP_TOOLS", ToolsOf, "tools", _P, "Look at the tools."),
    Syscall(241, "OP_CALL", ToolCall, "as abi.tools.ToolResult", _O, "Call a tool."),
    Syscall(242, "OP_MCP", Mcp, "servers", _I, "Add, test and remove MCP servers."),
    Syscall(243, "OP_CLIENTS", Clients, "clients", _I, "Say which programs outside may come, and as what."),
)

BY_NUMBER = {one.number: one for one in TABLE}
BY_NAME = {one.name: one for one in TABLE}
BY_REQUEST = {one.request: one for one in TABLE}

# Numbers that are promised and not there yet; asking for one is ENOSYS with this word.
LATER = {
    20: "search comes with memory",
}
