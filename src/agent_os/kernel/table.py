"""The process table: every agent by id, and the numbers that never come back.

An agent is an id (`namespace/name`) that outlives its processes; each process is an incarnation with a pid of ours,
ascending and never reused. Everything lasting belongs to the id. Owns the rows and their states; starts and stops
nothing.
"""

import asyncio
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Struct, field

from agent_os.abi.errors import EBUSY, EEXIST, EINVAL, ESRCH, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import AgentState, ExitClass, Incarnation, moved, printed
from agent_os.abi.syscalls import Exit
from agent_os.drivers.store import Put, Store
from agent_os.kernel.allowance import Allowance
from agent_os.kernel.authority.handles import Holdings
from agent_os.kernel.authority.labels import UNLABELLED, Label

if TYPE_CHECKING:
    from agent_os.kernel.supervisor.watch import Watch
    from agent_os.kernel.vfs import Root

NAMESPACE = "default"
SYSTEM = "system"  # where a name is looked for that its caller's namespace does not have
ROOT_PID = 1  # of `system/root`, which is kernel code and has no row
OURS = frozenset({"host", "kernel", "operator", "root"})  # a log, an account, whoever signs where no agent does
MAX_PROCESSES = 1024
MOST_GENERATIONS = 8  # below an agent that an operator started
MOST_ENDED = 1000  # rows of agents that ended, for whoever asks soon after
_LONGEST_NAME = 127  # with its namespace
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
AgentKind = Literal["native", "guest", "context"]
Party = tuple[str, str]  # a name and a role: whom a rule can be about


class Running(Protocol):
    """The process behind an agent. Each returns when it is true."""

    async def freeze(self) -> bool: ...

    async def thaw(self) -> bool: ...

    async def destroy(self) -> int:
        """Every process of it is gone; how many there were."""
        ...

    async def finish(self) -> None:
        """It said that it ends: wait a moment for that, then make it."""
        ...

    def host_signal(self, number: int) -> None: ...


class Line(Protocol):
    """Where an agent's deliveries go: its socket, or the program that embeds us."""

    def push(self, what: str, body: Any) -> None: ...

    def bye(self, error: AgentOSError) -> None: ...


class Clock:
    """Runs while its agent does: it stands still while the agent is held."""

    def __init__(self) -> None:
        self._since, self._before = time.monotonic(), 0.0
        self.awake = asyncio.Event()
        self.awake.set()
        self.changed: Callable[[bool], None] = lambda awake: None

    @property
    def seconds(self) -> float:
        return self._before + (time.monotonic() - self._since if self.awake.is_set() else 0.0)

    def stop(self) -> None:
        was, self._before = self.awake.is_set(), self.seconds
        self.awake.clear()
        if was:
            self.changed(False)

    def go_on(self) -> None:
        was, self._since = self.awake.is_set(), time.monotonic()
        self.awake.set()
        if not was:
            self.changed(True)

    async def sleep(self, seconds: float) -> None:
        end = self.seconds + seconds
        while (left := end - self.seconds) > 0:
            await asyncio.sleep(left)
            await self.awake.wait()


class Agent(Struct, eq=False):
    """One row: what the kernel knows of an agent now."""

    id: str
    kind: AgentKind
    pid: int
    incarnation: int
    isolation: str  # S0…S4, or none
    parent: str | None
    holdings: Holdings  # over all its lives
    restarted_from: int | None = None  # the pid of its incarnation before this
    root: "Root | None" = None
    line: Line | None = None
    running: Running | None = None
    life: Incarnation = Incarnation.STARTING
    detail: str = ""  # what refines the state: replaying, parked, quarantined, …
    quarantined: bool = False
    held: bool = False  # by operator or kernel; no agent lifts it
    stopped: bool = False  # by an agent's SIGSTOP
    asleep: bool = False  # it has no process until it may go on: it stood still over a restart, or crashed just now
    fate: "Ended | None" = None  # how it is about to be ended, by us
    exit: "Ended | None" = None
    lasting: bool = False  # it has exited, and lives again
    mask: set[AgentSignal] = field(default_factory=set[AgentSignal])
    pending: dict[AgentSignal, list[Any]] = field(default_factory=dict[AgentSignal, list[Any]])
    first_aseq: int = 1  # where the record of this life begins: after the last end for good
    delivered: int = 0  # recorded deliveries so far, over all incarnations
    order: dict[str, Any] = field(default_factory=dict[str, Any])  # what it was started with
    last_words: Exit | None = None  # it said that it ends, and how
    silent: asyncio.Event = field(default_factory=asyncio.Event)  # its socket has been read to the end
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # its end is on the record
    next_life: "asyncio.Task[Any] | None" = None  # it is being started again
    clock: Clock = field(default_factory=Clock)
    watch: "Watch | None" = None  # of its health, if a manifest says so
    program: str = ""  # what it was started from, as a digest; a guest's code is in none
    named_hosts: frozenset[str] = frozenset()  # that a person named when they started it
    allowance: Allowance = field(default_factory=Allowance)  # of the journal; one for it and all that descend from it
    above: tuple[Party, ...] = ()  # its parent, that one's parent, and so on
    outside: bool = False  # a program elsewhere acts as it, over the control socket

    operator = False

    @property
    def files(self) -> "Root":
        """The root in which its paths are looked up."""
        if self.root is None:
            raise EINVAL("vfs.none", "this agent has no file tree")
        return self.root

    @property
    def name(self) -> str:
        return bare(self.id)

    @property
    def namespace(self) -> str:
        return self.id.partition("/")[0]

    @property
    def roles(self) -> tuple[str, ...]:
        """Its role, and with a custom one that whose rules it has as well. None, if no manifest gave it one."""
        return tuple(self.order.get("roles", ()))

    @property
    def role(self) -> str:
        return next(iter(self.roles), "")

    @property
    def parties(self) -> tuple[Party, ...]:
        """Whose rules hold for it: a child chooses its own name and role, and is bound by what binds those above."""
        name = self.name
        return (*((name, role) for role in self.roles or ("",)), *self.above)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.parties))

    @property
    def state(self) -> AgentState:
        if self.exit:
            return AgentState.COMPLETED if self.exit.normal else AgentState.FAILED
        if self.life is Incarnation.STARTING or self.detail in ("replaying", "backoff"):
            return AgentState.PENDING
        return (
            AgentState.PAUSED if self.life is Incarnation.SUSPENDED or self.detail == "parked" else AgentState.RUNNING
        )

    def become(self, life: Incarnation) -> None:
        self.life = moved(self.life, life)


class Ended(Struct, frozen=True):
    """How an incarnation ended. `code`: as returned, −n for a host signal, −1 if the kernel killed it."""

    exit_class: ExitClass
    code: int
    reason: str = ""
    result: Any = None
    difference: Mapping[str, Any] | None = None  # record and call side by side, where a replay differed
    label: Label = UNLABELLED  # what it carried, and so what its result and its reason carry

    @property
    def normal(self) -> bool:
        return self.exit_class in (ExitClass.NORMAL, ExitClass.REQUESTED)


class Actor(Struct, eq=False):
    """Somebody at a door. Holds no handles: its role decides."""

    id: str  # local:1000, token:anna
    pid: int | None = None  # of the process at the other end
    incarnation: int = 0
    isolation: str = ""
    delivered: int = 0
    quarantined: bool = False
    leaving: bool = False  # it said that it is done
    name: str = ""  # as people call it
    role: str = "operator"
    via: str = "local"  # token, session, ticket, code: what it showed
    token: str = ""  # the name of that on which all of this rests
    session: bytes = b""  # which one, by its hash
    entered: bool = False  # its code gave it a session

    operator = True

    def __post_init__(self) -> None:
        self.name = self.name or self.id

    @property
    def described(self) -> str:
        """To somebody who wonders who did that."""
        return f"process {self.pid}" if self.via == "local" else self.name

    @property
    def actor(self) -> str:
        return self.id


Caller = Agent | Actor


class Claim(Struct, eq=False):
    """A place that is taken by nobody yet."""

    parent: str


class Table:
    """Rows of live agents, and of those that ended last: the record knows of all, and a table is gone through often."""

    def __init__(self, store: Store, holdings: Callable[[str], Holdings] = Holdings) -> None:
        self.most = MAX_PROCESSES  # alive at once
        self._holdings = holdings
        self._rows: dict[str, Agent] = {}
        self._allowances: dict[str, Allowance] = {}
        self._claims: dict[str, Claim] = {}  # of those that are being started, and have no row yet
        self._store = store
        self._last_pid = max(ROOT_PID, _number(store.get("table", "pid")))

    def admit(self, name: str, kind: AgentKind, *, parent: str | None = None, isolation: str = "") -> Agent:
        """A row for the next incarnation of an id. EEXIST while one lives; EBUSY when the table is full."""
        agent_id = qualified(name)
        old = self._rows.get(agent_id)
        if old and not old.exit:
            raise EEXIST("agent.exists", f"{old.name} is running already", hint="choose another name")
        alive = len(self.alive())
        if alive >= self.most:
            raise EBUSY("table.full", f"{self.most} agents are alive, and more are not admitted")
        if len(self._rows) - alive > MOST_ENDED:
            self._forget_oldest()
        self._last_pid += 1
        incarnation = _number(self._store.get("incarnations", agent_id)) + 1 if old is None else old.incarnation + 1
        agent = Agent(agent_id, kind, self._last_pid, incarnation, isolation, parent, self._holdings(agent_id))
        agent.restarted_from = (old.pid if old else _number(self._store.get("pids", agent_id))) or None
        agent.above = self.parties(parent) if parent else ()
        agent.first_aseq = _number(self._store.get("lives", agent_id)) or 1
        agent.allowance = self._allowances[agent_id] = self._allowances.get(parent or agent_id) or agent.allowance
        self._claims.pop(agent_id, None)
        self._rows.pop(agent_id, None)  # in the order of their coming
        self._rows[agent_id] = agent
        return agent

    def _forget_oldest(self) -> None:
        ended = [row for row in self._rows.values() if row.exit and row.gone.is_set() and not row.lasting]
        for row in ended[: len(ended) - MOST_ENDED * 9 // 10]:
            self.forget(row)
            self._allowances.pop(row.id, None)

    def puts(self, agent: Agent) -> list[Put]:
        """What the store must hold with the entry that tells of this incarnation."""
        count = str(agent.incarnation).encode()
        parent = Put("parents", agent.id, (agent.parent or "").encode())
        roles = Put("roles", agent.id, " ".join(agent.roles).encode() or None)
        own = Put("pids", agent.id, str(agent.pid).encode())
        last = Put("table", "pid", str(self._last_pid).encode())
        return [last, own, Put("incarnations", agent.id, count), parent, roles]

    @contextmanager
    def claimed(self, agent_id: str, parent: str) -> Generator[None]:
        """A place for a child that is being started: it counts from here on, and nobody else gets its id."""
        if not self.is_free(agent_id):
            raise EEXIST("id", f"{bare(agent_id)} is running already", hint="choose another name")
        claim = self._claims[agent_id] = Claim(parent)
        try:
            yield
        finally:
            if self._claims.get(agent_id) is claim:  # else it has a row, or somebody else has the next claim
                del self._claims[agent_id]

    def knows(self, agent_id: str) -> bool:
        """Somebody has that id, or had it."""
        return self._store.get("incarnations", agent_id) is not None or agent_id in self._rows

    def unused(self, names: Iterator[str], namespace: str = NAMESPACE) -> str:
        """The first name that nobody has or had. Whoever bears that of an ended agent is its next life to all who ask
        for that one, and finds what it kept."""
        ids = ((name, qualified(name, namespace=namespace)) for name in names)
        return next(name for name, agent_id in ids if not self.knows(agent_id) and agent_id not in self._claims)

    def is_free(self, agent_id: str) -> bool:
        """Nobody of that id lives, lives again, or is being started."""
        return agent_id not in self._claims and self.over(agent_id)

    def family(self, parent: str) -> int:
        """How many children an agent has that live, live again, or are being started."""
        alive = sum(not self.over(child.id) for child in self.children(parent))
        return alive + sum(one.parent == parent for one in self._claims.values())

    def taken(self) -> int:
        """Of all places there are."""
        return len(self.alive()) + len(self._claims)

    def require_own_name(self, name: str, parent: str) -> None:
        """What an agent kept belongs to its id: whoever may start children must not start one as somebody else's."""
        agent_id = qualified(name)
        if self.knows(agent_id) and (self._store.get("parents", agent_id) or b"").decode() != parent:
            raise EEXIST(
                "agent.name", f"{name!r} is the name of an agent that is not yours", hint="choose another name"
            )

    def forget(self, agent: Agent) -> None:
        if self._rows.get(agent.id) is agent:
            del self._rows[agent.id]

    def find(self, name: str, *, hint: bool = True, namespace: str = NAMESPACE) -> Agent:
        """`hint`: names of others may be told, which is for operators. `namespace`: the caller's."""
        agent = self._rows.get(self.meant(name, namespace))
        if agent is None:
            near = _nearest(name, self._rows) if hint and len(name) <= _LONGEST_NAME else ""
            raise ESRCH("agent.unknown", f"there is no agent {name[:_LONGEST_NAME]!r}", hint=near)
        return agent

    def find_alive(self, name: str, *, hint: bool = True, namespace: str = NAMESPACE) -> Agent:
        agent = self.find(name, hint=hint, namespace=namespace)
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")
        return agent

    def meant(self, name: str, namespace: str = NAMESPACE) -> str:
        """The id that a name means to somebody of a namespace: one of their own, then the system's."""
        own = qualified(name, strict=False, namespace=namespace)
        system = qualified(name, strict=False, namespace=SYSTEM)
        return system if own not in self._rows and system in self._rows else own

    def row(self, agent_id: str | None) -> Agent | None:
        """Of its newest life, if that is still known."""
        return self._rows.get(agent_id) if agent_id else None

    def living(self, agent_id: str | None) -> Agent | None:
        """The same, unless it has ended."""
        row = self.row(agent_id)
        return row if row and not row.exit else None

    def alive(self) -> list[Agent]:
        return [agent for agent in self._rows.values() if not agent.exit]

    def children(self, parent: str) -> list[Agent]:
        return [agent for agent in self._rows.values() if agent.parent == parent]

    def over(self, agent_id: str) -> bool:
        """It has ended for good."""
        row = self._rows.get(agent_id)
        return row is None or (row.exit is not None and not row.lasting)

    def parties(self, agent_id: str) -> tuple[Party, ...]:
        """As `Agent.parties`, also of one that ended: then as the store has it."""
        line: list[Party] = []
        seen: set[str] = set()
        above: str | None = agent_id
        while above and above not in seen:
            seen.add(above)
            row = self._rows.get(above)
            roles = row.roles if row else tuple((self._store.get("roles", above) or b"").decode().split())
            line += ((bare(above), role) for role in roles or ("",))
            above = row.parent if row else (self._store.get("parents", above) or b"").decode()
        return tuple(line)

    def names(self, agent_id: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.parties(agent_id)))

    def generation(self, agent_id: str) -> int:
        """How many are above it."""
        count, row = 0, self._rows.get(agent_id)
        while row and row.parent and count < len(self._rows):
            count, row = count + 1, self._rows.get(row.parent)
        return count

    def descends(self, agent: Agent, ancestor: str) -> bool:
        seen: set[str] = set()
        above = agent.parent
        while above and above not in seen:
            if above == ancestor:
                return True
            seen.add(above)
            row = self._rows.get(above)
            above = row.parent if row else None
        return False

    def __iter__(self) -> Iterator[Agent]:
        return iter(list(self._rows.values()))


def qualified(name: str, *, strict: bool = True, namespace: str = NAMESPACE) -> str:
    """The id that a name means. A bare name is in its caller's namespace; an operator's is the default one."""
    place, slash, last = name.rpartition("/")
    if strict and not (_NAME.fullmatch(last) and (not slash or _NAME.fullmatch(place))):
        hint = "lower-case letters, digits, '.', '_' and '-', at most 63, beginning with a letter or digit"
        raise EINVAL("agent.name", f"{name!r} is no name for an agent", hint=hint)
    return name if slash else f"{namespace}/{name}"


def bare(agent_id: str) -> str:
    """As people call it: without the namespace that is meant where none is written."""
    return agent_id.removeprefix(f"{NAMESPACE}/")


def as_file(name: str) -> str:
    """What an agent is called where that is the name of a file, a log or a group: no name has this letter in it."""
    return bare(name).replace("/", "~")


def from_file(name: str) -> str:
    """The way back, to what people call it."""
    return name.replace("~", "/")


def _number(data: bytes | None) -> int:
    return int(data) if data else 0


def _nearest(name: str, rows: dict[str, Agent]) -> str:
    from difflib import get_close_matches

    names = [agent.name for agent in rows.values() if not agent.exit]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "agentctl ps lists who is running"


class Row(msgspec.Struct):
    """An agent as doors show it."""

    name: str
    id: str
    kind: str
    state: str
    detail: str
    pid: int
    incarnation: int
    isolation: str
    parent: str | None
    role: str = ""
    life: str = ""  # of this incarnation: running, exited(42)
    restarted_from: int | None = None


def shown(agent: Agent) -> Row:
    detail = agent.exit.reason or agent.exit.exit_class if agent.exit else agent.detail
    facts = (agent.pid, agent.incarnation, agent.isolation, agent.parent, agent.role)
    life = printed(agent.life, agent.exit.code if agent.exit else None)
    return Row(agent.name, agent.id, agent.kind, agent.state, detail, *facts, life, agent.restarted_from)
