"""What the front doors ask: who may come in, as what, and what is looked at through them.

Request bodies of the operator range; the table in `syscalls.py` has their numbers. A secret (a token, a code, a
session, a ticket) goes in by HELLO only, so no body and no record of a call holds one; it comes out once, in the answer
to whoever asked for it.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from agent_os.abi.body import Body

Role = Literal["viewer", "auditor", "operator"]  # each may all that those before it may, but an auditor changes nothing
# What a HELLO may hold.
TOKEN, SESSION, CODE, TICKET = "aos_", "aoss_", "code:", "ticket:"


class Tokens(Body):
    """Tokens by name: each has name, role, created_ns, expires_ns, last_ns (when it last let somebody in) and
    connections. `add` answers also with `token`, which is shown this once. Removing one closes its connections."""

    do: Literal["list", "add", "remove"] = "list"
    name: str = ""
    role: Role = "viewer"
    ttl_s: float | None = None  # nil: until it is removed


class Session(Body):
    """How a browser is let in. `code` gives a code for the address of the dashboard, good for one HELLO; whoever comes
    with it may only `enter`, which gives a session, good until this kernel ends. `ticket` gives one more HELLO to the
    holder of a session or token. `leave` ends a session and closes its connections."""

    do: Literal["code", "enter", "ticket", "leave"]
    role: Literal["", "viewer", "auditor", "operator"] = ""  # of a code; empty: the caller's own


class Whoami(Body):
    """`via` is how the caller came in: local, token, session, ticket or code. `boot` is another at each start of the
    kernel."""


class Metrics(Body):
    """Counters since the kernel began, gauges of this moment, histograms of moments: each sample has a name (without
    the prefix that a door gives it), labels, and a value; a histogram has `buckets` of an upper bound and how many were
    at most as long, `sum` and `count`. No label names an agent."""


class Doctor(Body):
    """The machine examined as `agentctl doctor` does it; what was found lately is told again."""


class Gateway(Body):
    """The process that speaks HTTP. `start` answers when it listens: on `port`, or the next one that is free. One that
    runs is left as it is. Another address than loopback needs TLS. It is started again when it dies."""

    do: Literal["look", "start", "stop"] = "look"
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 7700  # 0: any
    last_port: Annotated[int, Meta(ge=0, le=65535)] = 7719
    names: list[str] = []  # that browsers may call it by
    cert: str | None = None  # files
    key: str | None = None
    limits: dict[str, float] = {}  # other than the usual ones, for measurements


class Memory(Body):
    """What an agent keeps below /mem, also one that has ended. `list` gives entries at or below `path`, in order: path,
    kind, size, version, writer, modified (ns), text, labels; `next` is what to give as `after`. `read` adds `data`, or
    sends it in chunks where it is large; it also reads a file below /work, while the agent has its workspace. `history`
    tells of one path, the newest change first, and of each whether its content can still be read. `search` wants every
    word of `query` in the path or the text, and shows where. `export` sends ["entry", facts] and its content in
    ["data", bytes] for each. `erase` removes an entry, or what is left of one, with all its versions and what the
    record holds of them; it tells how many, and what of the same is `left` elsewhere. What agents wrote is in `data`,
    `excerpt` and those chunks, and nowhere else."""

    agent: str
    do: Literal["list", "read", "history", "search", "write", "remove", "erase", "share", "export"] = "list"
    path: str = "/mem"
    version: int | None = None  # to be read
    as_of: int | None = None  # as it was after this entry of the journal: list, read, export
    as_of_ns: int | None = None  # the same by the wall clock
    after: str = ""
    max: int = 256
    query: str = ""
    data: Any = b""  # bytes or text
    mode: Literal["replace", "append", "create"] = "replace"
    if_version: int | None = None  # of write and remove; 0: it must not be there
    stream: bool = False  # the data follows in chunks
    to: str = ""  # share: with whom
    rights: Literal["r", "rw"] = "r"
    ttl_s: int | None = None
    end: bool = False  # the share is taken back
    reason: str = ""  # of erase: the record keeps it


CLIENT = "client:"  # how a HELLO begins that stands for an outside client, by a pass


class Clients(Body):
    """Programs outside that speak MCP with us, each an agent of role user without a process of ours. `register` says
    what one holds and may spend; `token` gives a token, shown this once, and `enter` a pass for one HELLO of a local
    process: whoever shows either acts as that client. `remove` ends it, with its tokens and connections. Each of
    `clients` has name, state, connections, capabilities, net, control, project, created_ns, by."""

    do: Literal["list", "register", "token", "enter", "remove"] = "list"
    name: str = ""
    capabilities: list[str] = []
    net: list[str] = []  # hosts, as of `agentctl run --net`
    budget: dict[str, int] = {}  # by resource
    control: bool = False  # it is offered the tools that control the OS: signal, wait, list
    project: dict[str, Any] = {}  # with these, also spawn: cwd, environment, python of its children, as in an order
    ttl_s: float | None = None  # of a token; nil: until it is removed
