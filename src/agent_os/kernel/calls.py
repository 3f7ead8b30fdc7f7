"""What a syscall is made of on the kernel's side: who calls, what authority it needs, how it is recorded, what it gave.

Data only. The gate and the dispatcher read it, subsystems fill it in; nothing here acts. Structs of msgspec, because a
few are made for every call and a dataclass takes four times as long to fill.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from msgspec import Raw, Struct

from agent_os.abi.errors import EIO, AgentOSError
from agent_os.abi.syscalls import Effect
from agent_os.drivers.store import Blob, Put

if TYPE_CHECKING:
    from agent_os.kernel.authority.handles import Handle, Holdings
    from agent_os.kernel.authority.labels import Label
    from agent_os.kernel.journal import Draft

CONNECTION = 0  # in place of a syscall's number: what an agent does by its proxy
SAID = "said"  # among the facts of a call: names of its file that links led away from
Answer = Callable[[Raw, AgentOSError | None], None]  # to a call, once
GO, PARK = object(), object()  # what a step of the gate says: go on, or wait for a person


class Stream(Protocol):
    """Chunks beside a call, in both directions, each bounded by the other side's credit."""

    async def send(self, value: Any) -> None:
        """Waits for credit. EPIPE: the other side is gone."""
        ...

    async def receive(self, *, credit: bool = True) -> Any:
        """The next chunk, None at its END. EPIPE: the other side is gone. Without `credit` the other side may not send
        more for it until `give`."""
        ...

    def give(self, count: int) -> None: ...

    @property
    def last_size(self) -> int:
        """Of the chunk last received, in bytes, as credit counts them."""
        ...


class Need(NamedTuple):
    """The authority that a call needs: one capability must cover all of it."""

    kind: str  # file, mem, tool, agent, …
    action: str
    target: str


class Way(Enum):
    """How a call is recorded."""

    RESULT = "result"  # act, then one entry, committed before the reply (D1)
    STORE = "store"  # its whole effect lies in the store: effect and outcome are one synced transaction (D2)
    EFFECT = "effect"  # intent synced, then the effect, then the outcome synced


class Done(Struct):
    """What acting gave: the value to answer with, and what the store must hold with its record."""

    value: Any = None
    puts: Sequence[Put] = ()
    blobs: Sequence[Blob] = ()
    kept: Any = None  # what the record keeps as the value, where that is something else
    label: "Label | None" = None  # of what was read or told of, where the kernel keeps one
    spent: Mapping[str, float] | None = None  # None: all that was reserved
    beside: "Sequence[Draft]" = ()  # entries that tell of what else came of it, right after its own


class Door(Struct):
    """For what is no syscall but a connection. The gate decides and records a refusal; whoever stands at the door
    writes what was allowed, looks again after every wait, and says what it came to (`Gate.confirm`, `tell`, `told`)."""

    find: "Callable[[Holdings], Sequence[Handle]]"  # what it rests on
    told: Mapping[str, Any]  # what was wanted, for the record of a refusal
    hides: str = ""  # a host, of which it may reach anything unseen
    leads: Sequence[Need] = ()  # the same under other names, once they are known; rules may be about those
    stream: bool = False  # what it sends is yet to come
    sends: bool = False  # a body, whatever its method promises


class Leave(Protocol):
    """The gate's word for a deed that takes time. It is there from the deed's first moment to its last."""

    def confirm(self) -> None:
        """After every wait. Raises what forbids it by now."""
        ...

    def commit(self) -> None:
        """The same before what cannot be taken back: from here on nobody stops it, nor does its deadline."""
        ...

    def grow(self, more: Mapping[str, int]) -> None:
        """Before it uses more than was known of when it began. EBUDGET: there is not so much."""
        ...

    async def bring(self, label: "Label | None") -> None:
        """Before its caller gets the first piece of something: it carries that now, and the record says so."""
        ...


class Act(Struct):
    """A call that has been understood: what it needs, how it is recorded, and the deed itself.

    Made without acting. `do` is a plain function where nothing is waited for, which costs no task; else it gives an
    awaitable. `record` is what the journal keeps of the request, if not the request itself; it must hold what `verify`
    needs. An exception of the AgentOSError family is the call's recorded outcome.
    """

    do: Callable[[], Done | Awaitable[Done]]
    needs: Sequence[Need] = ()
    way: Way = Way.RESULT
    effect: Effect = Effect.PURE
    record: Any = None
    can_stop: bool = True  # it may be cancelled, by its caller or its deadline, and then says truly how it ended
    facts: Mapping[str, Any] = {}  # about the call, for constraints: port, args, size, …
    cost: Mapping[str, float] = {}  # to be reserved before it happens
    blobs: Sequence[Blob] = ()  # what `record` names by its hash; stored with the intent
    lost: Mapping[str, float] | None = None  # what of that is spent where it fails; None: all
    ask: str = ""  # why a person must be asked first
    ask_s: float | None = None  # how long; None: as long as usual
    approval: str = ""  # the answer that it rests on, once there is one
    refused: Callable[[], None] | None = None  # called where the gate lets it do nothing
    answered: Callable[[], None] | None = None  # called when the record is committed, just before the answer leaves
    door: Door | None = None
    label: "Callable[[], Label | None] | None" = None  # of what it tells of where `Done` has none, so of an error too
    sinks: Sequence[Need] | None = None  # where what its caller carries goes, if not to all of its needs
    waits: Callable[[str], Mapping[str, Any]] | None = None  # what is told of it while that approval is waited for
    approved: Collection[str] = ()  # rules to which a person said yes for what this is a part of
    plan: Callable[[], Awaitable[None]] | None = None  # a look at the world, allowed but before the intent, which tells
    announced: Literal["", "first", "beside"] = ""  # an operator's change: told before it is begun, or as it is
    leave: Leave | None = None  # given by the gate to a deed that takes time


def leave_of(act: Act) -> Leave:
    if act.leave is None:
        raise EIO("gate.leave", "what takes time has no leave of the gate")
    return act.leave


class Asked(Struct):
    """One call as it arrived."""

    op: int
    raw: bytes  # the body as it was sent; what a replay is compared with
    id: int = 0
    cap: int | None = None
    deadline: float | None = None  # monotonic
    key: str | None = None
    pos: str | None = None
    seen: int = 0
    request: Any = None  # the body decoded, as the table says
    stream: Stream | None = None  # where the table says that chunks go beside the reply
    patience: float | None = None  # seconds that it waits for a person; None: as long as the question stands
